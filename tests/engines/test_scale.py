"""--scale: the whole model with another factor of scores equals transformers with that factor in every layer."""

from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from transformers import AutoModel

import attnscope
from attnscope.base.errors import UsageError
from attnscope.cli import main
from attnscope.engines.protocol import EngineSettings
from attnscope.engines.transformers.engine import TransformersEngine
from attnscope.request.masks.terms import Own
from tests.helpers.reference_smollm2 import open_reference

TEXT = "The bank by the river was eroded"
FACTORS = [("none", 1.0), (0.03, 0.03), (0.3, 0.3)]


@torch.inference_mode()
def _eager(
    model: Any, modules: Callable[[Any], list[Any]], ids: list[int], factor: float
) -> NDArray[np.float32]:
    """Return all weights of eager transformers, (layers, heads, queries, keys), with the factor in every layer."""
    before = [module.scaling for module in modules(model)]
    for module in modules(model):
        module.scaling = factor
    try:
        weights = torch.stack(model(torch.tensor([ids]), output_attentions=True).attentions)[:, 0]
    finally:
        for module, own in zip(modules(model), before, strict=True):
            module.scaling = own
    assert max(abs(own - factor) for own in before) > 0.01, "the factor is the model's own"
    return weights.float().numpy()


def _shown(report: Any) -> tuple[list[int], NDArray[np.float32]]:
    text = report.data.texts[0]
    ids = [token.id for token in text.tokens]
    layers = len({head.layer for head in text.heads})
    weights = np.stack([head.stages["weights"] for head in text.heads])
    return ids, weights.reshape(layers, -1, *weights.shape[1:])


@pytest.mark.parametrize(("scale", "factor"), FACTORS)
@pytest.mark.parametrize("engine", ["native", "transformers"])
def test_scaled_weights_of_an_encoder_equal_eager_attention(
    minilm: Path, engine: str, scale: Any, factor: float
) -> None:
    more = {"layer": "all", "head": "all", "stages": ["weights"], "engine": engine}
    report = attnscope.inspect(TEXT, model=minilm, scale=scale, **more)
    ids, weights = _shown(report)
    model = AutoModel.from_pretrained(
        minilm, attn_implementation="eager", dtype=torch.float32
    ).eval()
    expected = _eager(
        model, lambda m: [layer.attention.self for layer in m.encoder.layer], ids, factor
    )
    np.testing.assert_allclose(weights, expected, atol=1e-5)
    assert report.provenance.scale == factor
    own = _shown(attnscope.inspect(TEXT, model=minilm, **more))[1]
    assert np.abs(weights - own).max() > 0.01


def test_scaled_weights_of_a_decoder_equal_eager_attention(smollm2: Path) -> None:
    report = attnscope.inspect(
        TEXT, model=smollm2, scale=0.05, layer="all", head="all", stages=["weights"]
    )
    ids, weights = _shown(report)
    expected = _eager(
        open_reference(smollm2), lambda m: [layer.self_attn for layer in m.layers], ids, 0.05
    )
    np.testing.assert_allclose(weights, expected, atol=1e-5)


def test_screens_say_that_the_scale_is_changed(capsys: pytest.CaptureFixture[str]) -> None:
    said = "scale scores × 0.5 in every layer, in place of the model's own factor"
    for words in (
        ["run"],
        ["explain", "--query", "bank"],
        ["compare", "--mask", "own", "--mask", "causal"],
    ):
        assert main([words[0], TEXT, *words[1:], "--scale", "0.5", "--color", "never"]) == 0
        screen = " ".join(capsys.readouterr().out.split())
        assert said in screen
    assert main(["run", TEXT, "--color", "never"]) == 0
    assert "scale " not in capsys.readouterr().out.partition("L2H")[0]


@pytest.mark.parametrize("typed", ["0", "-1", "nan", "inf", "own"])
def test_what_is_no_factor_is_refused(typed: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["run", TEXT, "--scale", typed]) == 2
    assert f"--scale: must be a number above 0, or none, not '{typed}'" in capsys.readouterr().err


def test_where_it_does_not_reach_it_is_refused(minilm: Path, tmp_path: Path) -> None:
    arrays = {name: np.ones((1, 2, 3, 4), dtype=np.float32) for name in ("q", "k", "v")}
    np.savez(tmp_path / "qkv.npz", **arrays)
    with pytest.raises(
        UsageError, match=r"qkv and scale cannot be used together: .* no model runs"
    ):
        attnscope.inspect(qkv=tmp_path / "qkv.npz", scale=0.5)


def test_a_text_that_transformers_continues_keeps_its_factor() -> None:
    engine = TransformersEngine(cast(Any, None), EngineSettings((Own(),), scale=0.5))
    with pytest.raises(
        UsageError, match="scale: transformers continues texts with the model's own factor"
    ):
        engine.continuation()
