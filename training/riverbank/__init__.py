"""The recipe of the sample weights: `python -m training.riverbank`."""
