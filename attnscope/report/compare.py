"""What `attnscope compare` found, as plain data: which sides, how their tokens align, and what differs."""

import msgspec

from attnscope.report.arrays import Floats, Matrix
from attnscope.report.run import Report

COMPARE_SCHEMA = "attnscope.compare/1"


class Side(msgspec.Struct, frozen=True):
    """One of the things that are compared.

    Attributes:
        label: What distinguishes it from the others, such as `causal` or `L3H1`.
        report: Everything found about it.
    """

    label: str
    report: Report


class Cell(msgspec.Struct, frozen=True):
    """One cell of a matrix in which two sides differ most.

    Attributes:
        stage: The matrix; `pooled` for a map.
        query: Position of the query in the first side; in a map, of the first query of its run.
        key: Position of the key in the first side, likewise; a dimension of the value for `output`.
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
    """How much of every row saved reports hold, where they do not hold whole rows (`run --key` leaves keys out).

    Attributes:
        keys: Keys that are saved of a row, in the first side and in the second.
        of: Keys that a row has, in the first side and in the second.
        outside: Weight that every aligned row gives to keys that are not saved, in the first side and in the second,
            (2, queries); null where the row is fully masked.
    """

    keys: tuple[int, int]
    of: tuple[int, int]
    outside: Matrix


class HeadChange(msgspec.Struct, frozen=True):
    """One layer and head of the second side against one of the first, over one text.

    Lists of positions run over the aligned rows: the shown queries of the first side that have a counterpart. What
    needs whole rows is null (−1 as a position) where a saved report does not hold them; see `partial`.

    Attributes:
        text: Number of the text.
        first: Layer and head in the first side, such as `L1H2`.
        second: Layer and head in the second side.
        queries: Aligned rows: position in the first side and in the second. Of two texts, tokens that take each other's
            place are aligned, too.
        keys: Aligned columns that both sides hold, likewise; the columns of `difference`.
        only_first: Positions of the first side's tokens that have no counterpart.
        only_second: Positions of the second side's tokens that have none.
        difference: Weight in the second side minus weight in the first, (queries, keys).
        total_variation: ½ Σ|b − a| over every key: the share of the weight that moves, 0 … 1; needs whole rows.
        jensen_shannon: Jensen–Shannon divergence of the two rows over every key, in bits, 0 … 1; needs whole rows.
        future: Weight on keys after the query (what a causal mask forbids) in the first side and in the second,
            (2, queries); null under cross-attention, and where not all of these keys are saved.
        entropy: Entropy in bits in the first side and in the second, (2, queries).
        gained: Position (in the second side) of the key that gains most; −1 where none gains; needs whole rows.
        gain: How much it gains.
        lost: Position (in the first side) of the key that loses most; −1 where none loses; needs whole rows.
        loss: How much it loses.
        entered: Top contributors of the second side (positions there) that the first side's top did not hold. Of
            saved reports with more contributors and with fewer, as many are looked at as both hold; where they are
            ranked by different measures, none.
        left: Top contributors of the first side (positions there) that the second side's top does not hold.
        worst: Of every stage that both sides have: the cell in which they differ most.
        mass: Weight that every source gets from all queries, in the first side and in the second, (2, sources), where
            maps replace the matrices (everything about rows is empty then); None elsewhere.
        partial: How much of every row is saved, where that is not all of it; None where rows are whole.
    """

    text: int
    first: str
    second: str
    queries: list[tuple[int, int]]
    keys: list[tuple[int, int]]
    only_first: list[int]
    only_second: list[int]
    difference: Matrix
    total_variation: Floats
    jensen_shannon: Floats
    future: Matrix
    entropy: Matrix
    gained: list[int]
    gain: Floats
    lost: list[int]
    loss: Floats
    entered: list[list[int]]
    left: list[list[int]]
    worst: list[Cell]
    mass: Matrix | None = None
    partial: Partial | None = None


class Change(msgspec.Struct, frozen=True):
    """One side against the first.

    Attributes:
        side: Number of the side, from 1.
        heads: One entry per text and shown layer and head.
    """

    side: int
    heads: list[HeadChange]


class StageVerdict(msgspec.Struct, frozen=True):
    """What a tolerance says of one stage.

    Attributes:
        stage: The stage; `pooled` for maps.
        compared: Cells that both sides hold, over every side, text, layer and head.
        beyond: Cells of these that differ by more than the tolerance.
        side: Number of the side with the worst cell.
        text: Number of its text.
        first: Its layer and head in the first side.
        second: Its layer and head in the second side.
        cell: The cell with the largest |second − first| − relative·|first|.
    """

    stage: str
    compared: int
    beyond: int
    side: int
    text: int
    first: str
    second: str
    cell: Cell


class Verdict(msgspec.Struct, frozen=True):
    """Whether every cell of every stage stays within a tolerance: |second − first| ≤ absolute + relative·|first|.

    Attributes:
        absolute: `--tolerance`.
        relative: `--relative`.
        passed: Every cell stays within, and everything could be compared.
        stages: One entry per stage that both sides hold.
        unmatched: What could not be compared, which fails at any tolerance.
    """

    absolute: float
    relative: float
    passed: bool
    stages: list[StageVerdict]
    unmatched: list[str]


class Comparison(msgspec.Struct, frozen=True):
    """What `attnscope compare` found.

    Attributes:
        axis: What differs between the sides: `mask`, `layer`, `head`, `text`, `model`, `config`, `dtype`, `engine` or
            `report`.
        sides: The sides; every other one is compared with the first.
        changes: One entry per side after the first.
        notes: What was left out, and how to see it.
        verdict: What `--tolerance` and `--relative` say; None without them.
        schema: Name and version of this format.
    """

    axis: str
    sides: list[Side]
    changes: list[Change]
    notes: list[str] = []
    verdict: Verdict | None = None
    schema: str = COMPARE_SCHEMA
