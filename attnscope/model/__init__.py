"""Tokens in, tiles of attention out: the part of the program where torch lives."""

import os

# What torch and oneDNN prepare for a shape of matrices takes a MiB and more, and a long causal text has many shapes:
# only the last few are worth remembering. Both look when they multiply for the first time.
for _limit in ("LRU_CACHE_CAPACITY", "ONEDNN_PRIMITIVE_CACHE_CAPACITY"):
    os.environ.setdefault(_limit, "32")
