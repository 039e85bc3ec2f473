"""Recorders in, the same and one more in each layer out, which stops the pass where the process holds too much."""

from collections.abc import Callable, Mapping, Sequence

from attnscope.model.tile import Recorder, Tile


class Limited:
    """A recorder of no head and no row: after every tile it asks whether the run may go on.

    Args:
        check: Raises where it may not.
    """

    heads: Sequence[int] = ()
    rows: Sequence[int] = ()
    raw = False

    def __init__(self, check: Callable[[], None]) -> None:
        self._check = check

    def reach(self) -> tuple[int, int] | None:
        """No raw scores."""
        return None

    def see(self, tile: Tile) -> None:
        """Ask."""
        self._check()


def limited(recorders: Mapping[int, Sequence[Recorder]], check: Callable[[], None]) -> dict[int, list[Recorder]]:
    """Add one that asks after every tile to the recorders of each layer."""
    one = Limited(check)
    return {layer: [*them, one] for layer, them in recorders.items()}
