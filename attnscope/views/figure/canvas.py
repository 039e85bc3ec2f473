"""A page that grows downwards: text that wraps, tables, and cells of colour, as SVG."""

import re
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from itertools import accumulate, groupby
from math import ceil
from typing import NamedTuple
from unicodedata import east_asian_width
from xml.sax.saxutils import escape

from attnscope.base.errors import UsageError, arg
from attnscope.views.figure.colours import BACKGROUND, HATCH, stops
from attnscope.views.settings import FigureSettings
from attnscope.views.spans import TOKEN_MARKS, Look, Span, Spans, ours, spell

# Text wraps at this number of units, which are CSS pixels; the page is as wide as its content, unless that is named.
_WIDTH = 720.0
_NARROWEST = 260.0
# Size of letters: usual, small, and the smallest of a figure, which is 6 pt.
SIZE = 11.0
SMALL = 9.0
LEAST = 8.0
MARGIN = 14.0
GAP = 10.0
# What is cut off of the margin if the width is named: a text around the figure has margins of its own.
_CUT = 12.0
_INCH = 96.0
# Height of lines relative to that of letters.
_LEADING = 1.35
_FONTS = {
    "sans": "Helvetica, Arial, 'Liberation Sans', 'DejaVu Sans', 'Noto Sans', sans-serif",
    "serif": "'Times New Roman', Times, 'Liberation Serif', 'DejaVu Serif', 'Noto Serif', serif",
}
_LOOKS: dict[Look, str] = {
    "": "",
    "dim": ' fill="#666666"',
    "caption": ' fill="#666666"',
    "bold": ' font-weight="bold"',
    "title": ' font-weight="bold"',
    "remark": ' fill="#8a5a00"',
    "warning": ' fill="#8a5a00" font-weight="bold"',
    "alarm": ' fill="#b00020" font-weight="bold"',
    "good": ' fill="#1a7f37"',
    "bad": ' fill="#b00020" font-weight="bold"',
}
# Widths of letters, space to tilde, in thousandths of their size, in DejaVu Sans, the widest of these fonts.
_WIDTHS = (
    "317 400 459 837 636 950 779 274 390 390 500 837 317 360 317 336 636 636 636 636 636 636 636 636 636 636 336 336 "
    "837 837 837 530 1015 684 686 698 770 631 575 774 751 294 294 655 557 862 748 787 603 787 694 634 610 731 684 988 "
    "685 610 685 390 336 390 837 500 500 612 634 549 634 615 352 634 633 277 277 579 277 974 633 611 634 634 411 520 "
    "392 633 591 817 591 591 524 636 336 636 837"
)
# Letters of ours that Helvetica and Arial lack, in letters that they have: all figures are in one typeface
_STANDARD = str.maketrans({"‖": "||", "▴": "▲", "▾": "▼", "₂": "2"})
_LETTERS = {chr(32 + n): int(width) / 1000 for n, width in enumerate(_WIDTHS.split())}
_LETTERS |= (
    dict.fromkeys("→←↓↑×÷−±≤", 0.84) | dict.fromkeys("…—▲▼", 1.0) | {"·": 0.32, "│": 0.6, "√": 0.64}
)
_OTHER = 0.66
_EAST_ASIAN = 1.0
_BOLDER = 1.1
# Names of the gradients of weights and of signed numbers, and of lines over cells without a weight.
RAMPS = "attnscope-weights", "attnscope-signed"
_HATCHED = "attnscope-hatched"


def text_width(text: str, size: float = SIZE) -> float:
    """Estimate how wide a text is, rather too wide than too narrow."""
    return (
        sum(_LETTERS.get(c, _EAST_ASIAN if east_asian_width(c) in "WF" else _OTHER) for c in text)
        * size
    )


def spans_width(spans: Iterable[Span], size: float = SIZE) -> float:
    """Estimate the width of text, including bold parts."""
    return sum(
        text_width(plain([span]), size) * (_BOLDER if "bold" in _LOOKS[span.look] else 1)
        for span in spans
    )


def plain(spans: Iterable[Span]) -> str:
    """Join spans, with control characters of untrusted text escaped."""
    return "".join(map(_spelled, spans))


def _spelled(span: Span) -> str:
    text = spell(span, ascii=False)
    if span.origin in ("ours", "note"):
        return text.translate(_STANDARD)
    return text


class _Line(NamedTuple):
    """A line of text. Consecutive lines with equal attributes share one `<g>`."""

    attributes: str
    place: str
    inner: str


@dataclass
class Canvas:
    """A page."""

    settings: FigureSettings = field(default_factory=FigureSettings)
    y: float = MARGIN
    right: float = 0.0
    _drawn: list[str | _Line] = field(default_factory=list)

    @property
    def fixed(self) -> bool:
        """Whether the width of the page is named, so that cells are squares that fill it."""
        return self.settings.width is not None

    @property
    def limit(self) -> float:
        """Width of the page, margins included, that content has to fit."""
        if self.settings.width is None:
            return _WIDTH
        return self.settings.width + 2 * _CUT

    def put(self, element: str) -> None:
        """Add an element."""
        self._drawn.append(element)

    def text(
        self,
        x: float,
        y: float,
        spans: Spans,
        *,
        size: float = SIZE,
        anchor: str = "",
        turned: bool = False,
        colour: str = "",
    ) -> None:
        """Write a line.

        Args:
            x: Its left edge, or the place of `anchor`.
            anchor: `middle` or `end`: the part of the text at `x`.
            turned: Whether it reads upwards.
            colour: Colour of the letters, unless a span has its own.
        """
        spelled = [(_LOOKS[span.look], escape(_spelled(span))) for span in spans]
        looks = groupby((piece for piece in spelled if piece[1]), key=lambda piece: piece[0])
        # An empty token is spelled, too.
        pieces = [(look, "".join(text for _, text in run)) for look, run in looks]
        if not pieces:
            return
        attributes = ""
        if turned:
            attributes = f' transform="translate(0 {_n(y)}) rotate(-90)"'
        if anchor:
            attributes += f' text-anchor="{anchor}"'
        if size != SMALL:
            attributes += f' font-size="{_n(size)}"'
        coordinates = f' y="{_n(x)}"' if turned else f' x="{_n(x)}" y="{_n(y)}"'
        if len(pieces) == 1:
            ((look, inner),) = pieces
        else:
            look, inner = (
                "",
                "".join(f"<tspan{look}>{text}</tspan>" if look else text for look, text in pieces),
            )
        if colour and "fill" not in look:
            attributes += f' fill="{colour}"'
        self._drawn.append(_Line(attributes + look, coordinates, inner))
        if not turned:
            width = spans_width(spans, size)
            self.reach(x + {"": width, "middle": width / 2, "end": 0}[anchor])

    def label(self, x: float, y: float, text: str, *, anchor: str = "") -> None:
        """Write a small line in grey; see text."""
        self.text(x, y, ours(text, "dim"), size=SMALL, anchor=anchor)

    def reach(self, x: float) -> None:
        """Make the page wide enough for something that ends at `x`."""
        self.right = max(self.right, x)

    def paragraph(self, spans: Spans, *, x: float = MARGIN, size: float = SIZE) -> None:
        """Write text that wraps at words, and go on below it."""
        for line in wrap(spans, self.limit - MARGIN - x, size):
            self.y += size * _LEADING
            self.text(x, self.y - size * (_LEADING - 1), line, size=size)

    def table(
        self,
        rows: Sequence[Sequence[Spans]],
        *,
        right: Sequence[bool],
        x: float = MARGIN,
        size: float = SIZE,
        last: Sequence[tuple[int, Spans]] = (),
    ) -> tuple[float, list[float]]:
        """Write rows of cells, each column as wide as it needs.

        Args:
            rows: The cells, all rows of one length.
            right: Columns that are aligned to the right; others are aligned to the left.
            last: Text at the end of every row, and its first column: the following columns are empty, so that it
                needs no separate column far away.

        Returns:
            Left edge of a further column, and the base line of every row.
        """
        left = ceil(x)
        bases: list[float] = []
        widths = column_widths(rows, size)
        self.y = ceil(self.y)
        down = round(size * _LEADING)
        starts = [left, *(left + width for width in accumulate(width + SIZE for width in widths))]
        for n, row in enumerate(rows):
            self.y += down
            bases.append(self.y - (down - round(size)))
            for cell, start, width, at_right in zip(row, starts, widths, right, strict=False):
                edge = start + width if at_right else start
                self.text(edge, bases[-1], cell, size=size, anchor="end" if at_right else "")
            if last:
                self.text(starts[last[n][0]], bases[-1], last[n][1], size=size)
        self.y += 2
        return starts[-1], bases

    def fill(self, x: float, y: float, width: float, height: float, colour: str) -> None:
        """Draw a rectangle of one colour."""
        self.put(
            f'<rect x="{_n(x)}" y="{_n(y)}" width="{_exact(width)}" height="{_n(height)}" fill="{colour}"/>'
        )
        self.reach(x + width)

    def cells(
        self,
        x: float,
        y: float,
        size: tuple[float, float],
        colours: Sequence[Sequence[str | None]],
        *,
        apart: bool,
    ) -> None:
        """Draw cells of colour, by row and column; None for one that is hatched.

        `apart`: each is a separate rectangle, which is easy to edit; otherwise cells of one colour are one path.
        """
        filled = [[colour or BACKGROUND for colour in row] for row in colours]
        if not filled or not filled[0]:
            return
        transform = (
            f'transform="translate({_n(x)} {_n(y)}) scale({_exact(size[0])} {_exact(size[1])})"'
        )
        if apart:
            inside = "".join(
                f'<rect x="{c}" y="{r}" width="1" height="1" fill="{colour}"/>'
                for r, row in enumerate(filled)
                for c, colour in enumerate(row)
            )
        else:
            inside = _runs(filled)
        self.put(f'<g {transform} shape-rendering="crispEdges">{inside}</g>')
        hatched = _edges([[colour is None for colour in row] for row in colours])
        if hatched:
            # Lines are as far apart in cells of any size.
            across, down = size
            runs = (
                f"M{_n(x + a * across)} {_n(y + row * down)}h{_n((b - a) * across)}v{_n(down)}h{_n((a - b) * across)}z"
                for row, a, b in hatched
            )
            self.put(f'<path fill="url(#{_HATCHED})" d="{"".join(runs)}"/>')
        self.reach(x + len(filled[0]) * size[0])

    def frame(self, x: float, y: float, width: float, height: float, fill: str = "none") -> None:
        """Draw a thin frame."""
        self.put(
            f'<rect x="{_n(x)}" y="{_n(y)}" width="{_n(width)}" height="{_n(height)}" fill="{fill}" stroke="#666666" '
            'stroke-width="0.5"/>'
        )

    def size(self) -> tuple[float, float]:
        """Return width and height of the page; refuse content that is wider than a named width."""
        width = self.settings.width
        if width is None:
            return max(_NARROWEST, self.right) + MARGIN, self.y + MARGIN
        needed = self.right + MARGIN - 2 * _CUT
        if needed > width + 0.5:
            hint = f"use {arg('width', f'{ceil(needed / _INCH * 10) / 10:g}in')}, or {arg('only', 'map')}"
            raise UsageError(
                f"this figure needs {needed / _INCH:.1f} in", where=arg("width"), hint=hint
            )
        return width, self.y + MARGIN - 2 * _CUT

    def svg(self, font: str = "") -> str:
        """Return the page as SVG."""
        fonts = _FONTS[self.settings.font]
        if font:
            fonts = f"'{font}', {fonts}"
        width, height = map(_exact, self.size())
        cut = _CUT if self.fixed else 0.0
        ramps = "".join(
            f'<linearGradient id="{name}">'
            + "".join(
                f'<stop offset="{at:g}" stop-color="{colour}"/>'
                for at, colour in stops(signed=bool(signed))
            )
            + "</linearGradient>"
            for signed, name in enumerate(RAMPS)
        )
        return (
            f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" '
            f'viewBox="{_n(cut)} {_n(cut)} {width} {height}">'
            f'<defs>{ramps}<pattern id="{_HATCHED}" width="4" height="4" patternUnits="userSpaceOnUse" '
            f'patternTransform="rotate(45)"><path d="M2 0v4" stroke="{HATCH}" stroke-width="0.7"/></pattern></defs>'
            f'<rect x="{_n(cut)}" y="{_n(cut)}" width="{width}" height="{height}" fill="#ffffff"/>'
            f'<g font-family="{fonts}" font-size="{_n(SMALL)}" fill="#000000" xml:space="preserve">\n'
            + "\n".join(_grouped(self._drawn))
            + "\n</g></svg>\n"
        )


def column_widths(rows: Sequence[Sequence[Spans]], size: float) -> list[float]:
    """Return the width of every column of a table: whole units, which are shorter to write than fractions."""
    return [
        ceil(max(spans_width(cell, size) for cell in column)) for column in zip(*rows, strict=True)
    ]


def wrap(spans: Spans, width: float, size: float) -> list[Spans]:
    """Break text at blanks into lines of at most this width; a wider word, with what is joined to it, has its own line."""
    lines: list[list[Span]] = [[]]
    start = 0  # index of the word that what follows is joined to
    for word, joined in _words(spans):
        if not joined:
            start = len(lines[-1])
        lines[-1].append(word)
        if start and spans_width(lines[-1], size) > width:
            first, *others = lines[-1][start:]
            del lines[-1][start:]
            lines.append([replace(first, text=first.text.lstrip(" ")), *others])
            start = 0
    return [tuple(line) for line in lines]


def _words(spans: Spans) -> Iterable[tuple[Span, bool]]:
    """Split spans before blanks; a word without a blank before it is joined to the one before."""
    after_blank = False
    for span in spans:
        # The blanks of a token are part of it, also the one that it begins with.
        token = span.origin in TOKEN_MARKS
        for word in [span.text] if token else re.findall(r" *[^ ]+| +\Z", span.text) or [""]:
            yield replace(span, text=word), token or not (word.startswith(" ") or after_blank)
            after_blank = word.endswith(" ") and not token


def _grouped(drawn_elements: Iterable[str | _Line]) -> Iterable[str]:
    """Return elements; lines that follow each other with the same attributes in a group that has these."""
    for attributes, run in groupby(
        drawn_elements,
        key=lambda element: element.attributes if isinstance(element, _Line) else None,
    ):
        elements = list(run)
        lines = [element for element in elements if isinstance(element, _Line)]
        if not lines:
            yield from (str(element) for element in elements)
        elif len(lines) == 1 or not attributes:
            yield from (f"<text{line.place}{line.attributes}>{line.inner}</text>" for line in lines)
        else:
            yield (
                f"<g{attributes}>"
                + "".join(f"<text{line.place}>{line.inner}</text>" for line in lines)
                + "</g>"
            )


def _runs(filled: Sequence[Sequence[str]]) -> str:
    """Draw runs of cells along rows, one path for every colour, on a rectangle of the commonest colour."""
    common = Counter(colour for row in filled for colour in row).most_common(1)[0][0]
    paths: dict[str, list[str]] = {}
    for y, row in enumerate(filled):
        x = 0
        for colour, cells in groupby(row):
            length = len(list(cells))
            if colour != common:
                paths.setdefault(colour, []).append(f"M{x} {y}h{length}v1h-{length}")
            x += length
    below = f'<rect width="{len(filled[0])}" height="{len(filled)}" fill="{common}"/>'
    return below + "".join(
        f'<path fill="{colour}" d="{"".join(runs)}"/>' for colour, runs in paths.items()
    )


def _edges(marked: Sequence[Sequence[bool]]) -> list[tuple[int, int, int]]:
    """Return the row, start and end of every run of marked cells."""
    runs = []
    for y, row in enumerate(marked):
        x = 0
        for is_marked, cells in groupby(row):
            length = len(list(cells))
            if is_marked:
                runs += [(y, x, x + length)]
            x += length
    return runs


def _n(value: float) -> str:
    """Write a place or a length: a tenth of a unit is less than an eye sees."""
    return f"{value:.1f}".removesuffix(".0")


def _exact(value: float) -> str:
    """Format a measured length, or a cell size, with digits for an error that grows with the number of cells."""
    return f"{value:.3f}".rstrip("0").rstrip(".")
