"""What tensor names say: wrappers are taken off, heads and buffers noted, the quantised weights of others named."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from attnscope.base.errors import AttnscopeError
from attnscope.checkpoints.folder import open_folder
from attnscope.engines.opening import open_source
from tests.helpers import native_stages
from tests.helpers.requests import requested
from tests.helpers.tiny_models import TABLE
from tests.helpers.tokenizer_files import content, write

ROWS = {row.name: row for row in TABLE}


def rewritten(
    path: Path, name: str, change: Callable[[dict[str, Tensor]], dict[str, Tensor]]
) -> Path:
    ROWS[name].save(path)
    write(path, content("byte-level"))
    file = path / "model.safetensors"
    save_file(change(load_file(file)), file)
    return path


def notes(path: Path) -> tuple[str, ...]:
    return open_source(requested((), model=str(path)), ()).notes


@pytest.mark.parametrize(
    "prefix", ["module.", "_orig_mod.", "base_model.model.", "_orig_mod.module."]
)
@pytest.mark.parametrize("name", ["bert with heads", "llama", "gpt2"])
def test_the_prefix_of_a_wrapper_is_ignored(tmp_path: Path, name: str, prefix: str) -> None:
    ROWS[name].save(tmp_path / "plain")
    rewritten(
        tmp_path / "wrapped", name, lambda tensors: {prefix + n: t for n, t in tensors.items()}
    )
    plain, wrapped = (
        native_stages.open_stack(tmp_path / form).state_dict() for form in ("plain", "wrapped")
    )
    assert all(torch.equal(plain[key], wrapped[key]) for key in plain)
    assert notes(tmp_path / "wrapped") == (
        f"every tensor's name starts with '{prefix}', which is ignored",
    )


def test_a_prefix_that_some_tensors_lack_is_no_wrapper(tmp_path: Path) -> None:
    def change(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
        return {n if "layers.0" in n else f"module.{n}": t for n, t in tensors.items()}

    with pytest.raises(AttnscopeError, match=r"the tensor 'embed_tokens.weight' or .* is missing"):
        notes(rewritten(tmp_path / "m", "llama", change))


def test_heads_outside_the_base_model_are_noted(tmp_path: Path) -> None:
    heads = {f"reward.{n}.weight": torch.ones(2, 2) for n in range(5)}
    path = rewritten(tmp_path / "m", "llama", lambda tensors: {**tensors, **heads})
    named = "reward.0.weight, reward.1.weight, reward.2.weight and 2 more"
    assert notes(path) == (f"tensors that attention does not use: {named}",)
    native_stages.open_stack(path)


def test_unknown_tensors_within_the_base_model_are_refused(tmp_path: Path) -> None:
    extra = {"model.layers.0.self_attn.gate.weight": torch.ones(2)}
    path = rewritten(tmp_path / "m", "llama", lambda tensors: {**tensors, **extra})
    with pytest.raises(
        AttnscopeError,
        match=r"unknown tensor 'model.layers.0.self_attn.gate.weight'; family 'llama'",
    ):
        native_stages.open_stack(path)


def test_without_a_prefix_nothing_is_outside(tmp_path: Path) -> None:
    path = rewritten(
        tmp_path / "m", "bert", lambda tensors: {**tensors, "reward.weight": torch.ones(2)}
    )
    with pytest.raises(AttnscopeError, match=r"unknown tensor 'reward.weight'"):
        native_stages.open_stack(path)


@pytest.mark.parametrize(
    "buffer",
    [
        "model.rotary_emb.inv_freq",
        "model.rotary_emb.original_inv_freq",
        "model.layers.0.self_attn.rotary_emb.inv_freq",
    ],
)
def test_rotary_frequencies_are_noted(tmp_path: Path, buffer: str) -> None:
    path = rewritten(tmp_path / "m", "qwen2", lambda tensors: {**tensors, buffer: torch.ones(4)})
    assert notes(path) == (f"tensors that attention does not use: {buffer}",)
    native_stages.open_stack(path)


QUERY = "model.layers.0.self_attn.q_proj"


@pytest.mark.parametrize(
    ("endings", "kind"),
    [
        (("qweight", "qzeros", "scales", "g_idx"), "GPTQ"),
        (("qweight", "qzeros", "scales"), "AWQ"),
        (("weight", "weight.absmax", "weight.quant_map"), "bitsandbytes"),
        (("weight", "SCB"), "bitsandbytes"),
        (("weight", "scales", "biases"), "MLX"),
        (("weight_packed", "weight_scale"), "compressed-tensors"),
    ],
)
def test_quantised_weights_of_other_programs_are_named(
    tmp_path: Path, endings: tuple[str, ...], kind: str
) -> None:
    tensors = {f"{QUERY}.{ending}": torch.zeros(2, 2, dtype=torch.uint32) for ending in endings}
    save_file(tensors, tmp_path / "model.safetensors")
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "llama"}))
    with pytest.raises(AttnscopeError) as caught:
        open_folder(tmp_path)
    said = f"{tmp_path}: the weights are quantised ({kind}); use the floating-point model that they were made from, or "
    assert str(caught.value) == f"{said}a GGUF file of it"
