"""The parts that findings are shown in: plain data without widths, markup or colour depths.

`studies/` turns findings into parts; a view, such as `views/terminal`, draws each kind of part. Styles are names, and
colours are places on a scale. There are ten kinds: Text, Facts, Table, Matrices, WeightMap, SoundMap, Bars, Strips,
Pictures and FirstFitting, and Scatter, which figures and pages draw; the other structs are what these consist of.
"""

from collections.abc import Sequence

import msgspec

from attnscope.findings.arrays import Array, Matrix
from attnscope.views.axes import Axis
from attnscope.views.numbers import Digits, number_text
from attnscope.views.scales import LogScale, Scale, strip_scale
from attnscope.views.spans import Look, Span, Spans


class Text(msgspec.Struct, frozen=True):
    """Items one after the other: lines break between items, and at words within an item that is longer than a line."""

    items: Sequence[Spans]  # the items; none for an empty line
    between: str = ""
    indent: int = 0
    remark: bool = False  # whether it is a comment on the findings: `--quiet` leaves it out
    # if not None, only the items that fit on one line are shown, then this text, with the number of the others in place
    # of `{}`
    cut: str | None = None
    command: bool = False  # whether items are words of a command: a shell reads on at a line's end
    unlisted: int = 0  # items behind the last that are left out, which a page counts


GAP = Text(())
NAMED_POINTS = 3


def paragraph(spans: Spans, indent: int = 0, *, remark: bool = False) -> Text:
    """Return text that wraps at words."""
    return Text((spans,), indent=indent, remark=remark)


class OneLine(msgspec.Struct, frozen=True):
    """Text that is shortened to fit the line, in its middle unless it has a lead, and text that always follows it."""

    text: Spans
    after: Spans
    end: bool = False  # its end says more than its start, as of a path
    lead: Spans = ()  # less important text in front: it is shortened first, at its start


class ScatterAxis(msgspec.Struct, frozen=True):
    """Numbers of points along one axis."""

    name: str
    values: Array
    unit: str = ""

    @property
    def title(self) -> str:
        """Name with the unit."""
        return f"{self.name}, {self.unit}" if self.unit else self.name


class Scatter(msgspec.Struct, frozen=True):
    """A point for every head by two numbers: a part of figures and pages; a terminal has lists with ranks."""

    title: str
    names: Sequence[str]  # such as `L2H1`
    across: ScatterAxis  # the horizontal axis, which begins at 0
    upward: ScatterAxis  # the vertical axis, which has 0 within
    display: str = ""  # what the walk of a page shows of every head once a point is clicked

    def ticks(self) -> tuple[list[float], list[float]]:
        """Return the numbers at the ends of both axes, and 0 within."""
        upward = self.upward.values
        low = float(min(0.0, upward.min(initial=0.0)))
        high = float(max(0.0, upward.max(initial=0.0)))
        return [0.0, float(self.across.values.max(initial=0.0)) or 1.0], sorted({low, 0.0, high})

    def place(self, x: float, y: float) -> tuple[float, float]:
        """Return where numbers are drawn, as shares of the field from its left and from its top."""
        (_, widest), upward = self.ticks()
        return x / widest, (upward[-1] - y) / ((upward[-1] - upward[0]) or 1.0)

    def named(self) -> list[int]:
        """Return the points that have their names beside them: those with the largest sizes upward."""
        sizes = -abs(self.upward.values)
        return [int(n) for n in sizes.argsort(kind="stable")[:NAMED_POINTS]]


class Facts(msgspec.Struct, frozen=True):
    """Lines of a name and a value."""

    # each name with its value; a value without a name is below the one before
    lines: Sequence[tuple[str, Spans | Text | OneLine]]
    remark: bool = True  # see Text; lines that warn are shown all the same
    indent: int = 0
    look: Look = "dim"


# A str is text of this program, which needs no escaping.
Cell = str | Spans | Text


def joined(cell: Cell | OneLine) -> Spans:
    """Return the full text of a cell or fact, for views that shorten nothing."""
    if isinstance(cell, str):
        return (Span(cell),)
    if isinstance(cell, OneLine):
        return *cell.lead, *cell.text, *cell.after
    if isinstance(cell, Text):
        return tuple(
            span
            for n, item in enumerate(cell.items)
            for span in (Span(cell.between * bool(n)), *item)
        )
    return cell


class Column(msgspec.Struct, frozen=True):
    """One column of a table."""

    heading: Cell
    cells: Sequence[Cell]
    look: Look = ""  # look of cells without their own
    left: bool = False  # it holds words, not numbers: cells begin below each other, and wrap


class Table(msgspec.Struct, frozen=True):
    """Rows of cells."""

    heading: str
    columns: Sequence[Column]
    keys: Axis | None = None  # labels of the first rows, if they are tokens
    labels: Sequence[Spans] = ()
    # a share of a full bar for each row, below 0 to the left; None for no bar; if there are bars
    bars: Sequence[float | None] | None = None
    measured: int = 0  # index of the column whose numbers the bars draw
    # value of a full bar, with its unit; None for bars that no axis measures
    axis: tuple[float, str] | None = None
    further: Sequence[Column] = ()
    # name of `further` columns, with the option that shows all; empty if only data are shown
    further_name: str = ""
    indent: int = 1
    spelled: bool = False  # whole names follow for `keys` that had to be shortened
    legend: bool = False  # whether labels are a legend, whose halves a figure draws side by side
    # whether a terminal draws it, with what is up to the next gap, beside what is before the last gap if both fit
    beside: bool = False


# Title of the matrix of a measure over layers, which is no stage.
SHARES = "shares"


class Panel(msgspec.Struct, frozen=True):
    """One matrix: of numbers, of cells of colour, or both."""

    name: str  # the stage; `heads` for a number or role of every head
    title: Spans  # title if several matrices are shown: the stage, or the side of a comparison
    matrix: Matrix  # the numbers; NaN if there is none
    texts: Sequence[Sequence[str]]  # every cell as text; none for thumbnails
    rows: Axis
    columns: Axis
    scale: Scale | LogScale
    digits: Digits
    masked_rows: Sequence[bool] = ()
    arithmetic: Spans = ()  # formula, such as `q·k`, and the meaning of cells without a number
    arithmetic_of_picture: Spans = ()  # the same for cells that are drawn as colours
    # for roles, the colour of each cell at full strength, as `#rrggbb`, in place of a ramp
    colours: Sequence[Sequence[str]] | None = None
    # what the cells' letters stand for; None if the texts are no letters
    names: Sequence[Sequence[str]] | None = None
    # what a fuller colour stands for, such as `a stronger role`, if the cells are letters; a view says how it draws that
    fuller: str = ""

    @property
    def ends(self) -> tuple[str, str]:
        """The numbers at the ends of the scale, as text."""
        return self.digits.text(self.scale.low), self.digits.text(self.scale.high)


class Matrices(msgspec.Struct, frozen=True):
    """Matrices that are read together: side by side if there is room."""

    panels: Sequence[Panel]  # the matrices, in the order in which they are read
    heat: bool = False  # as cells of colour; otherwise as numbers, if a view has room for them
    # layer and head of each, if they are thumbnails: layers are drawn below each other, heads side by side
    places: Sequence[tuple[int, int]] | None = None
    marked: Sequence[int] = ()  # indices of thumbnails that a terminal marks
    example: bool = False  # whether they are an example beside a map, so that the map alone is drawn without them
    beside: bool = False  # see Table


WEIGHTS = "weights"  # the numbers of a map of attention


class WeightMap(msgspec.Struct, frozen=True):
    """A map of a whole text: weights of runs of queries on runs of keys."""

    queries: list[int]
    keys: list[int]
    weights: Matrix  # (runs of queries, runs of keys)
    first_queries: Axis  # the first token of each run of queries, as the axis of the rows
    first_keys: Axis
    row_sum: str  # states what its rows sum to
    of: str = WEIGHTS  # name of its numbers


class SoundMap(msgspec.Struct, frozen=True):
    """Weights on the frames of a sound, or on runs of them, below its loudness."""

    of: str  # name of the numbers
    meaning: str
    rows: Axis
    weights: Matrix  # (rows, frames); rows need not sum to 1
    seconds: Sequence[float]  # at which each frame starts, then the end of the last
    levels: Sequence[float]  # loudness of each frame, 0 to 1
    # frame in which a path through the map reaches each row; empty for no path
    path: Sequence[int] = ()

    def path_of(self, row: int) -> range:
        """Return the frames of the path in a row, at least one."""
        if not self.path:
            return range(0)
        end = self.path[row + 1] if row + 1 < len(self.path) else len(self.levels)
        return range(self.path[row], max(end, self.path[row] + 1))


class Bar(msgspec.Struct, frozen=True):
    """One source, as a bar with numbers."""

    index: int
    length: float  # as a share of a full bar, 0 to 1
    numbers: Sequence[str]
    remark: tuple[str, str] | None = None  # a mark and its meaning, if weight and content disagree
    before: Sequence[Span] = ()  # the tokens before it in its text, the nearest first
    after: Sequence[Span] = ()  # the tokens after it


class Remainder(msgspec.Struct, frozen=True):
    """The sources of a query that it does not list."""

    count: int | None  # None if it is not known
    weight: float  # of all of them
    digits: Digits


class Bars(msgspec.Struct, frozen=True):
    """The strongest sources of every shown query, or of a whole text."""

    sources: Axis
    measures: Sequence[str]  # headings of the numbers; the first is the weight
    # per query its sources, strongest first; None if it may attend to nothing
    rows: Sequence[Sequence[Bar] | None]
    queries: Axis | None = None  # the queries; None for the one row of a whole text
    title: Spans = ()
    meaning: Spans = ()
    # of every query whose bars are as long as its weights; None to say nothing
    remainders: Sequence[Remainder | None] = ()
    by: int = 0
    compact: bool = False  # a paragraph per query is enough
    brief: bool = False  # so are the weight and the measure that ranks

    def remarks(self) -> list[tuple[str, str]]:
        """Return every mark with its meaning."""
        return sorted({bar.remark for row in self.rows for bar in row or () if bar.remark})

    def row_remainders(self, listed: int | None = None) -> list[tuple[str, str] | None]:
        """Return a name for what every row leaves out, such as `5 more`, and its weight; None for no weight.

        `listed`: how many bars of a row are drawn; None for all.
        """
        texts: list[tuple[str, str] | None] = [None] * len(self.rows)
        for n, (row, remainder) in enumerate(zip(self.rows, self.remainders, strict=False)):
            if remainder is None:
                continue
            unlisted = () if row is None or listed is None else row[listed:]
            weight = remainder.weight + sum(bar.length for bar in unlisted)
            name = "others"
            if remainder.count is not None:
                name = f"{remainder.count + len(unlisted)} more"
            digits = remainder.digits
            if weight and weight < digits.least:
                texts[n] = name, f"<{10.0**-digits.decimals:.{digits.decimals}f}"
            elif weight:
                texts[n] = name, digits.text(weight)
        return texts


class Strip(msgspec.Struct, frozen=True):
    """A line of cells of colour."""

    name: str
    # one for each cell; the colour of the largest size is the end of a ramp
    values: Sequence[float]
    end: Spans = ()  # what follows the cells


class Strips(msgspec.Struct, frozen=True):
    """Lines of cells below each other, which show the same things in the same order, such as dimensions."""

    cells: Sequence[str]  # name of each cell
    strips: Sequence[Strip]
    indent: int = 0

    def limits(self, precision: int) -> str:
        """Write the numbers at the ends of the scale of every line, for a caption."""
        digits = min(2, precision)
        ends = [
            f"{strip.name} ±{number_text(strip_scale(strip.values).high, digits)}"
            for strip in self.strips
        ]
        return f"colours end at {', '.join(ends)}"


class PictureMap(msgspec.Struct, frozen=True):
    """A picture, and a row of weights: a map of those on its patches, and the shares of all others in numbers."""

    title: Spans
    pixels: Array  # the picture as the model saw it, (height, width, 3), uint8
    weights: Matrix  # of every patch, (rows, columns); NaN for a patch without a token
    scale: Scale
    # each kind of token with its share of the row: the patches of this picture first, then what is beside it
    shares: Sequence[tuple[str, float]]
    facts: Sequence[str] = ()  # a few numbers of the row; short ones of a thumbnail
    # row and column of the patch that is the query; None if it is no patch
    query: tuple[int, int] | None = None


class Pictures(msgspec.Struct, frozen=True):
    """Maps on a picture, on one scale unless they are relative."""

    maps: Sequence[PictureMap]
    caption: Spans  # whose weights these are, and what colours mean
    # layer and head of each, if they are thumbnails: layers are drawn below each other, heads side by side
    places: Sequence[tuple[int, int]] | None = None
    facts: str = ""  # what the numbers below thumbnails are
    relative: bool = False  # whether the scale of each map ends at its largest patch


class FirstFitting(msgspec.Struct, frozen=True):
    """The same findings in several forms: the first that fits a screen is shown, or else the last."""

    forms: Sequence[Sequence["ViewPart"]]
    # replacement of the last form if that takes several screens; None for none
    picture: Sequence["ViewPart"] | None = None
    lines: int = 100


ViewPart = (
    Text | Facts | Table | Matrices | WeightMap | SoundMap | Bars | Strips | Pictures | FirstFitting
)
