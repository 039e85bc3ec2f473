"""Report the progress of a forward pass, layer by layer and tile by tile.

It records nothing and needs nothing computed for itself.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

from attnscope.model.inputs import AttentionInputs
from attnscope.model.tile import Recorder, Recorders, Tile
from attnscope.model.workers import Deferred
from attnscope.request.masks.terms import Mask

_RECORDED_FACTOR = 3.0  # cost of a recorded head relative to one computed by scaled_dot_product_attention
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

    Args:
        on_progress: Called with `what · layer 2 of 4 · tile 7`, the finished thousandths of the work, and 1000.

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
        self._what, self._on_progress, self._last = what, on_progress, max(recorders, default=-1)
        self._works = [_layer_work(load, n_heads, recorders.get(layer, ())) for layer, load in enumerate(loads)]
        self._total = sum(self._works[: self._last + 1]) or 1.0
        self.recorders: dict[int, list[Recorder]] = {
            layer: [*of_layer, _TileCounter(self, _heads(of_layer), None if layer < self._last else _rows(of_layer))]
            for layer, of_layer in recorders.items()
        }

    def layer(self, done: int, total: int) -> None:
        """Report the number of layers done."""
        self._report(f"layer {min(done + 1, total)} of {total}", sum(self._works[:done]))

    def tile(self, layer: int, number: int, share: float) -> None:
        """Report that a tile of a layer is done: its number from 1, and the share of the layer's attention up to it."""
        done = sum(self._works[:layer]) + share * self._works[layer]
        self._report(f"layer {layer + 1} of {self._last + 1} · tile {number}", done)

    def _report(self, where: str, done: float) -> None:
        self._on_progress(f"{self._what} · {where}", round(_PARTS * min(1.0, done / self._total)), _PARTS)


def _layer_work(load: LayerCost, n_heads: int, recorders: Sequence[Recorder]) -> float:
    recorded = len(_heads(recorders))
    return load.linear + load.head * (n_heads - recorded + _RECORDED_FACTOR * recorded)


def _heads(recorders: Sequence[Recorder]) -> set[int]:
    return {head for recorder in recorders for head in recorder.heads}


def _rows(recorders: Sequence[Recorder]) -> set[int]:
    return {row for recorder in recorders for row in recorder.rows}


class _TileCounter:
    """A recorder of no head and no row, which counts the cells of a layer's tiles, of these `rows` or of all."""

    heads: Sequence[int] = ()
    rows: Sequence[int] = ()
    needs_scores = needs_masked = False
    n_strongest = 0

    def __init__(self, progress: ForwardProgress, heads: set[int], rows: set[int] | None) -> None:
        self._progress, self._heads, self._rows = progress, len(heads), rows
        self._tiles, self._cells, self._all = 0, 0.0, 0.0

    def score_range(self) -> tuple[int, int] | None:
        return None

    def update(self, tile: Tile) -> Deferred:
        cells = len(tile.heads) * (tile.q1 - tile.q0) * (tile.k1 - tile.k0)
        return partial(self._count, tile.inputs, cells)

    def _count(self, inputs: AttentionInputs, cells: int) -> None:
        if not self._tiles:
            rows = sorted(self._rows) if self._rows is not None else range(inputs.q.shape[2])
            self._all = self._heads * _visible_cells(inputs.spec.mask, rows, inputs.k.shape[2])
        self._tiles += 1
        self._cells += cells
        self._progress.tile(inputs.layer, self._tiles, min(1.0, self._cells / max(1.0, self._all)))


def _visible_cells(mask: Mask, rows: Sequence[int], n_keys: int) -> float:
    step = max(1, len(rows) // _SAMPLES)
    spans = [mask.key_range(row, row + 1, n_keys) for row in rows[::step]]
    return sum(end - start for start, end in spans) / max(1, len(spans)) * len(rows)
