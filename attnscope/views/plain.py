"""Lay out plain text: facts that wrap at words, tables in blocks of columns, ASCII where the encoding asks for it."""

import re
import textwrap
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from unicodedata import category, east_asian_width

from attnscope.base.system.escape import escape_control
from attnscope.views.spans import TOKEN_MARKS, Span

ASCII = str.maketrans("·×…←→↓▾▴–−‖│α░▒▓█▏▎▍▌▋▊▉▕▐", ".x~<>vv^--||a.:*#-=====#-=")
_LONGER = str.maketrans({"√": "sqrt ", "ε": "eps", "²": "^2"})  # used if nothing is below them
_NARROWEST = 16  # smallest width of the first column of a table
_BETWEEN = "  "
_FILLER = "\0"  # second cell of a wide character while lines are wrapped: no text that may be shown contains it


def note_for(text: str, *, ascii: bool) -> str:
    """Format a note of ours that may quote untrusted text: escape control characters, use ASCII if needed."""
    text = escape_control(text)
    return text.translate(ASCII).encode("ascii", "backslashreplace").decode() if ascii else text


def spell_token(text: str, *, ascii: bool) -> str:
    """Spell a token for a screen: no control characters, no invisible edges, never empty."""
    blank = "_" if ascii else "␣"
    inner = text.strip(" ")
    if not inner:
        return blank * len(text) or '""'
    left, right = len(text) - len(text.lstrip(" ")), len(text) - len(text.rstrip(" "))
    bare = category(inner[0]) in ("Mn", "Me", "Mc")  # an accent without a letter would land on its neighbour
    carried = "◌" if bare and not ascii else ""
    return blank * left + carried + "".join(_blank(c) or safe_text(c, ascii=ascii) for c in inner) + blank * right


def _blank(c: str) -> str | None:
    """Spell out a blank other than U+0020, which looks just like it, by its number; None for anything else."""
    return f"\\u{ord(c):04x}" if c != " " and category(c) == "Zs" else None


def safe_text(text: str, *, ascii: bool) -> str:
    """Escape control characters of untrusted text, in characters that the page or console has."""
    text = escape_control(text)
    return text.encode("ascii", "backslashreplace").decode() if ascii else text


def spell(span: Span, *, ascii: bool) -> str:
    """Write a span as its origin asks: what is untrusted is escaped, and blanks of tokens are visible."""
    if span.origin in TOKEN_MARKS:
        return TOKEN_MARKS[span.origin] + spell_token(span.text, ascii=ascii)
    if span.origin == "untrusted":
        return safe_text(span.text, ascii=ascii)
    if span.origin == "note":
        return note_for(span.text, ascii=ascii)
    return span.text.replace("±", "+-") if ascii else span.text


@dataclass(frozen=True)
class Page:
    """Where the lines go.

    Attributes:
        width: Columns.
        ascii: Whether its encoding only has ASCII.
    """

    width: int = 10_000
    ascii: bool = False

    def safe(self, text: str) -> str:
        """Escape control characters of untrusted text; see safe_text."""
        return safe_text(text, ascii=self.ascii)

    def note(self, text: str) -> str:
        """Format a note of a report; see note_for."""
        return note_for(text, ascii=self.ascii)

    def own(self, text: str) -> str:
        """Format text of ours, with ASCII replacements if needed; `safe` text in it is unchanged."""
        return text.translate(ASCII).translate(_LONGER) if self.ascii else text

    def wrapped(self, text: str, first: str = "", indent: int = 0) -> list[str]:
        """Wrap at words; lines after the first are indented."""
        spread = "".join(c + _FILLER if east_asian_width(c) in "WF" else c for c in self.own(text))
        room = max(_NARROWEST, self.width - indent) - (_FILLER in spread)  # a break may be before a filler
        lines = textwrap.wrap(spread, room, break_on_hyphens=False) or [""]
        return [(first if not n else "").ljust(indent) + line.replace(_FILLER, "") for n, line in enumerate(lines)]

    def facts(self, facts: Iterable[tuple[str, str]], indent: int) -> list[str]:
        """Write `name value` lines, the values below each other."""
        return [line for name, value in facts for line in self.wrapped(value, self.own(name), indent)]

    def table(self, rows: Sequence[Sequence[str]], justify: Callable[[str, int], str] = str.ljust) -> list[str]:
        """Write rows of cells under a heading; columns that are too wide together go in blocks with the same first one.

        Args:
            rows: Of one length.
            justify: Alignment of cells in their columns.
        """
        rows = [[self.own(cell) for cell in row] for row in rows]
        widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
        rest = sum(width + len(_BETWEEN) for width in widths[1:])
        widths[0] = min(widths[0], max(_NARROWEST, self.width - rest))
        lines: list[str] = []
        for block in self._blocks(widths):
            lines += [""] if lines else []
            for row in rows:
                lines += _row([row[column] for column in block], [widths[column] for column in block], justify)
        return lines

    def _blocks(self, widths: Sequence[int]) -> list[list[int]]:
        """Group columns that fit side by side, the first one in every block."""
        blocks: list[list[int]] = []
        for column in range(1, len(widths)):
            block = blocks[-1] if blocks else None
            used = sum(widths[c] + len(_BETWEEN) for c in block) if block else 0
            if block and used + widths[column] <= self.width:
                block.append(column)
            else:
                blocks.append([0, column])
        return blocks or [[0]]


def _row(cells: Sequence[str], widths: Sequence[int], justify: Callable[[str, int], str]) -> list[str]:
    """Write one row, whose first cell may take several lines."""
    first, *others = textwrap.wrap(_breakable(cells[0], widths[0]), widths[0], break_on_hyphens=False) or [""]
    line = _BETWEEN.join(justify(cell, width) for cell, width in zip([first, *cells[1:]], widths, strict=True))
    return [line.rstrip(), *(f"  {other}" for other in others)]


def _breakable(text: str, width: int) -> str:
    """Put a blank after underscores in names that are wider than a line, where the line ends.

    A part and what follows it are together wider than a line, so no line of the wrapped text has such a blank.
    """
    words = []
    for word in text.split(" "):
        parts = [word]
        if len(word) > width:
            parts = []
            for piece in re.findall(rf"[^_]{{1,{width - 1}}}_?|_", word):
                if parts and len(parts[-1] + piece) <= width:
                    parts[-1] += piece
                else:
                    parts.append(piece)
        words += parts
    return " ".join(words)


PAGE = Page()  # on which nothing wraps
