"""Compare reports cell by cell. NumPy on plain data, so that saved reports compare without a model."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from attnscope.base.errors import AttnscopeError, arg
from attnscope.findings.compare import Change, Comparison, HeadChange, Partial, Side
from attnscope.findings.heads import STAGES, HeadReport
from attnscope.findings.hints import Hint
from attnscope.findings.run import TextReport
from attnscope.findings.tokens import Token, spell_piece
from attnscope.studies.compare.alignment import align, align_characters, pair_replaced
from attnscope.studies.compare.tolerance import Judge, MatrixPair, Tolerance, layer_scale
from attnscope.views.axes import format_positions

_Array = np.ndarray[Any, np.dtype[Any]]
_NAMED = 5  # number of tokens or heads that a message names


def compare_sides(
    axis: str,
    sides: Sequence[Side],
    shown_keys: Sequence[Sequence[int] | None] | None = None,
    tolerance: Tolerance | None = None,
    stages: Sequence[str] = STAGES,
    named_options: Sequence[str] = (),
    unmatched: Sequence[str] = (),
) -> Comparison:
    """Compare every side with the first.

    Args:
        shown_keys: Columns of the difference matrix for every text, in the first side; None for all.
        stages: Stages whose worst cells are reported.
        unmatched: Descriptions of what has no counterpart; these fail at any tolerance.
    """
    judge = Judge(tolerance or Tolerance())
    if tolerance:
        notes = {}
    else:
        notes = dict.fromkeys(f"{sizes}; what both have is compared" for sizes in unmatched)
    unmatched = list(unmatched)
    changes = []
    for side_index, side in enumerate(sides[1:], 1):
        change = Change(side_index, [])
        for text in _texts(axis, sides[0], side):
            text_keys = None if shown_keys is None else shown_keys[text.number]
            for layer, head_change, pairs in text.changes(text_keys, stages):
                change.heads.append(head_change)
                judge.see(
                    side_index, text.number, layer, (head_change.first, head_change.second), pairs
                )
            notes |= dict.fromkeys(text.notes())
            unmatched += text.unmatched()
        changes.append(change)
    if any(head.only_first or head.only_second for change in changes for head in change.heads):
        notes |= {"the weight of a token that only one side has (a/– or –/b) counts as moved": None}
    first_provenance = sides[0].report.provenance
    verdict = None
    if tolerance:
        verdict = judge.verdict(
            unmatched, len(first_provenance.attending) * first_provenance.n_heads
        )
    return Comparison(axis, list(sides), changes, list(notes), verdict, list(named_options))


def _texts(axis: str, first_side: Side, second_side: Side) -> "list[_Text]":
    first_texts = first_side.report.texts
    second_texts = second_side.report.texts
    if len(first_texts) != len(second_texts):
        message = f"'{first_side.label}' has {len(first_texts)} texts, '{second_side.label}' has {len(second_texts)}"
        raise AttnscopeError(message, hint="compare reports of the same texts")
    labels = first_side.label, second_side.label
    return [
        _Text(axis, index, labels, a, b)
        for index, (a, b) in enumerate(zip(first_texts, second_texts, strict=True))
    ]


@dataclass(frozen=True)
class _Text:
    axis: str
    number: int
    labels: tuple[str, str]
    a: TextReport
    b: TextReport

    @property
    def _where(self) -> str:
        # of texts, the labels say which
        if self.axis == "text":
            return ""
        return f"text {self.number}: "

    @property
    def maps(self) -> bool:
        """Whether a map replaces the matrices of a side."""
        return not self.a.queries or not self.b.queries

    @cached_property
    def shared(self) -> "tuple[_Aligned, _Aligned]":
        """Tokens that both texts have; a tolerance judges only their cells."""
        tokens = align(self.a.tokens, self.b.tokens)
        self_attention = self.a.context is None and self.b.context is None
        return self._pairs(
            tokens, tokens if self_attention else align(self.a.sources, self.b.sources)
        )

    @cached_property
    def aligned(self) -> "tuple[_Aligned, _Aligned]":
        """Shared tokens and, if texts may differ, tokens that replace each other.

        Two tokenizers may spell the same characters differently: their tokens of one text are aligned by characters.
        """
        if self._recut:
            return self._pairs(
                align_characters(self.a.tokens, self.b.tokens),
                align_characters(self.a.sources, self.b.sources),
            )
        if self.axis not in ("text", "report"):
            return self.shared
        a, b = self.shared
        tokens = list(zip(a.tokens, b.tokens, strict=True))
        sources = list(zip(a.sources, b.sources, strict=True))
        return self._pairs(
            pair_replaced(self.a.tokens, self.b.tokens, tokens),
            pair_replaced(self.a.sources, self.b.sources, sources),
        )

    @cached_property
    def _recut(self) -> bool:
        """Whether both sides have the same text in different tokens."""
        if self.axis == "text" or not self.a.text:
            return False
        if (self.a.text, self.a.pair) != (self.b.text, self.b.pair):
            return False
        pieces = [[t.piece for t in (*side.tokens, *side.sources)] for side in (self.a, self.b)]
        return pieces[0] != pieces[1]

    def _pairs(
        self, tokens: list[tuple[int, int]], sources: list[tuple[int, int]]
    ) -> "tuple[_Aligned, _Aligned]":
        queries = _shown_in_both(tokens, self.a.queries, self.b.queries)
        keys = _shown_in_both(sources, self.a.keys, self.b.keys)
        first_aligned, second_aligned = (
            _Aligned(
                text, *([pair[n] for pair in pairs] for pairs in (tokens, sources, queries, keys))
            )
            for n, text in enumerate((self.a, self.b))
        )
        return first_aligned, second_aligned

    def heads(self) -> list[tuple[HeadReport, HeadReport]]:
        """Return heads of the first side, each with its counterpart."""
        if self.axis in ("layer", "head") and len(self.a.heads) == len(self.b.heads):
            return list(zip(self.a.heads, self.b.heads, strict=True))
        return [
            (head, _counterpart(head, self.b, self.labels[1], self.axis)) for head in self.a.heads
        ]

    def changes(
        self, shown_keys: Sequence[int] | None, stages: Sequence[str]
    ) -> Iterator[tuple[int | str, HeadChange, list[MatrixPair]]]:
        """Compare every head with its counterpart; yield its layer in the first side, the change and the matrices."""
        scales: dict[tuple[str, int | str], float] = {}
        for x, y in self.heads():
            if self.maps:
                yield x.layer, *pooled_change(self.number, (self.a, self.b), (x, y))
                continue
            pairs = []
            for stage in [s for s in STAGES if s in stages and s in x.stages and s in y.stages]:
                if (stage, x.layer) not in scales:
                    of_layer = [
                        index
                        for index, unit in enumerate(self.a.heads.units)
                        if unit.layer == x.layer
                    ]
                    matrices = [self.a.heads[index].stages[stage] for index in of_layer]
                    scales[stage, x.layer] = layer_scale(stage, matrices)
                pairs.append(_pair(stage, self.shared, (x, y), scales[stage, x.layer]))
            yield x.layer, _head_change(self.number, self.aligned, (x, y), pairs, shown_keys), pairs

    def unmatched(self) -> list[str]:
        """Return descriptions of what has no counterpart, which fail at any tolerance.

        For texts that are meant to differ, only the shared tokens are compared.
        """
        where = self._where
        if self.axis == "text" or self.maps:
            unmatched = []
        else:
            unmatched = [where + name for name in self._alone()]
        if nothing := self._nothing(self.shared):
            unmatched.insert(0, where + nothing)
        return unmatched

    def _alone(self) -> Iterator[str]:
        fields = ["tokens"]
        if self.a.context is not None or self.b.context is not None:
            fields.append("sources")
        for field in fields:
            for label, side in zip(self.labels, self.shared, strict=True):
                spelled: Sequence[Token] = getattr(side.text, field)
                if alone := _without(spelled, getattr(side, field)):
                    few = ", ".join(f"{p} '{spell_piece(spelled, p)}'" for p in alone[:_NAMED])
                    more = ""
                    if len(alone) > _NAMED:
                        more = f" and {len(alone) - _NAMED} more"
                    yield f"only '{label}' has the tokens {few}{more}"

    def _nothing(self, sides: "tuple[_Aligned, _Aligned]") -> str:
        """Return why no cell is compared; empty if any cell is."""
        first_label, second_label = (f"'{label}'" for label in self.labels)
        if not self.a.heads:
            return f"{first_label} has no layer and head"
        if self.maps:
            return ""
        first_side, _ = sides
        for axis, matched, in_both in (
            ("query", first_side.tokens, first_side.queries),
            ("key", first_side.sources, first_side.keys),
        ):
            if not matched:
                return f"no {axis} token of {first_label} has a counterpart in {second_label}"
            if not in_both:
                held = [side.text.queries if axis == "query" else side.text.keys for side in sides]
                saved = [format_positions(positions) or "none" for positions in held]
                return f"{first_label} has {axis} {saved[0]}, {second_label} has {saved[1]}, and none correspond"
        return ""

    def notes(self) -> Iterator[str]:
        """Yield notes on what is not compared."""
        if nothing := self._nothing(self.aligned):
            yield self._where + nothing
        paired = {y.ref for _, y in self.heads()}
        if more := [str(unit) for unit in self.b.heads.units if unit not in paired]:
            yield f"only '{self.labels[1]}' has {', '.join(more[:_NAMED])}{' …' if len(more) > _NAMED else ''}"
        if self.maps:
            return
        stages = [set(text.heads.stages) for text in (self.a, self.b)]
        for n, label in enumerate(self.labels):
            if only := [stage for stage in STAGES if stage in stages[n] - stages[1 - n]]:
                yield f"only '{label}' has {', '.join(only)}"
        for label, side in zip(self.labels, self.aligned, strict=True):
            if not side.whole:
                keys = f"{len(side.text.keys)} of {len(side.text.sources)} keys"
                yield Hint.WHOLE_ROWS.after(
                    f"'{label}' has {keys}: moved, JS, gains and losses need whole rows and are not computed"
                )
        for label, side in zip(self.labels, self.aligned, strict=True):
            matched = set(side.tokens).difference(side.queries)
            if lost := [query for query in side.text.queries if query in matched]:
                yield f"only '{label}' has the rows of query {format_positions(lost)}"
        if any(not _same_ranking(x, y) for x, y in self.heads()):
            yield "contributors are ranked by different measures: which of them enter or leave is not shown"
        recut_words = [
            source
            for side in self.aligned
            for source in _without(side.text.sources, side.sources)
            if side.text.sources[source].start is not None
        ]
        if self._recut and recut_words:
            yield Hint.WHOLE_WORDS.after(
                "tokens of the same characters are paired, but the tokenizers cut some words differently"
            )
        elif not self._recut and self.aligned[0].sources != self.shared[0].sources:
            yield "a token that replaces another token is compared with that token"


def pooled_change(
    text_index: int, texts: tuple[TextReport, TextReport], heads: tuple[HeadReport, HeadReport]
) -> tuple[HeadChange, list[MatrixPair]]:
    """Return the change between the maps and column masses of two heads of one text, and the maps."""
    first_text, second_text = texts
    a, b = heads
    if a.pooled is None or b.pooled is None or a.columns is None or b.columns is None:
        hint = f"select rows with {arg('query')}, or run both with {arg('pool')}"
        raise AttnscopeError("only one side has a map", where=str(a.ref), hint=hint)
    same_tokens = [t.piece for t in first_text.tokens] == [t.piece for t in second_text.tokens]
    same_sources = [t.piece for t in first_text.sources] == [t.piece for t in second_text.sources]
    if not same_tokens or not same_sources or a.pooled.weights.shape != b.pooled.weights.shape:
        hint = f"select rows with {arg('query')}, or use the same text and the same {arg('pool')}"
        raise AttnscopeError(
            "maps of different tokens or runs cannot be compared", where=str(a.ref), hint=hint
        )
    none = np.zeros(0, dtype=np.float32)
    empty = np.zeros((0, 0), dtype=np.float32)
    before = a.pooled.weights.astype(np.float64)
    after = b.pooled.weights.astype(np.float64)
    maps = MatrixPair("pooled", before, after, a.pooled.queries, a.pooled.keys)
    change = HeadChange(
        text=text_index, first=a.ref, second=b.ref, queries=[], keys=[], only_first=[], only_second=[],
        difference=empty, total_variation=none, jensen_shannon=none, future=empty, entropy=empty,
        gained=[], gain=none, lost=[], loss=none, entered=[], left=[],
        worst=[maps.worst()],
        mass=np.array([a.columns, b.columns]),
    )  # fmt: skip
    return change, [maps]


def _without(tokens: Sequence[Token], matched: Sequence[int]) -> list[int]:
    there = set(matched)
    return [position for position in range(len(tokens)) if position not in there]


def _shown_in_both(
    pairs: list[tuple[int, int]], first_positions: list[int], second_positions: list[int]
) -> list[tuple[int, int]]:
    here = set(first_positions)
    there = set(second_positions)
    return [(i, j) for i, j in pairs if i in here and j in there]


def _counterpart(head: HeadReport, text: TextReport, label: str, axis: str) -> HeadReport:
    if (other := text.heads.find(head.ref)) is not None:
        return other
    there = [str(unit) for unit in text.heads.units]
    hint = f"compare {'reports' if axis == 'report' else 'sides'} of the same layers and heads"
    if axis in ("layer", "head"):
        hint = f"name as many {axis}s with every {arg(axis)}"
    if head.chosen and text.heads and text.heads[0].chosen:
        hint = f"each side chose its own head; run one again with {arg('layer', head.layer)} {arg('head', head.head)}"
    message = f"{head.ref} is not in '{label}', which has {', '.join(there[:_NAMED]) or 'no head'}"
    raise AttnscopeError(message + (" …" if len(there) > _NAMED else ""), hint=hint)


@dataclass(frozen=True)
class _Aligned:
    """A text of one side, aligned with that of the other: positions of what has a counterpart."""

    text: TextReport
    tokens: list[int]
    sources: list[int]
    queries: list[int]  # tokens whose rows both sides show
    keys: list[int]  # sources whose columns both sides show

    @property
    def whole(self) -> bool:
        """Whether the report holds every key of a row."""
        return len(self.text.keys) == len(self.text.sources)

    @cached_property
    def rows(self) -> list[int]:
        """Row numbers of the queries in the report's matrices."""
        return _index_of(self.queries, self.text.queries)

    @cached_property
    def columns(self) -> list[int]:
        """Column numbers of the keys in the report's matrices."""
        return _index_of(self.keys, self.text.keys)

    @cached_property
    def own_keys(self) -> list[int]:
        """Positions of the sources without a counterpart."""
        return _without(self.text.sources, self.sources)

    def weights(self, head: HeadReport) -> _Array:
        """Return the weights of the queries over every key of the report, (queries, keys), float64."""
        if "weights" not in head.stages:
            hint = f"save it with {arg('stages', ('scores', 'masked', 'weights'))}"
            raise AttnscopeError("the report has no weights", where=str(head.ref), hint=hint)
        return head.stages["weights"][self.rows].astype(np.float64)

    def sink(self, head: HeadReport) -> _Array:
        """Return the weight of the queries on the head's sink, (queries, 1); 0 for a head without one."""
        sink = head.rows.sink
        return (np.zeros(len(self.rows)) if sink is None else sink[self.rows].astype(np.float64))[
            :, None
        ]

    def outside(self, head: HeadReport) -> _Array:
        """Return the weight of the queries on keys that are not saved, (queries,)."""
        saved = self.weights(head).sum(-1)
        if self.whole:
            missing = 0.0
        else:
            missing = np.maximum(1 - self.sink(head)[:, 0] - saved, 0)
        return np.where(np.isnan(saved), np.nan, missing)

    def future(self, head: HeadReport) -> _Array:
        """Return the weight on keys after the query, (queries,); NaN unless all of them are saved."""
        queries = np.array(self.queries, dtype=np.int64)
        if self.text.context is not None:
            return np.full(len(queries), np.nan)
        after = np.array(self.text.keys)[None] > queries[:, None]
        last_missing = max(
            set(range(len(self.text.sources))).difference(self.text.keys), default=-1
        )
        return np.where(last_missing > queries, np.nan, (self.weights(head) * after).sum(-1))


def _index_of(items: Sequence[int], among: Sequence[int]) -> list[int]:
    """Return the index of each item of `items` in `among`."""
    indices = {position: n for n, position in enumerate(among)}
    return [indices[position] for position in items]


def _head_change(
    text_index: int,
    sides: tuple[_Aligned, _Aligned],
    heads: tuple[HeadReport, HeadReport],
    pairs: Sequence[MatrixPair],
    shown_keys: Sequence[int] | None,
) -> HeadChange:
    both = list(zip(sides, heads, strict=True))
    first_side, second_side = sides
    wanted = set(first_side.keys if shown_keys is None else shown_keys)
    shown_columns = [n for n, key in enumerate(first_side.keys) if key in wanted]
    weights = [side.weights(head) for side, head in both]
    before, after = (matrix[:, side.columns] for matrix, side in zip(weights, sides, strict=True))
    # over aligned keys
    moved = after - before
    partial = None
    if first_side.whole and second_side.whole:
        # the same outcomes on both sides: aligned keys, the first side's own, the second's own, and the sink
        own, other = (matrix[:, side.own_keys] for matrix, side in zip(weights, sides, strict=True))
        sinks = [side.sink(head) for side, head in both]
        p = np.hstack([before, own, np.zeros_like(other), sinks[0]])
        q = np.hstack([after, np.zeros_like(own), other, sinks[1]])
        apart = 0.5 * np.abs(q - p).sum(-1)
        divergence = jensen_shannon(p, q)
        gained, gain = _largest(np.hstack([moved, other]), second_side.keys + second_side.own_keys)
        lost, loss = _largest(np.hstack([-moved, own]), first_side.keys + first_side.own_keys)
    else:
        apart = divergence = gain = loss = np.full(len(first_side.queries), np.nan)
        gained = lost = [-1] * len(first_side.queries)
        saved = len(first_side.text.keys), len(second_side.text.keys)
        of = len(first_side.text.sources), len(second_side.text.sources)
        partial = Partial(
            saved, of, np.array([side.outside(head) for side, head in both], dtype=np.float32)
        )
    entered, left = (_entered(both[n], both[1 - n]) for n in (0, 1))
    return HeadChange(
        text=text_index,
        first=heads[0].ref,
        second=heads[1].ref,
        queries=list(zip(first_side.queries, second_side.queries, strict=True)),
        keys=[(first_side.keys[n], second_side.keys[n]) for n in shown_columns],
        only_first=first_side.own_keys,
        only_second=second_side.own_keys,
        difference=moved[:, shown_columns].astype(np.float32),
        total_variation=apart.astype(np.float32),
        jensen_shannon=divergence.astype(np.float32),
        future=np.array([side.future(head) for side, head in both], dtype=np.float32),
        entropy=np.array([head.rows.entropy[side.rows] for side, head in both]),
        gained=gained,
        gain=gain.astype(np.float32),
        lost=lost,
        loss=loss.astype(np.float32),
        entered=entered,
        left=left,
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
    largest = np.take_along_axis(best, at[:, None], axis=1)[:, 0]
    gained = [positions[i] if value > 0 else -1 for i, value in zip(at, largest, strict=True)]
    return gained, np.maximum(largest, 0).astype(np.float32)


def _same_ranking(first_head: HeadReport, second_head: HeadReport) -> bool:
    return (first_head.top.by, first_head.top.left_out) == (
        second_head.top.by,
        second_head.top.left_out,
    )


def _entered(
    before: tuple[_Aligned, HeadReport], after: tuple[_Aligned, HeadReport]
) -> list[list[int]]:
    """Return, for every row, the top contributors of one side that are not among the other side's, strongest first."""
    first_side, x = before
    second_side, y = after
    if not _same_ranking(x, y):
        return [[] for _ in second_side.queries]
    ranks = min(x.top.keys.shape[1], y.top.keys.shape[1])
    there = dict(zip(first_side.sources, second_side.sources, strict=True))
    old, new = (head.top.keys[side.rows, :ranks].tolist() for side, head in (before, after))
    return [
        [key for key in row if key >= 0 and key not in carried]
        for row, carried in zip(new, ({there.get(key) for key in row} for row in old), strict=True)
    ]


def _pair(
    stage: str, sides: tuple[_Aligned, _Aligned], heads: tuple[HeadReport, HeadReport], scale: float
) -> MatrixPair:
    a, b = (
        head.stages[stage][side.rows].astype(np.float64)
        for side, head in zip(sides, heads, strict=True)
    )
    first_side, second_side = sides
    if stage != "output":
        return MatrixPair(
            stage,
            a[:, first_side.columns],
            b[:, second_side.columns],
            first_side.queries,
            first_side.keys,
            scale,
        )
    if a.shape != b.shape:
        message = f"the values are {a.shape[1]} and {b.shape[1]} wide; expected the same width"
        raise AttnscopeError(message, where=f"{heads[0].ref}: output")
    return MatrixPair(stage, a, b, first_side.queries, range(a.shape[1]), scale)
