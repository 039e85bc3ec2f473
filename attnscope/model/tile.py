"""A tile: the stages of a block of queries against a range of keys, and the Recorder protocol.

Its tensors are overwritten by the next tile: a recorder takes copies of what it keeps.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from math import isfinite, prod
from typing import Protocol

import torch
from torch import Tensor

from attnscope.base.errors import NotFinite, arg
from attnscope.model.inputs import AttentionInputs
from attnscope.model.matmul import matmul_grouped
from attnscope.model.row_summary import RowSummary


class Workspace:
    """Scratch buffers reused by tiles of all layers: fresh pages cost more than the computation in them."""

    def __init__(self) -> None:
        self._buffers: dict[str, Tensor] = {}
        self._others: dict[int, Workspace] = {}

    def of_thread(self, number: int) -> "Workspace":
        """Return the workspace of a thread that computes tiles; the first thread uses this one."""
        return self if number == 0 else self._others.setdefault(number, Workspace())

    def buffer(self, name: str, shape: Sequence[int], device: torch.device) -> Tensor:
        """Return an uninitialized float32 tensor, valid until a buffer of the same name is requested again."""
        size, memory = prod(shape), self._buffers.get(name)
        if memory is None or memory.numel() < size or memory.device != device:
            memory = None
            self._buffers.pop(name, None)  # before its successor is made, not after
            memory = self._buffers[name] = torch.empty(size, device=device)
        return memory[:size].view(*shape)


class FiniteChecks:
    """Checks of one layer: at once without a device or on a CPU, else by sums read together, as each read waits."""

    def __init__(self, layer: int, device: torch.device | None = None) -> None:
        self._layer, self._at_once = layer, device is None or device.type == "cpu"
        self._sums: list[Tensor] = []

    def add(self, numbers: Tensor, name: str, heads: Tensor) -> None:
        """Check numbers of heads (h,), (B, h, q, …), or leave that to `passed`; the error names the first bad head."""
        # One cheap pass; only a bad sum is worth a closer look.
        total = numbers.sum()
        if not self._at_once:
            self._sums.append(total)
            return
        if isfinite(float(total)):
            return
        bad = (~torch.isfinite(numbers)).sum(dim=(0, 2, 3))  # (h,)
        if bad.any():
            i = int(bad.argmax())
            hint = f"the model overflows in this dtype; use {arg('dtype', 'float32')}"
            message = f"{int(bad[i])} {name} are not finite"
            raise NotFinite(message, where=f"L{self._layer}H{int(heads[i])}", hint=hint)

    def passed(self) -> bool:
        """Tell whether every sum that was left for later is finite."""
        return not self._sums or bool(torch.stack(self._sums).isfinite().all())


def as_slice(places: Sequence[int]) -> list[int] | slice:
    """Return neighbouring places as a slice, which costs less to write through."""
    if isinstance(places, range):
        return slice(places.start, places.stop)
    first, count = places[0], len(places)
    return slice(first, first + count) if places == list(range(first, first + count)) else list(places)


@dataclass(frozen=True)
class Tile:
    """A block of queries of some heads against a range of keys, with every stage."""

    inputs: AttentionInputs
    heads: Tensor  # query heads in the tile, (h,), int64
    index: list[int] | slice  # the same, as an index of a tensor of all heads
    q0: int
    q1: int  # end of the queries, exclusive
    k0: int
    k1: int  # end of the keys, exclusive; keys outside the range are not allowed for any of these queries
    all_visible_range: tuple[int, int]  # keys, from and to, that all of the queries may see; (k0, k0) if none are known
    scores: Tensor | None  # (B, h, q, k), as are scaled, masked and weights; None if no recorder reads it
    scaled: Tensor | None
    masked: Tensor  # −inf where not allowed; a tensor on `meta`, without values, where weights have overwritten them
    weights: Tensor  # 0 in a fully masked row
    values: Tensor  # (B, h, k, Ev), or (B, g, k, Ev), each of g groups for as many of the heads
    checks: FiniteChecks  # refuses an output that is not finite
    # True where a query may see nothing, broadcastable to (B, h, q); None if every query sees something
    fully_masked: Tensor | None
    workspace: Workspace
    sink: Tensor | None = None  # weight of each row on the sink, (B, h, q); None if the layer has no sinks
    summary: RowSummary | None = None  # summary of the rows by compiled loops; None if operators computed them
    scored: bool = True  # `masked` holds scores; False if weights were given, and it only orders the keys as they do

    def stage(self, name: str) -> Tensor:
        """Return a stage of the tile, (B, h, q, k), or (B, h, q, Ev) for `output`; also a contribution or the mask.

        Contributions are `value`, α·‖v_j‖, and `projected`, α·‖v_j W_O^h‖ (Kobayashi et al., 2020); the mask is
        `allowed`, 1 where a query may see a key, else 0.
        """
        if name in ("value", "projected"):
            return self.weights * self.norms(name)[:, :, None]
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

    @cached_property
    def peaks(self) -> Tensor:
        """Place of the largest masked score of each row, the first of equals, counted from k0: (B, h, q), int64."""
        if self.masked.device.type == "cpu":
            return torch.from_numpy(self.masked.numpy().argmax(-1))  # half the time of torch's
        return self.masked.argmax(-1)

    def norms(self, name: str) -> Tensor:
        """Return the factor on a weight in a contribution: ‖v_j‖ or ‖v_j W_O^h‖, (B, h, k)."""
        norms = self.inputs.value_norms if name == "value" else self.inputs.projected_norms
        return norms[:, self.index, self.k0 : self.k1]


class Recorder(Protocol):
    """Protocol of recorders: sees each tile of a layer once and keeps the requested values."""

    @property
    def heads(self) -> Sequence[int]:
        """Query heads that it looks at."""

    @property
    def rows(self) -> Sequence[int]:
        """Query positions that it looks at, sorted."""

    @property
    def needs_scores(self) -> bool:
        """Whether it reads `scores` or `scaled`; if no recorder does, later stages overwrite them."""

    @property
    def needs_masked(self) -> bool:
        """Whether it reads `masked` also of tiles with a `summary`; if no recorder does, weights may overwrite them."""

    @property
    def n_strongest(self) -> int:
        """Number of a row's largest weights that it takes from the tile's `summary`, if there is one."""

    def score_range(self) -> tuple[int, int] | None:
        """Return the keys, from and to, whose raw scores are needed although they are not allowed; None for none."""

    def update(self, tile: Tile) -> Callable[[], None] | None:
        """Record a tile.

        Tiles arrive from several threads at a time and in any order; no two of them have a head and a row in common.
        Whatever several tiles write to (a sum) is left to the function that is returned: these run one at a time, in
        the order of tiles, so that sums don't depend on the number of threads. They must not read the tile, whose
        memory holds another one by then.
        """


Recorders = Mapping[int, Sequence[Recorder]]  # by layer
