"""What differs between operating systems: files, memory, terminal text. Imports nothing of attnscope."""
