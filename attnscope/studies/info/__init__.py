"""The screen of a model's description."""
