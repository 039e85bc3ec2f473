"""Queries, keys and values, or weights, that another program computed: given as arrays or as a file of them."""
