"""What heads gave for one text: arrays whose first axis is the unit, a layer and head; one head is a view of them."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Annotated, Any, NamedTuple

import msgspec
import numpy as np

from attnscope.findings.arrays import (
    Floats,
    Matrix,
    OfRanks,
    RankedKeys,
    UnitMatrices,
    UnitVectors,
    along,
)
from attnscope.findings.axes import take, take_field
from attnscope.findings.head_arrays import HeadArrays
from attnscope.findings.merge_pieces import WordWeights
from attnscope.findings.row_statistics import ROW_STATISTICS, Means, Rows
from attnscope.findings.spans import SpanArrays
from attnscope.findings.tokens import LeftOut

STAGES = ("scores", "scaled", "masked", "weights", "output")


class HeadRef(NamedTuple):
    """A layer and head, each a number or `mean`; as text `L1H2`, `L1 mean`, `mean H2` or `mean`."""

    layer: int | str
    head: int | str

    def __str__(self) -> str:
        """Return the name of the head."""
        layer = "mean" if self.layer == "mean" else f"L{self.layer}"
        if self.head == "mean":
            return layer if layer == "mean" else f"{layer} mean"
        if layer == "mean":
            return f"mean H{self.head}"
        return f"{layer}H{self.head}"


class Top(msgspec.Struct, frozen=True, omit_defaults=True):
    """The strongest sources of every query: arrays of one shape (unit, query, rank), strongest first.

    If a query has fewer sources than ranks, `keys` is −1 and the numbers are null.

    Attributes:
        keys: Position of the source.
        weight: α_ij, the attention weight.
        value: α_ij·‖v_j‖; absent from a dump by weight.
        projected: α_ij·‖v_j W_O^h‖ (Kobayashi et al., 2020); absent unless requested. Behind a gate on a head's output,
            both are of the gated value.
        by: The measure that ranks them: `weight`, `value` or `projected`; absent from dumps, whose header says it.
        left_out: Tokens that are excluded from the ranking; absent from dumps, whose header says it.
    """

    keys: RankedKeys
    weight: OfRanks
    value: OfRanks | None = None
    projected: OfRanks | None = None
    by: str = ""
    left_out: list[LeftOut] = []

    @property
    def measures(self) -> dict[str, Matrix]:
        """The numbers of the sources that are known, by name: weights that were given come without values."""
        candidates = {"weight": self.weight, "value": self.value, "projected": self.projected}
        return {
            name: numbers
            for name, numbers in candidates.items()
            if numbers is not None
            and (name == "weight" or not numbers.size or np.isfinite(numbers).any())
        }

    def contradictions(self, _lengths: Mapping[str, int]) -> Iterator[tuple[str, str]]:
        """Yield contradictions that axes cannot express; see `axes`."""
        if self.by and (
            self.by not in ("weight", "value", "projected") or getattr(self, self.by) is None
        ):
            yield "by", f"is {self.by[:40]!r}, which top does not have"


class Pooled(msgspec.Struct, frozen=True):
    """A map that replaces a matrix of weights: whole rows, whole columns, no weight lost.

    A run is a sequence of adjacent tokens: run i starts at token `queries[i]` and ends before `queries[i + 1]`.

    Attributes:
        queries: Start of every run of queries, then the number of tokens.
        keys: Start of every run of keys, then the number of tokens.
        weights: Average weight of the run's queries on the run's keys together, (unit, runs of queries, runs of keys).
            A row sums to 1, or to 1 minus the sink's share; it is null if no query of the run may attend to anything.
    """

    queries: Annotated[list[int], along("query run", runs="token")]
    keys: Annotated[list[int], along("key run", runs="source")]
    weights: Annotated[UnitMatrices, along("unit", "query run", "key run")]


def run_starts(count: int, size: int) -> list[int]:
    """Return the starts of a map's runs, and the end: position i is in run i·n // count, of n runs."""
    n = min(size, count)
    return [-(-i * count // n) for i in range(n + 1)]


class UnitArrays(msgspec.Struct, frozen=True, omit_defaults=True, kw_only=True):
    """What both a report and a dump keep of heads; what is not kept is absent.

    Attributes:
        units: Layer and head of every unit: numbers from 0, or `mean` over those selected.
        top: Strongest sources per query.
        rows: Statistics per query.
        columns: Total weight that every source receives from the shown queries, or, with a map, from all.
        received: Weight that every source receives from the shown queries other than itself, divided by what it would
            receive if each of them spread its weight evenly over the keys that it may attend to; null for a source that
            none of them may attend to.
        pooled: The whole matrix of weights as a map of fixed size.
        heads: A few numbers of every head, averaged over rows; in dumps.
        spans: The weights between spans of a text; in dumps, while a report has those of all heads for itself.
        stages: Stage name to matrices of shape (unit, queries, keys); `output` is (unit, queries, value width). In
            `masked`, −inf in memory and null in JSON mean "not allowed".
    """

    units: Annotated[list[HeadRef], along("unit")] = []
    top: Top | None = None
    rows: Rows | None = None
    columns: Annotated[UnitVectors, along("unit", "source")] | None = None
    received: Annotated[UnitVectors, along("unit", "source")] | None = None
    pooled: Pooled | None = None
    spans: SpanArrays | None = None
    heads: HeadArrays | None = None
    stages: Annotated[
        dict[str, UnitMatrices],
        along(
            "unit", "query", "key", names=STAGES, members=(("output", ("unit", "query", "width")),)
        ),
    ] = {}

    def axis_lengths(self) -> dict[str, int]:
        """Return the lengths of axes that its parts share."""
        return {"unit": len(self.units)}

    def contradictions(self, _lengths: Mapping[str, int]) -> Iterator[tuple[str, str]]:
        """Yield contradictions that axes cannot express; see `axes`."""
        for index, unit in enumerate(self.units):
            for name, value in zip(("layer", "head"), unit, strict=True):
                if value != "mean" and not (isinstance(value, int) and value >= 0):
                    yield (
                        f"units[{index}]",
                        f"has the {name} {value!r}, neither a number from 0 nor 'mean'",
                    )


class Heads(UnitArrays, frozen=True, omit_defaults=True, kw_only=True):
    """What the heads of a report gave for one text; `heads[i]` is a view of one of them.

    Attributes:
        chosen: Why it is shown, if the user did not name it, such as `chosen automatically: most weight on other words
            (0.71)`.
        scale: Factor from `scores` to `scaled`.
        head_width: Numbers in a query and a key; null if the layers of a mean differ, absent in older reports.
        softcap: c of c·tanh(x/c), applied to the scaled scores; null if the model has none.
        bias: Name of the position bias that `scaled` contains, such as `alibi`; null if there is none.
        fully_masked: Positions of the queries that may attend to nothing; their weights and output are null.
        means: Averages over every query of the text; absent without a map.
        words: The weights between words (`--words`); absent unless requested.
        score_mod: Name of the Python function that changed `scaled` last; absent if there is none.
        widths: Value width of every unit, which null follows in `output` up to the largest; absent if all are equal.
    """

    chosen: Annotated[list[str | None], along("unit")] = []
    scale: Annotated[list[float], along("unit")] = []
    softcap: Annotated[list[float | None], along("unit")] = []
    bias: Annotated[list[str | None], along("unit")] = []
    fully_masked: Annotated[list[list[int]], along("unit", positions="token")] = []
    means: Means | None = None
    words: WordWeights | None = None
    score_mod: str | None = None
    widths: Annotated[list[int], along("unit")] | None = None
    head_width: Annotated[list[int | None], along("unit")] | None = None

    def __len__(self) -> int:
        """Return the number of units."""
        return len(self.units)

    def __getitem__(self, index: int) -> "HeadReport":
        """Return a view of one layer and head."""
        return HeadReport(self, range(len(self.units))[index])

    def __iter__(self) -> "Iterator[HeadReport]":
        """Yield every head."""
        return (HeadReport(self, index) for index in range(len(self.units)))

    def find(self, ref: HeadRef) -> "HeadReport | None":
        """Return the head of this layer and number; None if it is not there."""
        if ref in self.units:
            return self[self.units.index(ref)]
        return None

    def only(self, indices: Sequence[int]) -> "Heads":
        """Return some of the heads, by their indices."""
        start = indices[0] if indices else 0
        adjacent = list(indices) == list(range(start, start + len(indices)))
        return take(self, "unit", slice(start, start + len(indices)) if adjacent else indices)

    def contradictions(self, lengths: Mapping[str, int]) -> Iterator[tuple[str, str]]:
        """Yield contradictions that axes cannot express; see `axes`."""
        yield from super().contradictions(lengths)
        if not self.units:
            return
        if self.top is None:
            yield "top", "is missing"
        for statistic in ROW_STATISTICS:
            # Older reports lack statistics that were added later.
            if self.rows is None or (
                not statistic.added and getattr(self.rows, statistic.name) is None
            ):
                yield f"rows.{statistic.name}", "is missing"
        if self.pooled is None and not lengths["query"]:
            yield "pooled", "is missing, and there are no queries"


class HeadReport:
    """One layer and head over one text: a view of `Heads`, whose fields it has without the axis `unit`."""

    chosen: str | None
    scale: float
    head_width: int | None
    softcap: float | None
    bias: str | None
    stages: dict[str, Matrix]
    fully_masked: list[int]
    top: Top
    rows: Rows
    pooled: Pooled | None
    columns: Floats | None
    means: Means | None
    received: Floats | None
    words: WordWeights | None
    score_mod: str | None

    def __init__(self, heads: UnitArrays, index: int) -> None:
        self._heads = heads
        self._index = index
        self.ref = HeadRef(*heads.units[index])
        self.layer, self.head = self.ref

    def __getattr__(self, name: str) -> Any:
        """Take a field of the heads when it is first read."""
        if name.startswith("_"):
            raise AttributeError(name)
        value = take_field(self._heads, name, "unit", self._index)
        if (
            name == "stages"
            and "output" in value
            and (width := getattr(self._heads, "widths", None)) is not None
        ):
            value["output"] = value["output"][:, : width[self._index]]
        setattr(self, name, value)
        return value
