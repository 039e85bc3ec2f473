"""Colours, shades and spellings of a terminal, of which the lines of panels consist."""

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import pairwise

import numpy as np
from rich.cells import cell_len, set_cell_size
from rich.segment import Segment
from rich.style import Style

from attnscope.findings.arrays import Matrix
from attnscope.views.numbers import NO_WEIGHT
from attnscope.views.palette import Surface, surface_on
from attnscope.views.scales import SHAPES, WEIGHTS, LogScale, Scale
from attnscope.views.spans import Look, Origin, Span, spell
from attnscope.views.terminal.bars import bar_text
from attnscope.views.terminal.colours import (
    SHADES,
    bar_style,
    cell_shade,
    ground_of,
    ground_style,
    limits_of,
    ramp_style,
    role_style,
)
from attnscope.views.terminal.screen import style_of

# Number of steps of a ramp.
_STEPS = 64
# The fewest colours, sizes on a ramp that have them, from zero's on, and the rounding of a place between two.
_FEW = 16
_SIZES_OF_FEW = np.array([0.0, *(limit + 0.05 for limit in limits_of(WEIGHTS))])
_ROUNDING = 1e-6
# These stand in place of a step: nothing is known of a cell, or the mask forbids it.
NONE = -1
FORBIDDEN = -2
# How many steps there are, with these two.
_CODES = _STEPS + 3
# Only this number of characters of a name is read, because a token may have any length.
_LONGEST = 400
# A sentence without its last clause.
_LAST_CLAUSE = re.compile(r"(.+)[,;:] ")

Line = list[Segment]
PLAIN = Style()
DIM = Style(dim=True)
BOLD = Style(bold=True)
TITLE = Style(bold=True, reverse=True)
# Title of a panel that keys do not move in.
LABEL = Style(bold=True, underline=True)
CURSOR = Style(bold=True, reverse=True)
# On a head that is cut, whose number has no effect.
CUT_CURSOR = Style(dim=True, reverse=True)
# The underline of the whole of a bar that is not full yet.
BAR = Style(underline=True)
BLACK = surface_on((0, 0, 0))


@dataclass(frozen=True, eq=False)
class Ink:
    """Capabilities of a terminal; inks are told apart by identity, by which what they draw is found again."""

    colours: int = 1 << 24  # how many colours it has: 0, 16, 256 or 16,777,216
    ascii: bool = False  # its encoding knows ASCII only
    surface: Surface = BLACK  # the colours of numbers on its background

    @property
    def on_black(self) -> bool:
        """Whether cells have a black background of their own, because that of the terminal is not known."""
        return bool(self.colours) and self.surface.is_assumed

    def name(self, span: Span) -> str:
        """Spell some text as its origin asks; of a very long one, only the start."""
        return _spelled(span.text[: _LONGEST + 1], span.origin, self.ascii)

    def plain(self, text: str) -> str:
        """Spell a trusted text."""
        if self.ascii:
            return spell(Span(text, origin="note"), ascii=True)
        return text

    def style(self, look: Look) -> Style:
        """Return the style of a look; without colours, alarms are still bold."""
        surface = BLACK if self.on_black else self.surface
        style = Style.parse(style_of(look, self.colours, lambda: surface))
        if self.on_black and style.color is not None and style.bgcolor is None:
            style += Style(bgcolor=_paper(self).bgcolor)
        return style if self.colours else style.without_color

    @property
    def shades(self) -> str:
        """Shades from weak to strong, for a terminal without colours."""
        return " ,:*#" if self.ascii else SHADES

    def cell(self, step: int, *, signed: bool) -> Style:
        """Return the colour of a step of a ramp."""
        return _cell(step, signed, self)

    @property
    def forbidden(self) -> Style:
        """The style of a cell that the mask forbids."""
        return _forbidden(self)

    def halves(
        self, shades: np.ndarray, *, signed: bool, cursor: tuple[int, int] | None = None
    ) -> list[Line]:
        """Return lines that show two rows each, one above the other; neighbours that look the same are one segment.

        Args:
            shades: Steps of cells, (rows, columns).
            signed: Whether the ramp is that of a signed scale.
            cursor: Row and column of the cell under the cursor, if there is one.
        """
        if len(shades) % 2:
            shades = np.pad(shades, ((0, 1), (0, 0)), constant_values=NONE)
        steps = shades.astype(np.int32) - FORBIDDEN
        codes = steps[::2] * _CODES + steps[1::2]
        if cursor is not None:
            row, column = cursor
            codes[row // 2, column] = (1 + row % 2) * _CODES**2 + steps[row ^ 1, column]
        is_first = np.ones(codes.shape, dtype=bool)
        is_first[:, 1:] = codes[:, 1:] != codes[:, :-1]
        starts = np.flatnonzero(is_first)
        counts = np.diff(starts, append=codes.size).tolist()
        segments = [
            _halves(code, count, signed, self)
            for code, count in zip(codes.ravel()[starts].tolist(), counts, strict=True)
        ]
        ends = is_first.sum(axis=1).cumsum().tolist()
        return [segments[start:end] for start, end in pairwise([0, *ends])]

    def shade(self, step: int, *, signed: bool) -> str:
        """Return two characters for a step, for a terminal without colours."""
        if step < 0:
            return f"{NO_WEIGHT} " if step == FORBIDDEN else "  "
        return cell_shade(step / _STEPS, signed, self.shades, minus="-")

    def shade_legend(self, scale: Scale | LogScale, *, signed: bool) -> str:
        """Name every shade and the least number that it stands for; of a signed scale, without the sign."""
        count = len(self.shades)
        # of a signed scale, only zero is blank
        ends = [(1 + (n - 1) / (count - 1)) / 2 if signed else n / count for n in range(1, count)]
        numbers = [f"{scale.value(end):.2g}".removeprefix("0") or "0" for end in ends]
        parts = [f"{mark} {number}" for mark, number in zip(self.shades[1:], numbers, strict=True)]
        return " ".join(["+/- from" if signed else "from", *parts])

    def role(self, colour: str, strength: float) -> Style:
        """Return the colour of a role."""
        return role_style(colour, strength, self.colours, self.surface)

    @property
    def bar(self) -> Style:
        """The style of bars."""
        return bar_style(self.colours, self.surface)


@lru_cache(maxsize=1 << 16)
def _spelled(text: str, origin: Origin, ascii: bool) -> str:
    """Spell some text; a screen draws the same names again and again."""
    return spell(
        Span(text if len(text) <= _LONGEST else text[:_LONGEST] + "…", "", origin), ascii=ascii
    )


@lru_cache(maxsize=1024)
def _cell(step: int, signed: bool, ink: Ink) -> Style:
    if step == FORBIDDEN and ink.on_black:
        return _paper(ink)
    if step < 0 or not ink.colours:
        return PLAIN
    return ramp_style(step / _STEPS, signed, ink.colours, ink.surface)


@lru_cache(maxsize=16)
def _paper(ink: Ink) -> Style:
    """Return white on black, in names of the colours that there are."""
    return ground_style(ink.colours, ink.surface)


@lru_cache(maxsize=16)
def _forbidden(ink: Ink) -> Style:
    return _paper(ink) + DIM if ink.on_black else DIM


@lru_cache(maxsize=1 << 14)
def _halves(code: int, count: int, signed: bool, ink: Ink) -> Segment:
    """Return so many neighbours that look the same; see Ink.halves for the code of their steps."""
    half, pair = divmod(code, _CODES**2)
    above, below = (step + FORBIDDEN for step in divmod(pair, _CODES))
    top, bottom = (ground_of(_cell(step, signed, ink)) for step in (above, below))
    if half:
        # The cursor is ink: in its half the colour of text, which no ramp has, but that of 16 colours.
        cursor = _paper(ink).color if ink.on_black else "default"
        cursor = "magenta" if ink.colours == _FEW else cursor
        return Segment(" ▀▄"[half] * count, Style(color=cursor, bgcolor=bottom))
    if above == below == FORBIDDEN:
        return Segment(NO_WEIGHT * count, ink.forbidden)
    if top is None and bottom is None:
        return Segment(" " * count, PLAIN)
    if top is None:
        return Segment("▄" * count, Style(color=bottom))
    return Segment("▀" * count, Style(color=top, bgcolor=bottom))


def steps(values: Matrix, scale: Scale | LogScale, ink: Ink | None = None) -> np.ndarray:
    """Return the step of every value on a ramp; NONE where it is not known, FORBIDDEN where it is −inf.

    Of an ink with 16 colours, they are steps that have these colours, each from the number on that the key says.
    """
    is_finite = np.isfinite(values)
    with np.errstate(invalid="ignore", divide="ignore"):
        if isinstance(scale, LogScale):
            span = np.log(scale.high / scale.low) if scale.high > scale.low else 0.0
            if span:
                fractions = np.log(np.maximum(values, scale.low) / scale.low) / span
            else:
                fractions = np.ones_like(values)
        elif scale.high <= scale.low:
            fractions = np.full(values.shape, 0.5 if scale.signed else 0.0)
        elif scale.signed:
            shares = np.clip(np.abs(np.where(is_finite, values, 0)) / scale.high, 0, 1)
            fractions = (1 + np.copysign(_shaped(shares, scale), values)) / 2
        else:
            fractions = _shaped(
                np.clip(
                    (np.where(is_finite, values, 0) - scale.low) / (scale.high - scale.low), 0, 1
                ),
                scale,
            )
        if ink is not None and ink.colours == _FEW:
            sizes = np.abs(2 * fractions - 1) if scale.signed else fractions
            sizes = _SIZES_OF_FEW[
                np.searchsorted(limits_of(scale), sizes + _ROUNDING, side="right")
            ]
            fractions = (1 + np.copysign(sizes, fractions - 0.5)) / 2 if scale.signed else sizes
        ramp_steps: np.ndarray = np.rint(
            np.clip(np.where(is_finite, fractions, 0.0), 0, 1) * _STEPS
        ).astype(np.int16)
    if scale.signed:
        # only zero is in the middle, whose cell is blank
        is_middle = ramp_steps == _STEPS // 2
        ramp_steps += np.sign(np.where(is_middle & is_finite, values, 0)).astype(np.int16)
    ramp_steps[~is_finite] = NONE
    ramp_steps[np.isneginf(values)] = FORBIDDEN
    return ramp_steps


def _shaped(shares: np.ndarray, scale: Scale) -> np.ndarray:
    """Return places on a ramp of shares of the largest number."""
    # Almost all scales are one of these; others take a call for each number.
    transforms = {"linear": np.positive, "sqrt": np.sqrt}
    shaped: np.ndarray = transforms.get(
        scale.shape, np.vectorize(SHAPES[scale.shape], otypes=[float])
    )(shares)
    return shaped


def fit(text: str, width: int, *, right: bool = False) -> str:
    """Shorten or fill a text to exactly `width` cells; `…` marks omissions."""
    if width <= 0:
        return ""
    size = cell_len(text)
    if size > width:
        return set_cell_size(set_cell_size(text, width - 1).rstrip() + "…", width)
    if right:
        return " " * (width - size) + text
    return text + " " * (width - size)


def ended(lines: list[str], width: int, count: int = 1) -> list[str]:
    """Return at most so many lines of a sentence; `…` stands for the words left out."""
    if len(lines) <= count or count < 1:
        return lines[: max(0, count)]
    last = lines[count - 1]
    while " " in last and cell_len(last) + 2 > width:
        last = last.rpartition(" ")[0]
    return [*lines[: count - 1], fit(f"{last} …", width).rstrip()]


def whole_clauses(sentence: str, width: int, count: int) -> list[str]:
    """Return at most so many lines of a sentence without its last clauses; `…` only if its first has no room."""
    shorter = sentence
    lines = wrapped(shorter, width)
    while len(lines) > count:
        clauses = _LAST_CLAUSE.match(shorter)
        if clauses is None:
            return ended(wrapped(sentence, width), width, count)
        shorter = clauses[1]
        if shorter.count("(") == shorter.count(")"):
            lines = wrapped(f"{shorter}.", width)
    return lines


def fitting(forms: Sequence[str], width: int) -> str:
    """Return the first of several forms of a text that is not wider; the last if none is."""
    return next((form for form in forms if cell_len(form) <= width), forms[-1])


def joined(pieces: Iterable[tuple[str, Style]]) -> Line:
    """Return a line of pieces, in which neighbours of one style are one segment.

    Styles are compared by identity: they come from caches, and comparing their attributes takes most of a redraw.
    """
    line: Line = []
    texts: list[str] = []
    last: Style | None = None
    for text, style in pieces:
        if style is not last and texts:
            line.append(Segment("".join(texts), last))
            texts = []
        last = style
        texts.append(text)
    if texts:
        return [*line, Segment("".join(texts), last)]
    return line


def styled(lines: Iterable[str], style: Style | None = None) -> list[Line]:
    """Return lines of one style each."""
    return [[Segment(line, style)] for line in lines]


def clickable(action: str) -> Style:
    """Return a style that tells a click which action it calls."""
    return Style(meta={"action": action})


@dataclass(frozen=True)
class PanelFrame:
    """A frame of this size, with the number of a panel before the title in its upper edge."""

    width: int
    height: int
    focused: bool
    ascii: bool
    number: int | None = None

    def around(self, line: Line, y: int) -> Line:
        """Return a line of the frame, with what is in it: in the upper edge the title, in the lower one nothing."""
        corners, across, down = ("++++", "-", "|") if self.ascii else ("╭╮╰╯", "─", "│")
        edge = BOLD if self.focused else DIM
        inner = self.width - 2
        if y == 0:
            before = across if self.number is None else str(self.number)
            title = [Segment(before, edge), *cut(line, inner - 2), Segment(" ")]
            rest = across * (inner - cells_wide(title))
            return [Segment(corners[0], edge), *title, Segment(rest + corners[1], edge)]
        if y == self.height - 1:
            return [Segment(corners[2] + across * inner + corners[3], edge)]
        room = inner - cells_wide(line)
        if room < 0:
            line = cut(line, inner)
            room = inner - cells_wide(line)
        side = Segment(down, edge)
        return [side, *line, Segment(" " * room), side]


def cut(line: Line, width: int) -> Line:
    """Truncate a line to a width; `…` stands for what is left out."""
    cut_line: Line = []
    for n, segment in enumerate(line):
        size = cell_len(segment.text)
        # what fits exactly ends in `…` too if something is behind it
        if size > width or (size == width and any(s.text.strip() for s in line[n + 1 :])):
            text = segment.text if size > width else segment.text + " …"
            cut_line.append(Segment(fit(text, width), segment.style))
            break
        cut_line.append(segment)
        width -= size
    return cut_line


def cells_wide(line: Sequence[Segment]) -> int:
    """Count the cells of a line."""
    return sum([cell_len(text) for text, _, _ in line])


def bar(share: float, width: int, *, ascii: bool = False) -> str:
    """Draw a bar of a share of `width` cells."""
    if ascii:
        return "#" * round(max(0.0, min(1.0, share)) * width)
    return bar_text(share, width)


def wrapped(text: str, width: int) -> list[str]:
    """Break a text at blanks into lines of `width` cells; a longer word is broken anywhere."""
    lines = list[str]()
    line = ""
    for word in text.split(" "):
        while cell_len(word) > width > 0:
            if line:
                lines.append(line)
                line = ""
            cut = next(n for n in range(len(word), 0, -1) if cell_len(word[:n]) <= width or n == 1)
            lines.append(word[:cut])
            word = word[cut:]
        if line and cell_len(line) + 1 + cell_len(word) > width:
            lines.append(line)
            line = word
        else:
            line = f"{line} {word}" if line else word
    return [*lines, line] if line or not lines else lines
