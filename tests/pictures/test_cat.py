"""The picture of docs/cat.png is what its script draws, and small."""

import numpy as np
import pytest

pytest.importorskip("PIL", reason="needs: pip install pillow")

from PIL import Image

from tests.helpers import cat_picture


def test_the_file_is_the_drawing() -> None:
    drawn = np.asarray(cat_picture.draw(), dtype=float)
    with Image.open(cat_picture.TARGET) as opened:
        stored = np.asarray(opened.convert("RGB"), dtype=float)
    assert drawn.shape == stored.shape == (cat_picture.HEIGHT, cat_picture.WIDTH, 3)
    # The file has 64 colours.
    assert np.abs(drawn - stored).mean() < 4
    assert cat_picture.TARGET.stat().st_size < 40_000
