"""Vision models: weights equal those of eager transformers, and every token is the patch that its name says."""

from pathlib import Path

import numpy as np
import pytest
import torch
import transformers

import attnscope
from attnscope.base.errors import AttnscopeError
from attnscope.findings.images import row_shares
from tests.helpers.tiny_vision import PATCH, VISION, VisionRow, picture

pytest.importorskip("PIL")
ROWS = {row.name: row for row in VISION}
SHORT = ("dinov2_with_registers", "clip")


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory):
    """A function that saves a vision model once, and returns its folder and what sees pictures."""
    saved: dict[str, tuple[Path, transformers.PreTrainedModel]] = {}

    def save(name: str) -> tuple[Path, transformers.PreTrainedModel]:
        if name not in saved:
            folder = tmp_path_factory.mktemp(name)
            saved[name] = folder, ROWS[name].save(folder)
        return saved[name]

    return save


def _inputs(row: VisionRow, array: np.ndarray) -> dict[str, torch.Tensor]:
    processor = getattr(transformers, row.processor)(**row.settings)
    return dict(processor(array, return_tensors="pt"))


_EVERY = [
    pytest.param(name, marks=[] if name in SHORT else pytest.mark.exhaustive) for name in ROWS
]


@pytest.mark.parametrize("name", _EVERY)
def test_weights_equal_eager_transformers(models, name: str) -> None:
    folder, model = models(name)
    row = ROWS[name]
    result = attnscope.inspect(
        image=picture(), model=str(folder), layer="all", head="all", stages="weights"
    )
    text = result.data.texts[0]
    with torch.inference_mode():
        eager = model(**_inputs(row, picture()), output_attentions=True).attentions
    n = len(row.before) + row.shape[0] * row.shape[1]  # what follows is padding
    # (layers · heads, tokens, tokens)
    expected = torch.cat([weights[0, :, :n, :n] for weights in eager]).numpy()
    np.testing.assert_allclose(text.heads.stages["weights"], expected, atol=1e-5)
    assert text.images[0].shape == row.shape
    assert tuple(token.text for token in text.tokens[: len(row.before)]) == row.before
    shares = row_shares(text.heads.stages["weights"], text.images, text.tokens)
    np.testing.assert_allclose(sum(shares.values()), 1, atol=1e-5)
    assert next(iter(shares)) == "image" and ("cls" in shares) == ("cls" in row.before)


@pytest.mark.parametrize("name", _EVERY)
def test_painting_a_patch_changes_its_token_alone(models, name: str) -> None:
    """The embedding of a painted patch is the one that changes, in every row and column."""
    folder, model = models(name)
    row = ROWS[name]
    report = attnscope.inspect(image=picture(32, 32), model=str(folder)).data.texts[0]
    plain = _embedded(model, _inputs(row, picture(32, 32)))
    for y, x in ((0, 3), (2, 1), (3, 3)):
        box = slice(y * PATCH, (y + 1) * PATCH), slice(x * PATCH, (x + 1) * PATCH)
        inputs = _inputs(row, picture(32, 32))
        if inputs["pixel_values"].ndim == 4:
            inputs["pixel_values"][..., *box] += 1
        else:  # the processor makes patches, and does not resize this picture
            painted = picture(32, 32).copy()
            painted[box] = 255 - painted[box]
            inputs = _inputs(row, painted)
        changed = (_embedded(model, inputs) != plain).any(-1).nonzero().flatten().tolist()
        assert [report.tokens[n].text for n in changed] == [f"image:{y},{x}"]
        assert changed == [report.images[0].tokens[y, x]]


def _embedded(model: transformers.PreTrainedModel, inputs: dict[str, torch.Tensor]) -> torch.Tensor:
    """Return what the first layer takes, (tokens, width)."""
    with torch.inference_mode():
        return model(**inputs, output_hidden_states=True).hidden_states[0][0]


def test_a_picture_of_patches_is_shown_as_the_model_saw_it(models) -> None:
    folder, _ = models("siglip2")
    report = attnscope.inspect(image=picture(24, 40), model=str(folder)).data.texts[0]
    np.testing.assert_array_equal(report.images[0].pixels, picture(24, 40))


@pytest.mark.parametrize("name", ["vit", "dinov2"])
def test_the_picture_is_shown_as_the_model_saw_it(models, name: str) -> None:
    folder, _ = models(name)
    row = ROWS[name]
    shown = attnscope.inspect(image=picture(), model=str(folder)).data.texts[0].images[0].pixels
    processor = getattr(transformers, row.processor)(
        **row.settings, do_normalize=False, do_rescale=False
    )
    seen = processor(picture(), return_tensors="np")["pixel_values"][0]
    np.testing.assert_array_equal(shown, seen.transpose(1, 2, 0))


def test_a_checkpoint_with_a_processor_for_torchvision_alone(models, tmp_path: Path) -> None:
    """DINOv3's has the steps of ViT's."""
    folder, _ = models("dinov3")
    settings = (folder / "preprocessor_config.json").read_text()
    assert "ViTImageProcessor" in settings
    for file in folder.iterdir():
        (tmp_path / file.name).write_bytes(file.read_bytes())
    named = settings.replace('"ViTImageProcessor"', '"DINOv3ViTImageProcessorFast"')
    assert named != settings
    (tmp_path / "preprocessor_config.json").write_text(named)
    first, second = (
        attnscope.inspect(image=picture(), model=str(path)).data.texts[0]
        for path in (folder, tmp_path)
    )
    np.testing.assert_allclose(
        first.heads.stages["weights"], second.heads.stages["weights"], atol=1e-3
    )


def test_windows_are_refused(tmp_path: Path) -> None:
    config = transformers.SwinConfig(
        image_size=32, patch_size=4, embed_dim=12, depths=[1, 1], num_heads=[2, 2]
    )
    transformers.SwinModel(config).save_pretrained(tmp_path)
    transformers.ViTImageProcessorPil(size={"height": 32, "width": 32}).save_pretrained(tmp_path)
    with pytest.raises(
        AttnscopeError, match=r"'swin' attends within windows, .* have no tokens in common"
    ):
        attnscope.inspect(image=picture(), model=str(tmp_path))


def test_text_and_picture_choose_the_tower(models, tmp_path: Path) -> None:
    folder, _ = models("clip")
    seen = attnscope.inspect(image=picture(), model=str(folder)).data
    assert len(seen.texts[0].tokens) == 17
    read = attnscope.inspect(input_ids=[[1, 5, 7, 2]], model=str(folder)).data
    assert len(read.texts[0].tokens) == 4
    with pytest.raises(AttnscopeError, match="takes a picture alone"):
        attnscope.inspect("a cat", image=picture(), model=str(folder))


def test_several_pictures_run_side_by_side(models) -> None:
    folder, _ = models("vit")
    pictures = [picture(seed=1), picture(seed=2)]
    together = attnscope.inspect(
        ["", ""], image=pictures, model=str(folder), layer=1, head=2
    ).data.texts
    for text, alone in zip(together, pictures, strict=True):
        expected = attnscope.inspect(image=alone, model=str(folder), layer=1, head=2).data.texts[0]
        np.testing.assert_allclose(
            text.heads.stages["weights"], expected.heads.stages["weights"], atol=1e-6
        )
    assert together[0].images[0].png != together[1].images[0].png


def test_a_model_in_memory(models) -> None:
    folder, _ = models("vit")
    model = transformers.AutoModelForImageClassification.from_pretrained(folder)
    result = attnscope.inspect(image=picture(), model=model, layer=0, head=0).data.texts[0]
    expected = attnscope.inspect(image=picture(), model=str(folder), layer=0, head=0).data.texts[0]
    np.testing.assert_allclose(
        result.heads.stages["weights"], expected.heads.stages["weights"], atol=1e-6
    )
