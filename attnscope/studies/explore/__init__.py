"""Scenes for walks: what `views/walk` shows, made from saved findings or computed on demand by a live model."""
