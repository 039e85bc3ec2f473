"""Weights that are not those of the config, or not of the family, are refused before anything is made of them."""

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

from attnscope.base.errors import AttnscopeError
from attnscope.checkpoints.families import FAMILIES, read_config
from attnscope.checkpoints.folder import open_folder
from attnscope.model.checkpoint import check_tensors
from tests.helpers import native_stages
from tests.helpers.tiny_models import TABLE


@pytest.fixture(scope="module")
def saved(
    tmp_path_factory: pytest.TempPathFactory,
) -> dict[str, tuple[dict[str, Any], dict[str, Tensor]]]:
    """Config and tensors of one tiny checkpoint per family."""
    found = {}
    for model_type in ("bert", "llama", "gpt2", "mixtral", "gpt_oss"):
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
            "config.json: config says 1000000000 layers, but the weights have 3; ",
        ),
        (
            "num_hidden_layers",
            2,
            "config.json: config says 2 layers, but the weights have 3; config.json and weights ",
        ),
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
        (
            "intermediate_size",
            10**12,
            "encoder.layer.0.intermediate.dense.weight: has shape [40, 24], ",
        ),
        (
            "max_position_embeddings",
            10**15,
            "embeddings.position_embeddings.weight: has shape [48, 24], ",
        ),
    ],
)
def test_a_config_that_promises_what_the_weights_do_not_hold(
    saved: Saved, tmp_path: Path, field: str, value: int, message: str
) -> None:
    raw, tensors = saved["bert"]
    _assert_refused_at_once(tmp_path, {**raw, field: value}, tensors, message)


@pytest.mark.parametrize("model_type", ["llama", "gpt_oss"])
def test_a_config_that_promises_more_heads(saved: Saved, tmp_path: Path, model_type: str) -> None:
    raw, tensors = saved[model_type]
    message = "config.json: config says 1099511627776 heads, 8 wide each, but the weights have ["
    changed = {**raw, "num_attention_heads": 1 << 40, "head_dim": 8}
    _assert_refused_at_once(tmp_path, changed, tensors, message)


@pytest.mark.parametrize("model_type", ["mixtral", "gpt_oss"])
@pytest.mark.parametrize("count", [10**9, 3])
def test_a_config_that_promises_other_experts(
    saved: Saved, tmp_path: Path, model_type: str, count: int
) -> None:
    raw, tensors = saved[model_type]
    message = f"config.json: config says {count} experts and a width of 32, but the weights have [4, 32] in 'model.layers.0"
    _assert_refused_at_once(tmp_path, {**raw, "num_local_experts": count}, tensors, message)


def _assert_refused_at_once(
    tmp_path: Path, raw: dict[str, Any], tensors: dict[str, Tensor], message: str
) -> None:
    _write(tmp_path, raw, tensors)
    tracemalloc.start()
    began = time.perf_counter()
    with pytest.raises(AttnscopeError) as caught:
        native_stages.open_stack(tmp_path)
    took, most = time.perf_counter() - began, tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert message in str(caught.value)
    assert str(tmp_path) in str(caught.value)
    assert str(caught.value).endswith("config.json and weights do not match")
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
            ": the tensor 'model.layers.1.self_attn.v_proj.weight' is missing; 'blocks.1.attention.v.weight' needs it"
            "; missing weights are never filled in",
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
            "'blocks.2.attention.k.weight' needs [16, 32]; config.json and weights do not match",
        ),
        (
            "gpt2",
            _with("transformer.h.0.attn.c_attn.weight", torch.zeros(72, 24)),
            "transformer.h.0.attn.c_attn.weight: has shape [72, 24], 'blocks.0.attention.q.weight' needs [24, 72]; ",
        ),
        (
            "llama",
            _with("model.layers.0.self_attn.q_norm.weight", torch.ones(8)),
            "model.safetensors: unknown tensor 'model.layers.0.self_attn.q_norm.weight'; family 'llama' does not use "
            "it, and it may change attention",
        ),
        (
            "llama",
            _with("model.layers.0.self_attn.q_proj.bias", torch.ones(32)),
            "unknown tensor 'model.layers.0.self_attn.q_proj.bias'; family 'llama' does not use it",
        ),
        (
            "llama",
            _with("model.layers.0.self_attn.q_proj.weight", torch.zeros(32, 32, dtype=torch.int8)),
            "model.layers.0.self_attn.q_proj.weight: is stored as I8; attnscope reads only floating-point checkpoints",
        ),
        (
            "mixtral",
            _without("model.layers.1.block_sparse_moe.experts.2.w3.weight"),
            ": the tensor 'model.layers.1.block_sparse_moe.experts.2.w3.weight' or "
            "'model.layers.1.mlp.experts.gate_up_proj' is missing; 'blocks.1.mlp.experts.2.up.weight' needs it",
        ),
        (
            "mixtral",
            _with("model.layers.0.block_sparse_moe.experts.4.w1.weight", torch.ones(40, 32)),
            "unknown tensor 'model.layers.0.block_sparse_moe.experts.4.w1.weight'; family 'mixtral' does not use it",
        ),
        (
            "mixtral",
            _with("model.layers.0.block_sparse_moe.experts.1.w2.weight", torch.ones(40, 32)),
            "experts.1.w2.weight: has shape [40, 32], 'blocks.0.mlp.experts.1.down.weight' needs [32, 40]; ",
        ),
        (
            "mixtral",
            _without("model.layers.0.block_sparse_moe.gate.weight"),
            "config.json: the tensor 'model.layers.0.block_sparse_moe.gate.weight' or 'model.layers.0.mlp.gate.weight' "
            "is missing; 'blocks.0.mlp.router.weight' needs it",
        ),
        (
            "gpt_oss",
            _without("model.layers.2.self_attn.sinks"),
            ": the tensor 'model.layers.2.self_attn.sinks' is missing; 'blocks.2.attention.sinks' needs it",
        ),
        (
            "gpt_oss",
            _with("model.layers.1.self_attn.sinks", torch.ones(3)),
            "model.layers.1.self_attn.sinks: has shape [3], 'blocks.1.attention.sinks' needs [4]; ",
        ),
        (
            "gpt_oss",
            _without("model.layers.0.mlp.experts.gate_up_proj_bias"),
            ": the tensor 'model.layers.0.mlp.experts.gate_up_proj_bias' is missing; "
            "'blocks.0.mlp.experts.0.up.bias' needs it",
        ),
        (
            "gpt_oss",
            _with("model.layers.0.mlp.experts.gate_up_proj", torch.ones(4, 80, 32)),
            "mlp.experts.gate_up_proj: has shape [4, 80, 32], 'blocks.0.mlp.experts.0.up.weight' needs [4, 32, 80]; ",
        ),
        (
            "gpt_oss",
            _with("model.layers.0.mlp.experts.down_proj", torch.ones(3, 40, 32)),
            "mlp.experts.down_proj: has shape [3, 40, 32], 'blocks.0.mlp.experts.0.down.weight' needs [4, 40, 32]; ",
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
        check_tensors(family, config, folder)
    assert message in str(caught.value)
    assert str(caught.value).startswith(str(tmp_path))


def test_a_weight_that_is_not_a_number_is_named_with_its_place(
    saved: Saved, tmp_path: Path
) -> None:
    raw, tensors = saved["llama"]
    name = "model.layers.0.self_attn.o_proj.weight"
    spoilt = tensors[name].clone()
    spoilt[3, 5] = torch.nan
    _write(tmp_path, raw, {**tensors, name: spoilt})
    with pytest.raises(
        AttnscopeError,
        match=rf"{name}: contains nan at \[3, 5\]; 1 of 1,024 are not finite; the checkpoint is ",
    ):
        native_stages.open_stack(tmp_path)
