"""Remember what was made of heads and scenes, for as long as they are there."""

import weakref
from collections.abc import Callable, Hashable
from typing import Any, TypeVar

Made = TypeVar("Made")
# Largest number of entries.
_MOST = 5000


class OwnedCache:
    """What was made of objects that cannot be keys of a dict, such as heads; it goes when its object goes."""

    def __init__(self) -> None:
        self._made: dict[tuple[int, Hashable], tuple[weakref.ref[Any], Any]] = {}

    def get(self, owner: object, key: Hashable, make: Callable[[], Made]) -> Made:
        """Return what was made of an object under a key; make it where it has not been."""
        place = id(owner), key
        known = self._made.get(place)
        # Another object may have got the number of one that is gone.
        if known is not None and known[0]() is owner:
            kept: Made = known[1]
            return kept
        if len(self._made) >= _MOST:
            self._made.clear()
        value, cache = make(), self._made

        def forget(gone: "weakref.ref[Any]") -> None:
            if cache.get(place, (None,))[0] is gone:
                del cache[place]

        cache[place] = weakref.ref(owner, forget), value
        return value
