"""Tokens in, tiles of attention out: the part of the program where torch lives."""

import os

from attnscope.heap import settle

# What torch and oneDNN prepare for a shape of matrices takes MiBs, and a long causal text has many shapes: oneDNN keeps
# the last few, which every layer of a short text uses again, and torch, which keeps them once more, one. Both look when
# they multiply for the first time.
for _limit, _most in (("LRU_CACHE_CAPACITY", "1"), ("ONEDNN_PRIMITIVE_CACHE_CAPACITY", "16")):
    os.environ.setdefault(_limit, _most)
settle()
