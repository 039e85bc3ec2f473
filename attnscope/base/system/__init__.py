"""Functions that differ between operating systems, each with a portable form. Imports nothing of attnscope."""
