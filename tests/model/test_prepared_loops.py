"""Loops are compiled while the embedding is read, if and only if a layer will use them."""

from collections.abc import Callable
from typing import Any

import pytest

from attnscope.model import attention, hooks, row_summary
from attnscope.model.weights import WeightStore
from attnscope.request.run_config import TextInput
from attnscope.run.session import inspect
from tests.helpers.requests import requested

RIVER = "the bank by the river was steep and the money was in the bank by the road"


@pytest.mark.parametrize(
    ("options", "used"),
    [
        ({}, True),
        ({"layer": "0"}, True),
        ({"query": "bank"}, True),
        ({"mask": "causal", "what_if": "same-scores"}, True),
        ({"mask": "window:3"}, False),
        ({"top": 9}, False),
        ({"special": False}, False),
        ({"by": "value"}, False),
    ],
)
def test_loops_are_compiled_beforehand_if_a_layer_uses_them(
    options: dict[str, Any], used: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(row_summary, "WORTH_COMPILED_LOOPS", 1)
    happened = list[str]()

    def noting(
        what: str, choose: Callable[..., Callable[..., Any] | None]
    ) -> Callable[..., Callable[..., Any] | None]:
        def noted(*size: Any) -> Callable[..., Any] | None:
            loops = choose(*size)
            happened.append(f"{what}: {loops is not None}")
            return loops

        return noted

    fill = WeightStore._fill

    def filled(store: WeightStore, piece: Any, ahead: Any) -> None:
        if piece is None and ahead is not None:
            happened.append("embedding")
        fill(store, piece, ahead)

    monkeypatch.setattr(hooks, "find_summarizer", noting("before", hooks.find_summarizer))
    monkeypatch.setattr(attention, "find_summarizer", noting("layer", attention.find_summarizer))
    monkeypatch.setattr(WeightStore, "_fill", filled)
    inspect(requested((TextInput(RIVER),), **({"layer": "all", "head": "all"} | options)))
    before, after = happened[: happened.index("embedding")], happened[happened.index("embedding") :]
    assert (f"before: {True}" in before) == used
    assert (f"layer: {True}" in after) == used
    assert f"before: {True}" not in after


def test_a_layer_of_few_rows_compiles_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    chosen = list[object]()
    choose = hooks.find_summarizer
    monkeypatch.setattr(
        hooks, "find_summarizer", lambda *size: chosen.append(choose(*size)) or chosen[-1]
    )
    n_tokens = len(inspect(requested((TextInput(RIVER),))).texts[0].tokens)
    monkeypatch.setattr(row_summary, "WORTH_COMPILED_LOOPS", 2 * n_tokens)
    for query, used in (("0", False), ("0:2", True)):
        chosen.clear()
        inspect(requested((TextInput(RIVER),), layer="0", head="0", query=query))
        assert [loops is not None for loops in chosen] == [used]
