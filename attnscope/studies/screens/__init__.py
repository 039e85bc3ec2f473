"""What the screens of several studies share."""
