"""Masks: what the terms of a mask expression mean, and how an expression is read. Knows neither torch nor NumPy."""
