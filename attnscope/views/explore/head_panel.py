"""Layers × heads: a thumbnail, the colour of a role, or one number for every head."""

from collections import Counter
from dataclasses import dataclass, replace

import numpy as np
from rich.cells import cell_len
from rich.segment import Segment
from rich.style import Style

from attnscope.findings.ablation import ranks_of
from attnscope.findings.arrays import Matrix
from attnscope.views.explore.headings import BETWEEN, TitlePart, shortened
from attnscope.views.explore.ink import (
    BOLD,
    CURSOR,
    CUT_CURSOR,
    DIM,
    FORBIDDEN,
    NONE,
    PLAIN,
    Ink,
    Line,
    cells_wide,
    cut,
    ended,
    fit,
    fitting,
    joined,
    steps,
    styled,
    whole_clauses,
    wrapped,
)
from attnscope.views.explore.matrix import scroll
from attnscope.views.explore.row import flowed
from attnscope.views.explore.state import HEAD_DIGITS, WalkState, strongest_of
from attnscope.views.numbers import NO_WEIGHT, digits_for
from attnscope.views.scales import WEIGHTS, Scale, Shape, pool_largest
from attnscope.views.walk.cell import effect_of_row, place_of_effect
from attnscope.views.walk.effects import ENDINGS, effect_text, effect_word, verdict_text
from attnscope.views.walk.glossary import beside_phrase, phrase_of
from attnscope.views.walk.place import LENS, Action
from attnscope.views.walk.scene import EFFECT, ROW_EFFECT, HeadNumber, Scene, WalkHead, thumbnail

# Largest number of cells and lines of a thumbnail.
_WIDEST = 20
_TALLEST = 10
# Lines above and below the heads.
_ABOVE = 2
_LEGEND = 4
# Columns of a head, a blank included, in which weights are percents.
_NARROW = 3
_PERCENT = 2  # digits of a percentage
# Cells of a thumbnail that says something, each way; smaller ones are replaced by a number.
_SAYS = 6
# The weight of the row's strongest source that is no sink, where thumbnails have no room.
ROW_LENS = "row lens"
# The same of a row that reads nothing but sinks and itself, in any head.
_SINK_LENS = "row lens with sinks"
# Heads with the largest effects that the legend names, and lines from which it has one for them and one for the head.
_NAMED = 4
_TWO_LINES = 8
_EFFECTS = (EFFECT, ROW_EFFECT)
# Lines from which the legend has room.
_ROOMY = 16
# Columns of a role's letter beside the meanings of letters.
_LETTER = 2


@dataclass(frozen=True)
class _GridLayout:
    """What is in sight of layers × heads."""

    # layers, heads, columns of a label, and columns and lines of a head, blanks included
    grid: tuple[range, range, int, int, int]
    legend: int  # lines below the grid
    letter_lines: list[str]  # meanings of roles beside the grid


@dataclass
class HeadsPanel:
    """Draws the heads; keeps its scroll position."""

    top: int = 0
    left: int = 0
    listed: int = 0  # heads of the lens that are listed
    width: int = 0
    height: int = 0
    # layer and head that are scrolled to in place of the current one
    seen: tuple[int, int] | None = None
    _drawn: tuple[object, list[Line]] = (None, [])
    _last: tuple[range, range, int, int, int] | None = None  # grid of what is drawn

    def draw(self, state: WalkState, width: int, height: int) -> list[Line]:
        """Return the lines of the panel; cached while the same heads are known and shown."""
        place = state.place
        self.width = width
        self.height = height
        display = self._display(state, width, height)
        rowed = display in (LENS, ROW_LENS, ROW_EFFECT) or (
            state.scene is not None and bool(state.scene.pictures)
        )
        cache_key = (
            rowed and state.query,
            display == LENS and state.key,
            place.spot.layer,
            place.spot.head,
            place.panel == "heads",
            place.display,
            place.shape,
            place.sinks,
            self.seen,
            place.pinned,
            state.variant(),
            width,
            height,
            state.arrived,
            state.scene,
            id(state.source),
            display in ("roles", LENS, ROW_LENS) and state.status,
        )
        if self._drawn[0] != cache_key:
            self._drawn = cache_key, self._draw(state, display, width, height)
        return self._drawn[1]

    def _draw(self, state: WalkState, display: str, width: int, height: int) -> list[Line]:
        self._last = None
        scene = state.scene
        if scene is None or height < 3 or width < 8:
            return []
        layout = self._layout(state, scene, display, width, height)
        self._last = layout.grid
        weights: Matrix | None = None
        sources: np.ndarray | None = None
        if display == LENS:
            weights = state.lens()
        elif display == ROW_LENS:
            weights, sources, are_sinks_out = state.row_lens()
            display = ROW_LENS if are_sinks_out else _SINK_LENS
        drawn_lines = [
            cut(_title(state, scene, display, layout, width), width),
            cut(_column_numbers(state, scene, layout), width),
            *_grid(state, scene, layout.grid, display, weights),
        ]
        for line, letter in zip(drawn_lines[_ABOVE:], layout.letter_lines, strict=False):
            line.append(Segment(f" {letter}", DIM))
        if display == LENS and weights is not None:
            lines_below, self.listed = _below_lens(state, scene, weights, width, layout.legend)
        elif weights is not None and sources is not None:
            strongest = _strongest_of_row(state, scene, weights, sources)
            has_signs = layout.legend > 1
            lines_below, _ = _listed(state, strongest, width, layout.legend, has_signs=has_signs)
        elif display == "roles":
            letters = _letters_of(state, scene, layout.grid[0])[len(layout.letter_lines) :]
            lines_below = _role_legend(state, scene, letters, width, layout.legend)
        else:
            lines_below = []
            if _of_display(state, scene, display) is None:
                # else they stand behind its number
                lines_below = styled(flowed(_marked(state), width, "; "), DIM)
            lines_below += _legend(state, scene, width, layout.legend - len(lines_below))
        drawn_lines += lines_below[: layout.legend]
        return [*drawn_lines, *[[]] * (height - len(drawn_lines))]

    def _layout(
        self, state: WalkState, scene: Scene, display: str, width: int, height: int
    ) -> _GridLayout:
        """Return what of the grid is in sight, and how large a head is; scrolls to the current or the found head."""
        label = _label_width(scene)
        n_layers = len(scene.layers)
        n_heads = len(scene.heads)
        room = width - label
        legend = _legend_lines(scene, height)
        hides_layers = height - _ABOVE <= n_layers
        if height >= _TWO_LINES and (display in _EFFECTS or (display == LENS and hides_layers)):
            legend = max(2, legend)
        letter_lines: list[str] = []
        if display == "roles" and scene.roles is not None:
            count, letter_lines = self._letters(state, scene, width, height - _ABOVE)
            legend = height - _ABOVE - count
        lines = height - _ABOVE - legend
        pictures = display == "thumbnails"
        shown_number = _of_display(state, scene, display)
        is_share = shown_number is not None and shown_number.is_share
        least = 3 if display in (LENS, ROW_LENS) else 2 if pictures or display == "roles" else 6
        if least == 6 and room // n_heads < least:
            # Colours or shades of all heads say more than numbers of some; an effect has a rank of two digits.
            least = 3 if display in _EFFECTS or (is_share and room // n_heads >= 3) else 2
        wide = least if letter_lines else max(least, min(_WIDEST, room // n_heads))
        tall = max(1, min(_TALLEST, lines // n_layers, max(2, (wide - pictures + 1) // 2)))
        across = max(1, room // wide)
        below = max(1, lines // tall)
        layer, head = self.seen or (state.spot.layer, state.spot.head)
        self.left = scroll(self.left, head, across, n_heads, around=0)
        self.top = scroll(self.top, layer, below, n_layers, around=0)
        if display != "roles" and "cut" in state.marks.get((layer, head), ()):
            # a cut changes the layers above, but not their roles
            self.top = min(layer, max(0, n_layers - below))
        heads = range(self.left, min(n_heads, self.left + across))
        layers = range(self.top, min(n_layers, self.top + below))
        return _GridLayout((layers, heads, label, wide, tall), legend, letter_lines)

    def _letters(
        self, state: WalkState, scene: Scene, width: int, lines: int
    ) -> tuple[int, list[str]]:
        """Return how many layers have the meanings of all their letters in so many lines, and those beside the heads.

        The others are below, under the role of the head under the cursor.
        """
        n_layers = len(scene.layers)
        room = width - _label_width(scene) - _LETTER * len(scene.heads) - 1
        for count in range(max(1, min(n_layers, lines - 1)), 0, -1):
            top = scroll(self.top, state.spot.layer, count, n_layers, around=0)
            letters = _letters_of(state, scene, range(top, top + count))
            fits = max(map(len, letters), default=0) <= room
            for letter_lines in ([], letters[:count])[: 1 + fits]:
                below = flowed(letters[len(letter_lines) :], width, ", ")
                if count + 1 + len(below) <= lines:
                    return count, letter_lines
        return 1, []

    def _display(self, state: WalkState, width: int, height: int) -> str:
        """Return what is shown: where thumbnails are too small to say something, the row's strongest source instead."""
        display = state.place.display
        fits = display != "thumbnails" or self._fit(state, width, height)
        return display if fits else ROW_LENS

    def thumbnails_fit(self, state: WalkState) -> bool:
        """Tell whether the panel as it was last drawn has room for thumbnails."""
        return self._fit(state, self.width, self.height)

    @staticmethod
    def _fit(state: WalkState, width: int, height: int) -> bool:
        scene = state.scene
        if scene is None or scene.pictures:
            return True
        per_line = 2 if state.ink.colours and not state.ink.ascii else 1
        wide = (width - _label_width(scene)) // len(scene.heads) - 1
        tall = (height - _ABOVE - _legend_lines(scene, height)) // len(scene.layers) * per_line
        # a small matrix is drawn as it is
        least = min(_SAYS, len(scene.queries.positions), len(scene.keys.positions))
        return min(wide, tall) >= least

    def hit(self, state: WalkState, x: int, y: int) -> Action | None:
        """Return the action of a click in the panel."""
        if self._last is None:
            return None
        layers, heads, label, wide, tall = self._last
        layer = layers.start + (y - _ABOVE) // tall
        head = heads.start + (x - label) // wide
        if y < _ABOVE or x < label or layer not in layers or head not in heads:
            return None
        return Action("goto", replace(state.spot, layer=layer, head=head, key=None))


def _title(state: WalkState, scene: Scene, display: str, layout: _GridLayout, width: int) -> Line:
    """Return what the heads show, and which of them are in sight."""
    ink = state.ink
    layers, heads, _, wide, _ = layout.grid
    n_layers = len(scene.layers)
    n_heads = len(scene.heads)
    title = [Segment(" heads ", state.title("heads"))]
    sizes = [f"{n_layers} × {n_heads}"]
    is_partial = len(layers) < n_layers or len(heads) < n_heads
    if is_partial:
        of_heads = len(layers) == n_layers
        if of_heads:
            names = [f"H{n}" for n in scene.heads]
        else:
            names = [_layer(n) for n in scene.layers]
        seen = heads if of_heads else layers
        first_seen, last_seen = names[seen.start], names[seen.stop - 1]
        sizes = [f"{first_seen}–{last_seen.lstrip('LH')}/{len(names)}"]
    # that there are other layers stands nowhere else: their range is the last to go, and their number the first
    columns = _number_columns(ink, wide)
    subjects = _subjects(state, scene, display, columns) + [""] * is_partial
    parts = [TitlePart.of(*map(ink.plain, sizes)), TitlePart([*map(ink.plain, subjects)])]
    order = (0, 1, 0) if is_partial else (0, 1)
    # the edge of a frame has its number and corners
    room = width - cells_wide(title) - len("1   ")
    heading = BETWEEN.join(text for text, _ in shortened(parts, room, order))
    return [*title, Segment(f" {heading}", DIM)]


def _subjects(state: WalkState, scene: Scene, display: str, columns: int) -> list[str]:
    """Return phrases for what numbers of heads with so many columns show, the longest first."""
    if display in _EFFECTS and _of_display(state, scene, display) is not None:
        return _effect_subjects(state, scene, display, columns)
    percent = ", %" if columns <= _PERCENT else ""
    query = state.ink.name(scene.queries.names[state.query])
    key = state.ink.name(scene.keys.names[state.key])
    if display == "thumbnails":
        return ["weights"]
    if display == "roles":
        # not of the text that is on the screen, of which pages have them
        return ["roles on built-in texts", "roles"]
    if display == LENS:
        return [f"{query} ← {key}{percent}", f"← {key}{percent}", f"this cell{percent}"]
    if display == ROW_LENS:
        return [
            f"{query} ← strongest source past sinks and itself{percent}",
            f"{query} ← strongest past sinks, itself{percent}",
            f"{query} ← top non-sink{percent}",
            f"top non-sink{percent}",
            f"non-sink{percent}",
        ]
    if display == _SINK_LENS:
        return [
            f"{query} ← strongest source{percent}",
            f"{query} ← strongest{percent}",
            f"strongest source{percent}",
            f"strongest{percent}",
        ]
    shown_number = _of_display(state, scene, display)
    is_share = shown_number is not None and shown_number.is_share
    return [f"{phrase_of(display)}{percent if is_share else ''}"]


def _effect_subjects(state: WalkState, scene: Scene, display: str, columns: int) -> list[str]:
    """Return phrases for the effect of every head, or for its rank where cells have no room for more."""
    effect = _of_display(state, scene, display)
    place = place_of_effect(scene, _row_of_effect(state, display))
    if columns > _PERCENT:
        unit = ", bits" if effect is not None and effect.measure == "kl" else ""
        return [f"effect {place}{unit}", f"effect{unit}"]
    # a cell has room for two digits
    has_blanks = len(scene.layers) * len(scene.heads) >= 100
    blanks, at_most = (", blank ≥ 100", " ≤ 99") if has_blanks else ("", "")
    subjects = [
        f"rank by effect {place}{blanks}",
        f"rank{at_most} by effect {place}",
        f"rank{at_most} {place}",
    ]
    # one place, without its token
    if "," not in place and (brief_place := " ".join(place.split(" ")[:2])):
        subjects.append(f"rank{at_most} {brief_place}")
    return [*subjects, f"rank{at_most}"]


def _column_numbers(state: WalkState, scene: Scene, layout: _GridLayout) -> Line:
    """Return the line of head numbers above the grid."""
    _, heads, label, wide, _ = layout.grid
    numbers = [Segment(" " * label)]
    # Numbers of two digits need twice the room.
    step = 1 if wide > 2 or len(scene.heads) <= 10 else 2
    for n in heads[::step]:
        is_current = n <= state.spot.head < n + step
        head_name = scene.heads[state.spot.head if is_current else n]
        numbers.append(
            Segment(fit(_head(head_name, wide), step * wide), BOLD if is_current else DIM)
        )
    return numbers


def _label_width(scene: Scene) -> int:
    return max(len(_layer(layer)) for layer in scene.layers) + 2


def _legend_lines(scene: Scene, height: int) -> int:
    """Return how many lines the legend has: fewer if all layers fit then."""
    spare = height - _ABOVE - len(scene.layers)
    if spare > 0:
        return min(_LEGEND, spare)
    if height >= _ROOMY:
        return _LEGEND
    return 1


def _grid(
    state: WalkState,
    scene: Scene,
    layout: tuple[range, range, int, int, int],
    display: str,
    weights: Matrix | None,
) -> list[Line]:
    """Return the lines of the layers; `layout` is that of HeadsPanel, and `weights` are those of a lens."""
    layers, heads, label, wide, tall = layout
    spot = state.spot
    ink = state.ink
    marks = state.marks
    # once for all: a call for every layer takes most of a redraw
    shades = None
    if weights is not None:
        shades = steps(weights, state.weight_scale(None), ink).tolist()
    blank = Segment(" " * (wide - 1), PLAIN)
    columns = _number_columns(ink, wide)
    drawn_wide = wide - 1
    is_thumbnail = weights is None and state.place.display == "thumbnails"
    if is_thumbnail:
        # signs stand right behind a small matrix
        per_line = 2 if ink.colours and not ink.ascii else 1
        drawn_wide = _columns_of_thumbnail(scene, tall * per_line, drawn_wide)
    gap = " " * (wide - 1 - drawn_wide)
    between = Segment(" " + gap)
    signs = {
        mark_name: Segment(_mark(ink, mark_name) + gap, BOLD)
        for mark_name in ("current", "pinned", "")
    }
    signs["cut"] = Segment(_mark(ink, "cut") + gap, ink.style("warning"))
    # the line of a tall cell that has its number
    middle = 0 if is_thumbnail else max(0, tall - 2) // 2
    drawn_lines: list[Line] = []
    for layer in layers:
        here = layer == spot.layer
        mark = (">" if ink.ascii else "▸") if here else " "
        names = [" " * label] * tall
        names[middle] = mark + fit(_layer(scene.layers[layer]), label - 1)
        lines: list[Line] = [[Segment(name, BOLD if here else DIM)] for name in names]
        row = [] if weights is None else weights[layer].tolist()
        for head in heads:
            is_current = here and head == spot.head
            marked = marks.get((layer, head), ())
            if is_thumbnail:
                walk_head = state.head_at(layer, head)
                cells = _thumbnail(state, walk_head, drawn_wide, tall)
            else:
                if shades is None:
                    text, style, shade = _written(state, scene, layer, head, columns)
                else:
                    # a row that has no weight past sinks may have some on them
                    not_allowed = row[head] == 0 and scene.rounded is None and display != ROW_LENS
                    text = NO_WEIGHT if not_allowed else _of_cell(row[head], columns)
                    step = shades[layer][head]
                    shade = " " if ink.colours else _shade(ink, step)
                    style = DIM
                    if "cut" in marked:
                        # what it reads has no effect
                        style = ink.forbidden
                        shade = " "
                    elif step > 0 or (step == 0 and ink.on_black):
                        style = ink.cell(step, signed=False)
                text = fit(text, columns, right=state.place.display != "roles")
                beside = shade[: wide - 1 - columns]
                if tall > 2:
                    # its shade is on the lines below
                    beside = ""
                    text = text.strip().center(wide - 1)
                # a tall cell has its colour on all lines but the last, which is between layers
                coloured = [Segment(shade * (wide - 1), style)]
                cells = [coloured] * max(1, tall - 1) + [[blank]] * (tall > 1)
            sign_name = "current" if is_current else "pinned" if "pinned" in marked else ""
            has_both = "cut" in marked and (is_thumbnail or sign_name == "pinned")
            if "cut" in marked and not has_both:
                # its number stays, and the cursor is seen without a sign
                sign_name = "cut"
            sign = signs[sign_name]
            if has_both:
                cut_text = fit(_mark(ink, "cut"), drawn_wide, right=True)
                cells[middle] = [Segment(cut_text, ink.style("warning"))]
            elif not is_thumbnail:
                if sign_name in ("cut", "pinned") and text.endswith(" ") and text.strip():
                    # behind a cell that ends in blanks, it would stand at the next head's letter
                    size = len(text)
                    text = (text.rstrip() + _mark(ink, sign_name)).ljust(size)
                    sign_name = ""
                sign = signs[sign_name]
                if is_current:
                    style = CUT_CURSOR if "cut" in marked else CURSOR
                cells[middle] = [Segment(text, style), Segment(beside)]
            for n, (line, cell) in enumerate(zip(lines, cells, strict=True)):
                line += [*cell, sign if n == middle else between]
        drawn_lines += lines
    return drawn_lines


def _number_columns(ink: Ink, wide: int) -> int:
    """Return the columns of a head's number: those of the head but a blank, and without colours a shade, if it fits."""
    return wide - 1 - (not ink.colours and wide > _NARROW)


def _shade(ink: Ink, step: int) -> str:
    """Return the shade of a number's step, which stands behind it without colours; blank with them."""
    return " " if ink.colours or step < 0 else ink.shade(step, signed=False)[0]


def _mark(ink: Ink, mark_name: str) -> str:
    """Return the sign of a head that is the current one, pinned, or cut."""
    marks = {"current": "◂<", "pinned": "•o", "cut": "×x", "": "  "}
    return marks[mark_name][ink.ascii]


def _marked(state: WalkState) -> list[str]:
    """Say what the signs in the grid stand for, if there are any."""
    marked = frozenset().union(*state.marks.values())
    pinned = state.place.pinned
    spot = state.spot
    if pinned is not None and (pinned.layer, pinned.head) == (spot.layer, spot.head):
        # the sign of the current head stands in its place
        marked -= {"pinned"}
    return [f"{_mark(state.ink, mark_name)} {mark_name}" for mark_name in sorted(marked)]


def _below_lens(
    state: WalkState, scene: Scene, weights: Matrix, width: int, room: int
) -> tuple[list[Line], int]:
    """Return the answer of the lens, in which head the weight is largest, and the next ones; and how many are named.

    Before the first ones stand the digits that go there.
    """
    ink = state.ink
    query = f'"{ink.name(scene.queries.names[state.query])}"'
    key = f'"{ink.name(scene.keys.names[state.key])}"'
    strongest = state.strongest_readers(weights)
    heads = [(_name_of(scene, *at), f"{weight:.2f}") for *at, weight in strongest]
    is_partial = bool(state.status) and bool(np.isnan(weights).any())
    so_far = " so far" if is_partial else ""
    digits = [f"{digit} " for digit in HEAD_DIGITS[: len(heads)]]
    digits += [""] * (len(heads) - len(digits))
    if heads:
        (name, weight), *others = heads
        # a head that is cut may have more, of which nothing comes
        now = "now " if np.nanmax(weights) > weights[strongest[0][:2]] else ""
        forms = [
            f"{name}: {query} {now}reads {key} most{so_far}, {weight}",
            f"{name} {now}reads {key} most{so_far}: {weight}",
            f"{name} {now}has most{so_far}: {weight}",
            f"{name} {weight}",
        ]
    else:
        name, weight, others = "", "", []
        is_unknown = is_partial or np.isnan(weights).all()
        forms = ["…"] if is_unknown else [f"{query} reads {key} in no head", "no head"]
    answer = fitting([*(ink.plain("".join([*digits[:1], form])) for form in forms)], width)
    entries = [
        ink.plain(f"{digit}{name} {weight}")
        for digit, (name, weight) in zip(digits[1:], others, strict=True)
    ]
    if room == 1:
        # a list with the answer in front says more than the answer alone
        answer = answer if not entries else ink.plain(f"most: {digits[0]}{name} {weight}")
        while entries and cell_len(" · ".join([answer, *entries])) > width:
            entries.pop()
        others_text = "".join(f" · {entry}" for entry in entries)
        return [[Segment(answer, BOLD), Segment(others_text, DIM)]], bool(heads) + len(entries)
    lines, count = _listed(state, entries, width, room - 1, has_signs=True)
    return [[Segment(answer, BOLD)], *lines], bool(heads) + count


def _listed(
    state: WalkState, heads: list[str], width: int, room: int, *, has_signs: bool
) -> tuple[list[Line], int]:
    """Return lines of heads, and what signs stand for, in at most so many lines; and how many heads."""
    if room < 1:
        return [], 0
    signs = _marked(state) if has_signs else []
    # what signs stand for is behind the list, which is shorter by as many heads as that takes
    while len(heads) > 1 and len(flowed([*heads, *signs], width, " · ")) > room:
        heads = heads[:-1]
    lines = flowed([*heads, *signs], width, " · ")
    return styled(lines, DIM), len(heads)


def _strongest_of_row(
    state: WalkState, scene: Scene, weights: Matrix, keys: np.ndarray
) -> list[str]:
    """List the heads with the largest weights of a row, each with its source."""
    ink = state.ink
    found = []
    kinds: set[str] = set()
    for layer, head, weight in state.strongest_readers(weights):
        key = int(keys[layer, head])
        source = f"{_name_of(scene, layer, head)} ← {ink.name(scene.keys.names[key])}"
        kind = _kind_of_source(scene, state.query, key)
        source += kind if kind not in kinds else ""
        kinds.add(kind)
        found.append(ink.plain(f"{source} {weight:.2f}"))
    first_head, *others = found or ["…" if np.isnan(weights).all() else "no key is allowed"]
    is_partial = bool(state.status) and bool(np.isnan(weights).any())
    heading = "strongest so far" if is_partial else "strongest"
    return [f"{heading}: {first_head}", *others]


def _name_of(scene: Scene, layer: int, head: int) -> str:
    """Return the name of a head by its indices: `L13H8`."""
    return f"{_layer(scene.layers[layer])}{_head(scene.heads[head], 9)}"


def _kind_of_source(scene: Scene, query: int, key: int) -> str:
    """Say of a key that it is a sink, or the token itself, as is usually passed over; empty for any other."""
    if scene.keys.sinks[key]:
        return ", a sink,"
    is_itself = scene.keys.positions[key] == scene.queries.positions[query]
    return ", itself," if is_itself and scene.aligned else ""


def _of_cell(weight: float, width: int) -> str:
    """Write a weight of the lens as wide as there is room: `0.70`, `.70` or `1.0`, or `70` in percent (at most 99)."""
    if np.isnan(weight):
        return "?"
    text = f"{weight:.2f}"
    if width >= len(text):
        return text
    if width > 2:
        return text.removeprefix("0")[:3]
    return f"{min(99.0, 100 * weight):.0f}"


def _columns_of_thumbnail(scene: Scene, height: int, width: int) -> int:
    """Return how many columns a thumbnail has: a whole number for each cell of a matrix that is smaller than its room."""
    shape = len(scene.queries.positions), len(scene.keys.positions)
    if scene.picture_scale is not None:
        shape = scene.pictures[0].sources.shape
    return min(width, shape[1] * _enlarged_by(shape, (height, width)))


def _enlarged_by(shape: tuple[int, ...], room: tuple[int, int]) -> int:
    """Return how many times a matrix, (rows, columns), fits into a room of cells each way; 1 for one that is larger."""
    return max(1, min(room[0] // shape[0], room[1] // shape[1]))


def _thumbnail(state: WalkState, head: WalkHead | None, wide: int, tall: int) -> list[Line]:
    if head is None:
        return [[Segment(state.ink.plain("…") * wide, DIM)]] * tall
    scene = state.scene
    if scene is None or scene.picture_scale is None:
        weights_scale = state.weight_scale(head)
        key = state.ink, wide, tall, weights_scale
        has_zeros = scene is not None and scene.rounded is None
        return head.made(
            key,
            lambda: _picture(state.ink, head, wide, tall, scale=weights_scale, has_zeros=has_zeros),
        )
    row = head.row("weights", state.query)
    picture = scene.pictures[0].sources
    weights = None
    if row is not None:
        weights = np.where(picture < 0, np.nan, row[picture]).astype(np.float32)
    return _picture(state.ink, head, wide, tall, weights, scene.picture_scale)


def _written(
    state: WalkState, scene: Scene, layer: int, head: int, width: int
) -> tuple[str, Style, str]:
    """Return the letter of a head's role, or its number, its colour, and its shade."""
    ink = state.ink
    roles = scene.roles
    display = state.place.display
    if display != "roles":
        head_number = _of_display(state, scene, display)
        if head_number is None:
            return "", DIM, " "
        text, style, shade = head_number.made(ink, lambda: _numbers(ink, head_number))[layer][head]
        if display in _EFFECTS and width <= _PERCENT:
            rank = int(head_number.made("ranks", lambda: ranks_of(head_number.values))[layer, head])
            text = str(rank) if rank < 100 else ""
        elif len(text) > width and head_number.is_share and width >= _PERCENT:
            text = _of_cell(float(head_number.values[layer, head]), width)
        elif len(text) > width:
            text = shade.strip()
        return text, style, shade
    index = -1 if roles is None else int(roles.main[layer, head])
    if roles is None or index < 0:
        return "" if roles is None else "?", DIM, " "
    style = ink.role(roles.colours[index], float(roles.strength[layer, head]))
    return fit(roles.letters[index], width), style, " "


def _legend(state: WalkState, scene: Scene, width: int, room: int) -> list[Line]:
    """Describe the number of the head under the cursor, in at most so many lines."""
    ink = state.ink
    spot = state.spot
    display = state.place.display
    name = _name_of(scene, spot.layer, spot.head)
    head_number = _of_display(state, scene, display)
    if head_number is None:
        choice_text = f"{name} {state.head.chosen if state.head else ''}"
        return styled(ended(wrapped(ink.plain(choice_text), width), width, room), DIM)
    value = float(head_number.values[spot.layer, spot.head])
    value_text = "?"
    if not np.isnan(value):
        value_text = digits_for(head_number.values, 2).text(value)
    phrases = [f"{name}: {phrase_of(display)} {value_text}"]
    if display in _EFFECTS and not np.isnan(value):
        phrases = _of_effects(state, scene, head_number, name, width)
        # what the panel of the row says of a head that is cut
        phrases = phrases[room == 1 and state.head_cut :]
    said = flowed([*(ink.plain(phrase) for phrase in phrases), *_marked(state)], width, " · ")
    said = said[:room]
    meaning_text = ink.plain(beside_phrase(display, head_number.meaning))
    meaning = whole_clauses(meaning_text, width, room - len(said))
    return styled(said) + styled(meaning, DIM)


def _of_effects(
    state: WalkState, scene: Scene, head_number: HeadNumber, name: str, width: int
) -> list[str]:
    """Say how much the head under the cursor matters, which heads matter most, and how much it does at the other place."""
    spot = state.spot
    display = state.place.display
    strongest = list[str]()
    for layer, head, effect in strongest_of(head_number.values)[:_NAMED]:
        size = effect_text(effect, head_number.measure)
        if strongest:  # the first one has the unit
            size = size.removesuffix(" bits")
        strongest.append(f"{_name_of(scene, layer, head)} {size}")
    strongest_texts = ["strongest: " + ", ".join(strongest[:count]) for count in (4, 3, 2, 1)]
    effect_place = place_of_effect(scene, _row_of_effect(state, display))
    verdicts = _verdicts(head_number, spot.layer, spot.head)
    word = effect_word(float(head_number.values[spot.layer, spot.head]), head_number.measure)
    (*_, rank) = verdicts[-1].split(", ")
    # a cut edge has its own verdict in the panel of the row
    forms = [
        f"without {name} {effect_place}: {verdicts[0]}",
        f"{name} {effect_place}: {verdicts[0]}",
        *(f"{start}{name}: {verdict}" for verdict in verdicts for start in ("without ", "")),
        f"without {name}: {word.lower()}, {rank}",
    ]
    phrases = [fitting([*forms, verdicts[-1]], width), fitting(strongest_texts, width)]
    other = EFFECT if display == ROW_EFFECT else ROW_EFFECT
    other_place = place_of_effect(scene, _row_of_effect(state, other))
    other_number = _of_display(state, scene, other)
    if other_number is not None and other_place != effect_place:
        verdicts = _verdicts(other_number, spot.layer, spot.head)
        phrases.append(fitting([f"{other_place}: {verdict}" for verdict in verdicts], width))
    return phrases


def _verdicts(head_number: HeadNumber, layer: int, head: int) -> list[str]:
    """Say how much a head matters, `little, 0.014 bits, rank 76 of 270 by effect`, and in fewer words."""
    ranks = head_number.made("ranks", lambda: ranks_of(head_number.values))
    size = verdict_text(float(head_number.values[layer, head]), head_number.measure)
    ranked = f"{size}, rank {ranks[layer, head]}"
    # the title of the panel says by what
    return [ranked + end for end in (f" of {ranks.size} by effect", f" of {ranks.size}", "")]


def _letters_of(state: WalkState, scene: Scene, layers: range) -> list[str]:
    """Return the letters and signs of some layers with their meanings, the most frequent first."""
    roles = scene.roles
    if roles is None:
        return []
    main = roles.main[layers.start : layers.stop]
    letters = [
        state.ink.plain(f"{roles.letters[n]} {roles.names[n]}")
        for n, _ in Counter(main[main >= 0].tolist()).most_common()
    ]
    return [*letters, *["? unclear"] * bool((main < 0).any()), *_marked(state)]


def _role_legend(
    state: WalkState, scene: Scene, letters: list[str], width: int, room: int
) -> list[Line]:
    """Say the role of the head under the cursor, and what letters stand for, in at most so many lines."""
    ink = state.ink
    spot = state.spot
    name = _name_of(scene, spot.layer, spot.head)
    roles = scene.roles
    if roles is None:
        hint = "not known here"
        if state.source.computes:
            hint = state.status or "roles come next …"
        return styled(wrapped(ink.plain(hint), width), DIM)
    index = int(roles.main[spot.layer, spot.head])
    if index < 0:
        role = "no clear role"
    else:
        role = f"{roles.names[index]} {roles.strength[spot.layer, spot.head]:.2f}"
    lines = ended(flowed(letters, width, ", "), width, room - 1)
    return styled([fit(ink.plain(f"{name}: {role}"), width)]) + styled(lines, DIM)


def _picture(
    ink: Ink,
    head: WalkHead,
    wide: int,
    tall: int,
    on_picture: Matrix | None = None,
    scale: Scale = WEIGHTS,
    *,
    has_zeros: bool = False,
) -> list[Line]:
    """Return the lines of a thumbnail, with one or two cells above each other on a line.

    Args:
        ink: The terminal.
        head: The head.
        wide: Columns of the thumbnail.
        tall: Lines of it.
        on_picture: The weights of a row on the patches of a picture, in place of the weights of the head.
        scale: The scale of weights.
        has_zeros: Whether a weight of zero is exactly that, and has the sign of a cell that the mask forbids.
    """
    per_line = 2 if ink.colours and not ink.ascii else 1
    size = tall * per_line, wide
    if on_picture is None:
        cells = thumbnail(head, *size)
    else:
        cells = pool_largest(on_picture, *size)
    shades = np.full(size, NONE)
    if cells is not None:
        times = _enlarged_by(cells.shape, size)
        cells = cells.repeat(times, axis=0).repeat(times, axis=1)
        drawn = shades[: cells.shape[0], : cells.shape[1]]
        drawn[:] = steps(np.where(cells < 0, np.nan, cells), scale, ink)
        if has_zeros:
            drawn[cells == 0] = FORBIDDEN
    if per_line == 2:
        return ink.halves(shades, signed=False)
    # without colours, and where there are no half blocks
    styles = {step: ink.cell(step, signed=False) for step in set(shades.ravel().tolist())}
    styles[FORBIDDEN] = ink.forbidden
    return [
        joined(
            (" " if ink.colours and step >= 0 else ink.shade(step, signed=False)[0], styles[step])
            for step in row
        )
        for row in shades.tolist()
    ]


def _layer(layer: int | str) -> str:
    return str(layer) if layer == "mean" else f"L{layer}"


def _head(head: int | str, width: int) -> str:
    if head == "mean":
        return str(head)[:width]
    if width > 3:
        return f"H{head}"
    return str(head)


def _row_of_effect(state: WalkState, display: str) -> int | None:
    """Return the query of an effect at a row; None for that where the model predicts."""
    if display == ROW_EFFECT:
        return state.query
    return None


def _of_display(state: WalkState, scene: Scene, display: str) -> HeadNumber | None:
    if display == ROW_EFFECT:
        return effect_of_row(scene, state.query)
    return scene.number(display)


def _narrow_percent(share: float) -> str:
    return effect_text(share, "hidden").replace(" ", "")


def _numbers(ink: Ink, head_number: HeadNumber) -> list[list[tuple[str, Style, str]]]:
    """Return how the number of every head is written, its colour, and its shade."""
    finite = head_number.values[np.isfinite(head_number.values)]
    scale = WEIGHTS
    if finite.size:
        # a few heads have most of all effects
        shape: Shape = "sqrt" if head_number.name in _EFFECTS else "linear"
        scale = Scale(float(min(0.0, finite.min())), float(finite.max()), False, shape)
    is_share = ENDINGS.get(head_number.measure) == "%"
    write = _narrow_percent if is_share else digits_for(head_number.values, 2).text
    cells = []
    for values, row in zip(
        head_number.values.tolist(), steps(head_number.values, scale, ink).tolist(), strict=True
    ):
        texts = ["" if np.isnan(value) else ink.plain(write(value)) for value in values]
        styles = [ink.cell(step, signed=False) if step >= 0 else DIM for step in row]
        marks = [_shade(ink, step) for step in row]
        cells.append([*zip(texts, styles, marks, strict=True)])
    return cells
