"""Configure glibc's malloc: keep freed blocks of a tile's size, return those of a layer's size.

By default, glibc adapts to the sizes of freed blocks. A tile's block may then be requested from the system and returned
again and again, which takes longer than the computation on it, and a layer's tensors may leave holes that are never
returned. Without glibc, nothing is configured.
"""

import ctypes
import os

RETAINED_BLOCK = 16 << 20  # bytes: smaller blocks are kept when they are freed
# names of glibc's malloc.h
_TRIM_THRESHOLD = -1
_MMAP_THRESHOLD = -3
_ARENA_MAX = -8


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
