"""Compare reports cell by cell. NumPy on plain data, so that saved reports compare without a model."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from attnscope.base.errors import AttnscopeError, arg
from attnscope.findings.compare import Change, Comparison, HeadChange, Partial, Side
from attnscope.findings.run import STAGES, HeadReport, TextReport
from attnscope.findings.tokens import Token, spell_piece
from attnscope.studies.compare.alignment import align, pair_replaced
from attnscope.studies.compare.tolerance import Judge, MatrixPair, Tolerance, layer_scale

_Array = np.ndarray[Any, np.dtype[Any]]
_Side = tuple[TextReport, HeadReport]


def compare_sides(
    axis: str,
    sides: Sequence[Side],
    shown_keys: Sequence[Sequence[int] | None] | None = None,
    tolerance: Tolerance | None = None,
    stages: Sequence[str] = STAGES,
    named: Sequence[str] = (),
    unmatched: Sequence[str] = (),
) -> Comparison:
    """Compare every side with the first.

    Args:
        shown_keys: Columns of the difference matrix for every text, in the first side; None for all.
        stages: Stages whose worst cells are reported.
        unmatched: Descriptions of what has no counterpart; these fail at any tolerance.
    """
    judge = Judge(tolerance or Tolerance())
    notes = {} if tolerance else dict.fromkeys(f"{sizes}; what both have is compared" for sizes in unmatched)
    unmatched = list(unmatched)
    changes = []
    for number, side in enumerate(sides[1:], 1):
        change = Change(number, [])
        for text in _texts(axis, sides[0], side):
            shown = None if shown_keys is None else shown_keys[text.number]
            for layer, head_change, pairs in text.changes(shown, stages):
                change.heads.append(head_change)
                judge.see(number, text.number, layer, (head_change.first, head_change.second), pairs)
            notes |= dict.fromkeys(text.notes())
            unmatched += text.unmatched()
        changes.append(change)
    if any(head.only_first or head.only_second for change in changes for head in change.heads):
        notes |= {"the weight of a token that only one side has (a│ or │b) counts as moved": None}
    first_provenance = sides[0].report.provenance
    verdict = judge.verdict(unmatched, first_provenance.n_layers * first_provenance.n_heads) if tolerance else None
    return Comparison(axis, list(sides), changes, list(notes), verdict, list(named))


def _texts(axis: str, first: Side, second: Side) -> "list[_Text]":
    first_texts, second_texts = first.report.texts, second.report.texts
    if len(first_texts) != len(second_texts):
        message = f"'{first.label}' has {len(first_texts)} texts, '{second.label}' has {len(second_texts)}"
        raise AttnscopeError(message, hint="compare reports of the same texts")
    labels = first.label, second.label
    return [
        _Text(axis, number, labels, a, b) for number, (a, b) in enumerate(zip(first_texts, second_texts, strict=True))
    ]


@dataclass(frozen=True)
class _Text:
    """One text of two sides."""

    axis: str
    number: int
    labels: tuple[str, str]
    a: TextReport
    b: TextReport

    @property
    def _where(self) -> str:
        return "" if self.axis == "text" else f"text {self.number}: "  # of texts, the labels say which

    @property
    def maps(self) -> bool:
        """Whether a map replaces the matrices of a side."""
        return not self.a.queries or not self.b.queries

    @cached_property
    def shared(self) -> "_Pairs":
        """Tokens that both texts have; a tolerance judges only their cells."""
        tokens = align(self.a.tokens, self.b.tokens)
        self_attention = self.a.context is None and self.b.context is None
        return self._pairs(tokens, tokens if self_attention else align(self.a.sources, self.b.sources))

    @cached_property
    def aligned(self) -> "_Pairs":
        """Shared tokens and, if texts may differ, tokens that replace each other."""
        if self.axis not in ("text", "report"):
            return self.shared
        a, b, shared = self.a, self.b, self.shared
        return self._pairs(
            pair_replaced(a.tokens, b.tokens, shared.tokens), pair_replaced(a.sources, b.sources, shared.sources)
        )

    def _pairs(self, tokens: list[tuple[int, int]], sources: list[tuple[int, int]]) -> "_Pairs":
        queries = _shown_in_both(tokens, self.a.queries, self.b.queries)
        return _Pairs(tokens, sources, queries, _shown_in_both(sources, self.a.keys, self.b.keys))

    def heads(self) -> list[tuple[HeadReport, HeadReport]]:
        """Return heads of the first side, each with its counterpart."""
        if self.axis in ("layer", "head") and len(self.a.heads) == len(self.b.heads):
            return list(zip(self.a.heads, self.b.heads, strict=True))
        return [(head, _counterpart(head, self.b, self.labels[1])) for head in self.a.heads]

    def changes(
        self, shown: Sequence[int] | None, stages: Sequence[str]
    ) -> Iterator[tuple[int | str, HeadChange, list[MatrixPair]]]:
        """Compare every head with its counterpart; yield its layer in the first side, the change and the matrices."""
        scales: dict[tuple[str, int | str], float] = {}
        for x, y in self.heads():
            if self.maps:
                yield x.layer, *pooled_change(self.number, (self.a, x), (self.b, y))
                continue
            halves, pairs = self._halves(self.shared, x, y), []
            for stage in [s for s in STAGES if s in stages and s in x.stages and s in y.stages]:
                if (stage, x.layer) not in scales:
                    of_layer = [h.stages[stage] for h in self.a.heads if h.layer == x.layer and stage in h.stages]
                    scales[stage, x.layer] = layer_scale(stage, of_layer)
                pairs.append(_pair(stage, *halves, scales[stage, x.layer]))
            yield x.layer, _head_change(self.number, *self._halves(self.aligned, x, y), pairs, shown), pairs

    def _halves(self, pairs: "_Pairs", x: HeadReport, y: HeadReport) -> "tuple[_AlignedSide, _AlignedSide]":
        first, second = (
            [[pair[n] for pair in axis] for axis in (pairs.queries, pairs.keys, pairs.sources)] for n in (0, 1)
        )
        return _AlignedSide(self.a, x, *first), _AlignedSide(self.b, y, *second)

    def unmatched(self) -> list[str]:
        """Return descriptions of what has no counterpart, which fail at any tolerance.

        For texts that are meant to differ, only the shared tokens are compared.
        """
        where = self._where
        unmatched = [] if self.axis == "text" or self.maps else [where + name for name in self._alone()]
        if nothing := self._nothing(self.shared):
            unmatched.insert(0, where + nothing)
        return unmatched

    def _alone(self) -> Iterator[str]:
        for kind in ("tokens", "sources") if self.a.context is not None or self.b.context is not None else ("tokens",):
            for n, text in enumerate((self.a, self.b)):
                spelled: Sequence[Token] = getattr(text, kind)
                if alone := _without(spelled, [pair[n] for pair in getattr(self.shared, kind)]):
                    few = ", ".join(f"{p} '{spell_piece(spelled, p)}'" for p in alone[:_NAMED])
                    more = f" and {len(alone) - _NAMED} more" if len(alone) > _NAMED else ""
                    yield f"only '{self.labels[n]}' has the tokens {few}{more}"

    def _nothing(self, pairs: "_Pairs") -> str:
        """Return why no cell of these pairs is compared; empty if any cell is."""
        first_label, second_label = (f"'{label}'" for label in self.labels)
        if not self.a.heads:
            return f"{first_label} has no layer and head"
        if self.maps:
            return ""
        of_kinds = ("query", pairs.tokens, pairs.queries), ("key", pairs.sources, pairs.keys)
        for kind, matched, in_both in of_kinds:
            if not matched:
                return f"no {kind} token of {first_label} has a counterpart in {second_label}"
            if not in_both:
                saved = [listed(text.queries if kind == "query" else text.keys) for text in (self.a, self.b)]
                return f"{first_label} has {kind} {saved[0]}, {second_label} has {saved[1]}, and none correspond"
        return ""

    def notes(self) -> Iterator[str]:
        """Yield notes on what is not compared."""
        if nothing := self._nothing(self.aligned):
            yield self._where + nothing
        paired = {y.ref for _, y in self.heads()}
        if more := [str(head.ref) for head in self.b.heads if head.ref not in paired]:
            yield f"only '{self.labels[1]}' has {', '.join(more[:_NAMED])}{' …' if len(more) > _NAMED else ''}"
        if self.maps:
            return
        stages = [set(text.heads[0].stages) if text.heads else set() for text in (self.a, self.b)]
        for n, label in enumerate(self.labels):
            if only := [stage for stage in STAGES if stage in stages[n] - stages[1 - n]]:
                yield f"only '{label}' has {', '.join(only)}"
        for text, label in ((self.a, self.labels[0]), (self.b, self.labels[1])):
            if len(text.keys) < len(text.sources):
                yield (
                    f"'{label}' has {len(text.keys)} of {len(text.sources)} keys: moved, JS, gains and losses need "
                    f"whole rows and are not computed; save it without --key to get them"
                )
        for n, (text, label) in enumerate(((self.a, self.labels[0]), (self.b, self.labels[1]))):
            there, shown = ({pair[n] for pair in pairs} for pairs in (self.aligned.tokens, self.aligned.queries))
            if lost := [q for q in text.queries if q in there and q not in shown]:
                yield f"only '{label}' has the rows of query {listed(lost)}"
        if any(not _same_ranking(x, y) for x, y in self.heads()):
            yield "contributors are ranked by different measures: gains and losses are not shown"
        if self.aligned.sources != self.shared.sources:
            yield "a token that replaces another token is compared with that token"


def pooled_change(number: int, first: _Side, second: _Side) -> tuple[HeadChange, list[MatrixPair]]:
    """Return the change between the maps and column masses of two heads of one text, and the maps."""
    (first_text, a), (second_text, b) = first, second
    if a.pooled is None or b.pooled is None or a.columns is None or b.columns is None:
        hint = f"select rows with {arg('query')}, or run both with {arg('pool')}"
        raise AttnscopeError("only one side has a map", where=str(a.ref), hint=hint)
    same_tokens = [t.piece for t in first_text.tokens] == [t.piece for t in second_text.tokens]
    same_sources = [t.piece for t in first_text.sources] == [t.piece for t in second_text.sources]
    if not same_tokens or not same_sources or a.pooled.weights.shape != b.pooled.weights.shape:
        hint = f"select rows with {arg('query')}, or use the same text and the same {arg('pool')}"
        raise AttnscopeError("maps of different tokens or runs cannot be compared", where=str(a.ref), hint=hint)
    none, empty = np.zeros(0, dtype=np.float32), np.zeros((0, 0), dtype=np.float32)
    before, after = a.pooled.weights.astype(np.float64), b.pooled.weights.astype(np.float64)
    maps = MatrixPair("pooled", before, after, a.pooled.queries, a.pooled.keys)
    change = HeadChange(
        text=number, first=a.ref, second=b.ref, queries=[], keys=[], only_first=[], only_second=[],
        difference=empty, total_variation=none, jensen_shannon=none, future=empty, entropy=empty,
        gained=[], gain=none, lost=[], loss=none, entered=[], left=[],
        worst=[maps.worst()],
        mass=np.array([a.columns, b.columns]),
    )  # fmt: skip
    return change, [maps]


@dataclass(frozen=True)
class _Pairs:
    """Positions in both sides of the tokens that are compared."""

    tokens: list[tuple[int, int]]
    sources: list[tuple[int, int]]
    queries: list[tuple[int, int]]  # whose rows both sides show
    keys: list[tuple[int, int]]  # whose columns both sides show


_NAMED = 5  # number of tokens or heads that a message names


def _without(tokens: Sequence[Token], matched: Sequence[int]) -> list[int]:
    there = set(matched)
    return [position for position in range(len(tokens)) if position not in there]


def listed(positions: Sequence[int]) -> str:
    """Write positions as runs, such as `0–4, 7`."""
    runs: list[list[int]] = []
    for position in positions:
        if runs and position == runs[-1][1] + 1:
            runs[-1][1] = position
        else:
            runs.append([position, position])
    return ", ".join(str(a) if a == b else f"{a}–{b}" for a, b in runs) or "none"


def _shown_in_both(pairs: list[tuple[int, int]], first: list[int], second: list[int]) -> list[tuple[int, int]]:
    here, there = set(first), set(second)
    return [(i, j) for i, j in pairs if i in here and j in there]


def _counterpart(head: HeadReport, text: TextReport, label: str) -> HeadReport:
    for other in text.heads:
        if other.ref == head.ref:
            return other
    there = [str(other.ref) for other in text.heads]
    hint = "compare reports of the same layers and heads"
    if head.chosen and text.heads and text.heads[0].chosen:
        hint = f"each side chose its own head; run one again with {arg('layer', head.layer)} {arg('head', head.head)}"
    message = f"{head.ref} is not in '{label}', which has {', '.join(there[:_NAMED]) or 'no head'}"
    raise AttnscopeError(message + (" …" if len(there) > _NAMED else ""), hint=hint)


@dataclass(frozen=True)
class _AlignedSide:
    """One side of a comparison, aligned with the other: positions of what has a counterpart."""

    text: TextReport
    head: HeadReport
    queries: list[int]  # of rows
    keys: list[int]  # of columns
    sources: list[int]  # of all sources, shown or not

    @property
    def whole(self) -> bool:
        """Whether the report holds every key of a row."""
        return len(self.text.keys) == len(self.text.sources)

    @cached_property
    def at(self) -> list[int]:
        """Row numbers of the aligned queries in the report's matrices."""
        return _index_of(self.queries, self.text.queries)

    @cached_property
    def columns(self) -> list[int]:
        """Column numbers of the aligned keys in the report's matrices."""
        return _index_of(self.keys, self.text.keys)

    @cached_property
    def weights(self) -> _Array:
        """Weights of the aligned queries over every key of the report, (queries, keys), float64."""
        if "weights" not in self.head.stages:
            hint = f"save it with {arg('stages', ('scores', 'masked', 'weights'))}"
            raise AttnscopeError("the report has no weights", where=str(self.head.ref), hint=hint)
        return self.head.stages["weights"][self.at].astype(np.float64)

    @cached_property
    def own_keys(self) -> list[int]:
        """Positions of the sources without a counterpart."""
        return _without(self.text.sources, self.sources)

    @cached_property
    def own(self) -> _Array:
        """Weights of the aligned queries on the keys without a counterpart, (queries, own keys)."""
        return self.weights[:, _index_of(self.own_keys, self.text.keys)]

    @property
    def sink(self) -> _Array:
        """Weight of the aligned queries on the head's sink, (queries, 1); 0 for a head without one."""
        sink = self.head.rows.sink
        return (np.zeros(len(self.at)) if sink is None else sink[self.at].astype(np.float64))[:, None]

    @property
    def outside(self) -> _Array:
        """Weight of the aligned queries on keys that are not saved, (queries,)."""
        saved = self.weights.sum(-1)
        return np.where(np.isnan(saved), np.nan, 0.0 if self.whole else np.maximum(1 - self.sink[:, 0] - saved, 0))

    @property
    def future(self) -> _Array:
        """Weight on keys after the query, (queries,); NaN unless all of them are saved."""
        queries = np.array(self.queries, dtype=np.int64)
        if self.text.context is not None:
            return np.full(len(queries), np.nan)
        after = np.array(self.text.keys)[None] > queries[:, None]
        last_missing = max(set(range(len(self.text.sources))).difference(self.text.keys), default=-1)
        return np.where(last_missing > queries, np.nan, (self.weights * after).sum(-1))

    def top(self, ranks: int) -> list[list[int]]:
        """Return positions of the strongest contributors of each aligned query, strongest first."""
        return [[int(k) for k in row if k >= 0] for row in self.head.top.keys[self.at, :ranks]]


def _index_of(chosen: Sequence[int], among: Sequence[int]) -> list[int]:
    """Return the index of each item of `chosen` in `among`."""
    place = {position: n for n, position in enumerate(among)}
    return [place[position] for position in chosen]


def _head_change(
    number: int,
    first_side: _AlignedSide,
    other: _AlignedSide,
    pairs: Sequence[MatrixPair],
    shown_keys: Sequence[int] | None,
) -> HeadChange:
    wanted = set(first_side.keys if shown_keys is None else shown_keys)
    shown = [n for n, key in enumerate(first_side.keys) if key in wanted]
    moved = other.weights[:, other.columns] - first_side.weights[:, first_side.columns]  # over aligned keys
    partial = None
    if first_side.whole and other.whole:
        # the same outcomes on both sides: aligned keys, the first side's own, the second's own, and the sink
        p = np.hstack(
            [first_side.weights[:, first_side.columns], first_side.own, np.zeros_like(other.own), first_side.sink]
        )
        q = np.hstack([other.weights[:, other.columns], np.zeros_like(first_side.own), other.own, other.sink])
        apart, divergence = 0.5 * np.abs(q - p).sum(-1), jensen_shannon(p, q)
        gained, gain = _largest(np.hstack([moved, other.own]), other.keys + other.own_keys)
        lost, loss = _largest(np.hstack([-moved, first_side.own]), first_side.keys + first_side.own_keys)
    else:
        apart = divergence = gain = loss = np.full(len(first_side.queries), np.nan)
        gained = lost = [-1] * len(first_side.queries)
        saved = len(first_side.text.keys), len(other.text.keys)
        of = len(first_side.text.sources), len(other.text.sources)
        partial = Partial(saved, of, np.array([first_side.outside, other.outside], dtype=np.float32))
    return HeadChange(
        text=number,
        first=first_side.head.ref,
        second=other.head.ref,
        queries=list(zip(first_side.queries, other.queries, strict=True)),
        keys=[(first_side.keys[n], other.keys[n]) for n in shown],
        only_first=first_side.own_keys,
        only_second=other.own_keys,
        difference=moved[:, shown].astype(np.float32),
        total_variation=apart.astype(np.float32),
        jensen_shannon=divergence.astype(np.float32),
        future=np.array([first_side.future, other.future], dtype=np.float32),
        entropy=np.array([half.head.rows.entropy[half.at] for half in (first_side, other)]),
        gained=gained,
        gain=gain.astype(np.float32),
        lost=lost,
        loss=loss.astype(np.float32),
        entered=_entered(first_side, other),
        left=_entered(other, first_side),
        worst=[pair.worst() for pair in pairs],
        partial=partial,
    )


def jensen_shannon(p: _Array, q: _Array) -> _Array:
    """Return the Jensen–Shannon divergence of rows in bits: ½ KL(p‖m) + ½ KL(q‖m), m = ½(p + q) (Lin, 1991).

    Rows of both, (rows, outcomes), sum to 1. It is 0 for equal rows and 1 for rows that share nothing; NaN where a row
    is.
    """
    m = 0.5 * (p + q)

    def parts(x: _Array) -> _Array:
        ratio = np.divide(x, m, out=np.ones_like(x), where=x > 0)
        return np.where(np.isnan(x), np.nan, x * np.log2(ratio))

    return np.maximum(0.5 * (parts(p) + parts(q)).sum(-1), 0.0)  # type: ignore[no-any-return]


def _largest(change: _Array, positions: list[int]) -> tuple[list[int], _Array]:
    """Return, for every row, the position whose weight grows most and its growth; −1 and 0 if none grows."""
    if not positions:
        return [-1] * len(change), np.zeros(len(change), dtype=np.float32)
    best = np.where(np.isnan(change), 0.0, change)
    at = best.argmax(-1)
    most = np.take_along_axis(best, at[:, None], axis=1)[:, 0]
    gained = [positions[i] if value > 0 else -1 for i, value in zip(at, most, strict=True)]
    return gained, np.maximum(most, 0).astype(np.float32)


def _same_ranking(first: HeadReport, second: HeadReport) -> bool:
    return (first.top.by, first.top.left_out) == (second.top.by, second.top.left_out)


def _entered(before: _AlignedSide, after: _AlignedSide) -> list[list[int]]:
    """Return, for every row, the top contributors of one side that are not among the other side's."""
    if not _same_ranking(before.head, after.head):
        return [[] for _ in after.queries]
    ranks = min(half.head.top.keys.shape[1] for half in (before, after))
    there = dict(zip(before.sources, after.sources, strict=True))
    carried = [{there[p] for p in row if p in there} for row in before.top(ranks)]
    return [[p for p in row if p not in old] for row, old in zip(after.top(ranks), carried, strict=True)]


def _pair(stage: str, first_side: _AlignedSide, second_side: _AlignedSide, scale: float) -> MatrixPair:
    a, b = (half.head.stages[stage][half.at].astype(np.float64) for half in (first_side, second_side))
    if stage != "output":
        return MatrixPair(
            stage, a[:, first_side.columns], b[:, second_side.columns], first_side.queries, first_side.keys, scale
        )
    if a.shape != b.shape:
        raise AttnscopeError("the values are of different widths", where=f"{first_side.head.ref}: output")
    return MatrixPair(stage, a, b, first_side.queries, range(a.shape[1]), scale)
