"""Token labels that fit a column and still identify every token."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from unicodedata import category

from rich.cells import cell_len, set_cell_size
from rich.text import Text

from attnscope.report import Token
from attnscope.views.terminal.screen import Screen, flow

SPECIAL = "dim italic"
UNKNOWN = "?"  # before a token that the tokenizer does not know
SINK = -1  # the position of the column without a key


@dataclass(frozen=True)
class Axis:
    """Rows or columns of a matrix, or every token that could be one.

    Attributes:
        kind: What one entry is: `query`, `key`, `context` (a key of another text) or `dim`.
        positions: Position of each entry, as `--query` and `--key` count; SINK for the column of a head's sink.
        names: Visible spelling of each entry; empty for value dimensions.
        special: Which entries are special tokens.
        total: How many entries there would be if none were left out.
    """

    kind: str
    positions: Sequence[int]
    names: Sequence[str]
    special: Sequence[bool]
    total: int

    @cached_property
    def digits(self) -> int:
        """Width of the widest position."""
        return max((len(str(p)) for p in self.positions), default=1)

    @cached_property
    def widest(self) -> int:
        """Cells of the longest name."""
        return max((cell_len(name) for name in self.names), default=0)

    @property
    def count(self) -> int:
        """Count the entries that are a token or a dimension."""
        return sum(p != SINK for p in self.positions)

    def number(self, index: int) -> str:
        """The position of an entry; nothing for the sink."""
        return str(self.positions[index]) if self.positions[index] != SINK else ""

    @property
    def across(self) -> str:
        """Heading over the row labels: this axis runs to the right."""
        return f"{self.kind} →"

    def name_cells(self, width: int) -> int:
        """Cells of a row's name on a screen of this width: what the longest needs, or about a quarter."""
        return min(self.widest, max(6, width // 4 - self.digits))

    def label(self, index: int, cells: int, *, position: bool = True) -> Text:
        """The label of one entry: `3 the`, or `the` where the position is shown elsewhere."""
        name = Text(shorten(self.names[index], cells), SPECIAL if self.special[index] else "")
        return Text.assemble((f"{self.positions[index]:>{self.digits}} ", "dim"), name) if position else name

    def shortened(self, cells: int) -> dict[int, str]:
        """Position to whole name of the entries that do not fit in so many cells."""
        named = zip(self.positions, self.names, strict=True)
        return {p: name for p, name in named if cell_len(name) > cells and p != SINK}


def token_axis(screen: Screen, kind: str, tokens: Sequence[Token], positions: Sequence[int] | None = None) -> Axis:
    """The axis of these positions of a text, or of all of them."""
    chosen = range(len(tokens)) if positions is None else positions
    names = [token_name(screen, tokens[p]) for p in chosen]
    return Axis(kind, chosen, names, [tokens[p].special for p in chosen], len(tokens))


def with_sink(keys: Axis) -> Axis:
    """Return the keys, then a column for the weight on no key."""
    return replace(
        keys, positions=[*keys.positions, SINK], names=[*keys.names, "(sink)"], special=[*keys.special, True]
    )


def dim_axis(size: int) -> Axis:
    """The axis of a value's dimensions."""
    return Axis("dim", range(size), [""] * size, [False] * size, size)


def token_name(screen: Screen, token: Token) -> str:
    """How a token is spelled on a screen: no control characters or invisible edges, never empty, marked if unknown."""
    text = token.text or token.piece
    blank = "_" if screen.ascii else "␣"
    mark = UNKNOWN if token.unknown else ""
    inner = text.strip(" ")
    if not inner:
        return mark + (blank * len(text) or '""')
    left, right = len(text) - len(text.lstrip(" ")), len(text) - len(text.rstrip(" "))
    bare = category(inner[0]) in ("Mn", "Me", "Mc")  # an accent without a letter would land on its neighbour
    carried = "◌" if bare and not screen.ascii else ""
    return mark + blank * left + carried + "".join(_blank(c) or screen.safe(c) for c in inner) + blank * right


def _blank(c: str) -> str | None:
    """Blanks other than U+0020 look just like it: they are spelled out by number. None for anything else."""
    return f"\\u{ord(c):04x}" if c != " " and category(c) == "Zs" else None


def shorten(name: str, cells: int) -> str:
    """The name in at most so many cells, ending in `…` where something is missing."""
    if cell_len(name) <= cells:
        return name
    return set_cell_size(name, cells - 1).rstrip(" ") + "…"


def pad_left(text: Text, cells: int) -> Text:
    """The text moved to the right edge of a field."""
    return Text(" " * (cells - cell_len(text.plain))) + text


def say_shortened(screen: Screen, rows: dict[int, str], columns: Axis, cells: int) -> None:
    """Print the full names of shortened labels, by position.

    Args:
        screen: Where to.
        rows: Position to whole name of the shortened queries.
        columns: The other axis; where it is the same text, both go in one list.
        cells: Cells of its labels.
    """
    others = columns.shortened(cells)
    if columns.kind == "context":
        _say_whole(screen, "shortened queries", rows)
        _say_whole(screen, "shortened context", others)
    else:
        _say_whole(screen, "shortened", rows | others)


def _say_whole(screen: Screen, title: str, whole: dict[int, str]) -> None:
    say_list(screen, title, [f"{position} = {name}" for position, name in sorted(whole.items())])


def say_list(screen: Screen, title: str, items: list[str]) -> None:
    """Print `title: item · item`, where there are any."""
    if items:
        items = [f"{title}: {items[0]}", *items[1:]]
        screen.put(flow([Text(item, "dim") for item in items], screen.width, " · "))


def spans(positions: Sequence[int]) -> str:
    """Positions as text: `0–11`, `0, 5, 7–9`."""
    runs: list[list[int]] = []
    for p in positions:
        if runs and p == runs[-1][1] + 1:
            runs[-1][1] = p
        else:
            runs.append([p, p])
    return ", ".join(str(a) if a == b else f"{a}–{b}" for a, b in runs)
