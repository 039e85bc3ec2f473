"""Colours, shades and spellings of a terminal, of which the lines of panels consist."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from rich.cells import cell_len, set_cell_size
from rich.segment import Segment
from rich.style import Style

from attnscope.findings.arrays import Matrix
from attnscope.views.numbers import NO_WEIGHT
from attnscope.views.palette import Surface, surface_on
from attnscope.views.scales import SHAPES, LogScale, Scale
from attnscope.views.spans import Look, Origin, Span, spell
from attnscope.views.terminal.bars import bar_text
from attnscope.views.terminal.colours import SHADES, bar_style, cell_shade, ramp_style, role_style
from attnscope.views.terminal.screen import style_of

# Number of steps of a ramp.
_STEPS = 64
# These stand in place of a step: nothing is known of a cell, or the mask forbids it.
NONE = -1
FORBIDDEN = -2
# Only this number of characters of a name is read, because a token may have any length.
_LONGEST = 400

Line = list[Segment]
PLAIN = Style()
DIM = Style(dim=True)
BOLD = Style(bold=True)
TITLE = Style(bold=True, reverse=True)
# Title of a panel that keys do not move in.
LABEL = Style(bold=True, underline=True)
CURSOR = Style(bold=True, reverse=True)
# The underline of the whole of a bar that is not full yet.
BAR = Style(underline=True)
BLACK = surface_on((0, 0, 0))


@dataclass(frozen=True)
class Ink:
    """Capabilities of a terminal."""

    colours: int = 1 << 24  # how many colours it has: 0, 16, 256 or 16,777,216
    ascii: bool = False  # its encoding knows ASCII only
    surface: Surface = BLACK  # the colours of numbers on its background

    def name(self, span: Span) -> str:
        """Spell some text as its origin asks; of a very long one, only the start."""
        return _spelled(span.text[: _LONGEST + 1], span.origin, self.ascii)

    def plain(self, text: str) -> str:
        """Spell a trusted text."""
        return spell(Span(text, origin="note"), ascii=True) if self.ascii else text

    def style(self, look: Look) -> Style:
        """Return the style of a look; without colours, alarms are still bold."""
        style = Style.parse(style_of(look, self.colours, lambda: self.surface))
        return style if self.colours else style.without_color

    @property
    def shades(self) -> str:
        """Shades from weak to strong, for a terminal without colours."""
        return " ,:*#" if self.ascii else SHADES

    def cell(self, step: int, *, signed: bool) -> Style:
        """Return the colour of a step of a ramp."""
        return _cell(step, signed, self.colours, self.surface)

    def half(self, above: int, below: int, *, signed: bool) -> tuple[str, Style]:
        """Return a character that shows two cells, one above the other."""
        if above == below == FORBIDDEN:
            return NO_WEIGHT, DIM
        return _half(above, below, signed, self.colours, self.surface)

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
        if self.colours:
            return role_style(colour, strength, self.colours, self.surface)
        return PLAIN

    @property
    def bar(self) -> Style:
        """The style of bars."""
        return bar_style(self.colours, self.surface) if self.colours else PLAIN


@lru_cache(maxsize=1 << 16)
def _spelled(text: str, origin: Origin, ascii: bool) -> str:
    """Spell some text; a screen draws the same names again and again."""
    return spell(
        Span(text if len(text) <= _LONGEST else text[:_LONGEST] + "…", "", origin), ascii=ascii
    )


@lru_cache(maxsize=1024)
def _cell(step: int, signed: bool, colours: int, surface: Surface) -> Style:
    if step < 0 or not colours:
        return PLAIN
    return ramp_style(step / _STEPS, signed, colours, surface)


@lru_cache(maxsize=16384)
def _half(
    above: int, below: int, signed: bool, colours: int, surface: Surface
) -> tuple[str, Style]:
    top, bottom = (
        None if step < 0 else _cell(step, signed, colours, surface).bgcolor
        for step in (above, below)
    )
    if top is None and bottom is None:
        return " ", PLAIN
    if top is None:
        return "▄", Style(color=bottom)
    if bottom is None:
        return "▀", Style(color=top)
    return "▀", Style(color=top, bgcolor=bottom)


def steps(values: Matrix, scale: Scale | LogScale) -> np.ndarray:
    """Return the step of every value on a ramp; NONE where it is not known, FORBIDDEN where it is −inf."""
    is_finite = np.isfinite(values)
    with np.errstate(invalid="ignore", divide="ignore"):
        if isinstance(scale, LogScale):
            span = np.log(scale.high / scale.low) if scale.high > scale.low else 0.0
            fractions = (
                np.log(np.maximum(values, scale.low) / scale.low) / span
                if span
                else np.ones_like(values)
            )
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
    known = {"linear": np.positive, "sqrt": np.sqrt}
    shaped: np.ndarray = known.get(scale.shape, np.vectorize(SHAPES[scale.shape], otypes=[float]))(
        shares
    )
    return shaped


def fit(text: str, width: int, *, right: bool = False) -> str:
    """Shorten or fill a text to exactly `width` cells; `…` marks omissions."""
    if width <= 0:
        return ""
    size = cell_len(text)
    if size > width:
        return set_cell_size(set_cell_size(text, width - 1).rstrip() + "…", width)
    return " " * (width - size) + text if right else text + " " * (width - size)


def ended(lines: list[str], width: int, count: int = 1) -> list[str]:
    """Return at most so many lines of a sentence; `…` stands for the words left out."""
    if len(lines) <= count or count < 1:
        return lines[: max(0, count)]
    last = lines[count - 1]
    while " " in last and cell_len(last) + 2 > width:
        last = last.rpartition(" ")[0]
    return [*lines[: count - 1], fit(f"{last} …", width).rstrip()]


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
    return [*line, Segment("".join(texts), last)] if texts else line


def clickable(action: str) -> Style:
    """Return a style that tells a click which action it calls."""
    return Style(meta={"action": action})


def framed(
    lines: Sequence[Line],
    width: int,
    height: int,
    *,
    number: int | None = None,
    focused: bool,
    ascii: bool,
) -> list[Line]:
    """Put lines into a frame of this size, the first of them into its upper edge, behind the number of a panel."""
    corners, across, down = ("++++", "-", "|") if ascii else ("╭╮╰╯", "─", "│")
    edge = BOLD if focused else DIM
    inner = width - 2
    title, *body = lines or [[]]
    before = across if number is None else str(number)
    title = [Segment(before, edge), *cut(title, inner - 2), Segment(" ")]
    rest = across * (inner - cells_wide(title))
    frame: list[Line] = [[Segment(corners[0], edge), *title, Segment(rest + corners[1], edge)]]
    for n in range(height - 2):
        line = cut(body[n], inner) if n < len(body) else []
        blank = Segment(" " * (inner - cells_wide(line)))
        frame.append([Segment(down, edge), *line, blank, Segment(down, edge)])
    return [*frame, [Segment(corners[2] + across * inner + corners[3], edge)]]


def cut(line: Line, width: int) -> Line:
    """Truncate a line to a width; `…` stands for what is left out."""
    kept: Line = []
    for n, segment in enumerate(line):
        size = cell_len(segment.text)
        # what fits exactly ends in `…` too if something is behind it
        if size > width or (size == width and any(s.text.strip() for s in line[n + 1 :])):
            text = segment.text if size > width else segment.text + " …"
            kept.append(Segment(fit(text, width), segment.style))
            break
        kept.append(segment)
        width -= size
    return kept


def cells_wide(line: Sequence[Segment]) -> int:
    """Count the cells of a line."""
    return sum(cell_len(segment.text) for segment in line)


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
