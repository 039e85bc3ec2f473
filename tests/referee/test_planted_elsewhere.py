"""A bug planted in compare, explain, batch or convert is found within a few random calls of that command."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from msgspec import structs

from attnscope.batch import tables
from attnscope.batch.dump_reader import Dump
from attnscope.model.head_capture import HeadCapture
from attnscope.run.analysis import heads
from attnscope.studies.compare import reports, runs
from attnscope.studies.compare.reports import _Aligned, _Text
from attnscope.studies.compare.tolerance import MatrixPair
from attnscope.studies.explain import arithmetic, build
from tests.referee.__main__ import KINDS
from tests.referee.models import Models
from tests.referee.verify import Mismatch

CALLS = 12

Plant = tuple[Any, str, Any]


def _saved_keys_are_whole_rows() -> Plant:
    """As it was: what is measured of some keys passes for what is measured of all."""
    return _Aligned, "whole", property(lambda self: True)


def _natural_logarithms() -> Plant:
    divergence = reports.jensen_shannon
    return reports, "jensen_shannon", lambda p, q: divergence(p, q) * np.log(2)


def _the_query_itself_is_later() -> Plant:
    def future(self: _Aligned, head: Any) -> Any:
        after = np.array(self.text.keys)[None] >= np.array(self.queries)[:, None]
        return (self.weights(head) * after).sum(-1)

    return _Aligned, "future", future


def _no_sink_moves() -> Plant:
    return _Aligned, "sink", lambda self, head: np.zeros((len(self.rows), 1))


def _own_tokens_do_not_move() -> Plant:
    weights = _Aligned.weights

    def without_own(self: _Aligned, head: Any) -> Any:
        shown = weights(self, head)
        shown[:, self.own_keys if self.whole else []] = 0
        return shown

    return _Aligned, "weights", without_own


def _rows_of_the_other_side() -> Plant:
    align = _Text._pairs

    def pairs(self: _Text, tokens: Any, sources: Any) -> Any:
        sides = align(self, tokens, sources)
        queries = [i for i, _ in tokens if i in self.a.queries and i in self.b.queries]
        return tuple(replace(side, queries=queries) for side in sides)

    return _Text, "_pairs", pairs


def _heads_are_paired_by_their_place() -> Plant:
    return (
        _Text,
        "heads",
        lambda self: list(zip(self.a.heads, reversed(list(self.b.heads)), strict=True)),
    )


def _newcomers_are_counted_twice() -> Plant:
    def entered(_before: Any, after: Any) -> Any:
        side, head = after
        return [[key for key in row if key >= 0] for row in head.top.keys[side.rows].tolist()]

    return reports, "_entered", entered


def _signed_differences() -> Plant:
    def excess(self: MatrixPair, relative: float = 0.0) -> Any:
        with np.errstate(invalid="ignore"):  # −inf − −inf
            return np.nan_to_num(self.second - self.first - relative * np.abs(self.first))

    return MatrixPair, "excess", excess


def _one_row_further_of_a_saved_report() -> Plant:
    narrow = runs.narrow_rows
    return (
        runs,
        "narrow_rows",
        lambda text, rows: narrow(text, [(row + 1) % len(text.queries) for row in rows]),
    )


def _rows_of_a_group() -> Plant:
    index_of = heads._index_of

    def shifted(chosen: list[int], among: list[int]) -> Any:
        return index_of([min(position + 1, among[-1]) for position in chosen], among)

    return heads, "_index_of", shifted


def _a_row_for_every_contributor() -> Plant:
    """As it was: statistics of a row stand beside each of its contributors."""
    made = tables.tables

    def wrong(kind: str, record: Any) -> Any:
        for part in made(kind, record):
            yield from (part, part) if kind == "rows" else (part,)

    return tables, "tables", wrong


def _keys_by_their_column() -> Plant:
    made = tables.tables

    def wrong(kind: str, record: Any) -> Any:
        for part in made(kind, record):
            yield part | {"value": part["value"][::-1]} if kind == "matrices" else part

    return tables, "tables", wrong


def _shards_of_the_record_before() -> Plant:
    records = Dump.records

    def late(self: Dump) -> Any:
        before = None
        for record in records(self):
            rows = record.rows
            if (
                rows is not None
                and before is not None
                and before.entropy.shape == rows.entropy.shape
            ):
                record = structs.replace(record, rows=structs.replace(rows, self=before.self))
            before = rows
            yield record

    return Dump, "records", late


def _heads_of_the_layer_before() -> Plant:
    averages = tables._heads
    return tables, "_heads", lambda record, unit: averages(record, np.maximum(unit - 1, 0))


def _next_to_the_query() -> Plant:
    see = HeadCapture.update

    def shifted(self: HeadCapture, tile: Any) -> None:
        see(self, tile)
        if "weights" in self.captured:
            self.captured["weights"] = np.roll(self.captured["weights"], 1)

    return HeadCapture, "update", shifted


def _neighbouring_dimensions() -> Plant:
    parts = arithmetic.parts

    def reversed_lengths(q: Any, k: Any, lengths: Any, before: Any, **pairs: Any) -> Any:
        return parts(q, k, None if lengths is None else lengths[::-1], before, **pairs)

    return arithmetic, "parts", reversed_lengths


def _the_rest_forgets_the_barred() -> Plant:
    rest = build._rest

    def fewer(found: Any, weigh: Any, keys: list[int]) -> Any:
        return rest(found, weigh, [*keys, *np.flatnonzero(~np.isfinite(found["masked"])).tolist()])

    return build, "_rest", fewer


def _no_sink_in_the_sum() -> Plant:
    exponentials = arithmetic.exponentials
    return arithmetic, "exponentials", lambda masked, sink=None: exponentials(masked)


def _uncapped() -> Plant:
    scaled = arithmetic.scaled

    def plain(scores: Any, scale: float, softcap: float | None, bias: Any) -> Any:
        times_scale, capped, whole = scaled(scores, scale, softcap, bias)
        return times_scale, None if capped is None else times_scale, whole

    return arithmetic, "scaled", plain


# The command, and a call near the first that shows the bug: to draw those before it takes time and shows nothing.
PLANTS: dict[Callable[[], Plant], tuple[str, int]] = {
    _saved_keys_are_whole_rows: ("compare", 2),
    _natural_logarithms: ("compare", 1),
    _the_query_itself_is_later: ("compare", 0),
    _no_sink_moves: ("compare", 15),
    _own_tokens_do_not_move: ("compare", 11),
    _rows_of_the_other_side: ("compare", 11),
    _heads_are_paired_by_their_place: ("compare", 1),
    _newcomers_are_counted_twice: ("compare", 0),
    _signed_differences: ("compare", 0),
    _one_row_further_of_a_saved_report: ("compare", 0),
    _rows_of_a_group: ("batch", 0),
    _a_row_for_every_contributor: ("batch", 0),
    _keys_by_their_column: ("batch", 1),
    _shards_of_the_record_before: ("batch", 25),
    _heads_of_the_layer_before: ("batch", 2),
    _next_to_the_query: ("explain", 0),
    _neighbouring_dimensions: ("explain", 1),
    _the_rest_forgets_the_barred: ("explain", 0),
    _no_sink_in_the_sum: ("explain", 27),
    _uncapped: ("explain", 22),
}


@pytest.mark.parametrize("plant", PLANTS, ids=lambda plant: plant.__name__)
def test_a_planted_bug_is_found(
    models: Models, monkeypatch: pytest.MonkeyPatch, plant: Callable[[], Plant]
) -> None:
    found_by(plant, *PLANTS[plant], models, monkeypatch)


def found_by(
    plant: Callable[[], Plant],
    kind: str,
    first: int,
    models: Models,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Fail unless one of a few calls of a command notices a bug."""
    make, check = KINDS[kind]
    with monkeypatch.context() as patch:
        patch.setattr(*plant())
        for number in range(first, first + CALLS):
            if said := complaint(check, make(models, 0, number), models):
                assert "exit code 70" not in said, "a crash is no wrong number"
                return
    pytest.fail("not one call noticed")


def complaint(check: Callable[[Any, Models], None], call: Any, models: Models) -> str:
    """What the referee says of a call; empty if all is right."""
    try:
        check(call, models)
    except Mismatch as e:
        return str(e)
    return ""
