"""Requests for spans: how a text is divided, read from the command line, from files or from Python values."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, get_args

from attnscope.base.errors import AttnscopeError, UsageError, arg
from attnscope.request.selection import listed_words

SpanWord = Literal["sentences", "lines", "paragraphs", "words", "whole-words", "images", "turns"]
Division = Literal[
    "sentences", "lines", "paragraphs", "words", "whole-words", "images", "turns", "marks", "ranges"
]
WHOLE_WORDS: Division = "whole-words"
SPAN_WORDS: tuple[str, ...] = get_args(SpanWord)
FIRST = "(first)"
SPECIAL = "(special)"
TEMPLATE = "(template)"
REST = "(rest)"
PAIR = "(pair)"
# names of spans that no text divides, and what they hold
RESERVED = {
    FIRST: "the first token",
    SPECIAL: "special tokens",
    TEMPLATE: "what the chat template writes around turns",
    REST: "tokens of no other span",
    PAIR: "the second text",
}
_FILES = (".json", ".jsonl")
_LARGEST = 64 << 20  # bytes of a file of spans
_LONGEST_NAME = 200  # characters
_UNITS = "characters", "tokens"
_FORM = '{"name": …, "start": …, "end": …}'


@dataclass(frozen=True)
class SpanRange:
    """A named range of a text."""

    name: str  # name of the span; ranges with one name are one span
    start: int
    end: int
    unit: Literal["characters", "tokens"] = "characters"


@dataclass(frozen=True)
class SpanRequest:
    """A division of texts into spans."""

    # `sentences`, `lines`, `paragraphs`, `words`, `whole-words` (words and marks as `--words` merges their pieces),
    # `images` (each picture, and the text around them) or `turns` of a chat; `marks`, each of which begins a span; or
    # `ranges` that are named
    division: Division
    marks: tuple[str, ...] = ()
    ranges: tuple[SpanRange, ...] = ()  # ranges of every text that has none of its own
    written: str = ""

    def __str__(self) -> str:
        return self.written or self.division


def parse_spans(text: str) -> SpanRequest:
    """Read a word of SPAN_WORDS, a .json or .jsonl file, or marks joined by commas."""
    if text in SPAN_WORDS:
        return SpanRequest(text, written=text)  # type: ignore[arg-type]
    if Path(text).suffix.lower() in _FILES:
        return SpanRequest("ranges", ranges=_read_ranges(Path(text)), written=text)
    marks = tuple(dict.fromkeys(listed_words(text)))
    if not marks:
        hint = f"use {', '.join(SPAN_WORDS)}, a .json or .jsonl file, or marks such as 'Doc 1:,Question:'"
        raise UsageError("has no mark", where=arg("spans"), hint=hint)
    return SpanRequest("marks", marks, written=text)


def _read_ranges(path: Path) -> tuple[SpanRange, ...]:
    from attnscope.base.files.reading import parse_json, read_file

    data = read_file(path, cap=_LARGEST)
    if path.suffix.lower() == ".json":
        return ranges_of(parse_json(data, str(path)), str(path))
    lines = (
        (f"{path}:{line_number}", line)
        for line_number, line in enumerate(data.splitlines(), 1)
        if line.strip()
    )
    return tuple(
        span_range
        for where, line in lines
        for span_range in ranges_of([parse_json(line, where)], where)
    )


def ranges_of(value: Any, where: str) -> tuple[SpanRange, ...]:
    """Read named ranges from JSON or Python values.

    Args:
        value: A mapping of names to (start, end), to a slice, or to several of these, in characters; or a sequence of
            mappings with `name`, `start`, `end`, and perhaps `unit` (`characters` or `tokens`).
    """
    if isinstance(value, Mapping) and not {"name", "start", "end"} <= value.keys():
        ranges = [
            SpanRange(_name(name, where), *pair)
            for name, pairs in value.items()
            for pair in _pairs(pairs, where)
        ]
    else:
        ranges = [
            _range(item, where)
            for item in ([value] if isinstance(value, Mapping) else _listed(value, where))
        ]
    if not ranges:
        raise UsageError(
            "has no span", where=where, hint='name at least one: {"name": [start, end]}'
        )
    for item in ranges:
        if not 0 <= item.start < item.end:
            what = f"span '{item.name}' is the range {item.start} to {item.end}"
            raise UsageError(
                what, where=where, hint="a range starts at 0 or later and ends after its start"
            )
    return tuple(ranges)


def _listed(value: Any, where: str) -> Sequence[Any]:
    if isinstance(value, list | tuple):
        return value
    raise UsageError(
        f"{type(value).__name__} is not a list of spans", where=where, hint=f"expected {_FORM}"
    )


def _range(value: Any, where: str) -> SpanRange:
    if not isinstance(value, Mapping):
        raise UsageError(f"{value!r:.80} is not a span", where=where, hint=f"expected {_FORM}")
    member_names = ("name", "start", "end", "unit")
    for key in value:
        if key not in member_names:
            raise UsageError(
                f"a span has no member {key!r:.80}",
                where=where,
                hint=f"known: {', '.join(member_names)}",
            )
    for key in member_names[:3]:
        if key not in value:
            raise UsageError(f"a span has no '{key}'", where=where, hint=f"expected {_FORM}")
    unit = value.get("unit", _UNITS[0])
    if unit not in _UNITS:
        raise UsageError(
            f"the unit {unit!r:.80} is unknown", where=where, hint=f"use {' or '.join(_UNITS)}"
        )
    return SpanRange(
        _name(value["name"], where),
        _whole(value["start"], where),
        _whole(value["end"], where),
        unit,
    )


def _name(name: Any, where: str) -> str:
    if not isinstance(name, str) or not name.strip() or len(name) > _LONGEST_NAME:
        hint = f"a name is a text of 1 to {_LONGEST_NAME} characters"
        raise UsageError(f"{name!r:.80} is not a name of a span", where=where, hint=hint)
    if name in RESERVED:
        raise UsageError(
            f"the name '{name}' has a meaning of its own", where=where, hint="use another name"
        )
    try:
        name.encode()
    except UnicodeEncodeError as e:
        raise UsageError(f"the name {name!r:.80} is not UTF-8", where=where) from e
    return name


def _pairs(value: Any, where: str) -> Iterator[tuple[int, int]]:
    """Yield the start and end of a range, or of several ranges."""
    if isinstance(value, slice) and value.step is None:
        yield _whole(value.start, where), _whole(value.stop, where)
    elif isinstance(value, range) and value.step == 1:
        yield value.start, value.stop
    elif (
        isinstance(value, list | tuple)
        and value
        and isinstance(value[0], list | tuple | slice | range)
    ):
        for pair in value:
            yield from _pairs(pair, where)
    elif isinstance(value, list | tuple) and len(value) == 2:
        yield _whole(value[0], where), _whole(value[1], where)
    else:
        raise UsageError(
            f"{value!r:.80} is not a range of characters", where=where, hint="use (start, end)"
        )


def _whole(value: Any, where: str) -> int:
    import operator

    try:
        if isinstance(value, bool):
            raise TypeError
        return operator.index(value)
    except TypeError as e:
        raise UsageError(
            f"{value!r:.80} is not a whole number", where=where, hint=f"expected {_FORM}"
        ) from e


def unique_name(name: str, taken: set[str]) -> str:
    """Return a name that no span has yet, and take it."""
    count = 1
    unique = name
    while unique in taken:
        count += 1
        unique = f"{name} ({count})"
    taken.add(unique)
    return unique


def joined_texts(pieces: Sequence[Any], where: str) -> tuple[str, tuple[SpanRange, ...]]:
    """Join texts, or pairs of a name and a text, into one text with a span for each."""
    text = ""
    ranges = []
    for piece_number, piece in enumerate(pieces, 1):
        if isinstance(piece, tuple) and len(piece) == 2:
            name, content = piece
        else:
            name = f"text {piece_number}"
            content = piece
        if not isinstance(content, str) or not content:
            raise UsageError(
                f"{content!r:.80} is not a text",
                where=where,
                hint="pass texts, or pairs (name, text)",
            )
        ranges.append(SpanRange(_name(name, where), len(text), len(text) + len(content)))
        text += content
    if not ranges:
        raise UsageError("has no span", where=where, hint="pass texts, or pairs (name, text)")
    return text, tuple(ranges)


def not_in_chat() -> AttnscopeError:
    """Return the error for turns in a text that is no chat."""
    hint = (
        f"use {arg('spans', 'sentences')}, or {arg('chat', placeholder='FILE')} instead of the text"
    )
    return UsageError(
        "the text is no chat, so it has no turns", where=arg("spans", "turns"), hint=hint
    )
