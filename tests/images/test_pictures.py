"""Files of pictures: those that cannot be read are refused in one line, all others are seen as Pillow sees them."""

import struct
import zlib
from pathlib import Path

import numpy as np
import pytest

from attnscope.base.errors import AttnscopeError
from attnscope.engines.transformers.pictures import open_picture
from attnscope.request.media import MediaFile
from tests.helpers.tiny_vision import picture

Image = pytest.importorskip("PIL.Image")


def _open(value: object) -> tuple[np.ndarray, list[str]]:
    opened, notes = open_picture(MediaFile("image", "cat", value))
    assert opened.mode == "RGB"
    return np.asarray(opened), notes


def _bomb(path: Path, side: int) -> None:
    """A PNG whose header says that it is far larger than its file."""
    header = struct.pack(">IIBBBBB", side, side, 8, 2, 0, 0, 0)
    chunks = [(b"IHDR", header), (b"IDAT", zlib.compress(b"\0" * 100)), (b"IEND", b"")]
    packed = (
        struct.pack(">I", len(d)) + n + d + struct.pack(">I", zlib.crc32(n + d)) for n, d in chunks
    )
    path.write_bytes(b"\x89PNG\r\n\x1a\n" + b"".join(packed))


def test_a_picture_that_is_none_is_refused(tmp_path: Path) -> None:
    text = tmp_path / "text.png"
    text.write_text("no picture")
    damaged = tmp_path / "damaged.png"
    Image.fromarray(picture()).save(damaged)
    damaged.write_bytes(damaged.read_bytes()[:300])
    deep = tmp_path / "deep.tiff"
    Image.fromarray(np.full((4, 4), 40_000, dtype=np.uint16)).save(deep)
    refused = {
        text: "is not a picture",
        damaged: "cannot be read as a picture",
        deep: "more than 8 bits a colour",
        tmp_path / "none.png": "no such file",
        tmp_path: "is a folder|not a regular file|cannot be read",
    }
    for path, words in refused.items():
        with pytest.raises(AttnscopeError, match=words) as caught:
            _open(path)
        assert "\n" not in str(caught.value)
    for value, words in ((7, "int is not a picture"), (np.zeros((3, 3)), "is an array of float64")):
        with pytest.raises(AttnscopeError, match=words):
            _open(value)


@pytest.mark.parametrize("side", [12_000, 30_000])
def test_a_bomb_is_refused_before_it_is_decoded(tmp_path: Path, side: int) -> None:
    _bomb(tmp_path / "bomb.png", side)
    with pytest.raises(AttnscopeError, match="has too many pixels"):
        _open(tmp_path / "bomb.png")


def test_turned_grey_indexed_and_cmyk_pictures(tmp_path: Path) -> None:
    whole = Image.fromarray(picture())
    whole.save(tmp_path / "turned.png", exif=_turned())
    np.testing.assert_array_equal(_open(tmp_path / "turned.png")[0], np.rot90(picture(), -1))
    for mode in ("L", "P", "1"):
        converted = whole.convert(mode)
        converted.save(tmp_path / "converted.png")
        np.testing.assert_array_equal(
            _open(tmp_path / "converted.png")[0], np.asarray(converted.convert("RGB"))
        )
    whole.convert("CMYK").save(tmp_path / "print.jpg", quality=95)
    assert np.abs(_open(tmp_path / "print.jpg")[0].astype(int) - picture()).mean() < 8


def _turned() -> "Image.Exif":
    exif = Image.Exif()
    exif[0x0112] = 6  # the top of the picture is on the right
    return exif


def test_what_is_left_out_of_a_picture_is_said(tmp_path: Path) -> None:
    frames = [Image.fromarray(picture(seed=seed)) for seed in (1, 2)]
    frames[0].save(tmp_path / "moving.gif", save_all=True, append_images=frames[1:])
    shown, notes = _open(tmp_path / "moving.gif")
    assert notes == ["cat: the first of 2 frames is shown"]
    assert np.abs(shown.astype(int) - picture(seed=1)).mean() < 8
    clear = np.dstack([picture(), np.full(picture().shape[:2], 9, dtype=np.uint8)])
    shown, notes = _open(Image.fromarray(clear))
    np.testing.assert_array_equal(shown, picture())
    assert notes == ["cat: its transparency is left out, as transformers does"]
