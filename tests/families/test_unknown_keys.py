"""An unknown config key is ignored only where nobody can read it; what is read, or sounds like attention, is not."""

from random import Random
from typing import Any

import pytest

from attnscope.base.errors import AttnscopeError
from attnscope.checkpoints.families import FAMILIES, open_config
from attnscope.checkpoints.families.config_reader import (
    COMMON_CHOICES,
    COMMON_INERT,
    COMMON_REQUIRES,
)
from attnscope.checkpoints.families.transformers_keys import reference_keys
from attnscope.checkpoints.families.unknown_keys import ATTENTION_WORDS, near_miss
from tests.helpers.published_configs import PUBLISHED

_BY_TYPE = {raw["model_type"]: raw for name, raw in PUBLISHED.items() if name != "SmolLM2-135M"}
# Of published models: gpt2-medium, roberta-base-squad2, IgLM, SmolLM2 and others.
INERT = {
    "language": "english", "n_special": 0, "predict_special_tokens": True, "condition_on_chain": True,
    "_model_name_or_path": "x", "unk_token_id": 0, "eos_token_ids": None, "badwordsids": [[0]], "vocab_type": "x",
    "sentence_transformers": {"version": "3"}, "matryoshka_dimensions": [64], "cls_token_id": 1,
    "classifier_dropout_prob": 0.1, "some_attention_dropout": 0.1, "vision_start_token_id": 3,
    "model_max_length": 512, "max_sequence_length": 2048,
}  # fmt: skip


def _opened(model_type: str, **changes: Any) -> Any:
    return open_config({**_BY_TYPE[model_type], **changes}, "config.json")


def _refusal(model_type: str, **changes: Any) -> str:
    with pytest.raises(AttnscopeError) as caught:
        _opened(model_type, **changes)
    return str(caught.value)


@pytest.mark.parametrize("model_type", FAMILIES)
def test_keys_that_nobody_reads_are_ignored_and_said(model_type: str) -> None:
    plain, found = _opened(model_type), _opened(model_type, **INERT)
    assert found.config == plain.config
    expected = [name for name in INERT if name not in FAMILIES[model_type].inert]
    assert list(found.ignored_keys) == expected
    assert plain.ignored_keys == ()
    assert (
        f"ignored config keys, which no code of transformers reads: {', '.join(expected)}"
        in found.notes
    )


def _known(model_type: str) -> set[str]:
    family = FAMILIES[model_type]
    return {
        *family.reads,
        *family.inert,
        *COMMON_INERT,
        *COMMON_REQUIRES,
        *COMMON_CHOICES,
        "quantization_config",
    }


@pytest.mark.parametrize("model_type", FAMILIES)
def test_keys_that_transformers_reads_are_always_refused(model_type: str) -> None:
    rng = Random(model_type)
    read = sorted(reference_keys(FAMILIES[model_type].name).names - _known(model_type))
    values: list[Any] = [0.5, "other", [7], {"a": 1}, 12345]
    for name in rng.sample(read, 40):
        assert f"'{name}'" in _refusal(model_type, **{name: rng.choice(values)}), name


@pytest.mark.parametrize("model_type", FAMILIES)
def test_keys_of_other_families_are_refused(model_type: str) -> None:
    for name in sorted(
        set().union(*(family.reads for family in FAMILIES.values())) - _known(model_type)
    ):
        assert f"unknown key '{name}' for family" in _refusal(model_type, **{name: "another value"})


def _spoilt(rng: Random, name: str) -> str:
    """A name with one letter left out, doubled, replaced or swapped with the next, or in other capitals."""
    at = rng.randrange(len(name) - 1)
    kinds = [
        name[:at] + name[at + 1 :],
        name[:at] + name[at] + name[at:],
        name[:at] + "z" + name[at + 1 :],
        name[:at] + name[at + 1] + name[at] + name[at + 2 :],
        name.replace("_", "-") if "_" in name else name.upper(),
        "".join(part.capitalize() for part in name.split("_")),
    ]
    return rng.choice(kinds)


@pytest.mark.parametrize("model_type", FAMILIES)
def test_slips_of_the_pen_are_refused(model_type: str) -> None:
    rng = Random(model_type)
    for name in sorted(FAMILIES[model_type].reads):
        slip = _spoilt(rng, name)
        if slip not in _known(model_type):
            assert "unknown key" in _refusal(model_type, **{slip: 3}), slip


def test_whatever_sounds_like_attention_is_refused() -> None:
    for word in ATTENTION_WORDS:
        for name in (f"my_{word}", f"{word}s_of_mine", f"xy{word.upper()}"):
            message = _refusal("llama", **{name: False})
            assert "it may change attention" in message or "did you mean" in message


@pytest.mark.parametrize(
    ("model_type", "changes", "hint"),
    [
        (
            "llama",
            {"is_causal": False},
            "transformers' code has a key of this name; engine='transformers'",
        ),
        ("llama", {"my_alibi": True}, "did you mean 'alibi'?; ignore_key=NAME ignores a key"),
        (
            "llama",
            {"alibi_of_my_own": True},
            "its name contains 'alibi'; ignore_key=NAME ignores a key",
        ),
        (
            "llama",
            {"q_lora_rank": 2},
            "other architectures of transformers have a key of this name",
        ),
        ("llama", {"some_attention_dropout": True}, "its name contains 'atten'"),
        ("llama", {"global_token_id": 3}, "its name contains 'global'"),
        (
            "llama",
            {"mask_token_id": 3},
            "it may change attention, so it is not ignored unasked: its name contains ",
        ),
        (
            "llama",
            {"x y": 1},
            "it may change attention, so it is not ignored unasked; ignore_key=",
        ),
        (
            "llama",
            {"x" * 101: 1},
            "it may change attention, so it is not ignored unasked; ignore_key=",
        ),
        ("gpt2", {"nEmbd": 5}, "did you mean 'n_embd'?; ignore_key=NAME ignores a key"),
        (
            "qwen2",
            {"attn_implementation": "kernels/own"},
            'attn_implementation is "kernels/own"; expected one of eag',
        ),
        (
            "qwen2",
            {"_attn_implementation": ["sdpa"]},
            '_attn_implementation is ["sdpa"]; expected one of eager, ',
        ),
        ("qwen2", {"quantization": {"bits": 4}}, "quantization: the weights are quantised (MLX)"),
    ],
)
def test_a_refusal_says_why(model_type: str, changes: dict[str, Any], hint: str) -> None:
    assert hint in _refusal(model_type, **changes)


def test_too_many_unknown_keys_are_refused_at_once() -> None:
    message = _refusal("bert", **{f"zz{n}": n for n in range(100_000)})
    assert (
        "100000 keys are unknown for family 'bert', such as 'zz0'; expected at most 200" in message
    )


@pytest.mark.parametrize(
    ("model_type", "key"),
    [
        ("llama", {"sliding_window": 4096}),
        ("llama", {"use_sliding_window": True}),
        ("llama", {"layer_types": ["full_attention"] * 31}),
        ("gpt2", {"num_key_value_heads": 4}),
        ("gpt2", {"hidden_size": 512}),
        ("gpt2", {"hidden_act": "gelu"}),
        ("bert", {"head_dim": 32}),
        ("bert", {"rope_scaling": {"type": "linear"}}),
        ("bert", {"attention_bias": False}),
        ("bert", {"use_bidirectional_attention": None}),
        ("llama", {"is_causal": None}),
        ("llama", {"position_embedding_type": "alibi"}),
        ("llama", {"use_bidirectional_attention": True}),
        ("llama", {"partial_rotary_factor": 0.5}),
        ("mistral", {"attention_bias": True}),
        ("qwen2", {"qk_norm": True}),
        ("qwen3", {"use_qk_norm": False}),
        ("qwen2", {"layer_norm_eps": 1e-5}),
    ],
)
def test_a_key_of_another_family_that_contradicts_this_one_is_refused(
    model_type: str, key: dict[str, Any]
) -> None:
    assert "unknown key" in _refusal(model_type, **key)


def test_the_user_may_have_a_key_ignored() -> None:
    raw = {**_BY_TYPE["llama"], "use_alibi": True, "other_alibi": 1}
    found = open_config(raw, "config.json", ignore=("use_alibi", "other_alibi", "not there"))
    assert found.config == _opened("llama").config and found.ignored_keys == (
        "use_alibi",
        "other_alibi",
    )
    assert "use_alibi" not in found.raw
    assert any(
        "--ignore-key: use_alibi, other_alibi; the real model's numbers may differ" in n
        for n in found.notes
    )
    with pytest.raises(AttnscopeError, match="unknown key 'other_alibi'"):
        open_config(raw, "config.json", ignore=("use_alibi",))
    with pytest.raises(AttnscopeError, match="'quantization_config' cannot be ignored"):
        open_config({**raw, "quantization_config": {}}, "", ignore=("quantization_config",))
    with pytest.raises(AttnscopeError, match="'model_type' cannot be ignored"):
        open_config(raw, "", ignore=("model_type",))


def test_a_key_that_is_left_out_has_the_default_of_the_reference_and_is_said() -> None:
    raw = {**_BY_TYPE["llama"]}
    del raw["max_position_embeddings"]
    found = open_config({**raw, "rope_scaling": None}, "config.json")
    assert found.config.max_positions == 2048
    expected = "keys missing from config.json have the defaults of transformers: max_position_embeddings = 2048"
    assert found.notes == (expected,)


def test_near_misses() -> None:
    assert near_miss("num_hiden_layers", ["num_hidden_layers"]) == "num_hidden_layers"
    assert near_miss("numHiddenLayers", ["num_hidden_layers"]) == "num_hidden_layers"
    assert near_miss("unk_token_id", ["pad_token_id"]) is None
    assert near_miss("pad_token_ids", ["pad_token_id"]) == "pad_token_id"
    assert near_miss("language", ["n_layer", "n_embd"]) is None
