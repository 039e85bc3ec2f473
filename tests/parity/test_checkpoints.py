"""Every head that transformers puts on a family, and every name that older checkpoints used, is read all the same."""

import json
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers as hf
from safetensors.torch import load_file, save_file
from torch import Tensor

from attnscope.checkpoints.families import FAMILIES, native_family, read_config
from attnscope.checkpoints.folder import open_folder
from attnscope.model.checkpoint import load_stack
from tests.helpers import native_stages
from tests.helpers.loaded_stack import load_all
from tests.helpers.tiny_models import POSITIONS, TABLE, Row
from tests.helpers.token_batches import INPUTS

_ROWS = {
    name: next(row for row in TABLE if row.model.config_class.model_type == name)
    for name in FAMILIES
}


def _classes(model_type: str) -> list[type[hf.PreTrainedModel]]:
    module = import_module(_ROWS[model_type].model.__module__)
    found = [
        getattr(module, name) for name in module.__all__ if not name.endswith("PreTrainedModel")
    ]
    models = [c for c in found if isinstance(c, type) and issubclass(c, hf.PreTrainedModel)]
    models = [
        c for c in models if c.config_class is not None and c.config_class.model_type == model_type
    ]
    return [
        c
        for c in models
        if native_family({"model_type": model_type, "architectures": [c.__name__]})
    ]


@pytest.mark.parametrize(
    "model", [c for name in FAMILIES for c in _classes(name)], ids=lambda c: c.__name__
)
def test_a_checkpoint_with_any_head_is_read(
    model: type[hf.PreTrainedModel], tmp_path: Path
) -> None:
    row = _ROWS[model.config_class.model_type]
    Row(row.name, model, row.config).save(tmp_path)
    assert native_stages.open_stack(tmp_path).config.n_layers == 3


def _rewrite(folder: Path, change: Any) -> None:
    file = folder / "model.safetensors"
    save_file(change(load_file(file)), file)


_BUFFERS: dict[str, dict[str, Tensor]] = {
    "bert": {"bert.embeddings.position_ids": torch.arange(POSITIONS)[None]},
    "roberta": {"roberta.embeddings.position_ids": torch.arange(POSITIONS)[None]},
    "distilbert": {"distilbert.embeddings.position_ids": torch.arange(POSITIONS)[None]},
    "gpt2": {
        f"transformer.h.{layer}.attn.{name}": torch.ones(1)
        for layer in range(3)
        for name in ("bias", "masked_bias")
    },
    "gpt_neox": {
        f"gpt_neox.layers.{layer}.attention.{name}": torch.ones(1)
        for layer in range(3)
        for name in ("bias", "masked_bias", "rotary_emb.inv_freq")
    },
    "llama": {
        f"model.layers.{layer}.self_attn.rotary_emb.inv_freq": torch.ones(4) for layer in range(3)
    },
}


@pytest.mark.parametrize("family", _BUFFERS)
def test_buffers_of_older_versions_are_left_over(family: str, tmp_path: Path) -> None:
    with_head = ("ForPreTraining", "ForMaskedLM", "LMHeadModel", "ForCausalLM")
    rows = [row for row in TABLE if row.model.config_class.model_type == family]
    row = next(row for row in rows if row.model.__name__.endswith(with_head))
    row.save(tmp_path)
    _rewrite(tmp_path, lambda tensors: {**tensors, **_BUFFERS[family]})
    assert native_stages.open_stack(tmp_path).config.n_layers == 3


def test_experts_are_the_same_one_by_one_and_in_one_tensor(tmp_path: Path) -> None:
    model = _ROWS["mixtral"].save(tmp_path / "one by one")
    model.save_pretrained(tmp_path / "in one", save_original_format=False)
    names = [
        set(load_file(tmp_path / form / "model.safetensors")) for form in ("one by one", "in one")
    ]
    assert "model.layers.0.block_sparse_moe.experts.3.w1.weight" in names[0]
    assert "model.layers.0.mlp.experts.gate_up_proj" in names[1]
    one, other = (
        native_stages.open_stack(tmp_path / form).state_dict() for form in ("one by one", "in one")
    )
    assert one.keys() == other.keys()
    assert all(torch.equal(one[name], other[name]) for name in one)


@pytest.mark.parametrize("family", ["gpt_oss", "mixtral"])
def test_weights_in_bfloat16_are_read(family: str, tmp_path: Path) -> None:
    _ROWS[family].save(tmp_path)
    before = native_stages.open_stack(tmp_path).state_dict()
    _rewrite(
        tmp_path, lambda tensors: {name: tensor.bfloat16() for name, tensor in tensors.items()}
    )
    after = native_stages.open_stack(tmp_path).state_dict()
    assert all(torch.equal(before[name].bfloat16().float(), after[name]) for name in before)


def test_norms_named_gamma_and_beta_are_read(tmp_path: Path) -> None:
    _ROWS["bert"].save(tmp_path)
    before = native_stages.open_stack(tmp_path).state_dict()
    old = {"LayerNorm.weight": "LayerNorm.gamma", "LayerNorm.bias": "LayerNorm.beta"}

    def rename(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
        return {name.replace(*next((pair for pair in old.items() if pair[0] in name), ("", ""))): tensor
                for name, tensor in tensors.items()}  # fmt: skip

    _rewrite(tmp_path, rename)
    assert not any("LayerNorm.weight" in name for name in load_file(tmp_path / "model.safetensors"))
    after = native_stages.open_stack(tmp_path).state_dict()
    assert all(torch.equal(before[name], after[name]) for name in before)


def test_only_the_layers_that_run_are_loaded(tmp_path: Path) -> None:
    _ROWS["llama"].save(tmp_path)
    folder = open_folder(tmp_path)
    config = read_config(FAMILIES["llama"], folder.config, "config.json")
    stack = load_all(
        load_stack(FAMILIES["llama"], config, folder, 1, torch.float32, torch.device("cpu"))
    )
    every = native_stages.open_stack(tmp_path).state_dict()
    assert len(stack.blocks) == 1
    assert all(torch.equal(tensor, every[name]) for name, tensor in stack.state_dict().items())


def _older(raw: dict[str, Any]) -> dict[str, Any]:
    """The same config in the dialect of transformers 4."""
    older = {name: value for name, value in raw.items() if name != "rope_parameters"}
    table = dict(raw["rope_parameters"])
    if "full_attention" in table:
        local = table["sliding_attention"]["rope_theta"]
        table = dict(table["full_attention"])
        if raw["model_type"] == "modernbert":
            return older | {"global_rope_theta": table["rope_theta"], "local_rope_theta": local}
        if raw["model_type"].startswith("gemma3"):
            older["rope_local_base_freq"] = local
    neox = raw["model_type"] == "gpt_neox"
    older["rotary_emb_base" if neox else "rope_theta"] = table.pop("rope_theta")
    if neox:
        older["rotary_pct"] = table.pop("partial_rotary_factor")
    if "partial_rotary_factor" in table:
        older["partial_rotary_factor"] = table.pop("partial_rotary_factor")
    kind = table.pop("rope_type")
    # which have never read the older name
    typed = raw["model_type"].startswith(("gemma3", "olmo3"))
    name = "rope_type" if typed else "type"
    older["rope_scaling"] = None if kind == "default" else {name: kind, **table}
    return older


@pytest.mark.parametrize(
    "row",
    # the older dialect has one rope_theta for both kinds of OLMo 3's layers
    [
        r
        for r in TABLE
        if hasattr(r.model.config_class, "rope_parameters")
        and r.name != "olmo3 full layers stretched"
    ],
    ids=lambda row: row.name,
)
def test_both_dialects_of_rotary_parameters_mean_the_same(row: Row, tmp_path: Path) -> None:
    row.model.config_class(**row.config).save_pretrained(tmp_path)
    raw = json.loads((tmp_path / "config.json").read_text())
    family = FAMILIES[raw["model_type"]]
    assert read_config(family, _older(raw), "old") == read_config(family, raw, "new")


def test_inputs_reach_beyond_every_window_of_the_table() -> None:
    windows = [row.config["sliding_window"] for row in TABLE if row.config.get("sliding_window")]
    assert windows
    assert max(INPUTS["longer than every window"]) > 2 * max(windows)
