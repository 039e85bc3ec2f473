"""Queries, keys, values and weights that another program computed."""
