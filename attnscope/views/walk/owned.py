"""Remember what was made of heads and scenes, for as long as they are there."""

from collections.abc import Callable, Hashable
from typing import Any, TypeVar
from weakref import WeakKeyDictionary

Made = TypeVar("Made")
# Largest number of entries of an object.
_MOST = 5000


class OwnedCache:
    """What was made of objects, which are told apart by identity; it goes when its object goes."""

    def __init__(self) -> None:
        self._made: WeakKeyDictionary[object, dict[Hashable, Any]] = WeakKeyDictionary()

    def get(self, owner: object, key: Hashable, make: Callable[[], Made]) -> Made:
        """Return what was made of an object under a key; make it if it is missing."""
        made = self._made.setdefault(owner, {})
        if key not in made:
            if len(made) >= _MOST:
                made.clear()
            made[key] = make()
        kept: Made = made[key]
        return kept
