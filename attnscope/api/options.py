"""Read the arguments of the functions that `import attnscope` gives: texts, and the fields of a RunConfig."""

import operator
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from msgspec.structs import replace

from attnscope.base.errors import PYTHON_NAMES, UsageError, arg, did_you_mean
from attnscope.base.files.mask_files import as_boolean, cells_digest
from attnscope.request.arguments import STAGES, Dtype, device, one_of, some_of, text
from attnscope.request.chat import chat_of
from attnscope.request.combinations import check_combinations
from attnscope.request.given_ids import read_ids
from attnscope.request.masks.expression import parse_mask, spell_mask
from attnscope.request.masks.terms import (
    Function,
    MaskTerm,
    MatrixFile,
    ScoreFunction,
    function_name,
)
from attnscope.request.media import MediaFile
from attnscope.request.options import COMPARE, COMPUTE, RUN, TEXT, Option
from attnscope.request.run_config import RunConfig, TextInput
from attnscope.request.selection import (
    AUTO,
    CutExpression,
    HeadLabel,
    IndexSelection,
    PositionSelection,
    join_label,
    parse_cut,
    parse_indices_or_label,
)
from attnscope.request.spans import SpanRange, SpanRequest, joined_texts, parse_spans, ranges_of
from attnscope.studies.registry import options_of
from attnscope.studies.study import Sides, only_axis

if TYPE_CHECKING:
    from attnscope.request.run_config import BoolMatrix


def check_names(function: str, arguments: Mapping[str, Any], allowed: type | Sequence[str]) -> None:
    """Refuse a keyword that is none of the known ones, which a TypedDict may name."""
    names = tuple(allowed.__annotations__ if isinstance(allowed, type) else allowed)
    for name in arguments:
        if name not in names:
            raise UsageError(
                f"{function}() has no argument '{name}'", hint=did_you_mean(name, names)
            )


def check_call(command: str, arguments: Mapping[str, Any]) -> dict[str, Any]:
    """Refuse arguments that cannot be used together, as their options declare it.

    Returns:
        The arguments that are given, also by the names of their options.
    """
    values = {
        name: tuple(value) if isinstance(value, Iterator) else value  # which can be read only once
        for name, value in arguments.items()
        if value is not None
    }
    values |= {
        option: values[argument] for option, argument in PYTHON_NAMES.items() if argument in values
    }
    # numbers are returned exactly, as in JSON
    check_combinations(options_of(command), {**values, "format": "json"})
    return values


def sides_of(option_table: Iterable[Option], arguments: Mapping[str, Any]) -> Sides | None:
    """Return the option that is a list with a value for every side, and the list; None if none is.

    A tuple is one value of what selects several texts, tokens, layers or heads.
    """
    repeated = {}
    for option in option_table:
        value: Any = arguments.get(option.name)
        if option.several != "compared":
            continue
        is_list = isinstance(value, list if option.group in (TEXT, COMPUTE) else list | tuple)
        if several_chats(value) if option.name == "chat" else is_list:
            repeated[option.name] = list(value)
    return only_axis(repeated)


def texts_of(text: str | Sequence[str] | None, options: Mapping[str, Any]) -> tuple[TextInput, ...]:
    """Return the texts of a call, each with its pair and context, or its chats."""
    if any(options.get(name) is not None for name in IDS):
        return _texts_of_ids(options)
    if (messages := options.get("messages")) is not None:
        if not isinstance(options.get("spans"), str | Mapping | None):
            hint = "use a word such as 'turns', marks, or names with ranges of the rendered text"
            raise UsageError(
                "texts as spans cannot be used with messages", where="spans", hint=hint
            )
        named_chats = [("messages", messages)]
        if several_chats(messages):
            named_chats = [(f"messages[{n}]", chat) for n, chat in enumerate(messages)]
        media = _media_of(options.get("image"), len(named_chats))
        chats = [chat_of(chat, where) for where, chat in named_chats]
        parts = zip(named_chats, chats, media, strict=True)
        return tuple(
            TextInput("", where=where, chat=chat, media=files) for (where, _), chat, files in parts
        )
    text, spans = _divided(text, options.get("spans"))
    if text is None and any(options.get(name) is not None for name in ("image", "audio")):
        text = ""
    if isinstance(text, str):
        texts = [text]
        names = [arg("text")]
    else:
        texts = _several("text", text)
        names = [f"text {n}" for n in range(len(texts))]
    if not texts:
        raise UsageError("no text given", where="text", hint="pass one, or several")
    media = _media_of(options.get("image"), len(texts))
    if (sound := options.get("audio")) is not None:
        media = [(_sound(sound),)] * len(texts)
    pairs, contexts = (_beside(name, options.get(name), len(texts)) for name in ("pair", "context"))
    for name, values in (("text", texts), ("pair", pairs), ("context", contexts)):
        for value in values:
            if not isinstance(value, str) and not (value is None and name != "text"):
                raise UsageError(f"{value!r:.80} is not a text", where=name, hint="pass a str")
    inputs = [TextInput(*parts) for parts in zip(texts, pairs, contexts, names, strict=True)]
    return _with_spans(
        [replace(text, media=files) for text, files in zip(inputs, media, strict=True)], spans
    )


def _media_of(pictures: Any, count: int) -> list[tuple[MediaFile, ...]]:
    """Return the pictures of every text: for one text, one or several; for more, as much for each."""
    of_texts = [pictures]
    if count > 1:
        if pictures is None:
            of_texts = [None] * count
        elif _is_list(pictures):
            of_texts = list(pictures)
        else:
            of_texts = [pictures]
    if len(of_texts) != count:
        raise UsageError(
            f"{len(of_texts)} for {count} texts",
            where="image",
            hint="pass one, or a list, for each text",
        )
    media = []
    for item in of_texts:
        if item is None:
            items = []
        elif _is_list(item):
            items = item
        else:
            items = [item]
        media.append(tuple(_picture(picture, index) for index, picture in enumerate(items)))
    return media


def _sound(value: Any) -> MediaFile:
    if not isinstance(value, str | os.PathLike):
        raise UsageError(
            f"{type(value).__name__} is no path of a sound",
            where="audio",
            hint="pass the path of a file",
        )
    return MediaFile("audio", os.fsdecode(value), value)


def _is_list(value: Any) -> bool:
    return isinstance(value, list | tuple)


def _picture(value: Any, index: int) -> MediaFile:
    if isinstance(value, str | os.PathLike):
        return MediaFile("image", os.fsdecode(value), value)
    return MediaFile("image", f"image {index}", value)


def divided(texts: Sequence[TextInput], spans: Any) -> tuple[TextInput, ...]:
    """Return the texts that came with arrays, divided as the `spans` of a call say."""
    strings = [text.text for text in texts]
    return _with_spans(texts, _divided(strings[0] if len(strings) == 1 else strings, spans)[1])


def _with_spans(
    texts: Sequence[TextInput], spans: Sequence[tuple[SpanRange, ...]]
) -> tuple[TextInput, ...]:
    if len(spans) not in (0, len(texts)):
        raise UsageError(
            f"{len(spans)} for {len(texts)} texts", where="spans", hint="pass one for each text"
        )
    return tuple(replace(text, spans=spans[n]) if spans else text for n, text in enumerate(texts))


IDS = ("input_ids", "attention_mask", "position_ids", "token_type_ids")


def _texts_of_ids(options: Mapping[str, Any]) -> tuple[TextInput, ...]:
    """Return texts that are given as token ids."""
    rows = read_ids(
        {name: options[name] for name in IDS if options.get(name) is not None}, "inspect"
    )
    if len(rows) == 1:
        names = ["input_ids"]
    else:
        names = [f"input_ids[{n}]" for n in range(len(rows))]
    return tuple(
        TextInput("", where=name, given=row) for name, row in zip(names, rows, strict=True)
    )


def _divided(text: Any, spans: Any) -> tuple[Any, list[tuple[SpanRange, ...]]]:
    """Return the text or texts of a call, and their ranges if `spans` is a list; none otherwise."""
    if spans is None or isinstance(spans, str | Mapping):
        return text, []
    listed = list(spans) if _is_several(spans) else [spans]
    if listed and all(isinstance(item, Mapping) and "name" not in item for item in listed):
        return text, [ranges_of(item, f"spans[{n}]") for n, item in enumerate(listed)]
    if listed and all(isinstance(item, Mapping) for item in listed):
        return text, [ranges_of(listed, "spans")] * (1 if isinstance(text, str) else len(text))
    joined, ranges = joined_texts(listed, "spans")
    if text is None or text == joined:
        return joined, [ranges]
    if not isinstance(text, str):
        raise UsageError(
            "texts as spans divide one text", where="spans", hint="pass the ranges of each text"
        )
    divided = []
    at = 0
    for item in ranges:
        piece = joined[item.start : item.end]
        start = text.find(piece, at)
        if start < 0:
            hint = "pass texts that follow each other in it, or leave the text out"
            raise UsageError(
                f"{piece!r:.80} is not in the text after character {at}", where="spans", hint=hint
            )
        at = start + len(piece)
        divided.append(SpanRange(item.name, start, at))
    return text, [tuple(divided)]


def _spans(value: Any) -> SpanRequest:
    """Read a division into spans; ranges of single texts are kept with the texts (see `texts_of`)."""
    if isinstance(value, str):
        return parse_spans(value)
    if isinstance(value, Mapping):
        ranges = ranges_of(value, "spans")
    else:
        ranges = ()
    return SpanRequest("ranges", ranges=ranges)


def several_chats(messages: Any) -> bool:
    """Tell whether this is a list of chats rather than of messages."""
    if (
        isinstance(messages, str | bytes | Mapping)
        or not isinstance(messages, Sequence)
        or not messages
    ):
        return False
    first_message = messages[0]
    return isinstance(first_message, list | tuple) or (
        isinstance(first_message, Mapping) and "messages" in first_message
    )


def _several(name: str, values: Any) -> list[Any]:
    if not _is_several(values) or isinstance(values, Mapping):
        raise UsageError(f"{values!r:.80} is not a text", where=name, hint="pass a str, or several")
    return list(values)


def _is_several(value: Any) -> bool:
    """Tell whether a value is a collection; a str is not, nor is an array without axes."""
    return (
        isinstance(value, Iterable)
        and not isinstance(value, str | bytes)
        and getattr(value, "ndim", 1) != 0
    )


def _beside(name: str, value: Any, count: int) -> list[Any]:
    """Return a pair or context for every text."""
    if value is None or isinstance(value, str):
        if value is not None and name == "pair" and count > 1:
            raise UsageError(
                f"one pair for {count} texts", where=name, hint="pass one for each text"
            )
        return [value] * count
    values = _several(name, value)
    if len(values) != count:
        raise UsageError(
            f"{len(values)} for {count} texts", where=name, hint="pass one for each text"
        )
    return values


def run_values(options: Mapping[str, Any]) -> dict[str, Any]:
    """Return the fields of a RunConfig that a call names; None leaves a field unchanged."""
    values = {}
    for name, value in options.items():
        if value is not None and name in _READERS:
            values[name] = _READERS[name](value)
    if any(isinstance(values.get(name), HeadLabel) for name in ("layer", "head")):
        values["layer"], values["head"] = join_label(
            values.get("layer", AUTO), values.get("head", AUTO)
        )
    if (
        "mask" in values
        and isinstance(values["mask"][0], MatrixFile)
        and not isinstance(options["mask"], str)
    ):
        values["matrices"] = {spell_mask(values["mask"]): _mask_matrix(options["mask"])}
    return values


def _flag(name: str) -> Callable[[Any], bool]:
    def read(value: Any) -> bool:
        if not isinstance(value, bool | np.bool_):
            raise UsageError(f"expected True or False, got {value!r:.80}", where=name)
        return bool(value)

    return read


def _path(name: str) -> Callable[[Any], str]:
    def read(value: Any) -> str:
        try:
            return os.fsdecode(value)
        except TypeError as e:
            raise UsageError(
                f"{type(value).__name__} is not a path", where=name, hint="pass a str or a Path"
            ) from e

    return read


def mask_of(value: Any) -> tuple[MaskTerm, ...]:
    """Return the terms of a mask; an array becomes a term whose name is a hash of its cells."""
    if isinstance(value, str):
        return parse_mask(value, "mask")
    if callable(value) and not hasattr(value, "__array__"):
        return (Function(function_name(value), value),)
    return (MatrixFile(f"array:{cells_digest(_mask_matrix(value))[:8]}"),)


def _score_mod(value: Any) -> ScoreFunction:
    if not callable(value):
        hint = "pass a function of score, b, h, q_idx and kv_idx, as for FlexAttention"
        raise UsageError(f"{type(value).__name__} cannot be called", where="score_mod", hint=hint)
    return ScoreFunction(function_name(value), value)


def _mask_matrix(value: Any) -> "BoolMatrix":
    """Return an array or tensor as a boolean matrix of allowed keys."""
    if not hasattr(value, "__array__"):
        hint = "use a str such as 'causal', a file's name, a boolean array (queries, keys), or a function"
        raise UsageError(f"{type(value).__name__} is not a mask", where="mask", hint=hint)
    if np.ma.is_masked(value):
        raise UsageError(
            "is a masked array that hides cells", where="mask", hint="pass a plain one"
        )
    try:
        if hasattr(value, "detach"):
            tensor = value.detach().cpu()
            value = (tensor.float() if tensor.is_floating_point() else tensor).numpy()
        matrix = np.array(value)
    except (TypeError, ValueError, RuntimeError) as e:
        # Tensors of bfloat16, sparse ones and those without memory have no array.
        raise UsageError(
            f"cannot be read as an array ({e})", where="mask", hint="pass a boolean array"
        ) from e
    try:
        matrix = as_boolean(matrix)
    except ValueError as e:
        hint = "pass True where attention is allowed, such as mask == 1, or numbers added to scores: 0 and −inf"
        raise UsageError(str(e), where="mask", hint=hint) from None
    if matrix.ndim not in (2, 3) or not matrix.size:
        hint = "pass a row per query token and a column per key token, for all heads or for each"
        raise UsageError(f"has shape {list(matrix.shape)}", where="mask", hint=hint)
    return matrix


def one_or_several(value: Any) -> list[Any]:
    """Return a value as a list; a str is one value."""
    return list(value) if _is_several(value) else [value]


def _stages(value: Any) -> tuple[str, ...]:
    stages = one_or_several(value)
    if stages:
        return some_of(arg("stages"), "stage", STAGES, ",".join(map(str, stages)))
    return ()


def cuts(value: Any) -> tuple[CutExpression, ...]:
    """Read one or several cut expressions; none for None."""
    expressions = [] if value is None else one_or_several(value)
    for cut in expressions:
        if not isinstance(cut, str):
            raise UsageError(
                f"{cut!r:.80} is not a cut",
                where="cut",
                hint="use a str such as 'L5H1', or several",
            )
    return tuple(parse_cut(cut, "cut") for cut in expressions)


def _filler(value: Any) -> str:
    if not isinstance(value, str) or not value.strip():
        raise UsageError(f"{value!r:.80} is not a text", where="filler", hint="pass a str")
    return value


def _keys(value: Any) -> tuple[str, ...]:
    words = one_or_several(value)
    if not all(isinstance(item, str) for item in words):
        raise UsageError(
            f"{value!r:.80} is not a key", where="ignore_key", hint="give a str, or several"
        )
    return tuple(words)


def indices(name: Literal["layer", "head"]) -> Callable[[Any], IndexSelection | HeadLabel]:
    """Return a reader for layers or heads: a number, several, a slice, a word, or labels such as `L2H3`."""

    def read(value: Any) -> IndexSelection | HeadLabel:
        if isinstance(value, str):
            return parse_indices_or_label(name, value)
        try:
            if isinstance(value, slice):
                edges = value.start, value.stop, value.step
                start, stop, step = (None if edge is None else _whole(edge) for edge in edges)
                if step == 0:
                    raise ValueError
                return IndexSelection(slice=(start, stop, step))
            several = one_or_several(value)
            if several and all(isinstance(item, str) for item in several):
                return parse_indices_or_label(name, ",".join(several))
            numbers = [_whole(item) for item in several]
        except (TypeError, ValueError) as e:
            hint = "use a number, several, a slice or range, 'L2H3', 'auto', 'all' or 'mean'"
            raise UsageError(f"cannot read {value!r:.80}", where=name, hint=hint) from e
        if not numbers:
            hint = f"use 0, a list of {name}s, 'all' or 'auto'"
            raise UsageError(f"the list of {name}s is empty", where=name, hint=hint)
        return IndexSelection.of(numbers)

    return read


def positions(name: str) -> Callable[[Any], PositionSelection]:
    """Return a reader for rows or columns: positions, slices and words."""

    def read(value: Any) -> PositionSelection:
        parts = tuple(_position(name, part) for part in one_or_several(value))
        if not parts:
            hint = f"leave it out{' for all' if name in ('query', 'key') else ''}"
            raise UsageError("the list of positions is empty", where=name, hint=hint)
        return PositionSelection.of(parts)

    return read


def _position(name: str, part: Any) -> int | slice | str:
    if isinstance(part, str):
        return part
    try:
        if not isinstance(part, slice):
            return _whole(part)
        if part.step is not None:
            raise UsageError(
                f"{part!r} has a step", where=name, hint="use a range, or a list of positions"
            )
        return slice(*(None if edge is None else _whole(edge) for edge in (part.start, part.stop)))
    except TypeError as e:
        hint = "use a position, a slice, a word, or several of them"
        raise UsageError(f"cannot read {part!r:.80}", where=name, hint=hint) from e


def _whole(value: Any) -> int:
    """Return a whole number; raise TypeError for anything else, as for True and False."""
    if isinstance(value, bool | np.bool_):
        raise TypeError
    return operator.index(value)


def _named(read: Callable[[str], Any], prefix: str = "") -> Callable[[Any], Any]:
    """Return a reader for a word, or for a torch object of that name."""
    return lambda value: read(str(value).removeprefix(prefix))


# options whose values are typed with commas
_LISTED = ("role", "lengths", "depths", "keep", "table")
# Readers of values that are no text, or mean something else in Python.
PYTHON_READERS: dict[str, Callable[[Any], Any]] = {
    **{name: _path(name) for name in ("config", "adapter", "texts", "qkv")},
    "chat": _path("messages"),
    "output": lambda value: Path(_path("output")(value)),
    "dtype": _named(partial(one_of, "dtype", Dtype), "torch."),
    "device": _named(device),
    "ignore_key": _keys,
    "mask": mask_of,
    "stages": _stages,
    "spans": _spans,
    **{name: positions(name) for name in ("hide", "query", "key", "at", "against")},
    "layer": indices("layer"),
    "head": indices("head"),
    "cuts": cuts,
    "filler": _filler,
    "target": lambda value: tuple(text("target", token) for token in one_or_several(value)),
    "others": lambda value: tuple(text("others", token) for token in one_or_several(value)),
}


def read_values(
    options: Mapping[str, Any], option_table: Iterable[Option], *names: str
) -> dict[str, Any]:
    """Return the given values of these arguments, read by the option table."""
    readers = {option.name: _reader(option) for option in option_table}
    return {name: readers[name](options[name]) for name in names if options.get(name) is not None}


def _reader(option: Option) -> Callable[[Any], Any]:
    if option.is_flag:
        return _flag(option.name)
    if option.name in _LISTED:
        return _listed(option.read)
    return PYTHON_READERS.get(option.name) or option.read or partial(text, option.name)


def _listed(read: Callable[[str], Any] | None) -> Callable[[Any], Any]:
    """Return a reader of one value or several of what is typed with commas between them."""
    assert read is not None
    return lambda value: read(",".join(map(str, one_or_several(value))))


# The option `by` is that of compare, without `logit`.
_OF_RUN = {option.name: option for option in (*RUN, *COMPARE)}
_READERS = {
    name: _reader(option)
    for name, option in _OF_RUN.items()
    if name in RunConfig.__struct_fields__ and name not in ("model", "tokenizer", "target", "qkv")
} | {"score_mod": _score_mod}


def file_path(value: Any) -> Path:
    """Return the path of a file that is read or written."""
    return Path(_path("path")(value))


def model_path(value: Any) -> str:
    """Return the path or name of a model."""
    return _path("model")(value)


def tokenizer_path(value: Any) -> str:
    """Return the path of a tokenizer for a model that is named by a path, too."""
    if not isinstance(value, str) and not hasattr(value, "__fspath__"):
        hint = "give the path of its tokenizer.json: only a model of transformers takes a tokenizer itself"
        raise UsageError(f"{type(value).__name__} is not a path", where="tokenizer", hint=hint)
    return _path("tokenizer")(value)
