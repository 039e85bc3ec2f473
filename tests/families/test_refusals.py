"""What a family does not understand is refused, in words that name file, key or tensor, value and a way on."""

import json
import time
import tracemalloc
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from attnscope.errors import AttnscopeError
from attnscope.families import FAMILIES, family_for, read_config
from attnscope.folder import open_folder
from attnscope.model.checkpoint import check
from tests.families.published import PUBLISHED
from tests.parity import ours
from tests.parity.models import TABLE

_BY_TYPE = {raw["model_type"]: raw for name, raw in PUBLISHED.items() if name != "SmolLM2-135M"}
_ROPE = "rope_parameters"


def _refusal(model_type: str, **changes: Any) -> str:
    raw = {**_BY_TYPE[model_type], **changes}
    with pytest.raises(AttnscopeError) as caught:
        read_config(family_for(raw, "config.json"), raw, "config.json")
    return str(caught.value)


@pytest.mark.parametrize(
    ("model_type", "changes", "message"),
    [
        ("bert", {"num_hidden_layers": "1"}, 'num_hidden_layers is "1"; expected int'),
        ("bert", {"num_hidden_layers": 1.5}, "num_hidden_layers is 1.5; expected int"),
        ("bert", {"num_hidden_layers": True}, "num_hidden_layers is true; expected int"),
        ("bert", {"num_hidden_layers": -1}, "num_hidden_layers is -1; expected int >= 1"),
        ("bert", {"num_hidden_layers": 0}, "num_hidden_layers is 0; expected int >= 1"),
        ("bert", {"num_hidden_layers": [12]}, "num_hidden_layers is [12]; expected int"),
        (
            "bert",
            {"num_hidden_layers": None},
            "the key 'num_hidden_layers' is null; the family's ",
        ),
        ("bert", {"num_attention_heads": 7}, "7 heads do not divide the width 768; the width must be a multiple of "),
        (
            "llama",
            {"num_key_value_heads": 5},
            "5 key/value heads do not divide 32 heads; n_heads must be ",
        ),
        ("bert", {"hidden_act": "gelu_python"}, 'hidden_act is "gelu_python"; expected one of gelu, gelu_new, '),
        ("bert", {"hidden_act": ["gelu"]}, 'hidden_act is ["gelu"]; expected one of gelu, '),
        ("bert", {"is_decoder": "no"}, 'is_decoder is "no"; expected true or false'),
        ("bert", {"is_decoder": 1}, "is_decoder is 1; expected true or false"),
        (
            "bert",
            {"add_cross_attention": True},
            "add_cross_attention is true; expected false, the one value ",
        ),
        ("bert", {"type_vocab_size": -1}, "type_vocab_size is -1; expected int >= 0"),
        ("bert", {"layer_norm_eps": -1.0}, "layer_norm_eps is -1.0; expected float >= 0.0"),
        (
            "bert",
            {"position_embedding_type": "relative_key"},
            'position_embedding_type is "relative_key"; expected "absolute", the one value that',
        ),
        ("bert", {"pruned_heads": {"0": [1]}}, 'pruned_heads is {"0": [1]}; expected {}, the one value that '),
        ("gpt2", {"n_inner": 1.5}, "n_inner is 1.5; expected int"),
        ("gpt2", {"scale_attn_weights": "yes"}, 'scale_attn_weights is "yes"; expected true or false'),
        (
            "gpt2",
            {"scale_attn_by_inverse_layer_idx": True},
            "scale_attn_by_inverse_layer_idx is true; expected ",
        ),
        ("gpt2", {"n_positons": 3}, "unknown key 'n_positons' for family 'gpt2'; did you mean 'n_positions'?"),
        ("gpt_neox", {"rotary_pct": 0.3}, None),
        ("gpt_neox", {"rotary_pct": 1.5}, "partial_rotary_factor is 1.5; expected at most 1"),
        ("gpt_neox", {"rope_theta": 5}, "rope_theta is 5; expected the 10000 of 'rotary_emb_base'"),
        ("llama", {"head_dim": 127}, "rotary width 127 is odd; d_head × rope.fraction must be even"),
        ("llama", {"rope_theta": "1e6"}, 'rope_theta is "1e6"; expected a number above 0'),
        ("llama", {"rope_theta": 0}, "rope_theta is 0; expected a number above 0"),
        ("llama", {"rope_interleaved": True}, "rope_interleaved is true; expected false, the one value "),
        ("llama", {"rope_scaling": [8]}, "rope_scaling is [8]; expected an object"),
        (
            "llama",
            {"rope_scaling": {"rope_type": "dynamic", "factor": 2}},
            'rope_type is "dynamic"; expected one of default, linear, llama3, yarn',
        ),
        ("llama", {"rope_scaling": {"type": ["yarn"]}}, 'rope_type is ["yarn"]; expected one of default, '),
        (
            "llama",
            {"rope_scaling": {"rope_type": "linear", "factor": 2, "beta_fast": 32}},
            "the rotary key 'beta_fast' is 32; expected only keys of rope_type 'linear'",
        ),
        (
            "llama",
            {"rope_scaling": {"rope_type": "linear"}},
            "the rotary key 'factor' is null; expected a number for rope_type 'linear'",
        ),
        (
            "llama",
            {"rope_scaling": {"rope_type": "linear", "factor": -2}},
            "factor is -2; expected a number above 0",
        ),
        (
            "llama",
            {"rope_scaling": {"rope_type": "yarn", "factor": 2, "truncate": 1}},
            "truncate is 1; expected true or false",
        ),
        (
            "llama",
            {"rope_scaling": {"rope_type": "yarn", "factor": 2, "original_max_position_embeddings": 4.5}},
            "original_max_position_embeddings is 4.5; expected a whole number of at least 1",
        ),
        (
            "llama",
            {"rope_scaling": None, _ROPE: {"rope_type": "default", "rope_theta": 7.0}},
            "rope_theta is 500000.0; expected the 7.0 of the rotary parameters' rope_theta",
        ),
        (
            "llama",
            {_ROPE: {"rope_type": "default"}},
            "rope_scaling is ",
        ),
        (
            "llama",
            {"rope_scaling": {"partial_rotary_factor": 0.5}},
            "partial_rotary_factor is 0.5; expected 1 in this family",
        ),
        (
            "llama",
            {"attn_logit_softcapping": 50.0},
            "unknown key 'attn_logit_softcapping' for family 'llama'; this looks like gemma2",
        ),
        (
            "llama",
            {"sliding_window": 5},
            "unknown key 'sliding_window' for family 'llama'; this looks like mistral or qwen2 or qwen3 or gemma2",
        ),
        (
            "llama",
            {"quantization_config": {"bits": 4}},
            "unknown key 'quantization_config' for family 'llama'; it may change attention, so attnscope refuses to ",
        ),
        ("llama", {"\x1b[2J": 1}, r"unknown key '\x1b[2J' for family 'llama'; it may change attention, "),
        ("mistral", {"sliding_window": 0}, "sliding_window is 0; expected a whole number of at least 1"),
        ("mistral", {"sliding_window": 4.5}, "sliding_window is 4.5; expected a whole number of at least 1"),
        ("mistral", {"num_key_value_heads": None}, "the key 'num_key_value_heads' is null; the family's "),
        ("qwen2", {"use_mrope": True}, "use_mrope is true; expected false, the one value that family 'qwen2' supports"),
        (
            "qwen2",
            {"use_sliding_window": True, "max_window_layers": "2"},
            'max_window_layers is "2"; expected a whole number of at least 0',
        ),
        (
            "qwen2",
            {"use_sliding_window": True, "max_window_layers": 2, "sliding_window": None},
            "sliding_window is null; expected a window for layer 2",
        ),
        (
            "qwen2",
            {"layer_types": ["sliding_attention"] * 24},
            "use_sliding_window is false; expected true, since layer_types has sliding_attention",
        ),
        (
            "qwen3",
            {"layer_types": ["full_attention"]},
            'layer_types is ["full_attention"]; expected a list of 28 ',
        ),
        (
            "qwen3",
            {"layer_types": ["full_attention"] * 27 + ["linear_attention"]},
            'layer_types[27] is "linear_attention"; expected sliding_attention or full_attention',
        ),
        ("qwen3", {"head_dim": None}, "the key 'head_dim' is null; the family's attention depends on it"),
        ("gemma2", {"attn_logit_softcapping": 0}, "attn_logit_softcapping is 0; expected a number above 0"),
        ("gemma2", {"query_pre_attn_scalar": -4}, "query_pre_attn_scalar is -4; expected a number above 0"),
        ("gemma2", {"use_bidirectional_attention": True}, "use_bidirectional_attention is true; expected false, "),
        ("gemma2", {"num_hidden_layers": 10**9}, "num_hidden_layers is 1000000000; expected at most 100,000"),
        ("roberta", {"pad_token_id": "1"}, 'pad_token_id is "1"; expected int'),
    ],
)
def test_a_value_that_cannot_be_used_is_refused(model_type: str, changes: dict[str, Any], message: str | None) -> None:
    if message is None:  # 0.3 of a head of 128 is 38.4 dimensions, of which 38 are rotated, as in transformers
        assert read_config(FAMILIES[model_type], {**_BY_TYPE[model_type], **changes}, "").rotary_width == 38
        return
    assert _refusal(model_type, **changes).startswith(f"config.json: {message}")


def test_an_unknown_model_type_is_shown_without_its_control_characters() -> None:
    with pytest.raises(AttnscopeError) as caught:
        family_for({"model_type": "evil\x1b[2J\x9b"}, "config.json")
    message = str(caught.value)
    assert message.startswith(r'config.json: model_type is "evil\x1b[2J\x9b"; install attnscope[transformers]')
    assert message.endswith(f" supported: {', '.join(FAMILIES)}")
    assert message.isprintable()


@pytest.mark.parametrize("raw", [{}, {"model_type": None}])
def test_a_missing_model_type_is_refused(raw: dict[str, Any]) -> None:
    with pytest.raises(AttnscopeError, match="the key 'model_type' is missing; supported: bert, roberta, "):
        family_for(raw, "config.json")


def test_gemma2_that_claims_to_be_llama_is_refused() -> None:
    with pytest.raises(AttnscopeError, match="for family 'llama'; this looks like gemma2"):
        read_config(FAMILIES["llama"], {**_BY_TYPE["gemma2"], "model_type": "llama"}, "config.json")


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> dict[str, tuple[dict[str, Any], dict[str, Tensor]]]:
    """Config and tensors of one tiny checkpoint per family."""
    found = {}
    for model_type in ("bert", "llama", "gpt2"):
        folder = tmp_path_factory.mktemp(model_type)
        next(row for row in TABLE if row.name == model_type).save(folder)
        raw = json.loads((folder / "config.json").read_text())
        found[model_type] = (raw, load_file(folder / "model.safetensors"))
    return found


Saved = dict[str, tuple[dict[str, Any], dict[str, Tensor]]]


def _write(folder: Path, raw: dict[str, Any], tensors: dict[str, Tensor]) -> None:
    (folder / "config.json").write_text(json.dumps(raw))
    save_file(tensors, folder / "model.safetensors")


@pytest.mark.parametrize(
    ("field", "value", "message"),
    [
        (
            "num_hidden_layers",
            10**9,
            "config.json: config says 1000000000 layers, the weights hold 3; ",
        ),
        ("num_hidden_layers", 2, "config.json: config says 2 layers, the weights hold 3; config and weights "),
        (
            "vocab_size",
            10**12,
            "config.json: config says a vocabulary of 1000000000000 and a width of 24, ",
        ),
        (
            "hidden_size",
            10**9,
            "config.json: config says a vocabulary of 60 and a width of 1000000000, ",
        ),
        ("intermediate_size", 10**12, "encoder.layer.0.intermediate.dense.weight: has shape [40, 24], "),
        ("max_position_embeddings", 10**15, "embeddings.position_embeddings.weight: has shape [48, 24], "),
    ],
)
def test_a_config_that_promises_what_the_weights_do_not_hold(
    saved: Saved, tmp_path: Path, field: str, value: int, message: str
) -> None:
    raw, tensors = saved["bert"]
    _write(tmp_path, {**raw, field: value}, tensors)
    tracemalloc.start()
    began = time.perf_counter()
    with pytest.raises(AttnscopeError) as caught:
        ours.open_stack(tmp_path)
    took, most = time.perf_counter() - began, tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert message in str(caught.value)
    assert str(tmp_path) in str(caught.value)
    assert str(caught.value).endswith("config and weights are not of one model")
    assert took < 1.0
    assert most < 10_000_000


Change = Callable[[dict[str, Tensor]], dict[str, Tensor]]


def _without(name: str) -> Change:
    return lambda tensors: {n: t for n, t in tensors.items() if n != name}


def _with(name: str, tensor: Tensor) -> Change:
    return lambda tensors: {**tensors, name: tensor}


@pytest.mark.parametrize(
    ("model_type", "change", "message"),
    [
        (
            "llama",
            _without("model.layers.1.self_attn.v_proj.weight"),
            ": the tensor 'model.layers.1.self_attn.v_proj.weight' is missing; it is needed for "
            "'blocks.1.attention.v.weight'; weights are never made up",
        ),
        (
            "llama",
            _without("model.embed_tokens.weight"),
            "config.json: the tensor 'embed_tokens.weight' or 'model.embed_tokens.weight' or "
            "'transformer.embed_tokens.weight' is missing; family 'llama' needs its token embedding",
        ),
        (
            "llama",
            _with("model.layers.2.self_attn.k_proj.weight", torch.zeros(32, 32)),
            "model.safetensors: model.layers.2.self_attn.k_proj.weight: has shape [32, 32], "
            "'blocks.2.attention.k.weight' needs [16, 32]; config and weights are not of one model",
        ),
        (
            "gpt2",
            _with("transformer.h.0.attn.c_attn.weight", torch.zeros(72, 24)),
            "transformer.h.0.attn.c_attn.weight: has shape [72, 24], 'blocks.0.attention.q.weight' needs [24, 72]; ",
        ),
        (
            "llama",
            _with("model.layers.0.self_attn.q_norm.weight", torch.ones(8)),
            "model.safetensors: unknown tensor 'model.layers.0.self_attn.q_norm.weight'; family 'llama' does not know "
            "it, and it may change attention",
        ),
        (
            "llama",
            _with("model.layers.0.self_attn.q_proj.bias", torch.ones(32)),
            "unknown tensor 'model.layers.0.self_attn.q_proj.bias'; family 'llama' does not know it",
        ),
        (
            "llama",
            _with("model.layers.0.self_attn.q_proj.weight", torch.zeros(32, 32, dtype=torch.int8)),
            "model.layers.0.self_attn.q_proj.weight: is stored as I8; attnscope reads floating-point checkpoints only",
        ),
    ],
)
def test_weights_that_do_not_fit_the_family(
    saved: Saved, tmp_path: Path, model_type: str, change: Change, message: str
) -> None:
    raw, tensors = saved[model_type]
    _write(tmp_path, raw, change(tensors))
    folder = open_folder(tmp_path)
    family = FAMILIES[model_type]
    config = read_config(family, folder.config, str(tmp_path / "config.json"))
    with pytest.raises(AttnscopeError) as caught:
        check(family, config, folder)
    assert message in str(caught.value)
    assert str(caught.value).startswith(str(tmp_path))


def test_a_weight_that_is_not_a_number_is_named_with_its_place(saved: Saved, tmp_path: Path) -> None:
    raw, tensors = saved["llama"]
    name = "model.layers.0.self_attn.o_proj.weight"
    spoilt = tensors[name].clone()
    spoilt[3, 5] = torch.nan
    _write(tmp_path, raw, {**tensors, name: spoilt})
    with pytest.raises(
        AttnscopeError, match=rf"{name}: holds nan at \[3, 5\]; 1 of 1,024 are not finite; the checkpoint is "
    ):
        ours.open_stack(tmp_path)
