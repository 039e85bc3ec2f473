"""Limit what libraries keep: blocks that glibc's malloc frees, and what torch and oneDNN prepare for products.

By default, glibc adapts to the sizes of freed blocks. A tile's block may then be requested from the system and returned
again and again, which takes longer than the computation on it, and a layer's tensors may leave holes that are never
returned. So blocks of a tile's size are kept, and those of a layer's size returned.

What is prepared for a shape of matrices takes MiBs, and a long causal text has many shapes: oneDNN keeps as many as a
text of 2,048 tokens uses again in every layer, and torch, which would keep them once more, one.
"""

import ctypes
import os
from collections.abc import Iterator
from contextlib import contextmanager

RETAINED_BLOCK = 16 << 20  # bytes: smaller blocks are kept when they are freed
# names of glibc's malloc.h
_TRIM_THRESHOLD = -1
_MMAP_THRESHOLD = -3
_ARENA_MAX = -8
_PRODUCT_CACHES = {"LRU_CACHE_CAPACITY": "1", "ONEDNN_PRIMITIVE_CACHE_CAPACITY": "32"}


def configure_malloc() -> None:
    """Configure glibc's malloc, unless the environment already does."""
    if os.environ.keys() & {"MALLOC_MMAP_THRESHOLD_", "MALLOC_TRIM_THRESHOLD_", "GLIBC_TUNABLES"}:
        return
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (AttributeError, OSError, TypeError):
        return
    # With several arenas, each would keep the blocks that its threads freed.
    mallopt(_ARENA_MAX, 1)
    mallopt(_MMAP_THRESHOLD, RETAINED_BLOCK)
    mallopt(_TRIM_THRESHOLD, 2 * RETAINED_BLOCK)


@contextmanager
def small_product_caches() -> Iterator[None]:
    """Set the limits in the environment, which is read when a thread multiplies for the first time.

    Afterwards the environment is as it was: the caller's own programs do not inherit them.
    """
    added = {name: value for name, value in _PRODUCT_CACHES.items() if name not in os.environ}
    os.environ.update(added)
    try:
        yield
    finally:
        for name in added:
            os.environ.pop(name, None)
