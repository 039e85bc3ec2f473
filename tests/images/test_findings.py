"""Pictures as plain data: their PNG, the names of their tokens, and shares of rows of weights."""

import io

import msgspec
import numpy as np
import pytest

from attnscope.base.errors import AttnscopeError
from attnscope.findings.axes import faults
from attnscope.findings.images import ImageGrid, decode_png, encode_png, map_of, row_shares
from attnscope.findings.tokens import Token

GRID = np.array([[2, 3, 4], [5, 6, -1]])


def _pixels(seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, 256, (20, 30, 3), dtype=np.uint8)


def _grid(**more: object) -> ImageGrid:
    return ImageGrid(
        **(
            {"name": "cat.png", "image": 0, "of": 1, "tokens": GRID, "png": encode_png(_pixels())}
            | more
        )
    )


def test_png_keeps_every_pixel_and_pillow_reads_it() -> None:
    pixels = _pixels()
    assert np.array_equal(decode_png(encode_png(pixels)), pixels)
    pillow = pytest.importorskip("PIL.Image")
    assert np.array_equal(np.asarray(pillow.open(io.BytesIO(encode_png(pixels)))), pixels)


@pytest.mark.parametrize(
    "png",
    [b"", b"GIF89a", encode_png(_pixels())[:60], encode_png(_pixels()).replace(b"PNG", b"QNG")],
)
def test_another_png_is_refused(png: bytes) -> None:
    with pytest.raises(AttnscopeError, match="not one that attnscope wrote"):
        decode_png(png)


def test_tokens_are_named_by_their_place() -> None:
    assert _grid().patch_name(1, 2) == "image:1,2"
    assert _grid(image=1, of=2).patch_name(1, 2) == "image[1]:1,2"
    assert _grid(thumbnail=True).patch_name(0, 0) == "thumbnail:0,0"


def test_shares_of_a_row_sum_to_its_weights() -> None:
    names = ["cls", "register:0", *["image:0,0"] * 5, "<bos>", "river"]
    tokens = [
        Token(0, name, name, special=name in ("cls", "register:0", "<bos>")) for name in names
    ]
    weights = np.random.default_rng(1).dirichlet(np.ones(len(tokens)), size=4)
    shares = row_shares(weights, [_grid()], tokens)
    assert list(shares) == ["image", "cls", "registers", "special", "text"]
    np.testing.assert_allclose(sum(shares.values()), 1)
    np.testing.assert_allclose(shares["image"], weights[:, 2:7].sum(-1))
    np.testing.assert_allclose(shares["special"], weights[:, 7])
    painted = map_of(weights, _grid())
    np.testing.assert_allclose(painted.sum((-1, -2)), shares["image"])
    assert (painted[:, 1, 2] == 0).all()


def test_a_grid_goes_through_json_and_its_positions_are_checked() -> None:
    from attnscope.findings.codec import decode_json, to_json

    grid = decode_json(to_json(_grid()), ImageGrid)
    assert np.array_equal(grid.pixels, _pixels())
    assert np.array_equal(grid.tokens, GRID)
    assert not list(faults(grid, {"token": 7}))
    outside = [("tokens", "has a position of 6 or more")]
    assert list(faults(msgspec.structs.replace(grid, tokens=GRID), {"token": 6})) == outside
