"""The transformer and its attention, in torch."""

import os

from attnscope.base.system.malloc import configure_malloc

# What torch and oneDNN prepare for a shape of matrices takes MiBs, and a long causal text has many shapes: oneDNN keeps
# as many as a text of 2,048 tokens uses again in every layer, and torch, which would keep them once more, one. Both
# look when they multiply for the first time.
for _limit, _most in (("LRU_CACHE_CAPACITY", "1"), ("ONEDNN_PRIMITIVE_CACHE_CAPACITY", "32")):
    os.environ.setdefault(_limit, _most)
configure_malloc()
