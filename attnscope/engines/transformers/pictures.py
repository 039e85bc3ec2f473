"""Open pictures with Pillow, and show what an image processor made of them."""

import warnings
from contextlib import suppress
from dataclasses import dataclass
from io import BytesIO
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from attnscope.base.errors import AttnscopeError, arg
from attnscope.base.files.reading import read_file
from attnscope.findings.arrays import Array
from attnscope.request.media import MediaFile

if TYPE_CHECKING:
    from PIL import Image

_CAP = 1 << 30  # bytes of a file
_DEEP = ("I", "F", "I;16", "I;16B", "I;16L", "I;16N")  # modes with more than 8 bits a colour
_FORMATS = "use a PNG, JPEG, WebP, BMP, TIFF or GIF"


_UNTIMED = 100.0  # milliseconds of a frame that says no time, as browsers show it
_VIDEOS = ("avi", "m4v", "mkv", "mov", "mp4", "mpeg", "mpg", "webm")


@dataclass(frozen=True)
class Clip:
    """The frames of a moving picture."""

    frames: "list[Image.Image]"  # 8-bit RGB
    frames_a_second: float


def pillow() -> Any:
    """Import Pillow's module Image."""
    try:
        from PIL import Image
    except ImportError as e:
        message = "pictures need Pillow, which is not installed"
        raise AttnscopeError(
            message, where=arg("image"), hint="pip install 'attnscope[images]'"
        ) from e
    return Image


def open_picture(file: MediaFile) -> "tuple[Image.Image, list[str]]":
    """Return a picture as 8-bit RGB, turned as its camera says, and notes on what was left out of it."""
    picture = _read(file)
    notes = []
    if getattr(picture, "n_frames", 1) > 1:
        notes.append(f"{file.name}: the first of {picture.n_frames} frames is shown")
    if picture.mode in _DEEP:
        hint = "convert it to 8 bits a colour, such as a PNG of RGB"
        raise AttnscopeError(
            f"has more than 8 bits a colour (mode {picture.mode})", where=file.name, hint=hint
        )
    if picture.has_transparency_data:
        notes.append(f"{file.name}: its transparency is left out, as transformers does")
    from PIL import ImageOps

    return ImageOps.exif_transpose(picture).convert("RGB"), notes


def open_clip(file: MediaFile) -> Clip | None:
    """Return the frames of a moving picture; None for one that does not move."""
    picture = _read(file)
    count = getattr(picture, "n_frames", 1)
    if count == 1:
        return None
    width, height = picture.size
    if count * width * height > pillow().MAX_IMAGE_PIXELS:
        raise _too_many_pixels(file.name)
    frames = []
    milliseconds = 0.0
    for index in range(count):
        picture.seek(index)
        frames.append(picture.convert("RGB"))
        milliseconds += picture.info.get("duration") or _UNTIMED
    return Clip(frames, 1000 * count / milliseconds)


def _read(file: MediaFile) -> Any:
    """Return a decoded picture, or say in one line why it is none."""
    image_module = pillow()
    try:
        return _decoded(file, image_module)
    except image_module.UnidentifiedImageError as e:
        ending = file.name.rpartition(".")[2].lower()
        hint = _FORMATS
        if ending in _VIDEOS:
            hint = f"ffmpeg -i {file.name} -vf fps=2 clip.gif"
        raise AttnscopeError("is not a picture", where=file.name, hint=hint) from e
    except (OSError, ValueError, SyntaxError, EOFError) as e:
        # Pillow's decoders raise these for damaged files.
        reason = " ".join(str(e).split())[:200]
        raise AttnscopeError(
            f"cannot be read as a picture ({reason})", where=file.name, hint=_FORMATS
        ) from e


def _decoded(file: MediaFile, image_module: Any) -> Any:
    """Return a decoded picture, whose size Pillow checks first: a small file may hold far more pixels."""
    value = file.value
    if isinstance(value, np.ndarray):
        if value.dtype != np.uint8 or value.ndim != 3 or value.shape[-1] != 3 or not value.size:
            message = f"is an array of {value.dtype} with shape {list(value.shape)}"
            raise AttnscopeError(message, where=file.name, hint="pass uint8, (height, width, 3)")
        picture = image_module.fromarray(value)
    else:
        if isinstance(value, image_module.Image):
            picture = value
        else:
            picture = _opened(value, file.name, image_module)
    if 0 in picture.size:
        raise AttnscopeError("has no pixels", where=file.name, hint=_FORMATS)
    picture.load()
    return picture


def _opened(path: Any, name: str, image_module: Any) -> Any:
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error", image_module.DecompressionBombWarning)
            return image_module.open(BytesIO(read_file(Path(path), cap=_CAP)))
    except (image_module.DecompressionBombWarning, image_module.DecompressionBombError) as e:
        raise _too_many_pixels(name) from e
    except TypeError as e:
        hint = "pass a path, a PIL image, or a uint8 array (height, width, 3)"
        raise AttnscopeError(
            f"{type(path).__name__} is not a picture", where=arg("image"), hint=hint
        ) from e


def _too_many_pixels(name: str) -> AttnscopeError:
    hint = f"shrink it to {pillow().MAX_IMAGE_PIXELS:,} pixels or fewer"
    return AttnscopeError("has too many pixels", where=name, hint=hint)


def joined_patches(patches: Array, rows: int, columns: int) -> Array:
    """Return a picture, (3, height, width), of its patches, row by row.

    Args:
        patches: Pixels of square patches, (patches, side · side · 3); what follows the rows and columns is padding.
    """
    side = round((patches.shape[-1] / 3) ** 0.5)
    grid = patches[: rows * columns].reshape(rows, columns, side, side, 3)
    return grid.transpose(4, 0, 2, 1, 3).reshape(3, rows * side, columns * side)


def seen_pixels(values: Array, processor: Any) -> Array:
    """Return what a model sees as a picture, (height, width, 3), uint8.

    Args:
        values: Rescaled and normalised pixels, (3, height, width), which the settings of the processor undo.
    """
    pixels = values.astype(np.float64).transpose(1, 2, 0)
    if getattr(processor, "do_normalize", True):
        with suppress(AttributeError, TypeError):
            pixels = pixels * np.asarray(processor.image_std) + np.asarray(processor.image_mean)
    if getattr(processor, "do_rescale", True):
        pixels /= processor.rescale_factor
    seen: Array = np.rint(pixels.clip(0, 255)).astype(np.uint8)
    return seen
