"""Memory for the matrices of several texts, one text after the other, without padding.

Data for a file is copied only once, from the tile, and does not have to be cut, stacked or moved afterwards.
"""

from collections.abc import Iterator, Sequence
from itertools import accumulate, groupby
from math import prod
from threading import Lock

from torch import Tensor

from attnscope.model.recorders.arena import Arena

_ARENA = Arena()


def new_window() -> None:
    """Start a new window: the next matrices begin at a page of memory, and later ones follow them."""
    _ARENA.reset()


class PackedMatrices:
    """Matrices of a batch, for every text (units, rows, columns) of these sizes, shared by recorders of all layers."""

    def __init__(self, units: int, sizes: Sequence[tuple[int, int]]) -> None:
        self.units, self._runs = units, list[tuple[slice, int, int]]()
        for (rows, columns), run in groupby(enumerate(sizes), key=lambda numbered: numbered[1]):
            places = [place for place, _ in run]
            self._runs.append((slice(places[0], places[-1] + 1), rows, columns))
        self._kept: dict[str, list[Tensor]] = {}
        self._making = Lock()

    def put(self, stage: str, part: Tensor, units: slice | list[int], first: int) -> None:
        """Copy some rows of a text's matrices out of (B, units, rows, columns), padding included."""
        with self._making:
            if stage not in self._kept:
                self._kept[stage] = list(self._made(stage, part))
        for (texts, rows, _), kept in zip(self._runs, self._kept[stage], strict=True):
            here = min(part.shape[2], rows - first)
            if here > 0:
                kept[:, units, first : first + here] = part[texts, :, :here, : kept.shape[-1]]

    def _made(self, stage: str, like: Tensor) -> Iterator[Tensor]:
        """Yield (texts, units, rows, columns) of neighbours of one size each, in one piece of memory."""
        shapes = [
            (texts.stop - texts.start, self.units, rows, like.shape[-1] if stage == "output" else columns)
            for texts, rows, columns in self._runs
        ]
        ends = list(accumulate(prod(shape) for shape in shapes))
        memory = _ARENA.allocate(ends[-1]) if like.device.type == "cpu" else like.new_empty(ends[-1])
        for start, end, shape in zip([0, *ends], ends, shapes, strict=False):
            yield memory[start:end].view(shape)

    def texts(self, stage: str) -> list[Tensor]:
        """Return each text's matrices, (units, rows, columns), on the CPU."""
        return [text for run in self._kept[stage] for text in run.cpu()]
