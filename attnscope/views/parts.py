"""The parts that findings are shown in: plain data without widths, markup or colour depths.

The functions of this package read findings and yield parts; a lowering, such as `views/terminal`, draws each kind of
part. Styles are names, and colours are positions on a scale.
"""

from collections.abc import Sequence

import msgspec
import numpy as np

from attnscope.findings.arrays import Floats, Matrix
from attnscope.views.axes import Axis
from attnscope.views.numbers import Digits
from attnscope.views.scales import Scale
from attnscope.views.spans import Look, Span, Spans


class Gap(msgspec.Struct, frozen=True):
    """An empty line."""


class Paragraph(msgspec.Struct, frozen=True):
    """Text that wraps at words.

    Attributes:
        spans: The text.
        indent: Its distance from the left edge, in steps.
        remark: Whether it is about the findings, and no part of them: `--quiet` leaves it out.
    """

    spans: Spans
    indent: int = 0
    remark: bool = False


class Flow(msgspec.Struct, frozen=True):
    """Items one after the other, with line breaks between items.

    Attributes:
        items: The items.
        between: What separates two of them.
        indent: See Paragraph.
        remark: See Paragraph.
    """

    items: Sequence[Spans]
    between: str
    indent: int = 0
    remark: bool = False


class OneLine(msgspec.Struct, frozen=True):
    """Text that is shortened where the line is too short for it, and what follows it in any case.

    Attributes:
        text: The text.
        after: What follows it.
        end: Its end says more than its start, as of a path.
        lead: What stands in front of the text, and says less: it is shortened first, at its start.
    """

    text: Spans
    after: Spans
    end: bool = False
    lead: Spans = ()


class Facts(msgspec.Struct, frozen=True):
    """Lines of a name and a value.

    Attributes:
        lines: Each name with its value.
        remark: See Paragraph. Lines that warn are shown all the same.
    """

    lines: Sequence[tuple[str, Spans | Flow | OneLine]]
    remark: bool = True


SHARES = "shares"  # title of the matrix of a measure over layers, which is no stage


class StageMatrix(msgspec.Struct, frozen=True):
    """One matrix with the arithmetic that made it.

    Attributes:
        name: The stage.
        title: Title if several matrices are shown: the stage, or the side of a comparison.
        arithmetic: Formula, such as `q·k`, and the meaning of cells without a number.
        arithmetic_of_picture: The same for cells that are drawn as colours.
        matrix: The numbers.
        texts: Every cell as text.
        masked_rows: Which rows may attend to nothing.
        scale: Values of its colours.
        digits: How its numbers are written.
        rows: The queries.
        columns: The keys, or the dimensions of the value.
    """

    name: str
    title: Spans
    arithmetic: Spans
    arithmetic_of_picture: Spans
    matrix: Matrix
    texts: list[list[str]]
    masked_rows: list[bool]
    scale: Scale
    digits: Digits
    rows: Axis
    columns: Axis


class Matrices(msgspec.Struct, frozen=True):
    """Matrices that are read together, as numbers: side by side where there is room.

    Attributes:
        stages: The matrices, in the order in which they are read.
    """

    stages: Sequence[StageMatrix]


class HeatPanels(msgspec.Struct, frozen=True):
    """Matrices of the same rows as pictures.

    Attributes:
        stages: The matrices.
    """

    stages: Sequence[StageMatrix]


class SourceRow(msgspec.Struct, frozen=True):
    """One source of one query.

    Attributes:
        index: Position among the sources.
        bar: Length of the bar, as a share of a full bar, 0 to 1.
        numbers: Weight and contributions, as text.
        remark: A mark and what it says; None where weight and content agree.
    """

    index: int
    bar: float
    numbers: list[str]
    remark: tuple[str, str] | None


class Ranking(msgspec.Struct, frozen=True):
    """Every shown query with its strongest sources.

    Attributes:
        title: Name of the measure that ranks.
        meaning: Definition of the measures besides the weight.
        queries: The queries.
        sources: Every token that can be a source.
        measures: Headings of the numbers; the first is the weight.
        rows: Per query its sources, strongest first; None where it may attend to nothing.
        rest: Per query what its sources with little weight are called, such as `5 more`, and their weight; None where
            all are listed.
        by: Which of the measures ranks them.
        compact: A paragraph per query is enough.
        brief: So are the weight and the measure that ranks.
    """

    title: Spans
    meaning: Spans
    queries: Axis
    sources: Axis
    measures: list[str]
    rows: list[list[SourceRow] | None]
    rest: Sequence[tuple[str, str] | None]
    by: int
    compact: bool
    brief: bool = False


class WeightMap(msgspec.Struct, frozen=True):
    """A map of a whole text: weights of runs of queries on runs of keys.

    Attributes:
        kind: What the keys are: `key` or `context`.
        queries: Where runs of queries start, and the end.
        keys: Where runs of keys start, and the end.
        weights: (runs of queries, runs of keys).
    """

    kind: str
    queries: list[int]
    keys: list[int]
    weights: Matrix


class AttendedRow(msgspec.Struct, frozen=True):
    """One of the sources that get the most weight.

    Attributes:
        bar: Length of the bar, as a share of a full bar, 0 to 1.
        weight: Total weight that the source receives.
        share: Share of all weight.
        before: The tokens before it, the nearest first.
        after: The tokens after it.
    """

    bar: float
    weight: str
    share: str
    before: list[Span]
    after: list[Span]


class MostAttended(msgspec.Struct, frozen=True):
    """The sources that get the most weight, each within its text.

    Attributes:
        sources: The sources.
        rows: What is known about each.
    """

    sources: Axis
    rows: list[AttendedRow]


class Thumbnails(msgspec.Struct, frozen=True):
    """The weights of many heads, each small.

    Attributes:
        weights: (queries, keys) by layer and head; all of one shape, on a scale from 0 to 1.
    """

    weights: dict[tuple[int, int], Matrix]


class VectorLine(msgspec.Struct, frozen=True):
    """A vector by its first numbers.

    Attributes:
        name: Name of the vector.
        made: How it was made.
        norm: Norm of the vector.
        values: Numbers of the vector.
        digits: How they are written.
    """

    name: str
    made: str
    norm: str
    values: Floats
    digits: Digits


class Column(msgspec.Struct, frozen=True):
    """One column of a grid.

    Attributes:
        heading: Its heading.
        cells: A text for every row.
        look: How they look.
    """

    heading: str
    cells: list[str]
    look: Look = ""


class Dimensions(msgspec.Struct, frozen=True):
    """A vector for every row of a grid.

    Attributes:
        name: Name of the vectors.
        matrix: One vector a row.
        digits: How their numbers are written.
        whole: What shows all dimensions; empty if only data are shown.
    """

    name: str
    matrix: "np.ndarray"
    digits: Digits
    whole: str


class Grid(msgspec.Struct, frozen=True):
    """Rows of numbers.

    Attributes:
        heading: Heading above the labels.
        keys: The first rows; None for none of the keys.
        others: Labels of the rows after them.
        columns: The numbers.
        bars: A share of a full bar for each row, below 0 to the left; None for no bar; where there are bars.
        dimensions: Vectors of which as many numbers are shown as fit, if there are any.
    """

    heading: str
    keys: Axis | None
    others: Sequence[Spans]
    columns: Sequence[Column]
    bars: Sequence[float | None] | None = None
    dimensions: Dimensions | None = None


class WholeNames(msgspec.Struct, frozen=True):
    """The whole names of tokens whose labels had to be shortened in the parts before.

    Attributes:
        axis: The tokens.
    """

    axis: Axis


class MovedSources(msgspec.Struct, frozen=True):
    """Weights of sources in two sides, and how much they change.

    Attributes:
        sources: The sources.
        sides: Labels of the sides.
        columns: The weights in both sides, and the change.
    """

    sources: Axis
    sides: tuple[Spans, Spans]
    columns: list[list[str]]


class Moves(msgspec.Struct, frozen=True):
    """What moved, a query a row.

    Attributes:
        titles: Headings of the cells.
        named: Which of them are above names of tokens, rather than numbers alone.
        rows: Cells of each row, the query first.
    """

    titles: Sequence[str]
    named: Sequence[bool]
    rows: Sequence[Sequence[Spans]]


class RoleCell(msgspec.Struct, frozen=True):
    """The main role of a head.

    Attributes:
        letter: Letter of the role.
        colour: The role's colour as `#rrggbb`; None for none.
        strength: Place of the head's value between none and all of the role, from 0 to 1.
    """

    letter: str
    colour: str | None
    strength: float


class RolePicture(msgspec.Struct, frozen=True):
    """The main role of every head.

    Attributes:
        cells: By layer and head; None where no role is clear.
        unclear: What stands for that.
    """

    cells: list[list[RoleCell | None]]
    unclear: str


class StrongestRow(msgspec.Struct, frozen=True):
    """The strongest heads of a role.

    Attributes:
        role: The role, at full strength.
        title: What it is called.
        count: How many heads have it as their main role.
        heads: The heads with their values.
        none: What stands in place of heads where there are none.
    """

    role: RoleCell
    title: str
    count: Spans
    heads: list[Spans]
    none: str


class StrongestHeads(msgspec.Struct, frozen=True):
    """The strongest heads of every role.

    Attributes:
        rows: The roles.
        one_line: As many heads as fit on a line are enough.
    """

    rows: list[StrongestRow]
    one_line: bool


class HeadNumbers(msgspec.Struct, frozen=True):
    """A number for every head.

    Attributes:
        values: (layers, heads); NaN where there is none.
        texts: The same as text.
        scale: Values of their colours.
        low: The smallest value of the scale, as text.
        high: The largest.
    """

    values: Matrix
    texts: list[list[str]]
    scale: Scale
    low: str
    high: str


class Listed(msgspec.Struct, frozen=True):
    """A title and items beside it.

    Attributes:
        title: The title.
        items: The items.
    """

    title: str
    items: list[str]


class FirstFitting(msgspec.Struct, frozen=True):
    """The same findings in several forms: the first that fits a screen is shown, or else the last.

    Attributes:
        forms: The parts of each form, the most detailed first.
        picture: What replaces the last of them where that takes several screens; None for nothing.
        lines: How many lines are several screens.
    """

    forms: Sequence[Sequence["ViewPart"]]
    picture: Sequence["ViewPart"] | None = None
    lines: int = 100


ViewPart = (
    Gap
    | Paragraph
    | Flow
    | Facts
    | Matrices
    | HeatPanels
    | Ranking
    | WeightMap
    | MostAttended
    | Thumbnails
    | VectorLine
    | Grid
    | WholeNames
    | MovedSources
    | Moves
    | RolePicture
    | StrongestHeads
    | HeadNumbers
    | Listed
    | FirstFitting
)
