"""A bug planted where numbers are kept or reduced is found within a few random calls."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch

from attnscope.model import batch, trace
from attnscope.model.inputs import AttentionInputs as LayerCall
from attnscope.model.recorders import KeyTokens, MatrixRecorder, rows, sums, top
from attnscope.model.tile import Overlap, Tile
from attnscope.request.masks.terms import Bidirectional
from attnscope.request.run_config import RunConfig
from attnscope.run import session as pipeline
from attnscope.run.analysis import choice, heads
from tests.referee import draw, runner
from tests.referee.models import Models
from tests.referee.test_planted_elsewhere import CALLS, Plant, complaint


def _one_row_further() -> Plant:
    places = heads._index_of

    def shifted(chosen: list[int], among: list[int]) -> Any:
        return places([min(position + 1, among[-1]) for position in chosen], among)

    return heads, "_index_of", shifted


def _keys_of_another_group() -> Plant:
    def norms(self: LayerCall) -> torch.Tensor:
        found = self.v.float().norm(dim=-1)
        return found.repeat(1, self.q.shape[1] // found.shape[1], 1)

    return LayerCall, "value_norms", property(norms)


def _values_for_projections() -> Plant:
    return LayerCall, "projected_norms", property(lambda self: self.value_norms)


def _mean_over_layers_only() -> Plant:
    def result(self: MatrixRecorder) -> dict[str, torch.Tensor]:
        return {
            stage: total / (len(self.layers) if self.mean else 1)
            for stage, total in self.recorded.items()
        }

    return MatrixRecorder, "compute", result


def _statistics_of_the_first_head() -> Plant:
    arrays = trace.Trace.arrays

    def of_first(self: trace.Trace, text: int) -> dict[str, Any]:
        found = arrays(self, text)
        rows = {name: array for name, array in found.items() if name.startswith("rows.")}
        return found | {name: array[:1].repeat(len(array), 0) for name, array in rows.items()}

    return trace.Trace, "arrays", of_first


def _special_tokens_count() -> Plant:
    return KeyTokens, "content", lambda self: self.real.clone()


def _runs_end_one_token_late() -> Plant:
    runs = sums._run_membership

    def late(lengths: torch.Tensor, width: int, size: int) -> torch.Tensor:
        found = runs(lengths, width, size)
        return torch.cat((found[..., :1], found[..., :-1]), -1) if width > size else found

    return sums, "_run_membership", late


def _what_lies_ahead_is_behind() -> Plant:
    outside = rows._outside_rows
    return (
        rows,
        "_outside_rows",
        lambda box, device: outside(box, device) * torch.tensor([[1.0], [1.0], [-1.0]]),
    )


def _near_is_one_too_far() -> Plant:
    within = rows.TileRows.within
    return rows.TileRows, "within", lambda self, n: within(self, n - 1)


def _alive_by_weight() -> Plant:
    """As it was: a row counts where its weights sum to more than a half."""

    def dead(self: Overlap, tile: Tile) -> torch.Tensor:
        return tile.weights.sum(-1)[:, :1, self.inside].round() == 0

    return Overlap, "fully_masked", dead


def _minus_infinity_into_a_copy() -> Plant:
    """As it was: what has been found is found again where rows do not lie side by side."""
    strongest = top.strongest

    def lost(measure: torch.Tensor, count: int) -> tuple[torch.Tensor, torch.Tensor]:
        keys, values = strongest(measure, count)
        if not measure.is_contiguous():
            values[..., 1:] = -torch.inf
        return keys, values

    return top, "strongest", lost


def _padding_is_seen() -> Plant:
    return batch, "padding_mask", lambda *given, **options: Bidirectional()


def _special_rows_in_the_choice_of_a_head() -> Plant:
    ranked = choice.RankingRecorders

    def all_rows(batch: Any, *given: Any) -> Any:
        none = {**batch.tokens.kinds, "special": torch.zeros_like(batch.tokens.special)}
        return ranked(replace(batch, tokens=replace(batch.tokens, kinds=none)), *given)

    return choice, "RankingRecorders", all_rows


def _the_choice_of_a_head_is_under_the_mask_that_is_shown() -> Plant:
    return RunConfig, "own_mask", property(lambda self: True)


def _last_row_left_out_of_sums() -> Plant:
    shown = pipeline._shown

    def fewer(request: Any, real: torch.Tensor) -> torch.Tensor:
        found = shown(request, real)
        found[:, -1] = False
        return found

    return pipeline, "_shown", fewer


def _special_rows_in_means() -> Plant:
    means = heads._means
    return (
        heads,
        "_means",
        lambda kept, part: means(kept, replace(part, counted=[True] * len(part.counted))),
    )


PLANTS: dict[Callable[[], Plant], tuple[tuple[str, ...], dict[str, Any]]] = {
    _one_row_further: (("llama",), {}),
    _keys_of_another_group: (("llama", "qwen2"), {"by": "value", "head": "all"}),
    _values_for_projections: (("gpt2",), {"by": "projected", "query": None, "pool": None}),
    _mean_over_layers_only: (("llama",), {"head": "mean"}),
    _statistics_of_the_first_head: (("bert",), {"head": "1,2"}),
    _special_tokens_count: (("bert",), {"no_special": True}),
    _runs_end_one_token_late: (("llama",), {"pool": 3}),
    _what_lies_ahead_is_behind: (("bert",), {"query": "0,1", "pool": None, "mask": None}),
    _near_is_one_too_far: (("llama", "bert"), {"query": None, "pool": None}),
    _alive_by_weight: (("gpt_oss", "gpt_oss, huge sinks"), {"pool": 3}),
    _minus_infinity_into_a_copy: (
        ("llama", "gpt_oss"),
        {
            "query": "-1",
            "layer": "all",
            "head": "0,2",
            "mask": None,
            "by": None,
            "no_special": False,
            "top": None,
        },
    ),
    _padding_is_seen: (("bert",), {}),
    _special_rows_in_the_choice_of_a_head: (("bert",), {"layer": "auto", "head": "auto"}),
    _the_choice_of_a_head_is_under_the_mask_that_is_shown: (
        ("llama",),
        {"layer": "auto", "head": "auto", "mask": "window:2", "what_if": None},
    ),
    _last_row_left_out_of_sums: (("llama",), {"pool": 4}),
    _special_rows_in_means: (("bert",), {"pool": 4}),
}


@pytest.mark.parametrize("plant", PLANTS, ids=lambda plant: plant.__name__)
def test_a_planted_bug_is_found(
    models: Models, monkeypatch: pytest.MonkeyPatch, plant: Callable[[], Plant]
) -> None:
    names, options = PLANTS[plant]
    calls = [replace(draw.call(models, 2, number, names), **options) for number in range(CALLS)]
    with monkeypatch.context() as patch:
        patch.setattr(*plant())
        assert any(complaint(runner.check, call, models) for call in calls)
