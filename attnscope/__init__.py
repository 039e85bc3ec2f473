"""attnscope: see what attention does inside a transformer."""

__version__ = "0.1.0"
