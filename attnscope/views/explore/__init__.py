"""The walk in a terminal: textual widgets that draw what `views/walk` says."""
