"""Reports in; terminal screens and files out. Nothing here imports torch."""
