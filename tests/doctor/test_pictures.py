"""The doctor on vision models: sound ones pass, and each bug is named by the check that is about it."""

from typing import Any

import pytest
import torch
import transformers

import attnscope
from tests.helpers.tiny_vision import VISION

pytest.importorskip("PIL")
ROWS = {row.name: row for row in VISION}


def _model(name: str) -> tuple[Any, Any]:
    row = ROWS[name]
    made = row.make()
    processor = getattr(transformers, row.processor)(**row.settings)
    return (made.vision_model if row.towers else made), processor


def _verdicts(model: Any, processor: Any, **more: Any) -> dict[str, str]:
    return {
        check.name: check.verdict
        for check in attnscope.doctor(model, tokenizer=processor, **more).checks
    }


@pytest.mark.parametrize(
    ("name", "positions"),
    [
        ("dinov2_with_registers", "ok"),
        pytest.param("clip", "ok", marks=pytest.mark.exhaustive),
        pytest.param("siglip2", "ok", marks=pytest.mark.exhaustive),
        pytest.param("dinov3", "inapplicable", marks=pytest.mark.exhaustive),
        pytest.param("beit", "inapplicable", marks=pytest.mark.exhaustive),
    ],
)
def test_sound_models_pass(name: str, positions: str) -> None:
    model, processor = _model(name)
    attention = model.config._attn_implementation
    verdicts = _verdicts(model, processor, attn=["eager", "sdpa"])
    assert "wrong" not in verdicts.values() and "depends" not in verdicts.values()
    assert verdicts["backend"] == verdicts["row_sums"] == verdicts["processor"] == "ok"
    assert verdicts["other_size"] == positions
    assert verdicts["padding"] == verdicts["labels"] == verdicts["future"] == "inapplicable"
    assert model.config._attn_implementation == attention
    assert _verdicts(model, None)["processor"] == "unknown"


def _halved(
    module: Any, query: Any, key: Any, value: Any, mask: Any, scaling: float = 1.0, **more: Any
) -> Any:
    weights = (query @ key.mT * scaling).softmax(-1) / 2
    return (weights @ value).transpose(1, 2), weights


def test_weights_that_do_not_sum_to_1_are_found() -> None:
    transformers.AttentionInterface.register("halved", _halved)
    report = attnscope.doctor(_model("vit")[0], attn=["halved"])
    (found,) = [check for check in report.checks if check.name == "row_sums"]
    assert found.verdict == "wrong" and found.value == pytest.approx(0.5, abs=1e-6)
    assert found.where is not None and found.where.startswith("halved L")


def test_a_table_that_is_cut_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    model, processor = _model("vit")

    def repeated(embeddings: torch.Tensor, height: int, width: int) -> torch.Tensor:
        table = model.embeddings.position_embeddings
        return torch.cat([table] * 3, 1)[:, : embeddings.shape[1]]

    monkeypatch.setattr(model.embeddings, "interpolate_pos_encoding", repeated)
    assert _verdicts(model, processor)["other_size"] == "wrong"


@pytest.mark.parametrize(
    ("settings", "verdict"),
    [
        ({"do_rescale": False}, "wrong"),
        ({"image_std": [-0.5] * 3}, "wrong"),
        ({"size": {"height": 40, "width": 32}}, "depends"),
        ({"size": {"height": 36, "width": 32}}, "depends"),
    ],
)
def test_a_processor_that_does_not_fit_is_found(settings: dict[str, Any], verdict: str) -> None:
    row = ROWS["vit"]
    processor = getattr(transformers, row.processor)(**(row.settings | settings))
    assert _verdicts(_model("vit")[0], processor)["processor"] == verdict


def test_a_size_that_the_model_refuses_is_wrong(monkeypatch: pytest.MonkeyPatch) -> None:
    row = ROWS["vit"]
    processor = getattr(transformers, row.processor)(size={"height": 40, "width": 32})
    model, _ = _model("vit")

    def refuse(*sizes: Any) -> torch.Tensor:
        raise ValueError("the model takes pictures of 32 × 32 pixels")

    monkeypatch.setattr(model.embeddings, "interpolate_pos_encoding", refuse)
    assert _verdicts(model, processor)["processor"] == "wrong"
