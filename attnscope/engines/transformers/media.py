"""Make model inputs of pictures with a checkpoint's own processor, and find the place of every token that they become.

Processors are those of transformers, with Pillow as their backend: torchvision is not needed, and rounds otherwise.
"""

from collections.abc import Callable
from dataclasses import dataclass
from inspect import signature
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from attnscope.base.errors import AttnscopeError, UsageError, arg
from attnscope.engines.transformers.interface import first_queries
from attnscope.engines.transformers.model_class import first_line, may_fail, quiet
from attnscope.engines.transformers.pictures import joined_patches, open_picture, seen_pixels
from attnscope.findings.arrays import Array
from attnscope.findings.images import CLS, ImageGrid, encode_png
from attnscope.findings.tokens import Token
from attnscope.request.media import MediaText
from attnscope.request.run_config import TextInput

PIXELS = "pixel_values"
# rows and columns of the patches of each picture, of a model that takes these (NaFlex)
_GRIDS = "spatial_shapes"
_REAL = "pixel_attention_mask"  # which of its patches are no padding
_SMALL = 2, 3  # rows and columns of patches of a picture that is small, and whose sides differ


@dataclass(frozen=True)
class PatchLayout:
    """The tokens of a vision model: some of its own, then a patch of every row of the picture."""

    before: tuple[str, ...]  # names of the model's own tokens
    patch: tuple[int, int]  # height and width of a patch in pixels

    def shape(self, pixels: tuple[int, int]) -> tuple[int, int]:
        """Return rows and columns of the patches of a picture of a height and width."""
        return pixels[0] // self.patch[0], pixels[1] // self.patch[1]


def probe_pixels(model: Any, where: str | Path) -> Tensor:
    """Return a picture of noise, (1, 3, height, width), that a vision model takes: small, or else of its own size."""
    config = model.config
    patch = pair_of(getattr(config, "patch_size", None))
    own_size = pair_of(getattr(config, "image_size", None))
    channels = getattr(config, "num_channels", 3)
    if patch is None or min(patch) < 1:
        message = f"'{config.model_type}' has no patches of one size"
        raise AttnscopeError(
            message, where=where, hint="attnscope shows vision models whose tokens are patches"
        )
    if getattr(config, "window_size", None):
        message = f"'{config.model_type}' attends within windows, and merges patches from stage to stage: its layers"
        hint = "attnscope shows attention between all patches of a picture"
        raise AttnscopeError(f"{message} have no tokens in common", where=where, hint=hint)
    sizes = [
        (_SMALL[0] * patch[0], _SMALL[1] * patch[1]),
        *([] if own_size is None else [own_size]),
    ]
    failure: Exception | None = None
    for size in sizes:
        noise = torch.randn(1, channels, *size, generator=torch.Generator().manual_seed(0))
        pixels = noise.to(model.device, model.dtype)
        try:
            _first_queries(model, pixels)
        except AttnscopeError:
            raise
        except Exception as e:  # a model may raise anything for a picture that it does not take
            failure = e
            continue
        return pixels
    message = f"transformers cannot run it on a picture ({first_line(failure or ValueError())})"
    raise AttnscopeError(
        message, where=where, hint="attnscope shows vision models whose tokens are patches"
    )


def pair_of(value: Any) -> tuple[int, int] | None:
    """Return a height and width that a config gives as one number or two."""
    if isinstance(value, int):
        numbers = [value, value]
    elif isinstance(value, list | tuple):
        numbers = list(value)
    else:
        numbers = []
    if len(numbers) != 2 or not all(isinstance(number, int) for number in numbers):
        return None
    return numbers[0], numbers[1]


def vision_inputs(model: Any, pixels: Tensor) -> dict[str, Tensor]:
    """Return what a vision model takes for a picture, (1, 3, height, width): its pixels, or its patches (NaFlex)."""
    if _GRIDS not in signature(model.forward).parameters:
        return {PIXELS: pixels}
    side, _ = pair_of(model.config.patch_size) or (1, 1)
    rows, columns = (length // side for length in pixels.shape[-2:])
    patches = (
        pixels.reshape(3, rows, side, columns, side)
        .permute(1, 3, 2, 4, 0)
        .reshape(1, rows * columns, -1)
    )
    real = torch.ones(1, rows * columns, dtype=torch.int64, device=pixels.device)
    return {
        PIXELS: patches,
        _REAL: real,
        _GRIDS: torch.tensor([[rows, columns]], device=pixels.device),
    }


def _first_queries(model: Any, pixels: Tensor) -> Tensor:
    """Return the queries of the first attention of a model on a picture, (B, H, Q, E)."""
    queries = first_queries(model, model, vision_inputs(model, pixels))
    if queries is None:
        raise AttnscopeError(
            "does not run through transformers' attention interface", where=model.config.model_type
        )
    return queries


def find_layout(model: Any, pixels: Tensor, where: str | Path) -> PatchLayout:
    """Return which token is which patch, as the model shows it: painting a patch changes the queries of its token.

    Args:
        pixels: A picture that the model takes, (1, 3, height, width).
    """
    patch = pair_of(model.config.patch_size)
    assert patch is not None
    family = model.config.model_type
    rows = pixels.shape[-2] // patch[0]
    columns = pixels.shape[-1] // patch[1]
    queries = _first_queries(model, pixels)

    def token_of(row: int, column: int) -> int | None:
        painted = pixels.clone()
        y = row * patch[0]
        x = column * patch[1]
        painted[..., y : y + patch[0], x : x + patch[1]] += 1
        changed = (
            (_first_queries(model, painted) != queries)
            .any(dim=(0, 1, 3))
            .nonzero()
            .flatten()
            .tolist()
        )
        return int(changed[0]) if len(changed) == 1 else None

    n_before = queries.shape[2] - rows * columns if len(queries) == 1 else -1
    expected = {
        place: n_before + place[0] * columns + place[1]
        for place in ((0, columns - 1), (rows - 1, 0))
    }
    if n_before < 0 or any(token_of(*place) != token for place, token in expected.items()):
        message = f"the tokens of '{family}' are not its patches, row by row"
        raise AttnscopeError(
            message, where=where, hint="attnscope shows vision models whose tokens are patches"
        )
    return PatchLayout(own_tokens(model, n_before, where), patch)


def own_tokens(model: Any, count: int, where: str | Path) -> tuple[str, ...]:
    """Return the names of the tokens before the patches: the class token, that of distillation, and registers."""
    parameters = {name.rpartition(".")[2] for name, _ in model.named_parameters()}
    if parameters & {"cls_token", "class_embedding", "class_token"}:
        names = [CLS]
    else:
        names = []
    if "distillation_token" in parameters:
        names += ["distillation"]
    n_registers = getattr(model.config, "num_register_tokens", 0) or 0
    names += [f"register:{index}" for index in range(n_registers)]
    if len(names) != count:
        message = f"'{model.config.model_type}' has {count} tokens before its patches, of which {len(names)} are known"
        raise AttnscopeError(
            message, where=where, hint="attnscope knows a class token, distillation and registers"
        )
    return tuple(names)


def open_image_processor(path: Path) -> Any:
    """Open the image processor of a checkpoint's folder."""
    import transformers
    from transformers.image_processing_base import ImageProcessingMixin

    hf: Any = transformers
    file = path / "preprocessor_config.json"
    if not file.is_file() and not (path / "processor_config.json").is_file():
        hint = "download it: it says how the model's pictures are resized and normalised"
        raise AttnscopeError("there is no such file", where=file, hint=hint)
    with may_fail("transformers cannot use it", file), quiet():
        try:
            options = {"backend": "pil", "local_files_only": True, "trust_remote_code": False}
            return hf.AutoImageProcessor.from_pretrained(path, **options)
        except ImportError:
            # DINOv3's is for torchvision alone, and its steps are those of this one.
            settings, _ = ImageProcessingMixin.get_image_processor_dict(path, local_files_only=True)
            return hf.ViTImageProcessorPil.from_dict(settings)


@dataclass(frozen=True)
class PictureReader:
    """Reads the pictures of a vision model, which takes one and no text."""

    layout: PatchLayout
    open_processor: Callable[[], Any]

    def __call__(self, text: TextInput) -> MediaText:
        """Return a picture as a text whose tokens are its patches."""
        if text.text or text.pair is not None or text.context is not None:
            message = "the model takes a picture alone"
            raise UsageError(
                message, where=text.where, hint=f"leave the text out, and pass {arg('image')}"
            )
        if len(text.media) > 1:
            hint = "run them one by one"
            raise UsageError(
                f"the model takes one picture, not {len(text.media)}", where=arg("image"), hint=hint
            )
        (file,) = text.media
        picture, notes = open_picture(file)
        processor = self.open_processor()
        values, inputs = processed(processor, picture, file.name)
        rows, columns = self.layout.shape(values.shape[-2:])
        first = len(self.layout.before)
        places = np.arange(first, first + rows * columns).reshape(rows, columns)
        seen = seen_pixels(values, processor)[
            : rows * self.layout.patch[0], : columns * self.layout.patch[1]
        ]
        grid = ImageGrid(file.name, 0, 1, places, encode_png(seen))
        own = [
            Token(index, name, name, special=True) for index, name in enumerate(self.layout.before)
        ]
        # The id of a token that has none in a vocabulary is its place: no two tokens are the same.
        patches = [
            Token(first + row * columns + column, name, name)
            for row in range(rows)
            for column in range(columns)
            for name in (grid.patch_name(row, column),)
        ]
        return MediaText(file.name, (*own, *patches), inputs, (grid,), tuple(notes), prompt="")


def processor_of(given: Any) -> Any:
    """Return the image processor that was given with a model in memory, or that of a folder that was."""
    if isinstance(given, str | Path):
        return open_image_processor(Path(given))
    processor = getattr(given, "image_processor", given)
    if not callable(processor):
        hint = "pass tokenizer=, such as AutoImageProcessor.from_pretrained(…)"
        raise UsageError(
            f"{type(given).__name__} is not an image processor", where="tokenizer", hint=hint
        )
    return processor


def processed(processor: Any, picture: Any, name: str) -> tuple[Array, dict[str, Array]]:
    """Return the values that an image processor makes of one picture, (3, height, width), and the model's inputs."""
    with may_fail("the image processor fails", name), quiet():
        made = processor(picture, return_tensors="np")
    values: Array = made[PIXELS]
    if _GRIDS in made and values.ndim == 3:
        rows, columns = made[_GRIDS][0].tolist()
        # The patches behind them are padding, which the model hides from all others.
        inputs = {PIXELS: values, _REAL: made[_REAL]}
        inputs = {name: array[:, : rows * columns] for name, array in inputs.items()}
        return joined_patches(values[0], rows, columns), inputs | {_GRIDS: made[_GRIDS]}
    if values.ndim != 4 or values.shape[:2] != (1, 3):
        message = f"the image processor makes values of shape {list(values.shape)} of it"
        raise AttnscopeError(
            message, where=name, hint="attnscope takes one picture of RGB, (1, 3, height, width)"
        )
    return values[0], {PIXELS: values}
