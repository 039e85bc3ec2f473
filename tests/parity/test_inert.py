"""A key called inert is one that eager transformers can be given any value of without its attention changing."""

import dataclasses
from functools import cache
from typing import Any

import pytest
import torch
import transformers as hf
from torch import Tensor

from attnscope.checkpoints.families import FAMILIES
from attnscope.checkpoints.families.config_reader import COMMON_INERT
from tests.families.test_unknown_keys import INERT
from tests.helpers.tiny_models import TABLE, VOCAB
from tests.helpers.token_batches import batch

_ROWS = {
    name: next(row for row in TABLE if row.model.config_class.model_type == name)
    for name in FAMILIES
}
_OTHER_VALUES: dict[str, Any] = {
    "architectures": ["Other"],
    "attn_logit_softcapping": 0.7,
    "final_logit_softcapping": 0.7,
    "chunk_size_feed_forward": 3,  # divides the text's nine tokens, as transformers demands
    "cache_implementation": "static",
    "num_labels": 5,
    "torch_dtype": "float32",
    "id2label": {0: "a", 1: "b", 2: "c"},
    "label2id": {"a": 0, "b": 1, "c": 2},
    "problem_type": "regression",
    "hidden_act": "relu",
    "initializer_range": 0.37,
    "summary_activation": "tanh",
    "classifier_pooling": "mean",
    "transformers_version": "4.0.0",
}
# the type of the numbers, which we report and choose; the family itself
_NOT_PERTURBED = {"dtype", "model_type"}
# T5 writes what it derives from feed_forward_proj, which is read; its encoder returns a tuple if its config says so.
_NOT_PERTURBED_IN = {"t5": {"dense_act_fn", "is_gated_act", "return_dict"}}


def _other(name: str, config: hf.PreTrainedConfig) -> Any:
    """A value that the key does not have by default, of its type as far as it has one."""
    value = getattr(config, name, None)
    if name in _OTHER_VALUES:
        return _OTHER_VALUES[name]
    if isinstance(value, bool):
        return not value
    if isinstance(value, int | float):
        return value + 1 if isinstance(value, int) else 0.37
    return 3 if name.endswith(("_id", "_size", "_ctx", "_length")) or value is None else "other"


def _cases() -> list[tuple[str, str]]:
    cases = []
    for family, row in _ROWS.items():
        fields = {field.name for field in dataclasses.fields(row.model.config_class)}
        common = COMMON_INERT & fields - FAMILIES[family].reads - _NOT_PERTURBED
        names = (FAMILIES[family].inert | common) - _NOT_PERTURBED_IN.get(family, set())
        cases += [(family, name) for name in sorted(names)]
    return cases


@cache
def _weights(family: str) -> dict[str, Tensor]:
    return _ROWS[family].make().base_model.state_dict()


def _attentions(family: str, **changes: Any) -> tuple[Tensor, ...]:
    row = _ROWS[family]
    config = row.model.config_class(**{**row.config, **changes})
    model = row.model._from_config(config, attn_implementation="eager").eval()
    model.base_model.load_state_dict(_weights(family))
    b = batch([9], vocabulary=VOCAB, padding=0, segments=0)
    with torch.no_grad():
        found = model.base_model(input_ids=b.ids, output_attentions=True, return_dict=True)
    return tuple(found.attentions)


@pytest.fixture(scope="module")
def unchanged() -> dict[str, tuple[Tensor, ...]]:
    return {family: _attentions(family) for family in _ROWS}


@pytest.mark.parametrize(("family", "name"), _cases())
def test_an_inert_key_changes_no_attention(
    family: str, name: str, unchanged: dict[str, tuple[Tensor, ...]]
) -> None:
    row = _ROWS[family]
    changed = _attentions(family, **{name: _other(name, row.model.config_class(**row.config))})
    for before, after in zip(unchanged[family], changed, strict=True):
        torch.testing.assert_close(after, before, rtol=0, atol=1e-6)


@pytest.mark.parametrize("family", _ROWS)
def test_keys_that_are_no_fields_change_no_attention(
    family: str, unchanged: dict[str, tuple[Tensor, ...]]
) -> None:
    """Keys that others write, and keys that are ignored since no source reads them; all of them at once."""
    row = _ROWS[family]
    fields = {field.name for field in dataclasses.fields(row.model.config_class)}
    # of our own, of the loader, no name of an attribute
    reserved = {"attnscope", "auto_map", "transformers.js_config"}
    others = COMMON_INERT - fields - FAMILIES[family].reads - _NOT_PERTURBED - reserved
    changes = {name: _OTHER_VALUES.get(name, "other") for name in sorted(others)}
    changed = _attentions(family, **{**changes, **INERT})
    for before, after in zip(unchanged[family], changed, strict=True):
        torch.testing.assert_close(after, before, rtol=0, atol=1e-6)


@pytest.mark.parametrize(
    ("family", "change"),
    [
        ("bert", {"hidden_act": "relu"}),
        ("gpt2", {"scale_attn_weights": False}),
        ("gpt2", {"scale_attn_by_inverse_layer_idx": True}),
        ("gpt_neox", {"use_parallel_residual": False}),
        ("gemma2", {"attn_logit_softcapping": 1.0}),
        ("mistral", {"sliding_window": 2}),
    ],
)
def test_the_check_sees_a_key_that_is_not_inert(
    family: str, change: dict[str, Any], unchanged: dict[str, tuple[Tensor, ...]]
) -> None:
    changed = _attentions(family, **change)
    assert (
        max(float((a - b).abs().max()) for a, b in zip(unchanged[family], changed, strict=True))
        > 1e-3
    )
