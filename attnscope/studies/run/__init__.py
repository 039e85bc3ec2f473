"""The screen of a run."""
