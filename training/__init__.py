"""Where shipped weights come from. Not part of the installed package."""
