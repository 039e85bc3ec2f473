"""Tokens in, tiles of attention out: the part of the program where torch lives."""
