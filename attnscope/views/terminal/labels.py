"""Token labels that fit a column and still identify every token."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

from rich.cells import cell_len, set_cell_size
from rich.text import Text

from attnscope.views.axes import SINK, Axis, AxisKind
from attnscope.views.terminal.screen import Screen, flow

SPECIAL = "dim italic"
# Lines of names above columns, which are read downwards.
_UPRIGHT = 6
# Position and number of an entry of an axis: tokens that only one of two texts has can share a position.
Entry = tuple[int, str]


@dataclass(frozen=True)
class Labels:
    """The entries of an axis as a screen spells them."""

    axis: Axis
    names: Sequence[str]  # visible spelling of each entry; empty for value dimensions

    @cached_property
    def widest(self) -> int:
        """Cells of the longest name."""
        return max((cell_len(name) for name in self.names), default=0)

    def name_cells(self, width: int) -> int:
        """Return the cells for a row's name on a screen of this width: the longest name, or about a quarter."""
        return min(self.widest, max(6, width // 4 - self.axis.digits))

    def label(self, index: int, cells: int, *, position: bool = True) -> Text:
        """Write the label of one entry: `3 the`, or `the` if the position is shown elsewhere."""
        name = Text(shorten(self.names[index], cells), SPECIAL if self.axis.special[index] else "")
        position_text = f"{self.axis.number(index):>{self.axis.digits}} "
        if position:
            return Text.assemble((position_text, "dim"), name)
        return name

    def entry(self, index: int) -> Entry:
        """Return what identifies an entry."""
        return self.axis.positions[index], self.axis.number(index)

    def shortened(self, cells: int) -> dict[Entry, str]:
        """Return the full names of the entries that do not fit in `cells` cells."""
        return {
            self.entry(n): name
            for n, name in enumerate(self.names)
            if cell_len(name) > cells and self.axis.positions[n] != SINK
        }


def labels(screen: Screen, axis: Axis) -> Labels:
    """Spell the entries of an axis."""
    dimensions = [""] * (len(axis.positions) - len(axis.names))
    return Labels(axis, [*(screen.plain([name]) for name in axis.names), *dimensions])


def shorten(name: str, cells: int) -> str:
    """Shorten a name to at most `cells` cells, ending in `…` if shortened."""
    if cell_len(name) <= cells:
        return name
    return set_cell_size(name, cells - 1).rstrip(" ") + "…"


def shorten_start(name: str, cells: int) -> str:
    """Shorten a name to at most `cells` cells, beginning with `…` if shortened."""
    start = 0
    while cell_len(name[start:]) + (start > 0) > cells:
        start += 1
    return f"…{name[start:]}" if start else name


def shorten_middle(name: str, cells: int) -> str:
    """Shorten a name to at most `cells` cells; its end, with whole words, has a third of them at most."""
    if cell_len(name) <= cells:
        return name
    end = shorten_start(name, cells // 3 + 1)
    if whole_words := end.partition(" ")[2]:
        end = f"… {whole_words}"
    return set_cell_size(name, cells - cell_len(end)).rstrip(" ") + end


def upright(names: Sequence[str]) -> list[list[str]]:
    """Return the letters of names that are read downwards, a list for every line; the last line has the last letters."""
    fitting = [name if len(name) <= _UPRIGHT else name[: _UPRIGHT - 1] + "…" for name in names]
    tall = max(map(len, fitting), default=0)
    return [[name.rjust(tall)[n] for name in fitting] for n in range(tall)]


def say_shortened(
    screen: Screen, rows: dict[Entry, str], columns: dict[Entry, str], axis_kind: AxisKind
) -> None:
    """Print the full names of shortened labels, by position.

    `rows`: whole names of the shortened queries.
    `columns`: the same for the other axis; if it is the same text, both go in one list.
    """
    lists = {"shortened": rows | columns}
    if axis_kind == "context":
        lists = {"shortened queries": rows, "shortened context": columns}
    for title, names in lists.items():
        say_list(
            screen, title, [f"{position} = {name}" for (_, position), name in sorted(names.items())]
        )


def say_list(screen: Screen, title: str, items: list[str]) -> None:
    """Print `title: item · item`, if there are any."""
    if items:
        items = [f"{title}: {items[0]}", *items[1:]]
        screen.put(flow(map(Text, items), screen.line, " · "))
