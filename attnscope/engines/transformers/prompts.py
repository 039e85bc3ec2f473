"""Read texts with pictures for a language model: its own processor makes placeholders of them, which become places.

Nothing is looked up by the name of a model. How a picture is cut into tiles is observed: the image processor is given a
picture of the same size whose colours are coordinates.
"""

import re
import sys
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from importlib import import_module
from inspect import signature
from pathlib import Path
from typing import Any

import numpy as np
from msgspec.structs import replace

from attnscope.base.errors import AttnscopeError, UsageError, arg
from attnscope.base.files.reading import as_object, read_json
from attnscope.checkpoints.chat.rendering import render_chat
from attnscope.checkpoints.chat.templates import ChatTemplates
from attnscope.engines.transformers.media import PIXELS, open_image_processor
from attnscope.engines.transformers.model_class import first_line, may_fail, quiet
from attnscope.engines.transformers.pictures import (
    Clip,
    joined_patches,
    open_clip,
    open_picture,
    seen_pixels,
)
from attnscope.engines.transformers.videos import (
    VIDEO_GRIDS,
    VIDEO_VALUES,
    FrameProcessor,
    frames_of,
    open_frame_processor,
)
from attnscope.findings.arrays import Array
from attnscope.findings.images import ImageGrid, encode_png
from attnscope.findings.tokens import Token
from attnscope.request.chat import Chat
from attnscope.request.media import MediaText
from attnscope.request.run_config import TextInput

_LARGEST = 1 << 26  # bytes of a file of settings, which may list a vocabulary
# height and width of each picture within values that are padded to the largest
_SIZES = "image_sizes"
_PATCHES = "image_grid_thw"  # frames, rows and columns of the patches of each picture
_COLUMN_AND_ROW = "image_position_ids"  # those of each patch of each picture; −1 for padding
_KINDS = "mm_token_type_ids"  # runs of tokens that are patches, which some models count
_NOT_INPUTS = ("input_ids", "attention_mask", "labels")


@dataclass
class Recorded:
    """What a processor did with a text and its pictures."""

    text: str = ""  # the text with a placeholder for each picture
    expanded: str = ""  # the text with what stands in their place
    # `span` of each placeholder in the text, `new_span` in the other
    offsets: Sequence[Mapping[str, Any]] = ()
    values: Mapping[str, Any] | None = None  # what its image processor gave
    video_values: Mapping[str, Any] | None = None  # what its video processor gave


class _Recording:
    """A mixin for a processor, which keeps what it does, and needs torchvision for none of its parts."""

    recorded: Recorded

    @classmethod
    def _get_arguments_from_pretrained(
        cls, path: Any, processor_dict: Any = None, **more: Any
    ) -> list[Any]:
        import transformers

        hf: Any = transformers
        openers: dict[str, Callable[[], Any]] = {
            "image_processor": lambda: open_image_processor(Path(path)),
            "tokenizer": lambda: hf.AutoTokenizer.from_pretrained(path, local_files_only=True),
        }
        names = cls.get_attributes()  # type: ignore[attr-defined]
        return [openers.get(name, lambda: None)() for name in names]

    def check_argument_for_proper_class(self, name: str, argument: Any) -> None:
        """Accept None in place of a part that is not needed."""

    def _process_images(self, images: Any, **settings: Any) -> Any:
        values, replacements = super()._process_images(images, **settings)  # type: ignore[misc]
        self.recorded.values = dict(values)
        return values, replacements

    def _process_videos(self, videos: Any, **settings: Any) -> Any:
        values, replacements = super()._process_videos(videos, **settings)  # type: ignore[misc]
        self.recorded.video_values = dict(values)
        return values, replacements

    def get_text_with_replacements(self, text: list[str], *more: Any, **options: Any) -> Any:
        """Keep the text before and after placeholders are replaced."""
        self.recorded.text = text[0]
        expanded, offsets = super().get_text_with_replacements(text, *more, **options)  # type: ignore[misc]
        self.recorded.expanded = expanded[0]
        self.recorded.offsets = offsets[0] if offsets else ()
        return expanded, offsets


def _processor_class(path: Path, config: Any) -> Any:
    """Return the class of a folder's processor: the one that its files name, or else that of the config."""
    from transformers.models.auto import processing_auto

    auto: Any = processing_auto
    wanted = auto.PROCESSOR_MAPPING_NAMES.get(config.model_type)
    for file in ("tokenizer_config.json", "preprocessor_config.json", "processor_config.json"):
        if (path / file).is_file():
            wanted = (
                as_object(read_json(path / file, cap=_LARGEST), str(path / file)).get(
                    "processor_class"
                )
                or wanted
            )
    found = None if wanted is None else auto.processor_class_from_name(str(wanted))
    if found is None:
        message = f"transformers has no processor of texts with pictures for '{config.model_type}'"
        raise AttnscopeError(
            message, where=path, hint="attnscope shows its attention in texts alone"
        )
    if getattr(found, "_backends", None) == ["torchvision"]:
        return _without_torchvision(found)
    return found


def _without_torchvision(stand_in: Any) -> Any:
    """Return the class that transformers has a stand-in for, because torchvision is not installed.

    Only the image processor that its module imports a function of needs torchvision. That for Pillow has the same one.
    """
    model = stand_in.__module__.rpartition("processing_")[2]
    package = f"transformers.models.{model}"
    name = f"{package}.image_processing_{model}"
    sys.modules[name] = import_module(f"{package}.image_processing_pil_{model}")
    try:
        module = import_module(f"{package}.processing_{model}")
    finally:
        del sys.modules[name]
    return getattr(module, stand_in.__name__)


def open_processor(path: Path, config: Any) -> Any:
    """Open the processor of a folder, which reads texts with pictures."""
    try:
        with quiet():
            plain = _processor_class(path, config)
            plain.get_attributes()  # a stand-in for a class that needs another package says so
            recording: Any = type(plain.__name__, (_Recording, plain), {})
            processor = recording.from_pretrained(path, local_files_only=True)
            if hasattr(processor.image_processor, "temporal_patch_size"):
                processor.video_processor = open_frame_processor(path, processor.image_processor)
            return processor
    except AttnscopeError:
        raise
    except Exception as e:  # a class of transformers may raise anything for a strange value
        message = f"transformers cannot open its processor ({first_line(e)})"
        hint = "download the files of its processor"
        if isinstance(e, ImportError):
            hint = "install that package"
        raise AttnscopeError(message, where=path, hint=hint) from e


@dataclass(frozen=True)
class PromptReader:
    """Reads texts with pictures."""

    model: Any  # the model that takes them, without a head
    open_processor: Callable[[], Any]
    tokenizer: Any  # attnscope's own, which knows the characters of every token
    templates: Callable[[], ChatTemplates]

    def __call__(self, text: TextInput) -> MediaText:
        """Return a text with its pictures as tokens and inputs of the model."""
        processor = self.open_processor()
        names = signature(self.model.forward).parameters
        moves = (
            VIDEO_VALUES in names
            and VIDEO_GRIDS in names
            and getattr(processor, "video_processor", None) is not None
        )
        media: list[tuple[Any, list[str]]] = []  # a clip or picture, and notes
        for file in text.media:
            clip = open_clip(file) if moves else None
            media.append(open_picture(file) if clip is None else (clip, []))
        opened = [medium for medium, _ in media]
        prompt, is_rendered = self._prompt(text, processor, opened)
        recorded, inputs = self._process(processor, prompt, opened, text.where)
        ids = inputs["input_ids"][0].tolist()
        tokens = _tokens(self.tokenizer, processor.tokenizer, ids, recorded, text.where)
        grids = []
        pictures = [medium for medium in opened if not isinstance(medium, Clip)]
        n_clips = 0
        last = -1  # position of the last patch
        for index, (file, offset, medium) in enumerate(
            zip(text.media, recorded.offsets, opened, strict=True)
        ):
            is_clip = isinstance(medium, Clip)
            placeholder = _placeholder(
                self.model.config, processor, "video" if is_clip else "image"
            )
            positions = _within(self.tokenizer, ids, recorded, offset, placeholder)
            if _KINDS in inputs and positions[0] == last + 1 > 0:
                message = "no token is between two pictures, which transformers takes for one"
                raise UsageError(message, where=text.where, hint="write something between them")
            last = positions[-1]
            of_file = partial(ImageGrid, file.name, index, len(opened))
            if is_clip:
                values = recorded.video_values or {}
                grids += _frame_grids(
                    of_file, n_clips, positions, processor.video_processor, values
                )
            else:
                image_index = index - n_clips
                values = recorded.values or {}
                grids += _grids(
                    of_file, image_index, positions, processor, values, pictures, file.name
                )
            n_clips += is_clip
        for grid in grids:
            for row, column in np.argwhere(grid.tokens >= 0):
                position = int(grid.tokens[row, column])
                name = grid.patch_name(int(row), int(column))
                tokens[position] = Token(tokens[position].id, name, name)
        taken = {
            name: value
            for name, value in inputs.items()
            if name in names and name not in _NOT_INPUTS
        }
        notes = [note for _, medium_notes in media for note in medium_notes]
        if is_rendered:
            notes.append("the text and its pictures are rendered with the model's chat template")
        return MediaText(
            recorded.text, tuple(tokens), taken, tuple(grids), tuple(notes), prompt=text.text
        )

    def _prompt(self, text: TextInput, processor: Any, opened: Sequence[Any]) -> tuple[str, bool]:
        """Return the text with a placeholder for every picture or clip, and whether the chat template wrote them.

        Templates write those of pictures; a clip has its own in the same place.
        """
        image = processor.image_token
        video = getattr(processor, "video_token", None) or image
        either = re.compile(f"{re.escape(image)}|{re.escape(video)}")
        count = len(opened)

        def typed(prompt: str) -> str:
            tokens = iter(video if isinstance(medium, Clip) else image for medium in opened)
            return either.sub(lambda _: next(tokens), prompt)

        placeholders = len(either.findall(text.text))
        if not placeholders and text.rendered is None:
            templates = self.templates()
            if templates.templates:
                parts: list[dict[str, Any]] = [{"type": "image"}] * count + [
                    {"type": "text", "text": text.text}
                ]
                chat = Chat([{"role": "user", "content": parts}])
                rendered = render_chat(chat, templates, text.where).text
                if rendered.count(image) == count:
                    return typed(rendered), True
            before, after = _marks(self.model.config, processor.tokenizer)
            return typed(f"{before}{image}{after}" * count + text.text), False
        if placeholders != count:
            message = (
                f"the text has {placeholders} places for pictures ({image}), and {count} are given"
            )
            raise UsageError(message, where=text.where, hint=f"pass {arg('image')} once for each")
        return typed(text.text), False

    def _process(
        self, processor: Any, prompt: str, opened: Sequence[Any], where: str
    ) -> tuple[Recorded, dict[str, Array]]:
        from transformers.video_utils import VideoMetadata

        processor.recorded = recorded = Recorded()
        begins = processor.tokenizer.bos_token
        # As apply_chat_template does: a template writes its own special tokens.
        special = not (begins is not None and prompt.startswith(begins))
        pictures = [medium for medium in opened if not isinstance(medium, Clip)]
        clips = [medium for medium in opened if isinstance(medium, Clip)]
        moving: dict[str, Any] = {}
        if clips:
            moving["videos"] = [frames_of(clip) for clip in clips]
            moving["video_metadata"] = [
                VideoMetadata(len(clip.frames), clip.frames_a_second) for clip in clips
            ]
        fails = may_fail("the model's processor fails", where)
        with fails, quiet(), warnings.catch_warnings():
            warnings.simplefilter("ignore")  # some processors use deprecated functions of NumPy
            made = processor(
                images=pictures or None,
                text=[prompt],
                add_special_tokens=special,
                return_tensors="pt",
                **moving,
            )
        if len(recorded.offsets) != len(opened):
            message = "transformers does not say where the model's processor puts pictures"
            raise AttnscopeError(
                message, where=where, hint="attnscope shows its attention in texts alone"
            )
        return recorded, {
            name: np.asarray(value) for name, value in made.items() if hasattr(value, "shape")
        }


def _marks(config: Any, tokenizer: Any) -> tuple[str, str]:
    """Return what a model reads before and after a picture; empty if its config names no such tokens."""
    for kind in ("vision", "image"):
        ids = [getattr(config, f"{kind}_{end}_token_id", None) for end in ("start", "end")]
        if all(isinstance(token_id, int) for token_id in ids):
            before, after = tokenizer.convert_ids_to_tokens(ids)
            return before, after
    return "", ""


def _placeholder(config: Any, processor: Any, kind: str) -> int:
    """Return the id of the tokens that become patches of an `image` or a `video`."""
    names = (f"{kind}_token_id", f"{kind}_token_index")
    ids = [getattr(of, name, None) for of in (config, processor) for name in names]
    return next(token_id for token_id in ids if isinstance(token_id, int))


def _tokens(
    tokenizer: Any, processors: Any, ids: Sequence[int], recorded: Recorded, where: str
) -> list[Token]:
    """Return the tokens of ids, with the characters of each in the text that has placeholders.

    Tokens that stand for a picture have the characters of its placeholder if they are special.

    Args:
        tokenizer: attnscope's own.
        processors: The processor's, which may cut a text otherwise, or add other special tokens.
    """
    for special in (True, False):
        tokens = tokenizer.encode(recorded.expanded, None, special=special)
        if [token.id for token in tokens] == list(ids):
            return [_moved(token, recorded.offsets) for token in tokens]
    for special in (True, False):
        encoded = processors(
            recorded.expanded, add_special_tokens=special, return_offsets_mapping=True
        )
        if encoded["input_ids"] == list(ids):
            made = [replace(tokenizer.made_token(token_id), made=False) for token_id in ids]
            spans = []
            for start, end in encoded["offset_mapping"]:
                if end > start:
                    spans.append((start, end))
                else:
                    spans.append((None, None))
            tokens = [
                replace(token, start=start, end=end)
                for token, (start, end) in zip(made, spans, strict=True)
            ]
            return [_moved(token, recorded.offsets) for token in tokens]
    message = "the model's processor makes other tokens of the text than its tokenizer"
    raise AttnscopeError(message, where=where, hint="attnscope shows its attention in texts alone")


def _moved(token: Token, offsets: Sequence[Mapping[str, Any]]) -> Token:
    """Return a token of an expanded text with its characters in the text before."""
    if token.start is None or token.end is None:
        return token
    shift = 0
    for offset in offsets:
        start, end = offset["span"]
        new_start, new_end = offset["new_span"]
        if token.end <= new_start:
            break
        if token.start < new_end:
            return replace(token, start=start, end=end)
        shift = new_end - end
    return replace(token, start=token.start - shift, end=token.end - shift)


def _within(
    tokenizer: Any,
    ids: Sequence[int],
    recorded: Recorded,
    offset: Mapping[str, Any],
    placeholder: int,
) -> list[int]:
    """Return the positions of the placeholders of one picture."""
    before = sum(
        _count(tokenizer, other["replacement"], placeholder)
        for other in recorded.offsets
        if other["new_span"][0] < offset["new_span"][0]
    )
    count = _count(tokenizer, offset["replacement"], placeholder)
    positions = [position for position, token_id in enumerate(ids) if token_id == placeholder]
    return positions[before : before + count]


def _count(tokenizer: Any, text: str, placeholder: int) -> int:
    return sum(token.id == placeholder for token in tokenizer.encode(text, None, special=False))


def _frame_grids(
    of_file: Callable[..., ImageGrid],
    index: int,
    positions: Sequence[int],
    frames: FrameProcessor,
    values: Mapping[str, Any],
) -> list[ImageGrid]:
    """Return a grid for every group of frames of a video, which shows its first.

    Args:
        index: Number of the video.
        positions: Positions of its placeholders.
        values: What the video processor made of all videos.
    """
    seen = _joined_merged(values[VIDEO_VALUES], values[VIDEO_GRIDS], index, frames.images)
    rows, columns = values[VIDEO_GRIDS][index][1:] // frames.merge_size
    places = np.array(positions).reshape(len(seen), rows, columns)
    return [
        of_file(tokens, encode_png(seen_pixels(pixels, frames.images)), frame=frame)
        for frame, (tokens, pixels) in enumerate(zip(places, seen, strict=True))
    ]


def _grids(
    of_file: Callable[..., ImageGrid],
    index: int,
    positions: Sequence[int],
    processor: Any,
    values: Mapping[str, Any],
    pictures: Sequence[Any],
    name: str,
) -> list[ImageGrid]:
    """Return the grid of a picture, and of its thumbnail if it has one.

    Args:
        of_file: Makes a grid of the picture.
        index: Number of the picture in `pictures`.
        positions: Positions of its placeholders.
        values: What the image processor made of all `pictures`.
        name: Name of the picture in errors.
    """
    image_processor = processor.image_processor
    tiles = _tiles(image_processor, values, index, len(pictures))
    if len(positions) % len(tiles):
        raise _unknown_layout(name, len(positions), len(tiles))
    of_tile = len(positions) // len(tiles)
    rows, columns = _shape(positions[:of_tile], tiles[0].shape[1:], name)
    places = np.array(positions).reshape(len(tiles), rows, columns)
    seen = [seen_pixels(tile, image_processor) for tile in tiles]
    boxes = (
        [(0, 0)] if len(tiles) == 1 else _tile_places(processor, pictures, index, len(tiles), name)
    )
    whole = [index for index, box in enumerate(boxes) if box is not None]
    grids = []
    filled = [box for box in boxes if box is not None]
    layout_rows = 1 + max((row for row, _ in filled), default=-1)
    layout_columns = 1 + max((column for _, column in filled), default=-1)
    layout = (layout_rows, layout_columns)
    if whole:
        order = sorted(whole, key=lambda index: boxes[index] or (0, 0))
        tokens, pixels = (_stitched([parts[n] for n in order], layout) for parts in (places, seen))
        grids.append(of_file(tokens, encode_png(pixels)))
    grids += [
        of_file(places[n], encode_png(seen[n]), thumbnail=True)
        for n, box in enumerate(boxes)
        if box is None
    ]
    return grids


def _unknown_layout(name: str, count: int, tiles: int) -> AttnscopeError:
    message = f"its {count} tokens are not the same number of rows and columns of {tiles} tile{'s' * (tiles > 1)}"
    return AttnscopeError(
        message, where=name, hint="attnscope does not know where this model's tokens are"
    )


def _stitched(parts: Sequence[Array], layout: tuple[int, int]) -> Array:
    """Put tiles, row by row, together."""
    rows, columns = layout
    return np.concatenate(
        [np.concatenate(parts[row * columns : (row + 1) * columns], axis=1) for row in range(rows)],
        axis=0,
    )


def _tiles(processor: Any, values: Mapping[str, Any], index: int, count: int) -> list[Array]:
    """Return the values of every tile of a picture, (3, height, width) each."""
    array = np.asarray(values[PIXELS])
    if _PATCHES in values:
        return _joined_merged(array, np.asarray(values[_PATCHES]), index, processor)
    if _COLUMN_AND_ROW in values:
        places = np.asarray(values[_COLUMN_AND_ROW])[index]
        columns, rows = places.max(axis=0) + 1
        return [joined_patches(array[index], int(rows), int(columns))]
    array = array.reshape(-1, *array.shape[-3:])
    if "num_patches" in values:
        counts = [int(count) for count in np.asarray(values["num_patches"]).ravel()]
    elif "rows" in values:
        sides = zip(values["rows"][0], values["cols"][0], strict=True)
        counts = [int(rows) * int(columns) + 1 if rows or columns else 1 for rows, columns in sides]
    else:
        counts = [len(array) // count] * count
    start = sum(counts[:index])
    tiles = list(array[start : start + counts[index]])
    if _SIZES in values and len(tiles) == 1:
        height, width = np.asarray(values[_SIZES])[index]
        tiles = [tiles[0][:, :height, :width]]
    return tiles


def _joined_merged(array: Array, grids: Array, index: int, processor: Any) -> list[Array]:
    """Return the pictures, (3, height, width) each, of patches in the order of Qwen's vision models, (patches, values).

    Patches of `merge_size` rows and columns, which become one token, follow each other. A picture is one, and a video
    one for every group of frames, of which the first is returned.
    """
    starts = np.concatenate([[0], grids.prod(axis=1).cumsum()])
    count, rows, columns = grids[index]
    merge = processor.merge_size
    side = processor.patch_size
    frames = processor.temporal_patch_size
    patches = array[starts[index] : starts[index + 1]].reshape(
        count, rows // merge, columns // merge, merge, merge, 3, frames, side, side
    )
    # the first frames, as (count, 3, row of tokens, row, y, column of tokens, column, x)
    first_frames = patches[:, :, :, :, :, :, 0].transpose(0, 5, 1, 3, 6, 2, 4, 7)
    return list(first_frames.reshape(count, 3, rows * side, columns * side))


def _shape(positions: Sequence[int], pixels: tuple[int, ...], name: str) -> tuple[int, int]:
    """Return rows and columns of the tokens of a tile, by tokens between its rows, or else by its sides in pixels."""
    breaks = [n for n in range(1, len(positions)) if positions[n] != positions[n - 1] + 1]
    if breaks:
        rows = len(breaks) + 1
        columns = breaks[0]
    else:
        height, width = pixels
        rows = round((len(positions) * height / width) ** 0.5)
        columns = len(positions) // max(rows, 1)
    if rows * columns != len(positions) or any(n % columns for n in breaks):
        raise _unknown_layout(name, len(positions), 1)
    return rows, columns


def _tile_places(
    processor: Any, pictures: Sequence[Any], index: int, count: int, name: str
) -> list[tuple[int, int] | None]:
    """Return row and column of every tile; None for one that shows the whole picture.

    Red and green of the picture that is given to the image processor are its columns and rows.
    """
    from PIL import Image

    width, height = pictures[index].size
    coordinates = np.zeros((height, width, 3), dtype=np.uint8)
    coordinates[..., 0] = np.linspace(0, 255, width, dtype=np.uint8)
    coordinates[..., 1] = np.linspace(0, 255, height, dtype=np.uint8)[:, None]
    replaced = [*pictures]
    replaced[index] = Image.fromarray(coordinates)
    placeholder = processor.image_token
    processor.recorded = recorded = Recorded()
    with quiet():
        processor(images=replaced, text=[placeholder * len(replaced)], return_tensors="pt")
    tiles = _tiles(processor.image_processor, recorded.values or {}, index, len(pictures))
    seen = [seen_pixels(tile, processor.image_processor).astype(float) for tile in tiles]
    is_whole = [np.ptp(tile[..., 0]) > 200 and np.ptp(tile[..., 1]) > 200 for tile in seen]
    centres = np.array([tile[..., :2].mean((0, 1)) for tile in seen])
    columns, rows = (_ranked(centres[:, axis], is_whole) for axis in (0, 1))
    boxes = [None if whole else (rows[n], columns[n]) for n, whole in enumerate(is_whole)]
    parts = [box for box in boxes if box is not None]
    if len({*parts}) != len(parts) or (
        parts and len(parts) != (1 + max(rows)) * (1 + max(columns))
    ):
        raise _unknown_layout(name, 0, count)
    return boxes


def _ranked(centres: Array, is_whole: Sequence[bool]) -> list[int]:
    """Return the rank of each tile's centre along an axis, equal for centres that are near each other."""
    centres_of_parts = sorted(
        float(c) for c, whole in zip(centres, is_whole, strict=True) if not whole
    )
    steps = [c for n, c in enumerate(centres_of_parts) if n == 0 or c - centres_of_parts[n - 1] > 8]
    return [
        0 if whole else sum(float(c) > step + 8 for step in steps)
        for c, whole in zip(centres, is_whole, strict=True)
    ]
