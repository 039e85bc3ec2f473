"""The arithmetic of one query of one head."""
