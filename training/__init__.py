"""How the shipped weights were trained. Not part of the installed package."""
