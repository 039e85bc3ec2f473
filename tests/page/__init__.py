"""Pages: what they hold, and what a browser shows of it."""
