"""Layers without softmax: their exact matrix from tokens to tokens."""
