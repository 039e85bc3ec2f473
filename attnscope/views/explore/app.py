"""The application: panels, keys, the mouse, and a thread that computes missing scenes and heads."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
from rich.cells import cell_len
from rich.segment import Segment
from rich.text import Text
from textual import events
from textual.app import App, ComposeResult
from textual.containers import Container, Horizontal, Vertical
from textual.screen import Screen
from textual.widgets import Input, Static

from attnscope.base.errors import AttnscopeError, OptionName, Spelling
from attnscope.base.system.escape import escape_control
from attnscope.findings.run import Report
from attnscope.views.axes import position_runs
from attnscope.views.explore.head_panel import HeadsPanel
from attnscope.views.explore.headings import BETWEEN, TitlePart, model_forms, shortened
from attnscope.views.explore.ink import (
    BAR,
    BOLD,
    DIM,
    TITLE,
    Ink,
    Line,
    PanelFrame,
    bar,
    cells_wide,
    clickable,
    cut,
    ended,
    fit,
    fitting,
    wrapped,
)
from attnscope.views.explore.matrix import MatrixPanel
from attnscope.views.explore.overlays import Menu, Overlay, commands_of, display_menu, help_text
from attnscope.views.explore.pane import Pane
from attnscope.views.explore.row import TWO_COLUMNS, RowPanel
from attnscope.views.explore.state import HEAD_DIGITS, WalkState
from attnscope.views.explore.text import TextPanel
from attnscope.views.explore.worker import Job, Worker
from attnscope.views.palette import surface_on
from attnscope.views.spans import Span
from attnscope.views.terminal import as_text
from attnscope.views.terminal.colours import count_colours
from attnscope.views.walk.cell import (
    arithmetic,
    cell_numbers,
    command,
    comparing_command,
    effect_of_row,
    place_of_effect,
    weight_text,
)
from attnscope.views.walk.keys import ACTIONS, KeyAction, footer, spell_key
from attnscope.views.walk.place import LENS, PANELS, Action, Begin, Place, Spot, uncut
from attnscope.views.walk.scene import EFFECT, ROW_EFFECT, Progress, Scene, Source, Variant, WalkCut

# Columns and lines from which all panels are shown at once, and from which they are frames.
_WIDE = 76
_HIGH = 22
_FRAMED = 30, 10
# Columns from which the row may stand below the matrix or the heads, and of a matrix between heads and row, at least;
# otherwise the row is above the heads.
_THREE = 100
_BETWEEN = 44
# Columns of panels, frames included: of heads and row at least, of the row at most, and of both beside a matrix.
_HEADS = 36
_FEW_HEADS = 24
_ROW = 40
_WIDEST_ROW = 64
_BESIDE = 40
# Columns beside the letters of roles: of the frame, of layers, and of what the letters mean.
_LETTERS = 21
_WIDEST_BESIDE = 44
# Columns of a cell with a number, of the widest cell, and of the labels of rows.
_CELL = 5
_WIDEST_CELL = 12
_LABEL = 20
# Lines of a panel of heads or a matrix that are no heads or rows, and of a row below them: in one column, or in two.
# Below a matrix, it is smaller rather than that rows or the names of columns have no room, of which some letters do.
_HEADS_EDGES = 7
_MATRIX_EDGES = 11
_FEWEST_EDGES = 7
_FULL_ROW = 16
_FLAT_ROW = 13
_LEAST_ROW = 10
# Lines of a row in one column that are no sources.
_BESIDE_SOURCES = 11
_ROW_EDGES = 3
# Lines of the row above the heads, at least: usually, if heads have roles with meanings, and with predictions.
_ROW_LINES = 9
_ROW_OF_ROLES = 6
_PREDICTED_ROW = 12
# Columns from which the footer of a small terminal has room for a key beside the arithmetic.
_FOOTED = 70
# An edited text is computed after this number of seconds without a key.
_PAUSE = 0.4
# Seconds between two looks whether the terminal is still there.
_WATCH = 1.0
# Rows before and after the cursor that are computed with it in a long text.
_AROUND = 128
# Parts of the title, the one that is shortened first at the start: a model and cuts get their
# shortest form before they are left out.
_SHORTENED = (
    "own mask", "model", "text", "unit", "brand", "trail", "cuts", "mask", "cuts", "model", "status", "head"
)  # fmt: skip
# Characters that are copied at most.
_COPIED = 4 << 20
# Actions that need no scene, and how many keys for others wait for the first one.
_ANYTIME = ("quit", "help", "palette")
_MOST_EARLY = 100
_WAITS = "next, after what is computed now"
_RUNS = "computed now; Esc drops it"
_EFFECTS = "effects"  # kind of their job
_ONE_PANEL = "there is room for one panel at a time; Tab shows the next"
# Actions that take the model, which saved findings don't have.
_COMPUTING = ("cut", "effects", "explain", "edit")
_SHAPES = {"sqrt": "the root of weights", "linear": "weights", "log": "the logarithm of weights"}
_COPY = {"c": "cell", "r": "row", "m": "matrix"}
_ASKED = {"find": "find", "pick": "text", "edit": "edit", "write": "write"}
# on a small terminal, the panel that shows what an action changes
_SHOWN_IN = {"lens": "heads", "display": "heads", "roles": "heads", "effects": "heads"}
_SHOWN_IN |= {"predictions": "row"}
_SHOWN_IN |= dict.fromkeys(("digits", "zoom_in", "zoom_out", "stage", "previous_stage"), "matrix")


# left edge, upper edge, width and height
Box = tuple[int, int, int, int]


class WalkScreen(Screen[None], inherit_bindings=False):
    """The screen with the panels."""

    app: "ExploreApp"
    AUTO_FOCUS = ""
    CSS = """
    WalkScreen { background: ansi_default; color: ansi_default; overflow: hidden; layers: base; }
    WalkScreen Pane { background: ansi_default; color: ansi_default; }
    #title, #footer { height: 1; }
    #body { height: 1fr; }
    #body Pane { position: absolute; }
    #ask { height: 1; display: none; }
    #asked { width: auto; text-style: bold reverse; margin-right: 1; background: ansi_default; color: ansi_default; }
    #prompt { width: 1fr; height: 1; border: none; padding: 0; background: ansi_default; color: ansi_default; }
    #prompt:focus { border: none; background: ansi_default; background-tint: ansi_default 0%; }
    """

    def compose(self) -> ComposeResult:
        """Create the panels."""
        with Vertical():
            yield self.app.panes["title"]
            with Container(id="body"):
                for name in PANELS:
                    yield self.app.panes[name]
            with Horizontal(id="ask"):
                yield Static(id="asked", markup=False)
                yield Input(id="prompt", compact=True, select_on_focus=False)
            yield self.app.panes["footer"]

    def on_resize(self, event: events.Resize) -> None:
        """Arrange the panels for a new size."""
        self.app.arrange(event.size.width, event.size.height)

    def on_key(self, event: events.Key) -> None:
        """Perform the action of a key."""
        if self.app.key(event):
            event.stop()
            event.prevent_default()

    def on_input_changed(self, event: Input.Changed) -> None:
        """Compute an edited text after a pause."""
        self.app.prompt_changed(event.value)

    def on_input_submitted(self, event: Input.Submitted) -> None:
        """Apply the typed text."""
        self.app.prompt_done(event.value)


def _spelled(event: events.Key) -> str:
    """Return the character of a key, or its name: that of a space, or of Enter, whose character ends a line."""
    is_shown = event.is_printable and event.character and event.character != " "
    return str(event.character) if is_shown else event.key


class ExploreApp(App[int], inherit_bindings=False):
    """A walk in a terminal; `colours` is None for as many as the terminal has.

    `background`: red, green and blue of the terminal; None if they are not known.
    """

    ENABLE_COMMAND_PALETTE = False
    # Writes a report to a file of this name, and describes the file.
    write: Callable[[Report, str], str]

    def __init__(
        self,
        source: Source,
        actions: tuple[KeyAction, ...] = ACTIONS,
        begin: Begin | None = None,
        colours: int | None = None,
        background: Sequence[int] | None = (0, 0, 0),
    ) -> None:
        super().__init__(ansi_color=True)
        self.state = WalkState(source, begin=begin)
        self.actions = actions
        self.colours = colours
        self._surface = surface_on(background)
        self.failure: BaseException | None = None
        self.watch_terminal: Callable[[], bool] | None = None
        self.spelling: Spelling = OptionName.in_python
        self._by_key = {key: action.name for action in actions for key in action.keys}
        self._panels: dict[str, Any] = {
            "heads": HeadsPanel(), "matrix": MatrixPanel(), "row": RowPanel(), "text": TextPanel()
        }  # fmt: skip
        self._special: dict[str, Callable[[], object]] = {
            "quit": lambda: self.exit(0),
            "help": lambda: self.push_screen(
                Overlay("keys", help_text(self.actions, self.state.ink, self.size.width))
            ),
            "palette": lambda: self.push_screen(
                Menu("commands", commands_of(self), self.state.ink)
            ),
            "display": lambda: self.push_screen(display_menu(self)),
            "lens": self._lens,
            "find": self._ask_token,
            "next_match": lambda: self._find(self.place.needle, 1),
            "previous_match": lambda: self._find(self.place.needle, -1),
            "write": lambda: self._prompt(
                "write", "a file: .html .svg .png .pdf .txt .json .npz .csv …", ""
            ),
            "copy": lambda: setattr(self, "_mode", "copy"),
            "pick": self._ask_text,
            "edit": self._edit,
            "digits": self._digits,
            "cut": self._cut,
            "roles": self._roles,
            "effects": self._effects,
            "explain": self._explain,
            "enlarge": lambda: self._enlarge(True),
            "restore": lambda: self._enlarge(False),
        }
        self.panes: dict[str, Pane] = {}
        self.worker = Worker(self.call_later, self._report)
        # What the prompt asks for, `copy` while the next key says what to copy, or `lens` while the last line says which
        # digits go to heads.
        self._mode = ""
        self._before: Source | None = None
        self._edited: Any = None
        self._has_room = True  # for all panels
        self._wide = True  # all panels are shown
        self._arranged: dict[str, Box] = {}  # where the panels are
        self._enlarged = False  # the panel that keys move in has the whole screen
        self._notice = ""
        self._found_from = self.place  # where the search began
        self._early: list[events.Key] = []  # keys that wait for the first scene
        self._effects_wanted = False  # they are measured, and shown with the next scene
        self._effects_wait = False  # until the screen lacks nothing

    @property
    def place(self) -> Place:
        """The current place."""
        return self.state.place

    @property
    def scene(self) -> Scene | None:
        """The scene of the place; see WalkState."""
        return self.state.scene

    @property
    def source(self) -> Source:
        """What is walked through."""
        return self.state.source

    # start and end

    def on_mount(self) -> None:
        """Show a skeleton, and begin to compute."""
        utf8 = (self.console.encoding or "utf-8").lower().replace("-", "").startswith("utf")
        if self.colours is None:
            self.colours = 0 if self.no_color else count_colours(self.console.color_system)
        self.state.ink = Ink(self.colours, not utf8, self._surface)
        self.panes = {
            name: Pane(name) for name in ("title", "heads", "matrix", "row", "text", "footer")
        }
        self.push_screen(WalkScreen())
        if self.size.width < _FOOTED:
            self._notice = "? lists all keys"
        self.worker.start()
        self.ask()
        if self.state.placed:
            self._offer_heads(typed=False)
        if (is_there := self.watch_terminal) is not None:
            self.set_interval(_WATCH, lambda: None if is_there() else self.exit(129))

    def _handle_exception(self, error: Exception) -> None:
        """End, and leave it to the caller to report an error."""
        if self._exit:
            return
        self.failure = self.failure or error
        self._return_code = 70
        self.exit(70)

    def on_unmount(self) -> None:
        """Stop computing."""
        self.worker.stop()

    # drawing

    def draw(self, name: str, width: int, height: int) -> tuple[list[Line], PanelFrame | None]:
        """Return the lines of a pane, and the frame that is around them; None for none."""
        if name in ("title", "footer"):
            return [(self._title if name == "title" else self._footer)(width)], None
        frame = None
        if self._is_framed(width, height):
            focused = self.place.panel == name
            panel_number = PANELS.index(name) + 1
            frame = PanelFrame(width, height, focused, self.state.ink.ascii, panel_number)
        width, height = self._inside(width, height)
        if self.scene is None:
            return self._skeleton(name, width, height), frame
        return self._panels[name].draw(self.state, width, height), frame

    def _is_framed(self, width: int, height: int) -> bool:
        return self._wide or (width >= _FRAMED[0] and height >= _FRAMED[1])

    def _inside(self, width: int, height: int) -> tuple[int, int]:
        """Return the columns and lines that a panel of this size draws; the upper edge of a frame has its title."""
        if self._is_framed(width, height):
            return width - 2, height - 1
        return width, height

    def _skeleton(self, name: str, width: int, height: int) -> list[Line]:
        """Return the lines before anything has been computed: titles, the text, and the progress."""
        ink = self.state.ink
        state = self.state
        lines: list[Line] = [[Segment(f" {name} ", state.title(name))]]
        if name == "text":
            text = ink.name(Span(state.source.texts[0], origin="untrusted"))
            return [
                [*lines[0], Segment(" ")],
                *([Segment(line)] for line in wrapped(text, width)[: height - 1]),
            ]
        if name == "matrix" and height > 4:
            wide = max(0, min(40, width - 4))
            filled = fit(bar(self.worker.share, wide, ascii=ink.ascii), wide)
            status = fit(ink.plain(state.status or "starting …"), width - 2)
            lines += [
                [],
                [Segment("  " + status, DIM)],
                [Segment("  "), Segment(filled, ink.style("good") + BAR)],
            ]
        return lines

    def arrange(self, width: int, height: int) -> None:
        """Show all panels, or on a small terminal, and if it is enlarged, the one that keys move in."""
        self._has_room = width >= _WIDE and height >= _HIGH
        self._wide = self._has_room and not self._enlarged
        if self._has_room and self._notice == _ONE_PANEL:
            self._notice = ""
        boxes = self._arranged = self._boxes(width, height - 2)
        for name in PANELS:
            pane = self.panes[name]
            pane.display = name in boxes
            if name in boxes:
                x, y, across, down = boxes[name]
                pane.styles.offset = (x, y)
                pane.styles.width = across
                pane.styles.height = down
        self.call_after_refresh(self.redraw)

    def _rearrange(self) -> None:
        """Arrange the panels anew if what they show now, such as another text, takes another room."""
        width, height = self.size
        if self.panes and self._boxes(width, height - 2) != self._arranged:
            self.arrange(width, height)

    def _boxes(self, width: int, height: int) -> dict[str, Box]:
        """Return the left edge, upper edge, width and height of every panel that is shown.

        Lines that a map leaves in its panel are the text's, and the other panels have all lines then.
        """
        boxes = self._usual_boxes(width, height)
        scene = self.scene
        if scene is None or not self._wide or self.place.zoom == 1 or width < _THREE:
            return boxes
        x, y, across, down = boxes["matrix"]
        used = self._panels["matrix"].lines_used(self.state, *self._inside(across, down)) + 1
        text_lines = 2 + self._panels["text"].count_lines(self.state, width - 2)
        if y or y + down < boxes["text"][1] or used == down or text_lines <= boxes["text"][3]:
            return boxes
        upper = boxes["text"][1]
        for name, (left, top, wide, tall) in boxes.items():
            if top + tall == upper:
                boxes[name] = (left, top, wide, height - top)
        boxes["matrix"] = (x, y, across, used)
        boxes["text"] = (x, used, across, height - used)
        return boxes

    def _usual_boxes(self, width: int, height: int) -> dict[str, Box]:
        """Return the boxes of panels with the text below all others."""
        if not self._wide:
            return {self.place.panel: (0, 0, width, height)}
        scene = self.scene
        text = 6 if height >= 38 else 5 if height >= 26 else 4
        if scene is not None:
            text = min(text, 2 + self._panels["text"].count_lines(self.state, width - 2))
        upper = height - text
        boxes = {"text": (0, upper, width, text)}
        n_layers, n_heads, n_queries, n_keys = self._counts()
        least = min(_HEADS, max(_FEW_HEADS, 8 + 6 * n_heads))
        numbers = _LABEL + _CELL * n_keys + 2
        spare = width - least - _ROW
        if width >= _THREE and n_layers + _HEADS_EDGES + _FULL_ROW <= upper:
            # Few layers leave room for the row below them, and the matrix has all the rest that it can use.
            used = _LABEL + _WIDEST_CELL * n_keys
            left = max(_BESIDE, 8 + 5 * n_heads, min(_WIDEST_ROW, width - used))
            left = min(left, max(_BESIDE, 8 + 3 * n_heads, width - numbers), width // 2)
            tall = max(1, (left - 8) // n_heads // 2)
            wide_row = TWO_COLUMNS + 2
            lacks_lines = n_layers * tall + _HEADS_EDGES + n_keys + _BESIDE_SOURCES > upper
            if lacks_lines and left < wide_row <= min(width // 2, width - numbers):
                # the sources have a column of their own then
                left = wide_row
                tall = max(1, (left - 8) // n_heads // 2)
            spare = upper - n_keys - _BESIDE_SOURCES - _ROW_EDGES - _HEADS_EDGES
            tall = max(tall, min((left - 8) // n_heads // 2 + 1, spare // n_layers))
            heads = min(n_layers * tall + _HEADS_EDGES, upper - _FULL_ROW)
            boxes["heads"] = (0, 0, left, heads)
            boxes["row"] = (0, heads, left, upper - heads)
            boxes["matrix"] = (left, 0, width - left, upper)
            return boxes
        fits_below = n_queries + _FEWEST_EDGES + _LEAST_ROW <= upper
        if width < _THREE or (spare < _BETWEEN and not fits_below):
            return boxes | self._narrow_boxes(width, upper)
        if self.place.display == "roles" and n_layers + _HEADS_EDGES > upper:
            # The letters have their meanings beside the heads, which have all lines then.
            least = max(least, min(_WIDEST_BESIDE, 2 * n_heads + _LETTERS))
            spare = width - least - _ROW
        if spare < numbers and fits_below:
            # The row is below the matrix, whose cells are wider then.
            all_names = min(n_queries + _MATRIX_EDGES, upper - _LEAST_ROW)
            matrix = min(max(upper - _FLAT_ROW, all_names), 2 * n_queries + _MATRIX_EDGES)
            boxes["heads"] = (0, 0, least, upper)
            boxes["matrix"] = (least, 0, width - least, matrix)
            boxes["row"] = (least, matrix, width - least, upper - matrix)
            return boxes
        # The matrix takes what its numbers need; the heads have what thumbnails need, and the row the rest.
        matrix = min(spare, max(numbers, spare // 2))
        heads = min(width - _ROW - matrix, max(least, 8 + 13 * n_heads))
        row = min(_WIDEST_ROW, width - matrix - heads)
        matrix = width - heads - row
        boxes["heads"] = (0, 0, heads, upper)
        boxes["matrix"] = (heads, 0, matrix, upper)
        boxes["row"] = (heads + matrix, 0, row, upper)
        return boxes

    def _narrow_boxes(self, width: int, upper: int) -> dict[str, Box]:
        """Return the boxes of a matrix, and beside it the row above the heads."""
        scene = self.scene
        n_layers, n_heads, *_ = self._counts()
        row = _ROW_OF_ROLES if self.place.display == "roles" else _ROW_LINES
        predicts = scene is not None and (scene.predictions or self.place.cuts)
        row = _PREDICTED_ROW if self.place.predictions and predicts else row
        heads = max(min(n_layers + 5, upper - row), upper // 3)
        side_width = max(_BESIDE, min(_WIDEST_BESIDE, 6 + 3 * n_heads))
        left = width - side_width
        return {
            "matrix": (0, 0, left, upper),
            "row": (left, 0, side_width, upper - heads),
            "heads": (left, upper - heads, side_width, heads),
        }

    def _counts(self) -> tuple[int, int, int, int]:
        """Return the numbers of layers, heads, queries and keys; before there is a scene, usual ones."""
        scene = self.scene
        if scene is None:
            return 12, 12, 8, 8
        return (
            len(scene.layers),
            len(scene.heads),
            len(scene.queries.positions),
            len(scene.keys.positions),
        )

    def _enlarge(self, enlarged: bool) -> None:
        """Give the panel that keys move in the whole screen, or show all of them again, if that changes anything."""
        if not self._has_room:
            self._notice = _ONE_PANEL
            return
        self._enlarged = enlarged
        self.arrange(self.size.width, self.size.height)

    def redraw(self) -> None:
        """Draw changes."""
        for pane in self.panes.values():
            pane.redraw()

    def _title(self, width: int) -> Line:
        state = self.state
        ink = self.state.ink
        scene = state.scene
        if scene is None:
            said = self._notice if self._early else state.status or "starting …"
            brand = Segment(" attnscope ", TITLE)
            return cut([brand, Segment(ink.plain(f" {said}"), DIM)], width)
        said = state.error or self._notice
        look = ink.style("bad" if state.error else "good")
        parts = self._title_parts(scene)
        if said:
            parts["said"] = TitlePart([ink.plain(said)], look)
        names = [*parts]
        order = [names.index(name) for name in _SHORTENED if name in parts]
        fitting_parts = shortened([*parts.values()], width, order)
        line: Line = []
        for n, (text, style) in enumerate(fitting_parts, 1):
            room = width - cells_wide(line) - len(BETWEEN) * bool(line)
            if said and n == len(fitting_parts):
                # a message that is longer than the line ends at a word
                text = ended(wrapped(text, room), room)[0]
            line += [Segment(BETWEEN * bool(line)), Segment(text, style)]
        return cut(line, width)

    def _title_parts(self, scene: Scene) -> dict[str, TitlePart]:
        """Return the parts of the title by their names, in the order in which they stand there."""
        state = self.state
        ink = state.ink
        spot = state.spot
        parts = {"brand": TitlePart.of(" attnscope ", style=TITLE)}
        if scene.random:
            parts["random"] = TitlePart([" RANDOM WEIGHTS "], ink.style("alarm"))
        last_parts = {}
        if state.status:
            first_step, *steps = state.status.split(" · ")
            brief = " · ".join([first_step, *steps[-1:]])
            last_parts["status"] = TitlePart.of(
                ink.plain(state.status), ink.plain(brief), style=ink.style("remark")
            )
        if state.place.trail:
            parts["trail"] = TitlePart(self._trail(scene), BOLD)
            return parts | last_parts
        if state.head is None:
            name = f"L{scene.layers[spot.layer]}H{scene.heads[spot.head]}"
        else:
            name = state.head.name
        parts["model"] = TitlePart.of(*model_forms(scene.model), style=BOLD)
        names = [name]
        is_begin = (spot.layer, spot.head) == scene.first
        if state.source.compared and is_begin and len(scene.layers) * len(scene.heads) > 1:
            names.insert(0, f"{name}, which moves most")
        parts["head"] = TitlePart.of(*names)
        asked_mask = state.variant().mask
        is_own = asked_mask == "own"
        if is_own and scene.mask:
            mask = f"mask own ({scene.mask})"
        elif state.source.compared and scene.mask != asked_mask:
            mask = asked_mask  # a side that differs in something else, such as its text
        else:
            mask = f"mask {asked_mask}"
        # one that nobody chose is the first to go
        is_usual = is_own or len(state.source.masks) == 1
        parts["own mask" if is_usual else "mask"] = TitlePart.of(escape_control(mask), style=DIM)
        if state.source.total > 1:
            text = ""
            if spot.text < len(state.source.texts):
                text = state.source.texts[spot.text]
            which = f"{spot.text + 1:,} of {state.source.total_text}"
            text_name = "text"
            if state.source.named:
                text_name = fit(escape_control(text), 24).rstrip()
            parts["text"] = TitlePart([f"{text_name} · {which}", which], DIM)
        if scene.unit != "tokens":
            parts["unit"] = TitlePart.of(
                escape_control(f"{scene.unit} {scene.division}".rstrip()), scene.unit, style=DIM
            )
        if state.place.cuts:
            (first_cut, *others) = state.place.cuts
            without = f"without {first_cut.written}"
            if first_cut.edge:
                head, _, tokens = first_cut.written.partition(": ")
                without = f"without edge {tokens} of {head}"
            forms = [f"{without} and {len(others)} more" if others else without]
            forms.append(f"{len(others) + 1} cut")
            parts["cuts"] = TitlePart.of(*map(ink.plain, forms), style=ink.style("warning"))
        return parts | last_parts

    def _trail(self, scene: Scene) -> list[str]:
        """Return the cells that were followed to the one under the cursor: all of them, and fewer of the last ones."""
        place = self.place
        steps = [self._cell(scene, spot) for spot in (*place.trail, place.spot)]
        trails = [" ▸ ".join(["…", *steps[n:]]) for n in range(1, len(steps))]
        return [*map(self.state.ink.plain, (" ▸ ".join(steps), *trails))]

    def _cell(self, scene: Scene, spot: Spot) -> str:
        names = [
            scene.queries.names[spot.query],
            *([] if spot.key is None else [scene.keys.names[spot.key]]),
        ]
        cell = " ← ".join(map(self.state.ink.name, names))
        return f"{cell} {self._head(scene, spot)}"

    def _head(self, scene: Scene, spot: Spot) -> str:
        return f"L{scene.layers[spot.layer]}H{scene.heads[spot.head]}"

    def _footer(self, width: int) -> Line:
        if self._mode == "copy":
            choices = [Segment(f" {key} {what} ", clickable(what)) for key, what in _COPY.items()]
            return cut([Segment(" copy ", TITLE), *choices, Segment(" Esc nothing")], width)
        lens: Line = []
        if self._mode == "lens":
            lens = [Segment(" lens ", TITLE), Segment(f" {self._digits_of_lens()}")]
        by_name = {action.name: action for action in self.actions}
        place = self.place
        panel = place.panel
        # what a head reads leads to the question whether it matters
        names = ["cut", "help", "quit"] if lens else footer(panel)
        restored = 0
        missing = {*["enlarge"] * (not self._wide), *["digits"] * (place.zoom > 1)}
        if not self.source.computes:
            has_roles = self.scene is not None and self.scene.roles
            missing |= {*_COMPUTING, *["roles"] * (not has_roles)}
        if self._enlarged and self._has_room:
            names = ["restore", *names]
            restored = len(by_name["restore"].brief) + 4
        # the way back is the only one that the arithmetic leaves room for in any case
        line = lens or self._brief_arithmetic(width - restored)
        used = cells_wide(line)
        for action in (by_name[name] for name in names if name not in missing):
            if not action.keys:
                continue
            key = self.state.ink.plain(spell_key(action.keys[0]))
            calls = clickable(action.name)
            brief = action.brief
            if action.name == "cut":
                what = "head" if panel == "heads" else "edge"
                if lens and panel == "heads" and self.scene is not None:
                    # none of the listed heads need be the one that is cut
                    what = self._head(self.scene, self.place.spot)
                brief = f"put {what} back" if self._cut_here in place.cuts else f"{brief} {what}"
            used += 2 * bool(line) + cell_len(key) + 1 + len(brief)
            if used > width:
                break
            line += [
                Segment("  " * bool(line)),
                Segment(key, BOLD + calls),
                Segment(f" {brief}", DIM + calls),
            ]
        return cut(line, width)

    @property
    def _listed_heads(self) -> int:
        """How many of the strongest heads the lens lists; all of them before it is drawn, and none if it is not seen."""
        place = self.place
        if self.scene is None or place.display != LENS or not self.panes["heads"].display:
            return 0
        count = len(self.state.strongest_heads())
        return min(self._panels["heads"].listed or count, count)

    def _digits_of_lens(self) -> str:
        """Say which digits go to heads that the lens lists."""
        digits = HEAD_DIGITS[: self._listed_heads]
        if not digits:
            return "no head reads this cell; any key goes on"
        if len(digits) == 1:
            return f"{digits} goes to the strongest"
        between, go = ("or", "goes") if len(digits) == 2 else ("to", "go")
        return f"{digits[0]} {between} {digits[-1]} {go} to one of the strongest"

    def _brief_arithmetic(self, width: int) -> Line:
        """Return the arithmetic of the cell, which a small terminal shows in its last line; of it, the end or the weight."""
        state = self.state
        scene = state.scene
        head = state.head
        panel = state.place.panel
        if self._wide or scene is None or head is None:
            return []
        cell = cell_numbers(scene, head, state.query, state.key)
        steps = arithmetic(head, cell, state.forbidden)
        forms = [" ".join(steps[n:]) for n in range(len(steps))]
        if cell.weight is not None:
            forms.append(f"weight {weight_text(cell.weight, cell.rounded)}")
        title = Segment(f" {panel} ", TITLE + clickable("next_panel"))
        room = width - cells_wide([title]) - 1
        formula = fitting([*map(state.ink.plain, forms)], room)
        return [title, Segment(f" {ended(wrapped(formula, room), room)[0]}")]

    # keys and mouse

    def key(self, event: events.Key) -> bool:
        """Perform the action of a key; return whether it has one."""
        printable = event.is_printable and event.character
        pressed = _spelled(event)
        if event.key == "ctrl+c":
            self.exit(130)
            return True
        # The key was typed before what is over the panels was there.
        if not isinstance(self.screen, WalkScreen):
            self.post_message(events.Key(event.key, event.character))
            return True
        if self._asking:
            if event.key == "escape":
                self._close_prompt(restore=True)
            elif event.key == "enter":
                self.prompt_done(self.screen.query_one("#prompt", Input).value)
            elif printable and event.character:
                # The key was typed before the prompt had the focus.
                self.screen.query_one("#prompt", Input).insert_text_at_cursor(event.character)
            return event.key in ("escape", "enter") or bool(printable)
        if self._mode == "copy":
            self._mode = ""
            if pressed in _COPY:
                self._copy(_COPY[pressed])
            self.redraw()
            return True
        if self._mode == "lens":
            self._mode = ""
            self._panels["heads"].seen = None
        if pressed in HEAD_DIGITS[: self._listed_heads]:
            self._go_to_strongest(HEAD_DIGITS.index(pressed))
            return True
        if event.key == "escape":
            if not self._drop_waiting() and self._enlarged and self._has_room:
                self._enlarge(False)
            self.redraw()
            return True
        name = self._by_key.get(pressed)
        if self.scene is None and name not in _ANYTIME:
            self._early = [*self._early, event][-_MOST_EARLY:]
            keys = [spell_key(_spelled(early)) for early in self._early]
            self._notice = f"loading; then {' '.join(keys)}"
            self.redraw()
            return True
        if name is None:
            self.redraw()
            return False
        self.do(name)
        return True

    def do(self, name: str, value: Any = None) -> None:
        """Do an action by its name."""
        self.state.error = self._notice = ""
        panel = _SHOWN_IN.get(name, self.place.panel)
        if not self._wide and panel != self.place.panel:
            self._act(Action(f"{panel}_panel"))
            if name == "predictions" and self.place.predictions:
                # The statistics are on, and seen now.
                name = "row_panel"
        if name in self._special and value is None:
            self._special[name]()
        else:
            self._act(
                Action(
                    name,
                    self._panels["matrix"].page() if name in ("page_up", "page_down") else value,
                )
            )
            current_place = self.place
            if (name, value) == ("display", "roles"):
                self._measure_roles()
            if name == "scale":
                self._notice = f"colours follow {_SHAPES[current_place.shape]}"
            elif name == "sinks":
                self._notice = f"sinks are {'in' if current_place.sinks else 'out of'} the scale"
        self.redraw()

    @property
    def thumbnails_fit(self) -> bool:
        """Whether the panel of heads has room for thumbnails."""
        return bool(self._panels["heads"].thumbnails_fit(self.state))

    def _act(self, action: Action) -> None:
        before = self.place
        if self.state.act(action):
            if self.place.spot.text != before.spot.text:
                self._notice = ""
            self._rearrange()
            self.ask()

    def clicked(self, name: str, x: int, y: int, called: str) -> None:
        """Perform the action of a click in a pane; in the footer, the one that is named there."""
        if self._asking:
            return
        if self._mode == "copy" and called:
            self._mode = ""
            self._copy(called)
            self.redraw()
        elif called:
            self.do(called)
        if name not in self._panels:
            return
        # The frame's left edge is no column of the panel.
        x -= self._is_framed(*self.panes[name].size)
        hit = self._panels[name].hit(self.state, x, y)
        if hit is not None:
            self._act(hit)
        if self.place.panel != name:
            self._act(Action(f"{name}_panel"))
        self.redraw()

    def scrolled(self, name: str, rows: int, columns: int) -> None:
        """Move by the wheel in a pane."""
        if name == "heads":
            self.do("next_layer" if rows > 0 else "previous_layer")
        elif name == "matrix" and columns:
            self.do("right" if columns > 0 else "left", 3)
        elif name in ("matrix", "row", "text"):
            panel = self.place.panel
            self.state.place = replace(self.place, panel="matrix")
            self.do("down" if rows > 0 else "up", 3 if name == "matrix" else 1)
            self.state.place = replace(self.place, panel=panel)

    # actions that need more than the place

    def _ask_text(self) -> None:
        if self.source.total < 2:
            self.state.error = "there is one text"
        else:
            self._prompt("pick", "its number, its id, or some of its words", "")

    def _pick(self, needle: str) -> None:
        source = self.source
        start = self.place.spot.text

        def went(text_index: int | None) -> None:
            if text_index is None:
                self.state.error = (
                    f"no text has the number, id or words '{escape_control(needle[:40])}'"
                )
            else:
                self._act(Action("pick_text", text_index))

        self.worker.post(Job("pick", partial(source.pick, needle, start), went))

    def _edit(self) -> None:
        if not self.source.computes:
            self.state.error = "another text takes the model: attnscope explore TEXT"
            return
        self._before = self.source
        text = self.source.texts[self.place.spot.text]
        self._prompt("edit", "the text; Enter keeps it, Esc brings back the one before", text)

    def _digits(self) -> None:
        """Write numbers into cells, or leave them out."""
        if self.place.zoom > 1:
            self._notice = "numbers stand in cells of one position: zoom in"
            return
        *_, width, height = self._arranged["matrix"]
        is_roomy = self._panels["matrix"].is_roomy(self.state, *self._inside(width, height))
        self._act(Action("bare" if is_roomy and not self.state.has_picture else "digits"))
        if self.place.digits and self._wide:
            self._say_that_columns_are_out_of_sight()

    def _say_that_columns_are_out_of_sight(self) -> None:
        """Say how many columns of numbers are in sight, and which key shows more, if one does."""
        matrix = self._panels["matrix"]
        *_, width, height = self._arranged["matrix"]
        count, n_columns = matrix.columns_in_sight(self.state, *self._inside(width, height))
        most, _ = matrix.columns_in_sight(self.state, *self._inside(self.size.width, height))
        keys = next(action.keys for action in self.actions if action.name == "enlarge")
        if count < most and keys:
            more = "all" if most == n_columns else f"{most}"
            self._notice = f"{count} of {n_columns} columns; {spell_key(keys[0])} shows {more}"

    def _cut(self) -> None:
        """Cut the head or the edge under the cursor, or put it back."""
        panel = self.place.panel
        if self.scene is None:
            return
        if not self.source.computes:
            self.state.error = "cutting takes the model: attnscope explore TEXT"
            return
        cut_here = self._cut_here
        if cut_here is None:
            self.state.error = "a mean of heads cannot be cut"
            return
        self._act(Action("cut", cut_here))
        if not self._wide and panel != "row" and self.place.cuts:
            self._notice = "the panel of the row shows the predictions"

    @property
    def _cut_here(self) -> WalkCut | None:
        """The head of the place, or in other panels than that of heads its edge, as a cut; None of a mean of heads."""
        scene = self.scene
        if scene is None:
            return None
        spot = self.place.spot
        layer = scene.layers[spot.layer]
        head = scene.heads[spot.head]
        if not isinstance(layer, int) or not isinstance(head, int):
            return None
        edge = ""
        if self.place.panel != "heads":
            sides = scene.tokens_of(spot.query), scene.tokens_of_key(self.state.key)
            edge = f": {'←'.join(map(spell_positions, sides))}"
        return WalkCut(f"L{layer}H{head}{edge}", bool(edge))

    def _lens(self) -> None:
        """Show the cell under the cursor in every head, and say which digits go to the strongest."""
        if self.scene is not None:
            self._act(Action("lens"))
            self._name_digits()

    def _name_digits(self) -> None:
        """Scroll to the strongest head of the lens, and say which digits go to those that it lists, until the next key."""
        self._mode = "lens"
        strongest = self.state.strongest_heads()
        self._panels["heads"].seen = strongest[0][:2] if strongest else None

    def _offer_heads(self, *, typed: bool) -> None:
        """Say which digits go to heads if a walk begins with the lens; `typed`: keys have been pressed before it."""
        has_room = self.size.width >= _WIDE and self.size.height >= _HIGH
        if self.place.display == LENS and has_room and not typed:
            self._name_digits()

    def _go_to_strongest(self, rank: int) -> None:
        layer, head, _ = self.state.strongest_heads()[rank]
        # the key stays, which another head may read less than others
        spot = replace(self.place.spot, layer=layer, head=head, key=self.state.key)
        self._act(Action("goto", spot))
        self.redraw()

    def _roles(self) -> None:
        """Show what every head does, or thumbnails again."""
        scene = self.scene
        if not self.source.computes and (scene is None or scene.roles is None):
            self.state.error = "roles take the model: attnscope explore TEXT"
            return
        self.do("display", "thumbnails" if self.place.display == "roles" else "roles")

    def _measure_roles(self) -> None:
        """Measure what every head does, once."""
        if self.scene is not None and self.scene.roles is None:
            measure = self.source.measure_roles
            self._post(Job("roles", measure, lambda _: self._arrived(), "roles"))

    def _effects(self) -> None:
        """Show what each head is worth, which is measured once for a text and a mask."""
        scene = self.scene
        if scene is None:
            return
        if scene.number(EFFECT) is not None:
            is_shown = self.place.display == EFFECT
            self._show_effects(
                at_row=is_shown and effect_of_row(scene, self.state.query) is not None
            )
            return
        if self._missing() is None or self.worker.kind == _EFFECTS:
            self._measure_effects()
        else:
            # the weights of all heads take a pass, and their effects one for each
            self._effects_wait = True
            self._notice = f"{_EFFECTS}: {_WAITS}"

    def _measure_effects(self) -> None:
        """Measure what each head is worth, and show it."""
        measure = partial(self.source.measure_effects, self.state.variant())

        def measured(_: object) -> None:
            self._arrived()
            self._show_effects()

        # what is cut, and what positions are, does not change them
        key = replace(self.state.variant(), cuts=(), unit="tokens")
        self._post(Job(_EFFECTS, measure, measured, key))

    def _show_effects(self, *, at_row: bool = False) -> None:
        """Show what each head is worth where the model predicts, or at the row of the cursor, and say so."""
        scene = self.scene
        # a scene that a key has asked for meanwhile has them when it is there
        self._effects_wanted = scene is None or scene.effects is None
        if scene is None or self._effects_wanted:
            return
        self.do("display", ROW_EFFECT if at_row else EFFECT)
        query = self.state.query
        places = [
            place_of_effect(scene, row) for row in ((query, None) if at_row else (None, query))
        ]
        self._notice = f"effects {places[0]}, if one head is cut to 0"
        if places[0] != places[1] and effect_of_row(scene, query) is not None:
            self._notice += f"; E: {places[1]}"
        self.redraw()

    def _explain(self) -> None:
        scene = self.scene
        spot = self.place.spot
        if scene is None:
            return
        at = self.state.variant(), spot.layer, spot.head, (spot.query, spot.key)
        width = max(40, self.size.width - 6)
        ink = self.state.ink
        draw = partial(as_text, width=width, colours=ink.colours, surface=ink.surface)
        explain = partial(self.source.explain, *at, draw)

        def show(text: str) -> None:
            self._notice = ""
            self.push_screen(Overlay("explain", Text.from_ansi(text.rstrip("\n"))))

        self._post(Job("explain", explain, show, at))

    def _post(self, job: Job) -> None:
        """Compute what was asked for by a key, and say so if it has to wait, or is computed already."""
        if self.worker.runs(job):
            self._notice = f"{job.kind}: {_RUNS}"
        elif self.worker.post(job):
            self._notice = f"{job.kind}: {_WAITS}"

    def _drop_waiting(self) -> bool:
        """Forget what keys have asked for, whether it waits or is computed; tell whether there was anything."""
        was_waiting = bool(self._early)
        self._early = []
        dropped = self.worker.drop()
        if self._effects_wait:
            dropped.append(_EFFECTS)
            self._effects_wait = False
        if "roles" in dropped and self.place.display == "roles":
            self._act(Action("display", "thumbnails"))
        if dropped:
            self._notice = f"{', '.join(dropped)}: dropped"
        return was_waiting or bool(dropped)

    def choose_mask(self, mask_index: int) -> None:
        """Use a mask by its number."""
        self._act(Action("goto", replace(self.place.spot, mask=mask_index)))
        self.redraw()

    def _ask_token(self) -> None:
        self._found_from = self.place
        needle = self.place.needle
        again = f"; Enter alone finds {escape_control(needle)}" if needle else ""
        self._prompt("find", f"a token of the text{again}, Esc leaves", "")

    def _show_found(self, needle: str) -> None:
        """Show what the typed start of a token finds, until it is typed whole."""
        scene = self.scene
        before = self._found_from
        spot = before.spot
        if scene is not None and needle:
            match = find(scene, needle, spot.query, 1)
            if match is not None:
                spot = replace(spot, query=match, key=None)
        self.state.place = replace(before, spot=spot)
        self.state.settle()
        self.redraw()

    def _find(self, needle: str, step: int) -> None:
        scene = self.scene
        if scene is None or not needle:
            return
        match = find(scene, needle, self.state.query, step)
        if match is None:
            self.state.error = f"no query contains '{escape_control(needle[:40])}'"
        self._act(Action("find", (needle, match)))

    def _copy(self, what: str) -> None:
        text = copied(self.state, what)
        if len(text) > _COPIED:
            self.state.error = f"{len(text):,} characters are too many to copy; w writes a file"
            return
        self.copy_to_clipboard(text)
        self._notice = f"copied the {what} ({len(text):,} characters)"

    # the prompt

    @property
    def _asking(self) -> bool:
        """Whether the prompt is open."""
        return bool(self.screen.query_one("#ask").display)

    def _prompt(self, mode: str, hint: str, value: str) -> None:
        self._mode = mode
        self.screen.query_one("#ask").display = True
        self.screen.query_one("#asked", Static).update(f" {_ASKED[mode]} ")
        prompt = self.screen.query_one("#prompt", Input)
        prompt.placeholder = hint
        prompt.value = value
        self.panes["footer"].display = False
        # At once: what focuses later would come after a prompt that keys typed ahead have closed already.
        self.screen.set_focus(prompt)
        prompt.cursor_position = len(value)

    def _close_prompt(self, *, restore: bool) -> None:
        if self._edited is not None:
            self._edited.stop()
            self._edited = None
        if restore and self._mode == "find":
            self._show_found("")
        if restore and self._mode == "edit":
            self.worker.drop()
            if self._before is not None and self.source is not self._before:
                self.replace_source(self._before)
        self._mode = ""
        self.screen.query_one("#ask").display = False
        self.panes["footer"].display = True
        self.screen.set_focus(None)
        self.redraw()

    def prompt_changed(self, value: str) -> None:
        """Compute an edited text after a pause."""
        if self._mode == "find":
            self._show_found(value)
        if self._mode != "edit":
            return
        if self._edited is not None:
            self._edited.stop()
        self._edited = self.set_timer(_PAUSE, lambda: self._retext(value))

    def prompt_done(self, value: str) -> None:
        """Apply the typed text."""
        mode = self._mode
        if mode == "edit":
            self._retext(value)
        self._close_prompt(restore=False)
        if mode == "find":
            self._show_found("")
            self._find(value or self.place.needle, 1)
        elif mode == "pick" and value.strip():
            self._pick(value.strip())
        elif mode == "write" and value.strip():
            source = self.source
            spot = self.place.spot
            variant = self.state.variant()

            def write(progress: Progress) -> str:
                return self.write(
                    source.report(variant, spot.layer, spot.head, progress), value.strip()
                )

            def wrote(message: str) -> None:
                self._notice = f"wrote {escape_control(message)}"

            self.worker.post(Job("write", write, wrote))
        self.redraw()

    def _retext(self, text: str) -> None:
        if not text.strip() or text == self.source.texts[self.place.spot.text]:
            return
        before = self.source
        variant = replace(self.state.variant(), text=0)
        spot = self.place.spot

        def compute(progress: Progress) -> Source:
            source = before.with_text(text)
            source.compute(variant, spot.layer, spot.head, self.place.stage, (0, 0), progress)
            return source

        self.worker.post(Job("edit", compute, self.replace_source))

    def replace_source(self, source: Source) -> None:
        """Walk through something else from now on, from the same place as far as it is there."""
        # a message, and what is measured, are those of the text before
        self.state.error = self._notice = ""
        self._effects_wanted = False
        self._effects_wait = False
        self.state.replace_source(source)
        self._rearrange()
        self.ask()
        self.redraw()

    # computing

    def ask(self) -> None:
        """Compute the first missing part of the screen, and what waits for the last."""
        if not self.source.computes:
            self.state.settle()
        wanted = self._missing()
        if wanted is not None:
            compute = partial(self.source.compute, *wanted)
            self.worker.post(Job("compute", compute, lambda _: self._arrived(), wanted))
        elif self._effects_wait:
            self._effects_wait = False
            self._measure_effects()

    def _missing(self) -> tuple[Variant, int, int, str, tuple[int, int]] | None:
        """Return the first part that the screen lacks, as sources compute it; None if it lacks nothing."""
        stage = self.place.stage
        for variant, spot in self.state.wants():
            wanted = variant, spot.layer, spot.head, stage, self._rows(spot)
            if self.source.missing(*wanted):
                return wanted
        return None

    def _rows(self, spot: Spot) -> tuple[int, int]:
        """Return the first and last query whose exact rows are wanted: a block around the cursor."""
        scene = self.scene
        start = spot.query // _AROUND * _AROUND
        last = 0 if scene is None else len(scene.queries.positions) - 1
        return max(0, min(start, last)), min(last, start + _AROUND - 1)

    def _arrived(self) -> None:
        is_first = not self.state.placed
        self.state.arrived += 1
        self.state.settle()
        self._rearrange()
        if is_first:
            early = self._early
            self._early = []
            self._offer_heads(typed=bool(early))
            for event in early:
                self.key(event)
        if self._effects_wanted:
            self._show_effects()
        self.ask()

    def _report(self, status: str, error: BaseException | None) -> None:
        self.state.status = status
        if status and self._notice == f"{self.worker.kind}: {_WAITS}":
            self._notice = ""
        if not status and self._notice.endswith(_RUNS):
            self._notice = ""
        if error is not None and self._effects_wait:
            # what the screen lacks does not come
            self._effects_wait = False
            self._notice = ""
        if isinstance(error, AttnscopeError):
            self.state.error = error.line(self.spelling)
            if not self.state.placed:
                self.failure = error
                self.exit(int(error.code))
            elif self.source.scene(self.state.variant()) is None:
                # There is no scene if, for example, the mask does not fit the model.
                spot = self.place.spot
                text = min(spot.text, len(self.source.texts) - 1)
                self.state.place = replace(uncut(self.place), spot=replace(spot, mask=0, text=text))
                self._rearrange()
        elif error is not None:
            self.failure = error
            self.exit(70)
        if self.panes:
            self.redraw()

    # for the caller

    def last_command(self) -> str:
        """Return the command that shows the same place; empty if there is none.

        While a place is pinned, it is a comparison; of places that no comparison has, the commands of both.
        """
        state = self.state
        current_place = self.place
        scene = state.scene
        pin = current_place.pinned
        if scene is None or scene.command is None:
            return ""
        here = command(scene, current_place.spot, current_place.stage, current_place.cuts)
        if pin is None:
            return here
        there = state.source.scene(state.variant(pinned=True))
        if there is None:
            return here
        plain = scene.unit == "tokens" and not current_place.cuts and not current_place.pinned_cuts
        spots = current_place.spot, pin
        both = comparing_command(scene, there, spots, current_place.stage) if plain else None
        return (
            both or f"{here}\n{command(there, pin, current_place.stage, current_place.pinned_cuts)}"
        )


def spell_positions(positions: Sequence[int]) -> str:
    """Spell positions as `--query` takes them: `3`, `3:8`, or `3,5:7`."""
    return ",".join(str(a) if a == b else f"{a}:{b + 1}" for a, b in position_runs(positions))


def find(scene: Scene, needle: str, query: int, step: int) -> int | None:
    """Return the next query whose name contains a text, in any case; None for none."""
    names = scene.queries.names
    wanted = needle.casefold()
    for n in range(1, len(names) + 1):
        at = (query + n * step) % len(names)
        if wanted in names[at].text.casefold():
            return at
    return None


def copied(state: WalkState, what: str) -> str:
    """Return a cell, row or matrix as tab-separated text, with every digit."""
    scene = state.scene
    head = state.drawn
    spot = state.spot
    stage = state.drawn_stage
    if scene is None or head is None:
        return ""
    axis = state.columns
    format_number = partial(np.format_float_positional, unique=True, trim="-")
    names = [escape_control(span.text) for span in axis.names] or [
        f"dim {n}" for n in axis.positions
    ]
    queries = [escape_control(span.text) for span in scene.queries.names]
    if what == "cell":
        row = head.row(stage, spot.query)
        value = ""
        if row is not None:
            value = format_number(_numbers(state, row)[state.column])
        return f"{queries[spot.query]}\t{names[state.column]}\t{value}\n"
    lines = ["\t".join([stage, *names])]
    for query in [spot.query] if what == "row" else range(len(queries)):
        row = head.row(stage, query)
        if row is not None:
            lines.append("\t".join([queries[query], *map(format_number, _numbers(state, row))]))
    return "\n".join(lines) + "\n"


def _numbers(state: WalkState, row: np.ndarray) -> np.ndarray:
    """Return the numbers of a row as they are copied: the difference of two forbidden weights is 0."""
    if state.place.stage == "weights":
        return np.where(np.isneginf(row), 0, row)
    return row
