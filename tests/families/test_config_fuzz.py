"""Drawn config.json files of every family and dialect are read as transformers reads them, or refused."""

from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import pytest
import transformers as hf

from attnscope.checkpoints import families
from attnscope.checkpoints.families import FAMILIES
from attnscope.checkpoints.families.rope import rope
from attnscope.checkpoints.families.spec import Computed, key
from tests.families.config_fuzz import hold_all, least
from tests.families.dialects import Case, draw
from tests.helpers.draws import drawn

_CASES = drawn(10)  # of each family; `python -m tests.families.config_fuzz` goes on from there


def _cases(model_type: str) -> list[Case]:
    return [draw(seed, (model_type,)) for seed in range(_CASES)]


@pytest.fixture(autouse=True)
def _quiet() -> None:
    hf.logging.set_verbosity_error()
    hf.logging.disable_progress_bar()


@pytest.mark.parametrize("model_type", FAMILIES)
def test_attention_is_that_of_transformers_or_the_file_is_refused(model_type: str) -> None:
    found = hold_all(_cases(model_type))
    assert not [
        (case.seed, outcome.detail) for case, outcome in found if outcome.kind == "different"
    ]
    kinds = Counter(outcome.kind for _, outcome in found)
    assert kinds["equal"] >= _CASES // 4, kinds


def test_the_same_number_draws_the_same_file() -> None:
    assert [draw(seed) for seed in range(50)] == [draw(seed) for seed in range(50)]
    assert {draw(seed).model_type for seed in range(len(FAMILIES))} == set(FAMILIES)


Change = Callable[[Mapping[str, Any]], dict[str, Any]]
_PLANTED: dict[str, tuple[str, Change]] = {
    "another epsilon": ("olmo2", lambda c: {**c, "norm_eps": key("rms_norm_eps", default=1e-6)}),
    "another key": ("mixtral", lambda c: {**c, "rope": rope(theta="rotary_emb_base")}),
    "another share": (
        "gpt_neox",
        lambda c: {**c, "rope": rope(theta="rotary_emb_base", fraction="rotary_pct")},
    ),
    "no window": ("mistral", lambda c: {**c, "windows": ()}),
    "another activation": (
        "bert",
        lambda c: {**c, "activation": Computed(lambda *_: "relu", ("hidden_act",))},
    ),
}


@pytest.mark.parametrize("bug", _PLANTED)
def test_a_planted_bug_is_found(monkeypatch: pytest.MonkeyPatch, bug: str) -> None:
    model_type, change = _PLANTED[bug]
    family = FAMILIES[model_type]
    spoilt = replace(family, config=change(family.config), inert=family.inert | family.reads)
    monkeypatch.setattr(families, "FAMILIES", {**FAMILIES, model_type: spoilt})
    assert _first_that_differs(model_type) is not None


def test_a_file_that_differs_is_told_without_the_keys_that_do_not_matter(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    family = FAMILIES["mistral"]
    spoilt = replace(
        family, config={**family.config, "windows": ()}, inert=family.inert | {"sliding_window"}
    )
    monkeypatch.setattr(families, "FAMILIES", {"mistral": spoilt})
    case = _first_that_differs("mistral")
    assert case is not None
    keys = {"transformers_version", "sliding_window", "model_type", "hidden_act", "head_dim"}
    keys |= {
        name
        for name in case.raw
        if name.startswith(("rope_", "num_")) or name.endswith(("_size", "embeddings"))
    }
    # each takes a model
    few = replace(case, raw={name: value for name, value in case.raw.items() if name in keys})
    fewer = least(few).raw
    assert (
        "sliding_window" in fewer
        and fewer.items() < few.raw.items()
        and "transformers_version" not in fewer
    )


def _first_that_differs(model_type: str) -> Case | None:
    found = (hold_all([case])[0] for case in _cases(model_type))
    return next((case for case, outcome in found if outcome.kind == "different"), None)
