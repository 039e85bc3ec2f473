"""The real vision model that other tests use: recovered from an ONNX file, it attends as ONNX Runtime says."""

from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("PIL", reason="needs: pip install pillow")

from PIL import Image

from tests.helpers import cat_picture, dinov2

pytestmark = pytest.mark.skipif(not dinov2.is_here(), reason=dinov2.MISSING)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The recovered folder."""
    return dinov2.recover(tmp_path_factory.mktemp("dinov2"))


def test_every_layer_of_transformers_equals_onnx_runtime(folder: Path) -> None:
    """In float32, both are up to 2e-5 from float64 in layer 3, whose scores are the largest."""
    import torch
    import transformers as hf

    pixels = (
        np.asarray(cat_picture.draw().crop((88, 0, 312, 224)), dtype=np.float32).transpose(2, 0, 1)
        / 128
        - 1
    )
    expected = dinov2.attention_weights(pixels)
    model = hf.AutoModel.from_pretrained(folder, attn_implementation="eager").eval()
    with torch.inference_mode():
        layers = model(torch.from_numpy(pixels)[None], output_attentions=True).attentions
    differences = [
        float(np.abs(ours[0].numpy() - theirs).max())
        for ours, theirs in zip(layers, expected, strict=True)
    ]
    assert expected[0].shape == (6, 257, 257)
    assert max(differences[:3] + differences[4:]) < 1e-5, differences
    assert differences[3] < 4e-5


def test_every_layer_of_attnscope_equals_onnx_runtime(folder: Path) -> None:
    """From the file of the picture on, which the checkpoint's own processor prepares."""
    from transformers import AutoImageProcessor

    import attnscope

    with Image.open(cat_picture.TARGET) as opened:
        prepared = AutoImageProcessor.from_pretrained(folder)(
            opened.convert("RGB"), return_tensors="np"
        )
    expected = dinov2.attention_weights(prepared["pixel_values"][0].astype(np.float32))
    report = attnscope.inspect(
        image=cat_picture.TARGET, model=folder, layer="all", head="all", stages="weights"
    )
    differences = [
        float(np.abs(ours - theirs).max())
        for ours, theirs in zip(report.weights, expected, strict=True)
    ]
    assert report.weights.shape == (12, 6, 257, 257)
    assert max(differences[:3] + differences[4:]) < 1e-5, differences
    assert differences[3] < 4e-5


@pytest.mark.exhaustive
def test_queries_and_keys_of_every_layer_give_onnx_weights_in_float64(folder: Path) -> None:
    """Without the rounding of either side, layer 3, whose scores are the largest, is as near as all others."""
    import torch
    import transformers as hf

    from attnscope.engines.transformers.interface import NAME, AttentionCapture, capturing, register
    from attnscope.model.attention import attended
    from attnscope.model.inputs import AttentionInputs

    with Image.open(cat_picture.TARGET) as opened:
        prepared = hf.AutoImageProcessor.from_pretrained(folder)(
            opened.convert("RGB"), return_tensors="np"
        )
    pixels = prepared["pixel_values"].astype(np.float64)
    expected = dinov2.exact_weights(pixels[0])
    register()
    model = hf.AutoModel.from_pretrained(
        folder, dtype=torch.float64, attn_implementation=NAME
    ).eval()
    found: list[torch.Tensor] = []

    def on_attention(part: str, module: torch.nn.Module, inputs: AttentionInputs) -> torch.Tensor:
        found.append((inputs.q @ inputs.k.mT * inputs.spec.scale).softmax(-1)[0])
        return attended(inputs)

    with torch.inference_mode(), capturing(AttentionCapture(model, on_attention)):
        model(torch.from_numpy(pixels))
    differences = [
        float(np.abs(ours.numpy() - theirs).max())
        for ours, theirs in zip(found, expected, strict=True)
    ]
    assert max(differences) < 1e-5, differences
