"""A config.json without a model_type is read where its classes, or its keys and tensors, fit one family."""

from typing import Any

import pytest

from attnscope.base.errors import AttnscopeError
from attnscope.checkpoints.families import open_config
from tests.helpers.published_configs import PUBLISHED
from tests.helpers.tiny_models import TABLE, Row

_ROWS = {row.name: row for row in TABLE}


def _without_type(raw: dict[str, Any], *others: str) -> dict[str, Any]:
    return {name: value for name, value in raw.items() if name not in ("model_type", *others)}


@pytest.mark.parametrize("name", PUBLISHED)
def test_classes_say_which_family_it_is(name: str) -> None:
    raw = PUBLISHED[name]
    found = open_config(_without_type(raw), name)
    assert (
        found.raw["model_type"]
        == raw["model_type"]
        == (found.family.model_type or found.family.name)
    )
    assert (
        found.notes[0]
        == f"config.json has no model_type: read as '{found.family.name}', the only family that fits"
    )
    assert found.config == open_config(raw, name).config


@pytest.mark.parametrize(
    "name", ["gpt2", "distilbert-base-uncased-finetuned-sst-2-english", "gpt-oss-20b-BF16"]
)
def test_keys_say_which_family_it_is(name: str) -> None:
    raw = PUBLISHED[name]
    assert (
        open_config(_without_type(raw, "architectures"), name).raw["model_type"]
        == raw["model_type"]
    )


def _saved(row: Row) -> tuple[dict[str, Any], dict[str, tuple[int, ...]]]:
    model = row.make()
    raw = model.config.to_dict()
    return _without_type(raw, "architectures"), {
        name: tuple(p.shape) for name, p in model.state_dict().items()
    }


@pytest.mark.parametrize("name", ["gpt2", "olmo2", "gpt_neox", "qwen3", "mixtral", "gpt_oss"])
def test_keys_and_tensors_say_which_family_it_is(name: str) -> None:
    raw, shapes = _saved(_ROWS[name])
    assert open_config(raw, name, shapes).family.name == name


def test_llama_without_a_type_could_be_others() -> None:
    raw, shapes = _saved(_ROWS["llama"])
    with pytest.raises(
        AttnscopeError, match=r"the key 'model_type' is missing, and llama, .*smollm3 fit"
    ):
        open_config(raw, "config.json", shapes)


def test_tensors_of_another_family_fit_nothing() -> None:
    raw, _ = _saved(_ROWS["gpt2"])
    _, shapes = _saved(_ROWS["olmo2"])
    with pytest.raises(AttnscopeError, match="the key 'model_type' is missing; supported"):
        open_config(raw, "config.json", shapes)
