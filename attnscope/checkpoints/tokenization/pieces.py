"""Texts that a tokenizer may see, and readable text and spans of its pieces."""

import re
from collections.abc import Sequence
from functools import cache

from attnscope.base.errors import AttnscopeError
from attnscope.base.files.reading import MB

MAX_TEXT = 4 * MB  # characters; forty times a text of 100,000 bytes
_BLANK = {" ": "␣", "\n": "⏎", "\t": "⇥"}
_BYTE_PIECE = re.compile(r"<0x([0-9A-F]{2})>")
_STRAY = re.compile("[\udc80-\udcff]+")


def check_text(text: str, where: str) -> None:
    """Refuse a text before anything expensive or fragile sees it."""
    if not text.strip():
        raise AttnscopeError(
            "the text is blank" if text else "the text is empty",
            where=where,
            hint="pass some words",
        )
    if len(text) > MAX_TEXT:
        message = f"the text has {len(text):,} characters"
        raise AttnscopeError(message, where=where, hint=f"at most {MAX_TEXT:,} are read")
    try:
        text.encode()
    except UnicodeEncodeError as e:
        message = f"character {e.start} is half of a surrogate pair (U+{ord(text[e.start]):04X})"
        raise AttnscopeError(message, where=where, hint="pass valid UTF-8") from e


def trim_span(text: str, start: int, end: int) -> tuple[int, int]:
    """Return the span without white space at its ends; unchanged if it is all white space."""
    span = text[start:end]
    stripped = span.strip()
    if not stripped or len(stripped) == len(span):
        return start, end
    return start + len(span) - len(span.lstrip()), end - len(span) + len(span.rstrip())


def are_disjoint(spans: Sequence[tuple[int, int, int] | None]) -> bool:
    """Tell whether spans, see `overlapping`, follow each other in order and share no character."""
    text = reached = 0
    for span in spans:
        if span is None:
            continue
        if span[0] < text or (span[0] == text and span[1] < reached):
            return False
        text, _, reached = span
    return True


def overlapping(
    spans: Sequence[tuple[int, int, int] | None],
    compared: Sequence[tuple[int, int, int] | None] | None = None,
) -> list[bool]:
    """Return which spans share a character with another span; spans of one text are in order.

    A span is the number of the text, start and end; None for a token that covers none. Those that are `compared` may be
    some of the tokens' alone.
    """
    overlaps = [False] * len(spans)
    for forward in (True, False):
        # How far the spans before this one reach in each text; backwards, those after it.
        reached: dict[int, int] = {}
        for i in range(len(spans)) if forward else reversed(range(len(spans))):
            here = spans[i]
            other = spans[i] if compared is None else compared[i]
            if here is not None and here[0] in reached:
                far = reached[here[0]]
                overlaps[i] = overlaps[i] or (far > here[1] if forward else far < here[2])
            if other is not None:
                edge = other[2] if forward else other[1]
                far = reached.get(other[0], edge)
                reached[other[0]] = max(far, edge) if forward else min(far, edge)
    return overlaps


def readable_piece(span: str) -> str:
    """Return a span as it is shown: without white space around it, or as `␣`, `⏎`, `⇥` if it is all white space."""
    return span.strip() or "".join(_BLANK.get(c, f"<U+{ord(c):04X}>") for c in span)


def byte_fragment(piece: str, byte_level: bool) -> str | None:
    """Return the text of a piece that ends or starts within a character, with bytes such as `<F0 9F>`; else None.

    With `byte_level` it is spelled in GPT-2's alphabet of bytes; else only `<0xF0>` is a byte.
    """
    if match := _BYTE_PIECE.fullmatch(piece):
        if int(match[1], 16) >= 0x80:
            return f"<{match[1]}>"
        return None
    raw = piece_bytes(piece) if byte_level else None
    if raw is None:
        return None
    text = raw.decode(errors="surrogateescape")
    if not _STRAY.search(text):
        return None
    return _STRAY.sub(
        lambda run: f"<{run[0].encode(errors='surrogateescape').hex(' ').upper()}>", text
    )


def piece_bytes(piece: str) -> bytes | None:
    """Return the bytes that a byte-level piece spells; None if it holds a character outside that alphabet."""
    table = byte_alphabet()
    values = [table.get(c) for c in piece]
    if None in values:
        return None
    return bytes(v for v in values if v is not None)


@cache
def byte_alphabet() -> dict[str, int]:
    """Return GPT-2's `bytes_to_unicode`, inverted: printable Latin-1 maps to itself, the rest follows from U+0100."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    unprintable = [b for b in range(256) if b not in printable]
    return {chr(b): b for b in printable} | {chr(0x100 + i): b for i, b in enumerate(unprintable)}
