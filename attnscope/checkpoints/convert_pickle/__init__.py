"""Pickled weights, converted to safetensors by a process of their own that runs no code from them."""
