"""The functions behind the commands, for Python."""
