"""What differs between operating systems, each part with a portable form. Imports nothing of attnscope."""
