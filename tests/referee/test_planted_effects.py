"""A bug planted in predictions, cuts or measures over layers is found within a few random calls of that command."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from attnscope.batch import worker
from attnscope.engines.native import NativeContinuation, NativeEngine
from attnscope.model import value_zeroing
from attnscope.model.cuts import BatchCuts
from attnscope.model.hooks import AttentionHooks
from attnscope.model.logit_parts import Directions, StreamCapture
from attnscope.model.stack import Stack
from attnscope.model.value_zeroing import WithoutValues
from attnscope.run import prediction_plan
from attnscope.studies.ablate.replacing import OtherText, UncutWeights
from attnscope.studies.ablate.uncut_states import UncutStates
from attnscope.studies.rollout import measure
from tests.referee.models import Models
from tests.referee.test_planted_elsewhere import Plant, found_by


def _after_the_closing_token() -> Plant:
    return prediction_plan, "count_closing", lambda tokens: 0


def _uncapped_logits() -> Plant:
    logits = Stack.logits
    return Stack, "logits", lambda self, hidden, *, capped=True: logits(self, hidden, capped=False)


def _new_tokens_are_never_seen() -> Plant:
    """As it was: keys and values of a text are kept under a mask in which earlier tokens see later ones."""
    return NativeContinuation, "_sees_new_tokens", lambda self, ids: False


def _a_norm_without_its_bias() -> Plant:
    directions = StreamCapture.directions

    def without(self: StreamCapture, *given: Any) -> Directions:
        whole = directions(self, *given)
        return replace(whole, constant=torch.zeros_like(whole.constant))

    return StreamCapture, "directions", without


def _weights_are_not_cut_off() -> Plant:
    return BatchCuts, "zero_", lambda self, *given: None


def _the_other_divergence() -> Plant:
    compare = UncutStates.compare_predictions

    def reversed_divergence(self: UncutStates, hidden: Any) -> Any:
        after = (
            self._engine.logits(hidden.flatten(0, 1))
            .double()
            .log_softmax(-1)
            .view(*hidden.shape[:2], -1)
        )
        assert self.log_probabilities is not None
        divergences = (after.exp() * (after - self.log_probabilities)).sum(-1) / np.log(2)
        return divergences, compare(self, hidden)[1]

    return UncutStates, "compare_predictions", reversed_divergence


def _before_the_final_norm() -> Plant:
    """As it was."""
    return NativeEngine, "final_states", lambda self, hidden: hidden


def _edges_add_nothing() -> Plant:
    return BatchCuts, "add_", lambda self, output: None


def _patches_of_the_token_before() -> Plant:
    head = OtherText.head
    return OtherText, "head", lambda self, layer, number: head(self, layer, number).roll(1, 0)


def _special_tokens_are_words() -> Plant:
    def weight(self: UncutWeights, layer: int) -> Any:
        mass = self._columns[layer].compute()[0].double()
        return (mass[:, 1:].sum(-1) / self._counted).tolist()

    return UncutWeights, "_weight_off_sink", weight


def _the_layer_before() -> Plant:
    run = Stack.run_variants

    def late(self: Stack, inputs: Any, *given: Any, **more: Any) -> Any:
        return run(self, [inputs[0], *inputs[:-1]], *given, **more)

    return Stack, "run_variants", late


def _effects_of_the_head_before() -> Plant:
    measured = worker.cut_effects

    def rolled(*given: Any) -> Any:
        found = measured(*given)
        return replace(found, hidden=np.roll(found.hidden, 1))

    return worker, "cut_effects", rolled


def _the_first_layer_last() -> Plant:
    product = measure.rollouts
    return (
        measure,
        "rollouts",
        lambda layers, *, residual: product(list(layers)[::-1], residual=residual),
    )


def _rows_keep_their_sums() -> Plant:
    return measure, "normalized", lambda matrix: matrix


def _values_of_one_head() -> Plant:
    def partly(self: WithoutValues, inputs: Any) -> Any:
        v = inputs.v.clone()
        v[range(len(v)), 0, self.positions] = 0
        return AttentionHooks.attend(self, replace(inputs, v=v))

    return WithoutValues, "attend", partly


def _what_a_token_gives() -> Plant:
    changes = value_zeroing.output_changes
    return value_zeroing, "output_changes", lambda *given: changes(*given).T


# The command, and a call near the first that shows the bug.
PLANTS: dict[Callable[[], Plant], tuple[str, int]] = {
    _after_the_closing_token: ("predict", 2),
    _uncapped_logits: ("predict", 23),
    _new_tokens_are_never_seen: ("predict", 91),
    _a_norm_without_its_bias: ("predict", 17),
    _weights_are_not_cut_off: ("ablate", 6),
    _the_other_divergence: ("ablate", 4),
    _before_the_final_norm: ("ablate", 3),
    _special_tokens_are_words: ("ablate", 11),
    _edges_add_nothing: ("ablate", 4),
    _patches_of_the_token_before: ("ablate", 17),
    _the_layer_before: ("ablate", 5),
    _effects_of_the_head_before: ("batch", 1),
    _the_first_layer_last: ("measure", 8),
    _rows_keep_their_sums: ("measure", 10),
    _values_of_one_head: ("measure", 3),
    _what_a_token_gives: ("measure", 3),
}


@pytest.mark.parametrize("plant", PLANTS, ids=lambda plant: plant.__name__)
def test_a_planted_bug_is_found(
    models: Models, monkeypatch: pytest.MonkeyPatch, plant: Callable[[], Plant]
) -> None:
    found_by(plant, *PLANTS[plant], models, monkeypatch)
