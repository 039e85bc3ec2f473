"""Stop a forward pass if the process holds more memory than the run may take."""

from collections.abc import Callable, Sequence

from attnscope.model.tile import Recorder, Recorders, Tile


class MemoryGuard:
    """A recorder of no head and no row, which checks after every tile whether the run may continue."""

    heads: Sequence[int] = ()
    rows: Sequence[int] = ()
    needs_scores = needs_masked = False
    n_strongest = 0

    def __init__(self, check: Callable[[], None]) -> None:
        self._check = check

    def score_range(self) -> tuple[int, int] | None:
        return None

    def update(self, tile: Tile) -> None:
        self._check()


def guarded(recorders: Recorders, check: Callable[[], None]) -> dict[int, list[Recorder]]:
    """Add a recorder to each layer that checks memory after every tile."""
    guard = MemoryGuard(check)
    return {layer: [*of_layer, guard] for layer, of_layer in recorders.items()}
