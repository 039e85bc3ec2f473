"""What to look at in, what was kept of it out: recorders for every selected layer and head, in one place."""

from collections.abc import Sequence
from dataclasses import dataclass, field

from torch import Tensor

from attnscope.model.attention import Recorder
from attnscope.model.recorders import Matrices, Rows, Sources, Top


@dataclass(frozen=True)
class Unit:
    """One thing that is shown: a layer and head, or a mean over several.

    Attributes:
        layers: Layers that it covers.
        heads: Heads that it covers.
        mean_layer: The layers are averaged.
        mean_head: The heads are averaged.
        chosen: How it came to be shown, where the user did not name it.
    """

    layers: tuple[int, ...]
    heads: tuple[int, ...]
    mean_layer: bool = False
    mean_head: bool = False
    chosen: str | None = None

    @property
    def mean(self) -> bool:
        """Anything is averaged."""
        return self.mean_layer or self.mean_head


@dataclass(frozen=True)
class Wanted:
    """What is kept of every unit.

    Attributes:
        stages: Stages whose matrices are kept.
        rows: Query positions, sorted: all that any text of the batch shows.
        columns: Key positions, sorted, likewise.
        top: Contributors a row.
        by: What ranks them.
        eligible: Keys that take part in the ranking, (B, K), bool.
        sources: The key side.
    """

    stages: tuple[str, ...]
    rows: list[int]
    columns: list[int]
    top: int
    by: str
    eligible: Tensor
    sources: Sources


@dataclass
class Kept:
    """The recorders of one unit; `rows` has one recorder a layer.

    Attributes:
        matrices: Stage matrices of the selected rows and columns.
        top: Strongest sources; None for a mean, whose ranking follows from `contributions`.
        contributions: Mean contributions over every key; None where nothing is averaged.
        rows: Row statistics of each layer.
        head: Which of the recorders' heads is this unit's; 0 for a mean.
    """

    matrices: Matrices
    top: Top | None
    contributions: Matrices | None
    rows: list[Rows]
    head: int = 0


@dataclass
class Trace:
    """Every unit with what was kept of it, and the recorders by layer that fill it."""

    wanted: Wanted
    kept: list[tuple[Unit, Kept]] = field(default_factory=list)
    recorders: dict[int, list[Recorder]] = field(default_factory=dict)


def prepare(units: Sequence[Unit], wanted: Wanted) -> Trace:
    """Recorders for these units: heads of one layer share theirs, a mean has its own."""
    trace = Trace(wanted)
    together: dict[int, list[int]] = {}
    for unit in units:
        if not unit.mean:
            together.setdefault(unit.layers[0], []).append(unit.heads[0])
    shared = {layer: _single(layer, heads, trace) for layer, heads in together.items()}
    for unit in units:
        if unit.mean:
            trace.kept.append((unit, _mean(unit, trace)))
        else:
            one = shared[unit.layers[0]]
            head = one.matrices.heads.index(unit.heads[0])
            trace.kept.append((unit, Kept(one.matrices, one.top, None, one.rows, head)))
    return trace


def _single(layer: int, heads: list[int], trace: Trace) -> Kept:
    w = trace.wanted
    matrices = Matrices(w.stages, heads, w.rows, w.columns)
    top, rows = Top(w.top, w.by, heads, w.rows, w.eligible), Rows(heads, w.rows, w.sources)
    trace.recorders.setdefault(layer, []).extend([matrices, top, rows])
    return Kept(matrices, top, None, [rows])


def _mean(unit: Unit, trace: Trace) -> Kept:
    w = trace.wanted
    every_key = list(range(w.eligible.shape[1]))
    names = ("masked", "weights", "value", "projected") if w.by == "projected" else ("masked", "weights", "value")
    matrices = Matrices(w.stages, unit.heads, w.rows, w.columns, mean=True)
    contributions = Matrices(names, unit.heads, w.rows, every_key, mean=True)
    rows = [Rows(unit.heads, w.rows, w.sources) for _ in unit.layers]
    for layer, one in zip(unit.layers, rows, strict=True):
        trace.recorders.setdefault(layer, []).extend([matrices, contributions, one])
    return Kept(matrices, None, contributions, rows)
