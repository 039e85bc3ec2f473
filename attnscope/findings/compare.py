"""What `attnscope compare` found, as plain data: which sides, how their tokens align, and what differs."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Annotated

import msgspec
import numpy as np

from attnscope.findings.arrays import Floats, Matrix, along
from attnscope.findings.axes import faults
from attnscope.findings.heads import HeadRef
from attnscope.findings.run import Report, TextReport
from attnscope.findings.tables import Table, columns_of

# Axes along which every head may change.
MODELS = ("model", "config", "adapter", "dtype", "engine", "qkv")
COMPARE_SCHEMA = "attnscope.compare/1"
_OfQueries = Annotated[Floats, along("query")]
_OfPairs = Annotated[Matrix, along("pair", "query")]


class Side(msgspec.Struct, frozen=True):
    """One side of a comparison.

    Attributes:
        label: Name of the side, such as `causal` or `L3H1`.
        report: The Report of this side.
    """

    label: str
    report: Report


class Cell(msgspec.Struct, frozen=True):
    """The cell of a matrix in which two sides differ most.

    Attributes:
        stage: The matrix; `pooled` for a map.
        query: Position of the query in the first side; in a map, of the first query of its run.
        key: Position of the key in the first side, in the same way; for `output`, a dimension of the value.
        first: Value in the first side; null where it is −inf.
        second: Value in the second side.
        difference: |second − first|; null where only one of them is −inf, which fails at any tolerance.
    """

    stage: str
    query: int
    key: int
    first: float | None
    second: float | None
    difference: float | None


class Partial(msgspec.Struct, frozen=True):
    """How much of every row is saved, for reports saved without whole rows (`run --key` leaves keys out).

    Attributes:
        keys: Number of saved keys in a row, in the first side and in the second.
        of: Number of keys in a whole row, in the first side and in the second.
        outside: Weight that every aligned row gives to keys that are not saved, in the first side and in the second,
            (2, queries); null where the row is fully masked.
    """

    keys: tuple[int, int]
    of: tuple[int, int]
    outside: _OfPairs


class HeadChange(msgspec.Struct, frozen=True):
    """One layer and head of the second side against one of the first, over one text.

    Lists of positions refer to the aligned rows: the shown queries of the first side that have a counterpart. Values
    that need whole rows are null (−1 for a position) if a saved report does not hold them; see `partial`.

    Attributes:
        text: Number of the text.
        first: Layer and head in the first side.
        second: Layer and head in the second side.
        queries: Aligned rows: position in the first side and in the second. For two texts, tokens that replace each
            other are aligned, too; for one text and two tokenizers, tokens that cover the same characters.
        keys: Aligned columns that both sides have, in the same form; the columns of `difference`.
        only_first: Positions of the first side's tokens that have no counterpart.
        only_second: Positions of the second side's tokens that have no counterpart.
        difference: Weight in the second side minus weight in the first, (queries, keys).
        total_variation: ½ Σ|b − a| over every key: the share of the weight that moves, 0 … 1; needs whole rows.
        jensen_shannon: Jensen–Shannon divergence of the two rows over every key, in bits, 0 … 1; needs whole rows.
        future: Weight on keys after the query (what a causal mask forbids) in the first side and in the second,
            (2, queries); null under cross-attention, and where not all of these keys are saved.
        entropy: Entropy in bits in the first side and in the second, (2, queries).
        gained: Position (in the second side) of the key that gains most; −1 where none gains; needs whole rows.
        gain: By how much its weight grows.
        lost: Position (in the first side) of the key that loses most; −1 where none loses; needs whole rows.
        loss: By how much its weight shrinks.
        entered: Top contributors of the second side (positions there) that are not among the first side's. If two saved
            reports have different numbers of contributors, the smaller number is compared; if they are ranked by
            different measures, the lists are empty.
        left: Top contributors of the first side (positions there) that are not among the second side's.
        worst: For every stage that both sides have, the cell in which they differ most.
        mass: Total weight that every source receives, in the first side and in the second, (2, sources), if maps
            replace the matrices (all fields about rows are then empty); otherwise None.
        partial: How much of every row is saved; None if rows are whole.
    """

    text: int
    first: HeadRef
    second: HeadRef
    queries: Annotated[list[tuple[int, int]], along("query")]
    keys: Annotated[list[tuple[int, int]], along("key")]
    only_first: Annotated[list[int], along(positions="first source")]
    only_second: Annotated[list[int], along(positions="second source")]
    difference: Annotated[Matrix, along("query", "key")]
    total_variation: _OfQueries
    jensen_shannon: _OfQueries
    future: _OfPairs
    entropy: _OfPairs
    gained: Annotated[list[int], along("query", positions="second source", or_none=True)]
    gain: _OfQueries
    lost: Annotated[list[int], along("query", positions="first source", or_none=True)]
    loss: _OfQueries
    entered: Annotated[list[list[int]], along("query", positions="second source")]
    left: Annotated[list[list[int]], along("query", positions="first source")]
    worst: list[Cell]
    mass: Annotated[Matrix, along("pair", "first source")] | None = None
    partial: Partial | None = None

    def axis_lengths(self) -> dict[str, int]:
        """Return the numbers of aligned rows and columns."""
        return {"pair": 2, "query": len(self.queries), "key": len(self.keys)}

    @property
    def largest_change(self) -> float:
        """Largest share of a row's weight that moved; NaN if none is known."""
        known_changes = self.total_variation[~np.isnan(self.total_variation)]
        if known_changes.size:
            return float(known_changes.max())
        return float("nan")

    @property
    def cell_moved(self) -> tuple[int, int] | None:
        """Return the aligned row in which most weight moved, and its aligned key whose weight changed most, by index.

        None if no weight is known to have moved.
        """
        if not self.largest_change > 0 or not self.keys:
            return None
        row = int(np.nanargmax(self.total_variation))
        return row, int(np.abs(np.nan_to_num(self.difference[row])).argmax())

    @property
    def share_moved(self) -> float:
        """Largest total variation of a row; of a map the share of all weight that moved; NaN if unknown.

        A mean over rows would count those that cannot differ, such as the rows before the first token that does.
        """
        if self.mass is not None:
            first_mass, second_mass = self.mass.astype(np.float64)
            if not (first_mass.any() and second_mass.any()):
                return float("nan")
            return float(np.abs(second_mass - first_mass).sum() / 2 / first_mass.sum())
        return self.largest_change

    def side_faults(self, texts: Sequence[TextReport]) -> Iterator[tuple[str, str]]:
        """Yield contradictions with the texts of the two compared sides."""
        for side, (name, text) in enumerate(zip(("first", "second"), texts, strict=True)):
            ref = getattr(self, name)
            head = text.heads.find(ref)
            if head is None:
                yield name, f"is {str(ref)[:40]!r}, which its side does not have"
            elif self.mass is None and "weights" not in head.stages:
                yield name, f"is '{ref}', whose weights its side does not hold"
            for axis, positions in (("queries", text.queries), ("keys", text.keys)):
                if not set(positions).issuperset(pair[side] for pair in getattr(self, axis)):
                    yield axis, "has a position that its side does not hold"


class Change(msgspec.Struct, frozen=True):
    """The differences between one side and the first.

    Attributes:
        side: Number of the side, from 1.
        heads: One entry per text and shown layer and head.
    """

    side: int
    heads: list[HeadChange]

    def most_moved(self, count: int) -> list[HeadChange]:
        """Return the heads in which most weight moved, the first of them first; all in their order if they are few."""
        if len(self.heads) <= count:
            return self.heads
        moved = np.array([head.share_moved for head in self.heads])
        order = np.argsort(-np.nan_to_num(moved, nan=-1.0), kind="stable")[:count]
        return [self.heads[n] for n in order]


class StageVerdict(msgspec.Struct, frozen=True):
    """Verdict on one stage.

    Attributes:
        stage: The stage; `pooled` for maps.
        compared: Number of compared cells, over every side, text, layer and head.
        beyond: Number of these cells that differ by more than the tolerance.
        side: Number of the side with the worst cell.
        text: Number of its text.
        first: Its layer and head in the first side.
        second: Its layer and head in the second side.
        cell: The cell with the largest (|second − first| − relative·|first|) / scale.
        scale: 1 for weights and maps; for other stages, the largest magnitude that the stage has in the first side in
            the layer of this cell, or 1 if that is larger.
    """

    stage: str
    compared: int
    beyond: int
    side: int
    text: int
    first: HeadRef
    second: HeadRef
    cell: Cell
    scale: float = 1.0

    def side_faults(self, sides: Sequence[Side]) -> Iterator[tuple[str, str]]:
        """Yield contradictions with the sides."""
        texts = sides[0].report.texts
        cell = self.cell
        if not 0 < self.side < len(sides):
            yield "side", f"is {self.side} of {len(sides)} sides"
        if not 0 <= self.text < len(texts):
            yield "text", f"is {self.text} of {len(texts)} texts"
            return
        counts = {"query": len(texts[self.text].tokens)}
        # The key of an output is a dimension of the value.
        if self.stage != "output":
            counts["key"] = len(texts[self.text].sources)
        for name, count in counts.items():
            if not 0 <= getattr(cell, name) < count:
                yield f"cell.{name}", f"is {getattr(cell, name)} of {count} tokens"


class Verdict(msgspec.Struct, frozen=True):
    """Whether every cell stays within a tolerance: |second − first| ≤ absolute·scale + relative·|first|.

    The scale is 1 for weights, and what StageVerdict.scale says for other stages, in every layer.

    Attributes:
        absolute: `--tolerance`.
        relative: `--relative`.
        passed: Every cell stays within, and everything could be compared.
        stages: One entry per stage that both sides have.
        unmatched: Descriptions of what could not be compared; if there are any, the comparison fails at any tolerance.
        heads: Number of heads of the first side that were compared; a mean over heads or layers counts as one.
        of_heads: Number of heads of the first side's model, over all layers.
        first_layer: First layer (of the first side) in which a cell differs by more; None if none does, or if layers
            are averaged.
    """

    absolute: float
    relative: float
    passed: bool
    stages: list[StageVerdict]
    unmatched: list[str]
    heads: int = 0
    of_heads: int = 0
    first_layer: int | None = None


class Comparison(msgspec.Struct, frozen=True):
    """What `attnscope compare` found.

    Attributes:
        axis: The setting that differs between the sides: `mask`, `layer`, `head`, `text`, `model`, `config`, `dtype`,
            `engine`, `qkv` or `report`.
        sides: The sides; each is compared with the first.
        changes: One entry per side after the first.
        notes: Remarks for the reader, such as what was left out, and how to see it.
        verdict: Verdict under `--tolerance` and `--relative`; None without them.
        named: Which of `query`, `key`, `layer` and `head` the user selected: screens show all of what is selected, and
            otherwise, of long texts, the rows and columns where most weight moves, and of all heads, the head.
        schema: Name and version of this format.
    """

    axis: str
    sides: list[Side]
    changes: list[Change]
    notes: list[str] = []
    verdict: Verdict | None = None
    named: list[str] = []
    schema: str = COMPARE_SCHEMA

    def table(self) -> Table:
        """Return a row for every later side, text, head and aligned query."""
        texts = {text.index: text for text in self.sides[0].report.texts}
        rows = []
        for change in self.changes:
            for head in change.heads:
                for n, (first_query, second_query) in enumerate(head.queries):
                    row = {"side": self.sides[change.side].label, "text": head.text}
                    row |= {
                        "first": str(head.first),
                        "second": str(head.second),
                        "query": first_query,
                    }
                    row |= {
                        "query_token": texts[head.text].tokens[first_query].text,
                        "query_second": second_query,
                    }
                    row |= {
                        name: getattr(head, name)[n]
                        for name in ("total_variation", "jensen_shannon")
                    }
                    for name in ("future", "entropy"):
                        of_first, of_second = getattr(head, name)[:, n]
                        row |= {f"{name}_first": of_first, f"{name}_second": of_second}
                    rows.append(
                        row
                        | {
                            name: getattr(head, name)[n]
                            for name in ("gained", "gain", "lost", "loss")
                        }
                    )
        return columns_of(rows)

    def contradictions(self, _lengths: Mapping[str, int]) -> Iterator[tuple[str, str]]:
        """Yield contradictions that axes cannot express; see `axes`."""
        if len(self.sides) < 2:
            yield "sides", f"has {len(self.sides)} of at least 2 sides"
        for n, change in enumerate(self.changes):
            if not 0 < change.side < len(self.sides):
                yield f"changes[{n}].side", f"is {change.side} of {len(self.sides)} sides"
                return
            reports = [self.sides[0].report.texts, self.sides[change.side].report.texts]
            for h, head in enumerate(change.heads):
                where = f"changes[{n}].heads[{h}]"
                if not all(0 <= head.text < len(texts) for texts in reports):
                    yield f"{where}.text", f"is {head.text}"
                    return
                texts = [report[head.text] for report in reports]
                lengths = {
                    "first source": len(texts[0].sources),
                    "second source": len(texts[1].sources),
                }
                for fault_list in (head.side_faults(texts), faults(head, lengths)):
                    yield from ((f"{where}.{path}", fault) for path, fault in fault_list)
        for n, stage in enumerate(self.verdict.stages if self.verdict is not None else ()):
            yield from (
                (f"verdict.stages[{n}].{path}", fault)
                for path, fault in stage.side_faults(self.sides)
            )
