"""Watch a forward pass tile by tile: report its progress, and stop it if it takes too much memory."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

from attnscope.model.inputs import AttentionInputs
from attnscope.model.tile import Recorder, Recorders, Tile
from attnscope.model.workers import Deferred

# cost of a recorded head relative to one computed by scaled_dot_product_attention
_RECORDED_FACTOR = 3.0
_SAMPLES = 256  # number of queries whose key range is computed as a sample
_PARTS = 1000  # of a bar

ProgressCallback = Callable[[str, int, int], None]


@dataclass(frozen=True)
class LayerCost:
    """Approximate cost of one layer, in multiplications."""

    linear: float
    head: float


class ForwardProgress:
    """Progress of a forward pass.

    Attributes:
        recorders: The same, with one more in every recorded layer that counts its tiles.
    """

    def __init__(
        self,
        what: str,
        on_progress: ProgressCallback,
        loads: Sequence[LayerCost],
        n_heads: int,
        recorders: Recorders,
    ) -> None:
        """Call `on_progress` with `what · layer 2 of 4`, the finished thousandths of the work, and 1000."""
        self._what = what
        self._on_progress = on_progress
        self._last = max(recorders, default=-1)
        recorded = (len(_heads(recorders.get(layer, ()))) for layer in range(len(loads)))
        heads = (n_heads + (_RECORDED_FACTOR - 1) * n for n in recorded)
        self._works = [load.linear + load.head * n for load, n in zip(loads, heads, strict=True)]
        self._total = sum(self._works[: self._last + 1]) or 1.0
        self.recorders: dict[int, list[Recorder]] = {
            layer: [*of_layer, _TileCounter(self, of_layer, every_row=layer < self._last)]
            for layer, of_layer in recorders.items()
        }

    def layer(self, done: int, total: int) -> None:
        """Report the number of layers done."""
        self._report(f"layer {min(done + 1, total)} of {total}", sum(self._works[:done]))

    def tile(self, layer: int, share: float) -> None:
        """Report that a tile of a layer is done, and the share of the layer's attention up to it."""
        done = sum(self._works[:layer]) + share * self._works[layer]
        self._report(f"layer {layer + 1} of {self._last + 1}", done)

    def _report(self, where: str, done: float) -> None:
        self._on_progress(
            f"{self._what} · {where}", round(_PARTS * min(1.0, done / self._total)), _PARTS
        )


def _heads(recorders: Sequence[Recorder]) -> set[int]:
    return {head for recorder in recorders for head in recorder.heads}


class _TileCounter(Recorder):
    """A recorder of no head and no row, which counts the cells of a layer's tiles."""

    def __init__(
        self, progress: ForwardProgress, recorders: Sequence[Recorder], *, every_row: bool
    ) -> None:
        super().__init__((), ())
        self._progress = progress
        self._heads = len(_heads(recorders))
        if every_row:
            self._rows = None
        else:
            self._rows = sorted({row for recorder in recorders for row in recorder.rows})
        self._cells = 0.0
        self._all = 0.0

    def update(self, tile: Tile) -> Deferred:
        cells = len(tile.heads) * (tile.q1 - tile.q0) * (tile.k1 - tile.k0)
        return partial(self._count, tile.inputs, cells)

    def _count(self, inputs: AttentionInputs, cells: int) -> None:
        if not self._all:
            n_keys = inputs.k.shape[2]
            rows = range(inputs.q.shape[2]) if self._rows is None else self._rows
            sample = rows[:: max(1, len(rows) // _SAMPLES)]
            ranges = [inputs.spec.mask.key_range(row, row + 1, n_keys) for row in sample]
            visible = sum(end - start for start, end in ranges) / max(1, len(ranges)) * len(rows)
            self._all = max(1.0, self._heads * visible)
        self._cells += cells
        self._progress.tile(inputs.layer, min(1.0, self._cells / self._all))


class MemoryGuard(Recorder):
    """A recorder of no head and no row, which checks after every tile whether the run may continue."""

    def __init__(self, check: Callable[[], None]) -> None:
        super().__init__((), ())
        self._check = check

    def update(self, tile: Tile) -> None:
        self._check()
