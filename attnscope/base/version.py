"""The version of attnscope."""

__version__ = "0.1.0"
