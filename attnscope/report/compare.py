"""What `attnscope compare` found, as plain data: which sides, how their tokens align, and what differs."""

import msgspec

from attnscope.report.arrays import Floats, Matrix
from attnscope.report.run import Report

COMPARE_SCHEMA = "attnscope.compare/1"


class Side(msgspec.Struct, frozen=True):
    """One of the things that are compared.

    Attributes:
        label: What tells it from the others, such as `causal` or `L3H1`.
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
        difference: |second − first|; null where only one of them is −inf, which no tolerance forgives.
    """

    stage: str
    query: int
    key: int
    first: float | None
    second: float | None
    difference: float | None


class HeadChange(msgspec.Struct, frozen=True):
    """One layer and head of the second side against one of the first, over one text.

    Lists of positions run over the aligned rows: the shown queries of the first side that have a counterpart.

    Attributes:
        text: Number of the text.
        first: Layer and head in the first side, such as `L1H2`.
        second: Layer and head in the second side.
        queries: Aligned rows: position in the first side and in the second.
        keys: Aligned columns, likewise; the columns of `difference`.
        only_first: Positions of the first side's tokens that have no counterpart.
        only_second: Positions of the second side's tokens that have none.
        difference: Weight in the second side minus weight in the first, (queries, keys).
        total_variation: ½ Σ|b − a| over every key: the share of the weight that moves, 0 … 1.
        jensen_shannon: Jensen–Shannon divergence of the two rows over every key, in bits, 0 … 1.
        future: Weight on keys after the query (what a causal mask forbids) in the first side and in the second,
            (2, queries); null under cross-attention.
        entropy: Entropy in bits in the first side and in the second, (2, queries).
        gained: Position (in the second side) of the key that gains most; −1 where none gains.
        gain: How much it gains.
        lost: Position (in the first side) of the key that loses most; −1 where none loses.
        loss: How much it loses.
        entered: Top contributors of the second side (positions there) that the first side's top did not hold.
        left: Top contributors of the first side (positions there) that the second side's top does not hold.
        worst: Of every stage that both sides have: the cell in which they differ most.
        mass: Weight that every source gets from all queries, in the first side and in the second, (2, sources), where
            maps stand for the matrices (everything about rows is empty then); None elsewhere.
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


class Change(msgspec.Struct, frozen=True):
    """One side against the first.

    Attributes:
        side: Number of the side, from 1.
        heads: One entry per text and shown layer and head.
    """

    side: int
    heads: list[HeadChange]


class Comparison(msgspec.Struct, frozen=True):
    """What `attnscope compare` found.

    Attributes:
        axis: What differs between the sides: `mask`, `layer`, `head`, `text`, `model`, `config`, `dtype`, `engine` or
            `report`.
        sides: The sides; every other one is held against the first.
        changes: One entry per side after the first.
        notes: What was left out, and how to see it.
        schema: Name and version of this format.
    """

    axis: str
    sides: list[Side]
    changes: list[Change]
    notes: list[str] = []
    schema: str = COMPARE_SCHEMA
