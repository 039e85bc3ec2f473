"""The README's pictures: what they show is there, and it is what the model does."""

import struct

import numpy as np
import pytest

from attnscope import inspect
from tests.page.gallery import FOLDER, IT, PICTURED, SIZE

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
