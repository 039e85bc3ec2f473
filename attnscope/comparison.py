"""Reports in, what differs between them out: NumPy on plain data, so saved Reports compare without a model."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from attnscope.alignment import align
from attnscope.errors import AttnscopeError
from attnscope.overviews import pooled_change
from attnscope.report import STAGES, HeadReport, TextReport
from attnscope.report.compare import Cell, Change, Comparison, HeadChange, Side

_Array = np.ndarray[Any, np.dtype[Any]]


def compare(axis: str, sides: Sequence[Side], shown_keys: Sequence[int] | None = None) -> Comparison:
    """Hold every side against the first.

    Args:
        axis: What differs between them.
        sides: At least two, each with whole rows of `weights`.
        shown_keys: Columns of the first side that the difference matrix has; None for all.

    Raises:
        AttnscopeError: A side lacks a text, a layer and head, or the weights or maps that it needs, or texts are too
            long and too different.
    """
    changes = [Change(n, list(_head_changes(axis, sides[0], side, shown_keys))) for n, side in enumerate(sides) if n]
    return Comparison(axis, list(sides), changes, _notes(changes))


def _head_changes(axis: str, first: Side, second: Side, shown_keys: Sequence[int] | None) -> Iterator[HeadChange]:
    one, other = first.report, second.report
    if len(one.texts) != len(other.texts):
        found = f"'{first.label}' has {len(one.texts)} texts, '{second.label}' has {len(other.texts)}"
        raise AttnscopeError(found, hint="compare reports of the same texts")
    for number, (a, b) in enumerate(zip(one.texts, other.texts, strict=True)):
        if axis in ("layer", "head") and len(a.heads) == len(b.heads):
            pairs = list(zip(a.heads, b.heads, strict=True))
        else:
            pairs = [(head, _counterpart(head, b, second.label)) for head in a.heads]
        if not a.queries or not b.queries:
            yield from (pooled_change(number, (a, x, name(x)), (b, y, name(y))) for x, y in pairs)
            continue
        queries = _both(align(a.tokens, b.tokens), a.queries, b.queries)
        keys = _both(align(a.sources, b.sources), a.keys, b.keys)
        for x, y in pairs:
            one_half = _Half(a, x, [q for q, _ in queries], [k for k, _ in keys])
            other_half = _Half(b, y, [q for _, q in queries], [k for _, k in keys])
            yield _head_change(number, one_half, other_half, shown_keys)


def _both(pairs: list[tuple[int, int]], first: list[int], second: list[int]) -> list[tuple[int, int]]:
    """The pairs whose positions both sides show."""
    here, there = set(first), set(second)
    return [(i, j) for i, j in pairs if i in here and j in there]


def _counterpart(head: HeadReport, text: TextReport, label: str) -> HeadReport:
    for other in text.heads:
        if (other.layer, other.head) == (head.layer, head.head):
            return other
    hint = "compare reports of the same layers and heads"
    raise AttnscopeError(f"{name(head)} is not in '{label}'", hint=hint)


def name(head: HeadReport) -> str:
    """`L1H2`, `L1 mean`, `mean H2` or `mean`."""
    layer = "mean" if head.layer == "mean" else f"L{head.layer}"
    if head.head == "mean":
        return layer if layer == "mean" else f"{layer} mean"
    return f"mean H{head.head}" if layer == "mean" else f"{layer}H{head.head}"


@dataclass(frozen=True)
class _Half:
    """One side's share of a comparison: a text and head, and the positions that have a counterpart."""

    text: TextReport
    head: HeadReport
    queries: list[int]
    keys: list[int]

    @cached_property
    def at(self) -> list[int]:
        """Rows of the aligned queries within the report's matrices."""
        return _places(self.queries, self.text.queries)

    @cached_property
    def columns(self) -> list[int]:
        """Columns of the aligned keys within the report's matrices."""
        return _places(self.keys, self.text.keys)

    @cached_property
    def weights(self) -> _Array:
        """Weights of the aligned queries over every key of the report, (queries, keys), float64."""
        if "weights" not in self.head.stages:
            hint = "save it with --stage scores,masked,weights"
            raise AttnscopeError("the report holds no weights", where=name(self.head), hint=hint)
        return self.head.stages["weights"][self.at].astype(np.float64)

    @cached_property
    def own_keys(self) -> list[int]:
        """Positions of the shown keys without a counterpart."""
        return sorted(set(self.text.keys).difference(self.keys))

    @cached_property
    def own(self) -> _Array:
        """Weights of the aligned queries on those, (queries, own keys)."""
        return np.delete(self.weights, self.columns, axis=1)

    @property
    def sink(self) -> _Array:
        """What the aligned queries give to the head's sink, (queries, 1); 0 where it has none."""
        given = np.zeros(len(self.at)) if self.head.sink is None else self.head.sink[self.at].astype(np.float64)
        return given[:, None]

    @property
    def future(self) -> _Array:
        """Weight on keys after the query, (queries,)."""
        after = np.array(self.text.keys)[None] > np.array(self.queries, dtype=np.int64)[:, None]
        none = np.full(len(self.queries), np.nan)
        return none if self.text.context is not None else (self.weights * after).sum(-1)

    @property
    def top(self) -> list[list[int]]:
        """Positions of the top contributors of every aligned query, strongest first."""
        return [[int(k) for k in row if k >= 0] for row in self.head.top.keys[self.at]]


def _places(chosen: Sequence[int], among: Sequence[int]) -> list[int]:
    """Where each of these stands among those."""
    place = {position: n for n, position in enumerate(among)}
    return [place[position] for position in chosen]


def _head_change(number: int, one: _Half, other: _Half, shown_keys: Sequence[int] | None) -> HeadChange:
    p, q = _outcomes(one, other)
    wanted = set(one.keys if shown_keys is None else shown_keys)
    shown = [n for n, key in enumerate(one.keys) if key in wanted]
    moved = other.weights[:, other.columns] - one.weights[:, one.columns]  # over aligned keys
    gained, gain = _largest(np.hstack([moved, other.own]), other.keys + other.own_keys)
    lost, loss = _largest(np.hstack([-moved, one.own]), one.keys + one.own_keys)
    return HeadChange(
        text=number,
        first=name(one.head),
        second=name(other.head),
        queries=list(zip(one.queries, other.queries, strict=True)),
        keys=[(one.keys[n], other.keys[n]) for n in shown],
        only_first=one.own_keys,
        only_second=other.own_keys,
        difference=moved[:, shown].astype(np.float32),
        total_variation=(0.5 * np.abs(q - p).sum(-1)).astype(np.float32),
        jensen_shannon=jensen_shannon(p, q).astype(np.float32),
        future=np.array([one.future, other.future], dtype=np.float32),
        entropy=np.array([half.head.rows.entropy[half.at] for half in (one, other)]),
        gained=gained,
        gain=gain,
        lost=lost,
        loss=loss,
        entered=_newcomers(one, other),
        left=_newcomers(other, one),
        worst=[
            _worst(stage, one, other) for stage in STAGES if stage in one.head.stages and stage in other.head.stages
        ],
    )


def _outcomes(one: _Half, other: _Half) -> tuple[_Array, _Array]:
    """Both sides' rows over the same outcomes: aligned keys, the first side's own, the second's own, and the sink."""
    p = np.hstack([one.weights[:, one.columns], one.own, np.zeros_like(other.own), one.sink])
    q = np.hstack([other.weights[:, other.columns], np.zeros_like(one.own), other.own, other.sink])
    return p, q


def jensen_shannon(p: _Array, q: _Array) -> _Array:
    """Jensen–Shannon divergence of rows of weights, in bits: ½ KL(p‖m) + ½ KL(q‖m) with m = ½(p + q) (Lin, 1991).

    Args:
        p: (rows, outcomes), each row sums to 1.
        q: Likewise.

    Returns:
        (rows,), 0 for equal rows and 1 for rows that share nothing; NaN where a row is.
    """
    m = 0.5 * (p + q)

    def parts(x: _Array) -> _Array:
        ratio = np.divide(x, m, out=np.ones_like(x), where=x > 0)
        return np.where(np.isnan(x), np.nan, x * np.log2(ratio))

    return np.maximum(0.5 * (parts(p) + parts(q)).sum(-1), 0.0)  # type: ignore[no-any-return]


def _largest(change: _Array, positions: list[int]) -> tuple[list[int], _Array]:
    """Of every row: the position whose weight grows most, and by how much; −1 and 0 where none grows."""
    if not positions:
        return [-1] * len(change), np.zeros(len(change), dtype=np.float32)
    best = np.where(np.isnan(change), 0.0, change)
    at = best.argmax(-1)
    most = np.take_along_axis(best, at[:, None], axis=1)[:, 0]
    gained = [positions[i] if value > 0 else -1 for i, value in zip(at, most, strict=True)]
    return gained, np.maximum(most, 0).astype(np.float32)


def _newcomers(before: _Half, after: _Half) -> list[list[int]]:
    """Of every row: top contributors of one side that the other side's top does not hold."""
    there = dict(zip(before.keys, after.keys, strict=True))
    carried = [{there[p] for p in row if p in there} for row in before.top]
    return [[p for p in row if p not in old] for row, old in zip(after.top, carried, strict=True)]


def _worst(stage: str, one: _Half, other: _Half) -> Cell:
    """The cell of a stage in which two sides differ most."""
    a, b = (half.head.stages[stage][half.at].astype(np.float64) for half in (one, other))
    keys = one.keys
    if stage == "output":
        if a.shape != b.shape:
            raise AttnscopeError("the values are of different widths", where=f"{name(one.head)}: output")
        keys = list(range(a.shape[1]))
    else:
        a, b = a[:, one.columns], b[:, other.columns]
    if not a.size:
        return Cell(stage, -1, -1, None, None, 0.0)
    apart = np.isfinite(a) != np.isfinite(b)
    with np.errstate(invalid="ignore"):
        size = np.where(apart, np.inf, np.where(np.isfinite(a), np.abs(b - a), 0.0))
    row, column = (int(i) for i in np.unravel_index(int(size.argmax()), size.shape))
    values = [float(x[row, column]) if np.isfinite(x[row, column]) else None for x in (a, b)]
    difference = None if apart[row, column] else float(size[row, column])
    return Cell(stage, one.queries[row], keys[column], values[0], values[1], difference)


def _notes(changes: Sequence[Change]) -> list[str]:
    """What a reader must know of maps, and of tokens without counterpart."""
    heads = [head for change in changes for head in change.heads]
    if any(head.mass is not None for head in heads):
        return ["maps stand for matrices that are too large; --query ROWS compares those rows cell by cell"]
    if not any(head.only_first or head.only_second for head in heads):
        return []
    return ["tokens that only one side has are not in the matrix; their weight counts as moved"]
