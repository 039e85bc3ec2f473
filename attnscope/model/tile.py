"""A tile: the stages of a block of queries against a range of keys, and the base of recorders, which see it.

Its tensors are overwritten by the next tile: a recorder takes copies of what it keeps.
"""

from bisect import bisect_left
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from math import isfinite, prod

import torch
from torch import Tensor

from attnscope.base.errors import NotFinite, arg
from attnscope.model.frame import are_finite
from attnscope.model.inputs import AttentionInputs
from attnscope.model.matmul import matmul_grouped
from attnscope.model.row_summary import RowSummary
from attnscope.model.workers import Deferred


@dataclass
class Workspace:
    """Scratch buffers reused by tiles of all layers: fresh pages cost more than the computation in them."""

    _buffers: dict[str, Tensor] = field(default_factory=dict)
    _others: "dict[int, Workspace]" = field(default_factory=dict)

    def of_thread(self, index: int) -> "Workspace":
        """Return the workspace of a thread that computes tiles; the first thread uses this one."""
        if index == 0:
            return self
        return self._others.setdefault(index, Workspace())

    def buffer(self, name: str, shape: Sequence[int], device: torch.device) -> Tensor:
        """Return an uninitialized float32 tensor, valid until a buffer of the same name is requested again."""
        size = prod(shape)
        memory = self._buffers.get(name)
        if memory is None or memory.numel() < size or memory.device != device:
            memory = None
            self._buffers.pop(name, None)  # before its successor is made, not after
            memory = self._buffers[name] = torch.empty(size, device=device)
        return memory[:size].view(*shape)


@dataclass
class FiniteChecks:
    """Checks of one layer: at once without a device or on a CPU, else by sums read together, as each read waits."""

    layer: int
    device: torch.device | None = None
    _sums: list[Tensor] = field(default_factory=list)

    def add(self, numbers: Tensor, name: str, heads: Tensor) -> None:
        """Check numbers of heads (h,), (B, h, q, …), or leave that to `passed`; the error names the first bad head."""
        # One cheap pass; only a bad sum is worth a closer look.
        total = numbers.sum()
        if self.device is not None and self.device.type != "cpu":
            self._sums.append(total)
            return
        if isfinite(float(total)):
            return
        bad = (~torch.isfinite(numbers)).sum(dim=(0, 2, 3))  # (h,)
        if bad.any():
            i = int(bad.argmax())
            hint = f"the model overflows in this dtype; use {arg('dtype', 'float32')}"
            message = f"{int(bad[i])} {name} are not finite"
            raise NotFinite(message, where=f"L{self.layer}H{int(heads[i])}", hint=hint)

    def passed(self) -> bool:
        """Tell whether every sum that was left for later is finite; see frame.are_finite."""
        return not self._sums or are_finite(self._sums)


def as_slice(places: Sequence[int]) -> list[int] | slice:
    """Return neighbouring places as a slice, which costs less to write through."""
    if isinstance(places, range):
        return slice(places.start, places.stop)
    start = places[0]
    count = len(places)
    if places == list(range(start, start + count)):
        return slice(start, start + count)
    return list(places)


@dataclass(frozen=True)
class Tile:
    """A block of queries of some heads against a range of keys, with every stage."""

    inputs: AttentionInputs
    heads: Tensor  # query heads in the tile, (h,), int64
    index: list[int] | slice  # the same, as an index of a tensor of all heads
    q0: int
    q1: int  # end of the queries, exclusive
    k0: int
    # end of the keys, exclusive; keys outside the range are not allowed for any of these queries
    k1: int
    # keys, from and to, that all of the queries may see; (k0, k0) if none are known
    all_visible_range: tuple[int, int]
    # (B, h, q, k), as are scaled, masked and weights; None if no recorder reads it
    scores: Tensor | None
    scaled: Tensor | None
    # −inf where not allowed; a tensor on `meta`, without values, where weights have overwritten them
    masked: Tensor
    weights: Tensor  # 0 in a fully masked row
    values: Tensor  # (B, h, k, Ev), or (B, g, k, Ev), each of g groups for as many of the heads
    checks: FiniteChecks  # refuses an output that is not finite
    # True where a query may see nothing, broadcastable to (B, h, q); None if every query sees something
    fully_masked: Tensor | None
    workspace: Workspace
    # weight of each row on the sink, (B, h, q); None if the layer has no sinks
    sink: Tensor | None = None
    # weight of each row that keys which an indexer left out would have had, (B, h, q); None without an indexer
    unselected: Tensor | None = None
    # summary of the rows by compiled loops; None if operators computed them
    summary: RowSummary | None = None
    # `masked` holds scores; False if weights were given, and it only orders the keys as they do
    scored: bool = True
    _gated_norms: dict[str, Tensor] = field(default_factory=dict)

    def stage(self, name: str) -> Tensor:
        """Return a stage of the tile, (B, h, q, k), or (B, h, q, Ev) for `output`; also a contribution or the mask.

        Contributions are `value`, α·‖v_j‖, and `projected`, α·‖v_j W_O^h‖ (Kobayashi et al., 2020), of g_i ⊙ v_j if the
        layer has a gate; the mask is `allowed`, 1 where a query may see a key, else 0.
        """
        if name in ("value", "projected"):
            return self.weights * self.norms(name)
        if name == "allowed":
            return (self.masked > -torch.inf).float()
        stage: Tensor | None = getattr(self, name)
        assert stage is not None, f"{name} was not computed: no recorder declared that it reads it"
        return stage

    @cached_property
    def output(self) -> Tensor:
        """Weights times values, (B, h, q, Ev); computed when read."""
        output = matmul_grouped(self.weights, self.values.mT)
        self.checks.add(output, "outputs", self.heads)
        return output

    @property
    def gate(self) -> Tensor | None:
        """Mean of the gate on every row's output, (B, h, q); None if the layer has none."""
        gate = self.inputs.gate
        if gate is None:
            return None
        return gate[:, self.index, self.q0 : self.q1].float().mean(-1)

    @cached_property
    def gated(self) -> Tensor:
        """The output as the output projection takes it: times the gate, if the layer has one."""
        gate = self.inputs.gate
        if gate is None:
            return self.output
        return self.output * gate[:, self.index, self.q0 : self.q1]

    @cached_property
    def peaks(self) -> Tensor:
        """Place of the largest masked score of each row, the first of equals, counted from k0: (B, h, q), int64."""
        if self.masked.device.type == "cpu":
            return torch.from_numpy(self.masked.numpy().argmax(-1))  # half the time of torch's
        return self.masked.argmax(-1)

    def norms(self, name: str) -> Tensor:
        """Return the factor on a weight in a contribution: ‖v_j‖ or ‖v_j W_O^h‖, (B, h, 1 or q, k)."""
        inputs = self.inputs
        keys = slice(self.k0, self.k1)
        if inputs.gate is None:
            return inputs.norms(name)[:, self.index, None, keys]
        if name not in self._gated_norms:
            self._gated_norms[name] = inputs.gated_norms(
                name, self.heads, slice(self.q0, self.q1), keys
            )
        return self._gated_norms[name]


class Recorder:
    """Sees each tile of a layer once and keeps what it needs of its heads and rows (sorted).

    Tiles arrive from several threads at a time and in any order; no two of them have a head and a row in common.
    Whatever several tiles write to (a sum) is left to the function that `update` returns: these run one at a time, in
    the order of tiles, so that sums don't depend on the number of threads. They must not read the tile, whose memory
    holds another one by then.
    """

    # whether it reads `scores` or `scaled`; if no recorder does, later stages overwrite them
    needs_scores = False
    # whether it reads `masked` also of tiles with a `summary`; if no recorder does, weights may overwrite them
    needs_masked = False
    # number of a row's largest weights that it takes from the tile's `summary`, if there is one
    n_strongest = 0

    def __init__(self, heads: Sequence[int], rows: Sequence[int]) -> None:
        self.heads: Sequence[int] = list(heads)
        self.rows = _as_range(rows)

    def score_range(self) -> tuple[int, int] | None:
        """Return the keys, from and to, whose raw scores are needed although they are not allowed; None for none."""
        return None

    def select(self, numbers: Tensor) -> Tensor:
        """Return this recorder's heads and rows of a tensor of a whole layer, (B, H, Q, …)."""
        return numbers[:, as_slice(self.heads)][:, :, as_slice(self.rows)]

    def finish(self) -> None:
        """Put what has been added up into the block that it shares, after the pass."""

    def update(self, tile: Tile) -> Deferred | None:
        """Record the heads and rows that a tile shares with this recorder, if there are any."""
        overlap = self.overlap(tile)
        if overlap is None:
            return None
        return self._record(tile, overlap)

    def _record(self, tile: Tile, overlap: "Overlap") -> Deferred | None:
        raise NotImplementedError

    def overlap(self, tile: Tile) -> "Overlap | None":
        """Return the overlap of tile and recorder; None for no overlap."""
        index = tile.index
        at = {
            head: i
            for i, head in enumerate(
                range(index.start, index.stop) if isinstance(index, slice) else index
            )
        }
        heads = [h for h in self.heads if h in at]
        rows = slice(bisect_left(self.rows, tile.q0), bisect_left(self.rows, tile.q1))
        if not heads or rows.start == rows.stop:
            return None
        here = [self.heads.index(h) for h in heads]
        return Overlap(
            [at[h] for h in heads], here, as_slice(here), _moved(self.rows[rows], -tile.q0), rows
        )


def _as_range(places: Sequence[int]) -> Sequence[int]:
    """Return sorted places as a range if they are neighbours: no tile goes through all of its rows in Python."""
    if isinstance(places, range) or not places or places[-1] - places[0] + 1 != len(places):
        if isinstance(places, range):
            return places
        return list(places)
    return range(places[0], places[-1] + 1)


def _moved(places: Sequence[int], by: int) -> Sequence[int]:
    places = _as_range(places)
    if isinstance(places, range):
        return range(places.start + by, places.stop + by)
    return [index + by for index in places]


@dataclass(frozen=True)
class Overlap:
    """The heads and rows that a tile and a recorder have in common."""

    heads: list[int]  # their places in the tile
    here: list[int]  # their places in the recorder
    index: list[int] | slice  # the same, as an index of a tensor of the recorder's heads
    inside: Sequence[int]  # rows' places in the tile, a range if they are neighbours
    rows: slice

    def cut(self, stage: Tensor) -> Tensor:
        """Return these heads and rows of a stage of the tile, (B, h, r, …); a view if they are all or neighbours."""
        if self.heads != list(range(stage.shape[1])):
            stage = stage[:, self.heads]
        return stage[:, :, as_slice(self.inside)]

    def row_span(self, stage: Tensor) -> Tensor:
        """Return these heads of a stage of the tile, and a view of all rows from the first of these to the last."""
        if self.heads != list(range(stage.shape[1])):
            stage = stage[:, self.heads]
        return stage[:, :, self.inside[0] : self.inside[-1] + 1]

    def select_rows(self, values: Tensor) -> Tensor:
        """Return these rows of values of the tile's rows, (…, r)."""
        if isinstance(self.inside, range):
            return values
        return values[..., list(_moved(self.inside, -self.inside[0]))]

    def fully_masked(self, tile: Tile) -> Tensor | None:
        """Return which of these rows are fully masked, (B, h, r); None if no row of the tile is."""
        if tile.fully_masked is None:
            return None
        return self.cut(tile.fully_masked.expand(tile.masked.shape[:3]))


Recorders = Mapping[int, Sequence[Recorder]]  # by layer
