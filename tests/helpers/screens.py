"""Pinned consoles, and what a plain screen says when it is read back."""

import re
from dataclasses import dataclass
from io import StringIO

from rich.cells import cell_len
from rich.console import Console

from attnscope.findings.heads import STAGES
from attnscope.studies.registry import present
from attnscope.views.terminal import draw as put


def draw(report, width, *, colour=None, encoding="utf-8", **kw):
    """The screen as one string, on a terminal that is pinned in every respect."""
    file = StringIO()
    console = Console(
        file=Named(file, encoding),
        width=width,
        color_system=colour,
        force_terminal=colour is not None,
        legacy_windows=False,
        _environ={},
    )
    put(present(report, **kw), console)
    return file.getvalue()


def contributors(screen):
    return screen.split("top contributors")[1].split("\n\n")[0]


def read_number(said):
    """The number that a view wrote, which has a minus sign in front where it is negative."""
    assert not said.startswith("-"), said
    return float(said.replace("−", "-"))


class Named:
    """A text file with an encoding of our choice."""

    def __init__(self, file, encoding):
        self._file, self.encoding = file, encoding

    def write(self, text):
        return self._file.write(text)

    def flush(self):
        self._file.flush()

    def isatty(self):
        return False


@dataclass
class Block:
    """Some columns of one stage, as printed."""

    columns: list[int]  # positions over the columns
    rows: dict[int, tuple[str, list[str]]]  # position of each row to its label and its cells


def read_tables(screen, count):
    """Every stage's blocks from a plain screen with `count` rows a block (one head, 40 columns or more).

    Stages side by side share the labels of their rows.
    """
    found, lines = {}, screen.split("\n")
    stages = []
    for n, line in enumerate(lines):
        if line.startswith("top contributors"):
            break
        titles = [re.match(r" ?(\w+) +\S", part) for part in line.split("│")]
        if n and not lines[n - 1] and titles[0] and titles[0][1] in STAGES:
            stages = [title[1] for title in titles]
        if stages and line.startswith("query ↓"):
            panels = [
                [int(p) for p in part.split()] for part in line.removeprefix("query ↓").split("│")
            ]
            rows = [
                _row(row, [len(columns) for columns in panels])
                for row in lines[n + 1 : n + 1 + count]
            ]
            for p, (stage, columns) in enumerate(zip(stages, panels, strict=True)):
                found.setdefault(stage, []).append(
                    Block(columns, {at: (label, cells[p]) for at, label, cells in rows})
                )
    return {**read_list(lines), **found}


def read_list(lines):
    """Every stage of the only row of a plain screen whose keys are lines, as one block a stage."""
    found, query = (
        {},
        next((re.match(r"row (\d+)(.*)", line) for line in lines if line.startswith("row ")), None),
    )
    headers = [
        n
        for n, line in enumerate(lines)
        if query is not None and re.match(r" +(key|context) +\w", line)
    ]
    for n, following in zip(headers, [*headers[1:], len(lines)], strict=False):
        line = lines[n]
        for heading in re.finditer(r"\S+", line):
            if heading[0] not in STAGES:
                continue
            cells = {}
            for row in lines[n + 1 : min(following, lines.index("", n))]:
                if position := re.match(r" *(\d+) ", row):
                    cells[int(position[1])] = _before(row, heading.end()).split()[-1]
            found[heading[0]] = [
                Block(list(cells), {int(query[1]): (query[2], list(cells.values()))})
            ]
    return found


def _before(line, end):
    """The characters of a line in its first `end` cells."""
    width = 0
    for n, letter in enumerate(line):
        if width >= end:
            return line[:n]
        width += cell_len(letter)
    return line


def _row(line, counts):
    """Position, label and the cells of every panel; cells are told from the label, which may hold any character, by
    their number."""
    parts, cells = line.split(), []
    for n, count in reversed(list(enumerate(counts))):
        cells.insert(0, parts[-count:])
        parts = parts[: -count - (n > 0)]
    return int(parts[0]), " ".join(parts[1:]), cells
