"""The matrix of a head, with labels and a cursor: colours, half blocks, shades or numbers."""

import re
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from itertools import product
from math import inf, isnan

import numpy as np
from rich.cells import cell_len
from rich.segment import Segment
from rich.style import Style

from attnscope.views.axes import Axis
from attnscope.views.explore.headings import BETWEEN, TitlePart, shortened
from attnscope.views.explore.ink import (
    BOLD,
    CURSOR,
    DIM,
    FORBIDDEN,
    PLAIN,
    Ink,
    Line,
    cut,
    ended,
    fit,
    fitting,
    joined,
    steps,
    styled,
    wrapped,
)
from attnscope.views.explore.picture import PictureView
from attnscope.views.explore.state import WalkState
from attnscope.views.numbers import (
    NO_WEIGHT,
    Digits,
    cell_text,
    digits_for,
    number_text,
    scale_text,
)
from attnscope.views.scales import LogScale, Scale
from attnscope.views.terminal.colours import ground_of, ramp_pieces
from attnscope.views.terminal.sound import spell_levels, spell_ticks
from attnscope.views.walk.cell import later_steps
from attnscope.views.walk.place import OUTPUT, Action
from attnscope.views.walk.scene import DIFFERENCE, Scene
from attnscope.views.walk.window import Window

# Cells of the longest label of a row.
_NAMES = 14
_SHORTEST_NAMES = 4
# Lines of a cell, and its columns beside those of a number, at most.
_TALLEST = 10
_WIDEST = 12
# Lines of the tokens above columns that are too narrow for them, which are read downwards.
# With so many lines beside the first, and one more above tall cells, they leave room for all rows.
_UPRIGHT = 6
_LEGIBLE = 7  # columns of a cell above which the start of a longer token is read more easily than upright letters
_FEW_LETTERS = 2
# Parts of the title, the one that is shortened first at the start: what the stage is, the head, the stage.
_SHORTENED = (2, 0, 1)
# The same with the columns in sight, which go last.
_SHORTENED_WITH_COLUMNS = (2, 3, 0, 1, 3)
# Columns between two numbers above them.
_STEPS = (1, 2, 4, 5, 8, 10, 16, 20, 32, 50, 64, 100)
# Dimensions of a row's output that are named.
_NAMED_DIMS = 4
# Lines above the frames of a sound: their loudness, and seconds.
_SOUND = 2
# Lines of the title, the tokens above the columns if they fit, and the key under the cursor; and below the cells.
_LEAST = 3
_BELOW = 1
_STAGE_MEANINGS = {
    "scores": "q·k",
    "scaled": "scores × scale",
    "masked": f"scaled; {NO_WEIGHT} is not allowed",
    "weights": "softmax of masked",
    "output": "weights · v, by dimension",
    DIFFERENCE: "this head − the pinned one",
}
_KINDS = {
    "pooled": "largest of {0} × {0}",
    "map": "map, logarithmic; largest of {0} × {0}",
    "listed": "listed sources; others not saved",
    "missing": "not there",
    "exact": "",
}


@dataclass
class MatrixPanel:
    """Draws the matrix; keeps its scroll position."""

    top: int = 0  # first row of cells
    left: int = 0  # first column of cells
    picture: PictureView = field(default_factory=PictureView)

    def draw(self, state: WalkState, width: int, height: int) -> list[Line]:
        """Return the lines of the panel."""
        self._last: _Layout | None = None
        scene = state.scene
        if scene is None or height < _LEAST + _BELOW + 1 or width < 8:
            return []
        if state.pictured:
            return self.picture.draw(state, scene, width, height)
        layout = self._last = self._layout(state, scene, width, height)
        window = state.cells(layout.rows, layout.columns, layout.zoom)
        return [
            *self._head(state, scene, layout, window, width),
            *_body(state, scene, layout, window),
            *_legend(state, layout, window, width),
        ]

    def is_roomy(self, state: WalkState, width: int, height: int) -> bool:
        """Tell whether cells have room for numbers, in a panel of this size that may not have been drawn yet."""
        return state.scene is not None and self._layout(state, state.scene, width, height).is_roomy

    def columns_in_sight(self, state: WalkState, width: int, height: int) -> tuple[int, int]:
        """Return how many columns a panel of this size shows, and how many there are; scrolls nothing."""
        if state.scene is None:
            return 0, 0
        layout = replace(self)._layout(state, state.scene, width, height)
        return len(layout.columns), layout.n_columns

    def lines_used(self, state: WalkState, width: int, height: int) -> int:
        """Return how many lines of a panel of this size have something in them; scrolls nothing."""
        if state.scene is None or state.pictured:
            return height
        return min(height, replace(self)._layout(state, state.scene, width, height).used)

    def page(self) -> int:
        """Return the number of visible rows of cells."""
        if self._last is None:
            return 10
        return max(1, len(self._last.rows) - 1)

    def hit(self, state: WalkState, x: int, y: int) -> Action | None:
        """Return the action of a click in the panel."""
        if state.pictured:
            return self.picture.hit(state, x, y)
        layout = self._last
        if layout is None or y < layout.above or x < layout.label:
            return None
        row = layout.rows.start + (y - layout.above) // layout.tall * layout.rows_per_line
        column = layout.columns.start + (x - layout.label) // layout.cell
        if row not in layout.rows or column not in layout.columns:
            return None
        zoom = layout.zoom
        bounds = state.bounds
        changes = {"query": min(row * zoom, bounds.queries - 1)}
        changes["dim" if state.place.stage == OUTPUT else "key"] = min(
            column * zoom, len(state.columns.positions) - 1
        )
        return Action("goto", replace(state.spot, **changes))

    def _layout(self, state: WalkState, scene: Scene, width: int, height: int) -> "_Layout":
        """Choose the size of cells, and which of them are in sight; scrolls to the cursor."""
        spot = state.spot
        zoom = state.place.zoom
        n_rows = -(-len(scene.queries.positions) // zoom)
        n_columns = -(-len(state.columns.positions) // zoom)
        lines = height - _LEAST - _BELOW
        label = _label_columns(state, scene, width, n_columns)
        room = max(1, width - label)
        cells = _cells_for(state, (n_rows, n_columns), lines, room)
        lines -= cells.has_remark
        heading = _heading_lines(state, scene, cells, n_rows, lines)
        lines -= heading - 1
        tall = cells.tall
        if tall > 1 and n_rows * tall > lines:
            tall = max(1, lines // n_rows)
        fits_rows = max(1, lines * cells.rows_per_line // tall)
        fits_columns = max(1, room // cells.columns)
        self.top = scroll(self.top, spot.query // zoom, fits_rows, n_rows)
        self.left = scroll(self.left, state.column // zoom, fits_columns, n_columns)
        return _Layout(
            range(self.top, min(n_rows, self.top + fits_rows)),
            range(self.left, min(n_columns, self.left + fits_columns)),
            zoom,
            label,
            cells.columns,
            cells.rows_per_line,
            cells.mode,
            n_rows,
            n_columns,
            tall,
            cells.form,
            heading,
            cells.is_roomy,
            cells.has_remark,
            room - cells.columns * min(n_columns - self.left, fits_columns),
        )

    def _head(
        self, state: WalkState, scene: Scene, layout: "_Layout", window: Window, width: int
    ) -> list[Line]:
        ink = state.ink
        current_place = state.place
        head = state.head
        stage = state.drawn_stage
        name = "" if head is None else head.name
        brief_name = name
        description = brief = _STAGE_MEANINGS[stage]
        if head is not None and head.scale is not None and stage == "scaled":
            others = later_steps(head)
            scaled = f"scores {scale_text(head.scale, head.width, reason=True)}"
            description = ", ".join([scaled, *others])
            brief = description
            if not others:
                brief = f"scores {scale_text(head.scale, head.width)}"
        if scene.members is not None and stage == "weights":
            description = "mean of queries, sum of keys"
            brief = "mean of queries"
        if stage == DIFFERENCE:
            pin = "" if state.pinned is None else state.pinned.name
            brief_name = f"{name} − {pin}"
            is_same_head = name == pin
            masks = state.source.masks
            if (
                current_place.pinned is not None
                and current_place.pinned.mask != current_place.spot.mask
            ):
                name = f"{name} {masks[current_place.spot.mask]}"
                pin = f"{pin} {masks[current_place.pinned.mask]}"
                if is_same_head:
                    brief_name = (
                        f"{masks[current_place.spot.mask]} − {masks[current_place.pinned.mask]}"
                    )
            elif is_same_head and len(masks) > 1:
                # which of the masks is pinned
                side = masks[current_place.spot.mask]
                brief_name = f"{side} − itself"
                name = f"{name} {side}"
                pin = "itself"
            name = f"{name} − {pin}"
            stage = current_place.stage
            description = brief = "difference"
        remark = TitlePart.of(ink.plain(description), ink.plain(brief), style=DIM)
        stronger = state.stronger_head
        if stronger is not None and current_place.pinned is None:
            # what the panel of heads answers is not what stands here
            layer, head_index = stronger
            best = f"L{scene.layers[layer]}H{scene.heads[head_index]}"
            query = ink.name(scene.queries.names[state.query])
            key = ink.name(scene.keys.names[state.key])
            notes = [f'"{query}" reads "{key}" more in {best}', f"more in {best}"]
            remark = TitlePart.of(*map(ink.plain, notes), style=BOLD)
        if current_place.pinned is not None and state.drawn is None:
            remark = TitlePart(["no difference: other tokens or cells", "no difference"], DIM)
        if state.head_cut:
            forms = ["this head is cut: its output is 0, so that what it reads here has no effect"]
            forms += ["cut: its output is 0, what it reads has no effect"]
            forms += ["cut: its output is 0", "cut: output is 0", "cut to 0", "cut"]
            remark = TitlePart(forms, ink.style("warning"))
        elif current_place.pinned is not None and state.head is state.pinned and head is not None:
            forms = ["the pinned head itself: choose another head, mask or cut"]
            forms += ["pinned: choose another head", "pinned itself"]
            remark = TitlePart(forms, ink.style("warning"))
        names = [f" {ink.plain(name)} ", f" {ink.plain(brief_name)} "]
        parts = [TitlePart(names, state.title("matrix")), TitlePart.of(stage, style=BOLD), remark]
        order: Sequence[int] = _SHORTENED
        if len(layout.columns) < layout.n_columns:
            columns = _columns_in_sight(state, layout)
            forms = [f"{columns}/{len(state.columns.positions)}", columns]
            parts.append(TitlePart.of(*forms, style=DIM))
            order = _SHORTENED_WITH_COLUMNS
        # the edge of a frame has its number and corners
        fitting_parts = shortened(parts, width - len("2 "), order)
        (drawn_name, *drawn_others) = fitting_parts
        title = [Segment(*drawn_name), Segment(" ")]
        for n, (text, style) in enumerate(drawn_others):
            title.append(Segment(BETWEEN * bool(n) + text, style))
        return [title, *_column_names(state, layout, width), _ruler(state, scene, layout, width)]


@dataclass(frozen=True)
class _Layout:
    """Which cells are visible, and how they are drawn."""

    rows: range
    columns: range
    zoom: int
    label: int
    cell: int
    rows_per_line: int
    mode: str
    n_rows: int
    n_columns: int
    tall: int = 1
    form: "_Form | None" = None  # how numbers are written; None for none
    heading: int = 1  # lines of the tokens above the columns
    is_roomy: bool = False  # cells have room for numbers beside what else they show
    has_remark: bool = False  # a line below the ramp says what the cells are
    spare: int = 0  # columns behind the cells

    @property
    def above(self) -> int:
        """Lines above the cells: the title, the tokens, and the key under the cursor."""
        return 1 + self.heading + 1

    @property
    def used(self) -> int:
        """Lines that the panel has something in, if all rows are in sight."""
        n_lines = -(-self.n_rows // self.rows_per_line) * self.tall
        return self.above + n_lines + _BELOW + self.has_remark


@dataclass(frozen=True)
class _Cells:
    """The size of cells, and what is in them."""

    mode: str
    columns: int
    tall: int  # lines
    rows_per_line: int
    form: "_Form | None"  # how numbers are written; None for none
    is_roomy: bool  # they have room for numbers beside what else they show
    has_remark: bool  # a line below the ramp says what they are


def _label_columns(state: WalkState, scene: Scene, width: int, n_columns: int) -> int:
    """Return the columns of the labels of rows; the names of some tokens of many give way to columns of cells."""
    ink = state.ink
    names = scene.queries.names[:512]
    longest = scene.made(
        ("label", ink), lambda: max((cell_len(ink.name(span)) for span in names), default=0)
    )
    names_width = min(longest, _NAMES, max(_SHORTEST_NAMES, width // 4))
    number_width = scene.queries.digits + 3
    left_over = width - number_width - n_columns
    if state.place.zoom > 1 and left_over >= _SHORTEST_NAMES:
        names_width = min(names_width, left_over)
    return number_width + names_width


def _cells_for(state: WalkState, shape: tuple[int, int], lines: int, room: int) -> _Cells:
    """Choose how cells are drawn: as digits, else as large as there is room, two above each other if rows are many.

    Args:
        state: The walk.
        shape: Rows and columns of cells.
        lines: Lines for rows, and for the remark.
        room: Columns for cells.
    """
    ink = state.ink
    n_rows, n_columns = shape
    zoom = state.place.zoom
    across = room // n_columns
    forms = _forms(state)
    # without colours, a shade and a blank stand behind a number
    beside = not ink.colours
    fitting_form = next((form for form in forms if form.columns + beside <= across), None)
    form = fitting_form or forms[0]
    is_whole = state.drawn is not None and state.drawn.holds(state.drawn_stage, 0, n_rows - 1)
    mode = "shades"
    if ink.colours:
        mode = "blocks" if ink.ascii or n_rows <= lines - (not is_whole) else "halves"
    is_roomy = zoom == 1 and mode != "halves" and fitting_form is not None
    # of a map, all columns are in sight if they fit
    square = 2 if zoom == 1 or 2 * n_columns <= room else 1
    least = square if mode == "shades" or ink.ascii else 1
    if state.place.digits and zoom == 1 and not is_roomy:
        mode = "digits"
        least = form.columns
    has_remark = zoom > 1 or not is_whole or n_rows > lines or least * n_columns > room
    columns = {"digits": form.columns, "halves": 1}.get(mode, 0)
    tall = 1
    if not columns:
        # Blocks and shades are as large as there is room; dimensions need no squares.
        largest = (lines - has_remark) // n_rows
        square_tall = largest if state.place.stage == OUTPUT else (across + 1) // 2
        tall = max(1, min(_TALLEST, largest, square_tall))
        columns = max(least, min(across, max(2 * tall, _WIDEST)))
    has_numbers = mode == "digits" or (is_roomy and not state.place.bare)
    rows_per_line = 2 if mode == "halves" else 1
    shown_form = form if has_numbers else None
    return _Cells(mode, columns, tall, rows_per_line, shown_form, is_roomy, has_remark)


def _heading_lines(state: WalkState, scene: Scene, cells: _Cells, n_rows: int, lines: int) -> int:
    """Return the lines above the columns: one, or several for tokens that are wider than these, which rows leave."""
    if _is_sound(state, scene):
        return _SOUND
    axis = state.columns
    longest = scene.made(
        ("column", state.ink, axis.kind),
        lambda: max((cell_len(state.ink.name(name)) for name in axis.names[:512]), default=0),
    )
    # spans are named by the rows, which have their numbers, too: a few letters of each would tell nothing
    if state.place.zoom > 1 or cells.columns > min(longest, _LEGIBLE) or scene.unit == "spans":
        return 1
    spare = lines - -(-n_rows * cells.tall // cells.rows_per_line)
    spare = spare if spare >= _FEW_LETTERS + (cells.tall > 1) else max(spare, lines // 4)
    return max(1, min(_UPRIGHT, longest, 1 + spare))


@dataclass(frozen=True)
class _Form:
    """How the numbers of a matrix are written."""

    digits: Digits
    columns: int  # of a cell, with a blank before its number
    is_short: bool = False  # without the zeros before their points


def _forms(state: WalkState) -> Sequence[_Form]:
    """Return how the numbers of the matrix can be written, the longest form first."""
    head = state.drawn
    stage = state.drawn_stage
    are_weights = state.place.stage == "weights"
    if head is None or stage not in head.stages:
        return _forms_of(np.ones((1, 1), dtype=np.float32), are_weights)
    return head.made(("forms", stage), lambda: _forms_of(head.stages[stage], are_weights))


def _forms_of(matrix: np.ndarray, are_weights: bool) -> Sequence[_Form]:
    """Return forms of two decimals and fewer, in which the largest number has two digits at least.

    Weights and their differences are at most 1, and can do without the zeros before their points.
    """
    finite = matrix[np.isfinite(matrix)]
    ends = [float(finite.min()), float(finite.max())] if finite.size else [0.0]
    forms: list[_Form] = []
    for precision in (2, 1, 0):
        digits = digits_for(matrix, precision)
        if not forms or (not digits.scientific and max(map(abs, ends)) >= 10 ** (1 - precision)):
            columns = max(4, max(len(digits.text(value)) for value in ends) + 1)
            forms.append(_Form(digits, columns))
    if are_weights:
        forms = [forms[0], replace(forms[0], columns=forms[0].columns - 1, is_short=True)]
    return forms


def _without_zero(text: str) -> str:
    """Return a number without blanks and in one character less: `.70`, and `1.0` for `1.00`."""
    return re.sub(r"^([−-]?)(?:0(\.\d+)|(1\.0)0)$", r"\1\2\3", text.strip())


def scroll(start: int, at: int, fits: int, count: int, around: int = 2) -> int:
    """Return the first visible row or column, so that the cursor is visible with a few beside it."""
    margin = min(around, max(0, (fits - 1) // 2))
    if at - margin < start:
        start = at - margin
    if at + margin >= start + fits:
        start = at + margin - fits + 1
    return max(0, min(start, count - fits))


def _columns_in_sight(state: WalkState, layout: _Layout) -> str:
    """Say which columns are visible: `keys 14–41`."""
    axis = state.columns
    columns = layout.columns
    last = min(columns.stop * layout.zoom, len(axis.positions)) - 1
    what = "dims" if state.place.stage == OUTPUT else "keys"
    return f"{what} {_number_range(axis, columns.start * layout.zoom, last)}"


def _column_names(state: WalkState, layout: "_Layout", width: int) -> list[Line]:
    """Return the tokens above their columns: upright, letter by letter, if one of them is wider than its column."""
    axis = state.columns
    wide = layout.cell
    scene = state.scene
    if scene is not None and _is_sound(state, scene):
        return _sound_names(state, scene, layout, width)
    if layout.zoom > 1 or not axis.names:
        return [*[[]] * (layout.heading - 1), _ticks(state, layout, width)]
    names = [state.ink.name(axis.names[column]) for column in layout.columns]
    styles = [BOLD if column == state.column else DIM for column in layout.columns]
    if layout.heading == 1:
        is_centred = layout.mode in ("blocks", "shades")
        headers = [
            fitting(
                [name, fit(name, wide - 1) if wide > _LEGIBLE else axis.number(column), ""], wide
            )
            for column, name in zip(layout.columns, names, strict=True)
        ]
        rows = [
            [name.center(wide) if is_centred else fit(name, wide, right=True) for name in headers]
        ]
    else:
        upright = zip(*(_upright(name, layout.heading) for name in names), strict=True)
        rows = [[letter.center(wide)[:wide] for letter in line] for line in upright]
    label = " " * layout.label, PLAIN
    return [cut(joined([label, *zip(texts, styles, strict=True)]), width) for texts in rows]


def _ticks(state: WalkState, layout: "_Layout", width: int) -> Line:
    """Return the numbers of columns that have no names of their own, above as many of them as there is room for."""
    axis = state.columns
    what = "dim" if state.place.stage == OUTPUT else "key"
    longest = max(len(axis.number(column * layout.zoom)) for column in layout.columns)
    step = next(n for n in _STEPS if n * layout.cell > longest or n == _STEPS[-1])
    numbers = [
        fit(axis.number(column * layout.zoom), step * layout.cell)
        for column in layout.columns
        if not column % step
        and len(axis.number(column * layout.zoom)) <= (layout.columns.stop - column) * layout.cell
    ]
    first_column = -layout.columns.start % step * layout.cell
    label = fit(what, layout.label - 1, right=True) + " "
    return cut([Segment((label + " " * first_column + "".join(numbers)).rstrip(), DIM)], width)


def _is_sound(state: WalkState, scene: Scene) -> bool:
    """Tell whether the columns are frames of a sound."""
    return len(scene.levels) == len(state.columns.positions) and state.place.stage != OUTPUT


def _sound_names(state: WalkState, scene: Scene, layout: "_Layout", width: int) -> list[Line]:
    """Return the loudness of the columns, relative to the loudest of all, and seconds above those that start them."""
    frames = [re.fullmatch(r"([0-9]+\.?[0-9]*)s", span.text) for span in scene.keys.names]
    # tokens of the model's own are before the frames
    seconds = np.maximum.accumulate([float(m[1]) if m else 0.0 for m in frames]).tolist()
    starts = [column * layout.zoom for column in layout.columns]
    loudest = max(scene.levels) or 1.0
    levels = [max(scene.levels[n : n + layout.zoom]) / loudest for n in starts]
    bars = spell_levels([*levels, 1.0], ascii_=state.ink.ascii)[:-1]
    strip = "".join(mark * layout.cell for mark in bars)
    frame = (seconds[-1] - seconds[0]) / max(1, len(seconds) - 1)
    ends = [*(seconds[n] for n in starts), seconds[starts[-1]] + layout.zoom * frame]
    each = np.interp(np.arange(len(starts) * layout.cell + 1) / layout.cell, range(len(ends)), ends)
    label = " " * layout.label
    return [
        cut(
            [Segment(fit("sound", layout.label - 1, right=True) + " ", DIM), Segment(strip)], width
        ),
        cut([Segment(label + spell_ticks(each.tolist()), DIM)], width),
    ]


def _remark(state: WalkState, layout: "_Layout", view: Window, width: int) -> str:
    """Say which cells are visible, if not all are, and what they are, if they are not exact.

    Of an output, it names as many of the largest dimensions as there is room for.
    """
    scene = state.scene
    assert scene is not None
    status = state.status if view.kind == "missing" else ""
    parts = []
    queries = []
    rows = layout.rows
    if len(rows) < layout.n_rows or len(layout.columns) < layout.n_columns:
        z = layout.zoom
        last_q = min(rows.stop * z, len(scene.queries.positions)) - 1
        queries = [f"queries {_number_range(scene.queries, rows.start * z, last_q)}"]
        parts.append(f"{queries[0]}, {_columns_in_sight(state, layout)}")
    parts += filter(None, [status or _KINDS[view.kind].format(state.place.zoom)])
    if state.drawn_stage == OUTPUT and view.kind == "exact":
        named = _largest_dims(state, scene)
        ends = [", ".join(named[:count]) for count in range(len(named), 0, -1)]
        forms = ["; ".join([*parts, end]) for end in ends]
        return fitting([*map(state.ink.plain, (*forms, "; ".join(parts)))], width)
    # which columns are in sight also stands in the title
    forms = ["; ".join(parts), "; ".join([*queries, *parts[1:]]), *parts[1:2]]
    return fitting([*map(state.ink.plain, filter(None, forms))], width) if parts else ""


def _number_range(axis: Axis, start: int, last: int) -> str:
    """Return the first and last number of some positions, as their labels write them."""
    return f"{axis.number(start)}–{axis.number(last)}"


def _largest_dims(state: WalkState, scene: Scene) -> list[str]:
    """Name the dimensions in which the output of the cursor's row is largest, the first of them with the row."""
    query = state.query
    row = None if state.drawn is None else state.drawn.row(OUTPUT, query)
    if row is None or not np.isfinite(row).all():
        return []
    order = np.argsort(-np.abs(row), kind="stable")[:_NAMED_DIMS].tolist()
    numbers = [f"dim {dim} {number_text(float(row[dim]), 2)}" for dim in order]
    name = f"{scene.queries.number(query)} {state.ink.name(scene.queries.names[query])}"
    return [f"largest of {name}: {numbers[0]}", *numbers[1:]]


def _upright(name: str, lines: int) -> list[str]:
    """Return a name from top to bottom, a letter a line, above its column."""
    wide = any(cell_len(letter) != 1 for letter in name)
    letters = "…" if wide else name if len(name) <= lines else name[: lines - 1] + "…"
    return list(letters.rjust(lines))


def _ruler(state: WalkState, scene: Scene, layout: _Layout, width: int) -> Line:
    """Return the line above the cells: the key under the cursor, with a mark above its column."""
    ink = state.ink
    key = state.column
    at = (
        layout.label
        + (key // layout.zoom - layout.columns.start) * layout.cell
        + (layout.cell - 1) // 2
    )
    axis = state.columns
    if axis.names:
        name = f"{axis.number(key)} {ink.name(axis.names[key])}"
    else:
        name = f"dim {axis.number(key)}"
    mark = "v" if ink.ascii else "▼"
    room = max(4, width - layout.label)
    if room > 6:
        name = fit(name, min(room - 2, cell_len(name), 24)).rstrip()
    else:
        name = ""
    if at + 2 + cell_len(name) <= width:
        return [Segment(" " * at + mark, BOLD), Segment(f" {name}", BOLD)]
    return [Segment(fit(name, at - 1, right=True) + " ", BOLD), Segment(mark, BOLD)]


def _label(state: WalkState, axis: Axis, row: int, last: int, layout: _Layout) -> Line:
    """Return the label of the cursor's row, or of the first row of a line."""
    ink = state.ink
    zoom = layout.zoom
    query = state.query
    here = row <= query // zoom <= last
    at = query if here else row * zoom
    name = ink.name(axis.names[at]) if axis.names else ""
    number_text = fit(axis.number(at), axis.digits, right=True)
    mark = (">" if ink.ascii else "▸") if here else " "
    style = BOLD if here else PLAIN
    room = layout.label - axis.digits - 3
    return [
        Segment(mark + number_text + " ", style if here else DIM),
        Segment(fit(name, room) + " ", style if here or not axis.special[at] else DIM),
    ]


def _body(state: WalkState, scene: Scene, layout: _Layout, window: Window) -> list[Line]:
    ink = state.ink
    signed = state.drawn_stage != "weights"
    shades = steps(window.values, state.scale(window.kind), ink)
    if state.drawn_stage == "weights" and scene.rounded is None:
        shades[window.values == 0] = FORBIDDEN
    cursor = state.query // layout.zoom - layout.rows.start
    column = state.column // layout.zoom - layout.columns.start
    halves: list[Line] = []
    if layout.mode == "halves":
        at = None
        if 0 <= cursor < len(layout.rows) and column >= 0:
            at = (cursor, column)
        halves = ink.halves(shades, signed=signed, cursor=at)
    masked_rows = frozenset() if state.drawn is None else state.drawn.masked_rows
    # the lines of a tall cell that have no number, whose sign is that of the shade
    bare = replace(layout, form=None)
    lines: list[Line] = []
    for first_row in range(0, len(layout.rows), layout.rows_per_line):
        row = layout.rows.start + first_row
        last = first_row + layout.rows_per_line
        label = _label(
            state, scene.queries, row, min(row + layout.rows_per_line, layout.rows.stop) - 1, layout
        )
        if halves:
            lines.append([*label, *halves[first_row // 2]])
            continue
        here = column if first_row <= cursor < last else -1
        cells = window.values[first_row].tolist(), shades[first_row].tolist()
        texts = _texts(state, scene, *cells, layout, masked=row in masked_rows)
        blank = [" " * layout.cell] * shades.shape[1]
        if layout.mode == "shades":
            blank = _texts(state, scene, *cells, bare, masked=row in masked_rows)
            blank = [text.replace(NO_WEIGHT, " ") for text in blank]
            blank = [text[1] * layout.cell for text in blank] if layout.form else blank
        # Numbers, and signs of forbidden cells, stand in the middle of a tall cell.
        label_row = 0
        if layout.form or layout.mode == "shades":
            label_row = (layout.tall - 1) // 2
        for n in range(layout.tall):
            before = label if n == label_row else [Segment(" " * layout.label)]
            row_texts = texts if n == label_row else blank
            drawn_cells = _cells(ink, row_texts, cells[1], signed, here, layout)
            if not here and layout.mode == "shades" and layout.cell == 2:
                (*before, last_piece) = before
                bracket = Segment("<" if ink.ascii else "‹", BOLD)
                before = [*before, Segment(last_piece.text[:-1], last_piece.style), bracket]
            lines.append([*before, *drawn_cells])
    return lines


def _texts(
    state: WalkState,
    scene: Scene,
    values: Sequence[float],
    row: Sequence[int],
    layout: _Layout,
    *,
    masked: bool,
) -> list[str]:
    """Return what is written in a row of the visible cells: numbers, shades, or a mark of forbidden cells.

    Args:
        state: The walk.
        scene: Its scene.
        values: Numbers of the cells.
        row: Their steps.
        layout: How they are drawn.
        masked: Whether the row may attend to nothing.
    """
    ink = state.ink
    stage = state.drawn_stage
    cell = layout.cell
    form = layout.form
    shades = [" "] * len(row)
    if layout.mode == "shades":
        shades = [ink.shade(step, signed=stage != "weights") for step in row]
    if form is None:
        forbidden = NO_WEIGHT.center(cell)
        return [
            forbidden if step == FORBIDDEN else (shade * cell)[:cell]
            for shade, step in zip(shades, row, strict=True)
        ]
    texts = []
    for value, shade in zip(values, shades, strict=True):
        if isnan(value) and not masked:
            text = ""
        elif value == -inf:
            text = NO_WEIGHT
        elif value == 0 and scene.rounded is not None:
            # A rounded zero is zero as far as is known.
            text = form.digits.text(value)
        else:
            text = cell_text(stage, value, masked, form.digits)
        text = ink.plain(text)
        if layout.mode == "digits":
            # Columns of digits are aligned; other cells have their numbers in the middle, between shades.
            text = _without_zero(text) if form.is_short else text
            texts.append(fit(text, cell, right=True))
            continue
        text = _without_zero(text) if form.is_short else text.strip()
        around = " "
        if _is_number(text):
            around = shade[-1]
            text = text.rjust(form.columns - 1)
            if layout.mode == "shades" and len(text) + 4 > cell:
                # as in the map of heads, a shade stands behind its number, or above and below
                text = f"{text}{around if layout.tall == 1 else ' '} ".rjust(cell)
        if around != " " and len(text) + 4 <= cell:
            text = f" {text} "
        texts.append(text.center(cell, around))
    return texts


def _is_number(text: str) -> bool:
    """Tell whether a cell has a number, and no sign or word."""
    return any(letter.isdigit() for letter in text)


def _cells(
    ink: Ink, texts: Sequence[str], row: list[int], signed: bool, here: int, layout: _Layout
) -> Line:
    """Return a line of a row of cells; the cell under the cursor is in brackets, on its own colour if they fit."""
    colours = [PLAIN if layout.mode == "shades" else ink.cell(step, signed=signed) for step in row]
    styles = [
        ink.forbidden if step == FORBIDDEN else colour
        for step, colour in zip(row, colours, strict=True)
    ]
    if here < 0:
        return joined(zip(texts, styles, strict=True))
    left, right = "<>" if ink.ascii else "‹›"
    if layout.mode == "shades" and layout.cell == 2 and (layout.spare or here + 1 < len(row)):
        # brackets take a column of the neighbours, so that the cell keeps its shade
        pieces = [*zip(texts, styles, strict=True)]
        pieces[here + 1 : here + 2] = [
            (right, BOLD),
            *((t[1:], s) for t, s in pieces[here + 1 :][:1]),
        ]
        if here:
            pieces[here - 1 : here] = [(texts[here - 1][:1], styles[here - 1]), (left, BOLD)]
        return joined(pieces)
    last = texts[here].rstrip()[-1:]
    around = last if last and last in ink.shades and layout.mode == "shades" else " "
    inside = texts[here].strip(ink.shades) if layout.form else ""
    if len(inside) + 2 > layout.cell:
        inside = _without_zero(inside)
    if layout.mode == "shades" and not _is_number(inside):
        inside = texts[here][2:]
    # a number leaves its shade a column
    edges = 2 + (layout.mode == "shades" and _is_number(inside))
    fits = len(inside) + edges <= layout.cell and layout.mode in ("blocks", "shades")
    styles[here] = colours[here] + BOLD if fits else CURSOR
    if fits:
        inside = f" {inside} " if len(inside) + 6 <= layout.cell else inside
        frame = left + inside.center(layout.cell - 2, around) + right
    else:
        frame = texts[here]
    if fits or not layout.form:
        texts = [*texts[:here], frame, *texts[here + 1 :]]
    elif layout.mode == "shades":
        # reversed, a shade would be another one
        number = frame.rstrip(ink.shades)
        texts = [*texts[:here], number, frame[len(number) :], *texts[here + 1 :]]
        styles.insert(here + 1, PLAIN)
    return joined(zip(texts, styles, strict=True))


def _legend(state: WalkState, layout: "_Layout", window: Window, width: int) -> list[Line]:
    """Return the ramp between the numbers at its ends, and what the cells are."""
    ink = state.ink
    scale = state.scale(window.kind)
    head = state.drawn
    stage = state.drawn_stage
    remark = wrapped(_remark(state, layout, window, width - 2), width - 2)
    remarks = styled((f"  {line}" for line in ended(remark, width - 2)), DIM)
    if window.kind == "missing" or head is None or (layout.mode == "digits" and not ink.colours):
        return remarks
    signed = stage != "weights"
    if not ink.colours:
        legend = ink.plain(ink.shade_legend(scale, signed=signed))
        return [cut([Segment(f"  {legend}")], width), *remarks]
    return [cut([Segment("  "), *_ramp(scale, ink, width - 2)], width), *remarks]


@lru_cache(maxsize=64)
def _ramp(scale: Scale | LogScale, ink: Ink, width: int) -> Line:
    """Return the ramp of a scale with numbers that fit into a width."""
    ramp: list[tuple[str, Style]] = []
    for precision, words in product((2, 1, 0), (True, False)):
        digits = digits_for(np.array([scale.low, scale.high], dtype=np.float32), precision)
        if isinstance(scale, LogScale):
            low = f"{scale.low:.1e}"
        else:
            low = digits.text(scale.low)
        ends = ink.plain(low), ink.plain(digits.text(scale.high))
        ramp = ramp_pieces(scale, *ends, ink.colours, ink.surface, words=words, room=width)
        ramp = ramp if words else _shortened(ramp, width)
        if sum(cell_len(text) for text, _ in ramp) <= width:
            break
    low_end, *inner, high_end = ramp
    zero = ink.cell(0, signed=False)
    inner = [(text, zero if ground_of(style) is None else style) for text, style in inner]
    return joined([low_end, *inner, high_end])


def _shortened(ramp: list[tuple[str, Style]], width: int) -> list[tuple[str, Style]]:
    """Leave out numbers of a ramp, but not those of its ends and its middle, until it is not wider."""
    low, *inner, high = ramp
    for step in (1, 2, 4, len(inner)):
        names = [
            (name if (n - len(inner) // 2) % step == 0 else " ", style)
            for n, (name, style) in enumerate(inner)
        ]
        if sum(cell_len(name) for name, _ in (low, *names, high)) <= width:
            break
    return [low, *names, high]
