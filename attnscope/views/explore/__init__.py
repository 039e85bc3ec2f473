"""The walk in a terminal: textual widgets that draw the scenes of `views/walk`."""
