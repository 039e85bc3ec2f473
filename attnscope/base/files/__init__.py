"""Reading files strictly and writing them atomically; text files and mask files."""
