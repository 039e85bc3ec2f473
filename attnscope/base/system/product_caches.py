"""Limit the caches of torch and oneDNN for matrix products.

What they prepare for a shape of matrices takes MiBs, and a long causal text has many shapes: oneDNN keeps as many as a
text of 2,048 tokens uses again in every layer, and torch, which would keep them once more, one.
"""

import os
from collections.abc import Iterator
from contextlib import contextmanager

_LIMITS = {"LRU_CACHE_CAPACITY": "1", "ONEDNN_PRIMITIVE_CACHE_CAPACITY": "32"}


@contextmanager
def small_product_caches() -> Iterator[None]:
    """Set the limits in the environment, which is read when a thread multiplies for the first time.

    Afterwards the environment is as it was: the caller's own programs do not inherit them.
    """
    added = {name: value for name, value in _LIMITS.items() if name not in os.environ}
    os.environ.update(added)
    try:
        yield
    finally:
        for name in added:
            os.environ.pop(name, None)
