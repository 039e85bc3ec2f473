"""gpt-oss as it is published, with experts in four-bit blocks: equal to what transformers makes of them."""

import json
from pathlib import Path

import pytest
import torch
import transformers as hf
from safetensors.torch import load_file, save_file
from transformers.integrations.mxfp4 import convert_moe_packed_tensors

from attnscope.base.errors import AttnscopeError, ModelError
from attnscope.checkpoints.folder import open_folder
from attnscope.model.tensors import read_tensors
from tests.helpers import native_stages, reference_stages
from tests.helpers.stage_differences import TOLERANCE, differences
from tests.helpers.tiny_models import TABLE, Row
from tests.helpers.token_batches import batch


def published(path: Path) -> hf.PreTrainedModel:
    """A tiny checkpoint, and the model with the numbers that its blocks stand for."""
    row = next(row for row in TABLE if row.name == "gpt_oss")
    sizes = {"hidden_size": 64, "intermediate_size": 96}
    model = Row(row.name, row.model, {**row.config, **sizes}).save(path)
    tensors = load_file(path / "model.safetensors")
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if not name.endswith(("gate_up_proj", "down_proj")) or "experts" not in name:
                continue
            experts, width, out = parameter.shape
            blocks = torch.randint(
                0, 256, (experts, out, width // 32, 16), generator=generator, dtype=torch.uint8
            )
            scales = torch.randint(
                120, 126, blocks.shape[:3], generator=generator, dtype=torch.uint8
            )
            tensors |= {f"{name}_blocks": blocks, f"{name}_scales": scales}
            del tensors[name]
            parameter.copy_(convert_moe_packed_tensors(blocks, scales, dtype=torch.float32))
    save_file(tensors, path / "model.safetensors")
    config = json.loads((path / "config.json").read_text())
    config["quantization_config"] = {
        "quant_method": "mxfp4",
        "modules_to_not_convert": ["model.layers.*.self_attn"],
    }
    (path / "config.json").write_text(json.dumps(config))
    return model


def test_every_stage_is_equal(tmp_path: Path) -> None:
    theirs, b = published(tmp_path), batch([11, 6], vocabulary=60, padding=0, segments=0)
    mine = native_stages.run(native_stages.open_stack(tmp_path), b.ids, b.lengths)
    assert (
        max(differences(mine, reference_stages.run(theirs, b.ids, b.lengths), b.lengths).values())
        < TOLERANCE
    )
    assert open_folder(tmp_path).notes == (
        "experts in four-bit blocks (MXFP4), converted to floating point as they are read",
    )


@pytest.mark.parametrize("transposed", [True, False])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_every_number_is_equal(
    tmp_path: Path, dtype: torch.dtype, transposed: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where a matrix is read in several parts, and in the layout that the other engine wants."""
    monkeypatch.setattr("attnscope.model.tensors._CHUNK", 5 * 4 * 96)
    theirs = dict(published(tmp_path).named_parameters())
    folder = open_folder(tmp_path)
    names = [name for name, info in folder.tensors.items() if info.scales]
    assert len(names) == 6
    for name, tensor in read_tensors(folder, names, dtype, names if transposed else ()):
        assert torch.equal(tensor, (theirs[name].mT if transposed else theirs[name]).to(dtype))


def test_an_exponent_that_means_nan_is_refused(tmp_path: Path) -> None:
    published(tmp_path)
    tensors = load_file(tmp_path / "model.safetensors")
    tensors["model.layers.1.mlp.experts.down_proj_scales"][2, 3, 1] = 255
    save_file(tensors, tmp_path / "model.safetensors")
    with pytest.raises(
        ModelError,
        match=r"down_proj_scales: contains an exponent that means infinity or NaN, in expert 2",
    ):
        native_stages.open_stack(tmp_path)


def test_blocks_without_their_scales_are_unknown(tmp_path: Path) -> None:
    published(tmp_path)
    tensors = load_file(tmp_path / "model.safetensors")
    del tensors["model.layers.1.mlp.experts.down_proj_scales"]
    save_file(tensors, tmp_path / "model.safetensors")
    with pytest.raises(AttnscopeError, match=r"'model.layers.1.mlp.experts.down_proj' is missing"):
        native_stages.open_stack(tmp_path)
