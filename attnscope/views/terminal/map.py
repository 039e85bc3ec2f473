"""Draw the map of a whole text as a heat picture."""

from dataclasses import dataclass

import numpy as np
from rich.cells import cell_len
from rich.color import Color
from rich.style import Style
from rich.text import Text

from attnscope.findings.arrays import Matrix
from attnscope.views.numbers import NO_WEIGHT
from attnscope.views.parts import WEIGHTS, WeightMap
from attnscope.views.scales import LogScale, Scale
from attnscope.views.terminal.colours import ground_of, ramp_text, shade
from attnscope.views.terminal.labels import labels, say_list, upright
from attnscope.views.terminal.screen import ROOMY, Screen, flow

_SINGULAR = {WEIGHTS: "weight"}
# Shades of weights above zero.
SHADES = "░▒▓█"
_UPPER = "▀"
_LOWER = "▄"
# Cells of a token beside its row.
_SHORTEST = 4
_NAME = 10


@dataclass(frozen=True)
class Picture:
    """A map as it is drawn."""

    queries: list[int]
    keys: list[int]
    weights: Matrix
    cell: int  # characters of a run of keys: 2 if it fits
    # runs of queries in a line: 2 if two colours share a character, because a character is twice as high as wide
    lines: int
    scale: LogScale


def draw_map(screen: Screen, pooled: WeightMap) -> None:
    """Print a map, as wide as fits, with positions and tokens along its axes, and a legend."""
    axis_kind = pooled.first_keys.kind
    rows = labels(screen, pooled.first_queries)
    digits = len(str(pooled.queries[-1]))
    label = digits
    name = 0
    across = ""
    down = ""
    if screen.width >= ROOMY:
        across = f"{axis_kind} →"
        down = "query ↓"
        label = max(digits, len(down), len(across))
        # as many cells for a row's token as do not merge more keys, unless they are too few for a word
        n_keys = len(pooled.keys) - 1
        room = screen.width - -(-n_keys // -(-n_keys // (screen.width - label - 1))) - digits - 2
        name = min(rows.widest, _NAME, room) if room >= _SHORTEST else 0
        label = max(label, rows.axis.digits + 1 + name)
    picture = lay_out(screen, pooled, screen.width - label - 1)
    screen.say((pooled.of, "bold"), f"  {_description(pooled, picture)}; {pooled.row_sum}")
    screen.put(
        Text(f"{across:>{label}} {ticks(picture, screen.width - label - 1)}"),
        width=screen.width,
    )
    upright = _upright(screen, pooled, picture)
    for n, letters in enumerate(upright, 1):
        before = down if n == len(upright) else ""
        screen.put(Text(f"{before:<{label + 1}}{letters}"), width=label + 1 + cell_len(letters))
    if down and not upright:
        screen.say(down)
    index = {position: n for n, position in enumerate(pooled.queries)}
    for line in range(0, len(picture.weights), picture.lines):
        first_row = index[picture.queries[line]]
        if name:
            heading = rows.label(first_row, name)
        else:
            heading = Text(f"{picture.queries[line]:>{label}}")
        heading.append(" " * (label + 1 - heading.cell_len))
        for column in range(picture.weights.shape[1]):
            values = picture.weights[line : line + picture.lines, column].tolist()
            heading.append(*_pixel(screen, picture, values))
        screen.put(heading, width=label + 1 + picture.cell * len(picture.keys))
    draw_log_scale(screen, picture.scale, picture.weights)
    if none := int(np.isnan(picture.weights).all(axis=1).sum()):
        screen.say(
            f"{none} of {len(picture.weights)} rows are blank: their queries are fully masked"
        )
    if axis_kind == "context" and _is_whole(pooled):
        columns = labels(screen, pooled.first_keys)
        entries = zip(columns.axis.positions, columns.names, strict=True)
        say_list(screen, "context", [f"{position} {name}" for position, name in entries])


def lay_out(screen: Screen, pooled: WeightMap, space: int) -> Picture:
    """Choose as many runs of a map as fit the space; merge neighbours if there are too many."""
    n_keys = len(pooled.keys) - 1
    factor = -(-n_keys // space)
    cell = 2 if factor == 1 and 2 * n_keys <= space else 1
    halves = bool(screen.colours) and not screen.ascii
    together = factor * (2 if cell == 1 and not halves and not _is_whole(pooled) else 1)
    queries, weights = _merge_queries(pooled, together)
    keys = [*pooled.keys[:-1:factor], pooled.keys[-1]]
    weights = np.add.reduceat(weights, np.arange(0, n_keys, factor), axis=1)
    # A whole map has a line for every token, with its name.
    lines = 2 if cell == 1 and halves and not _is_whole(pooled) else 1
    return Picture(queries, keys, weights.astype(np.float32), cell, lines, LogScale.of(weights))


def _upright(screen: Screen, pooled: WeightMap, picture: Picture) -> list[str]:
    """Return the lines of tokens above columns of one token each, which are read downwards; none for other columns."""
    columns = labels(screen, pooled.first_keys)
    if not columns.names or len(columns.names) != len(picture.keys) - 1 or not _is_whole(pooled):
        return []
    names = [name if cell_len(name) == len(name) else "…" * bool(name) for name in columns.names]
    return [
        "".join(letter.ljust(picture.cell) for letter in line).rstrip() for line in upright(names)
    ]


def _is_whole(pooled: WeightMap) -> bool:
    """Tell whether every run is one token, of a text that is short enough for a line each."""
    return (pooled.queries[-1], pooled.keys[-1]) == pooled.weights.shape


def _merge_queries(pooled: WeightMap, together: int) -> tuple[list[int], np.ndarray]:
    """Average neighbouring runs of queries, weighted by the number of queries; NaN does not count."""
    starts = pooled.queries
    sizes = np.diff(np.array(starts, dtype=np.float64))[:, None]
    counted = np.where(np.isnan(pooled.weights), 0.0, sizes)
    cuts = np.arange(0, len(sizes), together)
    total = np.add.reduceat(
        np.nan_to_num(pooled.weights.astype(np.float64)) * counted, cuts, axis=0
    )
    with np.errstate(invalid="ignore"):
        return [*starts[:-1:together], starts[-1]], total / np.add.reduceat(counted, cuts, axis=0)


def _description(pooled: WeightMap, picture: Picture) -> str:
    sizes = [f"{a} × {b}" for a, b in (pooled.weights.shape, picture.weights.shape)]
    merged = f", merged into {sizes[1]} to fit" if sizes[1] != sizes[0] else ""
    cell = f"; a cell is the {_SINGULAR.get(pooled.of, pooled.of)} on a run of keys, averaged over a run of queries"
    if _is_whole(pooled):
        return f"map of {sizes[0]} {pooled.of if pooled.of == WEIGHTS else 'cells'}{merged}{cell if merged else ''}"
    return f"map of {sizes[0]} cells{merged}{cell}"


def ticks(picture: Picture, space: int) -> str:
    """Write positions over the columns, each from above the first key of its run on, as close as they can be read."""
    digits = len(str(picture.keys[-1]))
    step = next(
        step
        for step in (1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024)
        if step * picture.cell > digits + 1
    )
    line = ""
    for run in range(0, len(picture.keys) - 1, step):
        position = str(picture.keys[run])
        if run * picture.cell + len(position) <= space:
            line = f"{line:<{run * picture.cell}}{position}"
    return line


def _pixel(screen: Screen, picture: Picture, values: list[float]) -> tuple[str, Style | str]:
    """Draw one character (or two) for one run of queries, or for two of them above each other."""
    if set(values) == {0.0}:
        return NO_WEIGHT.rjust(picture.cell), "dim"
    colours = [colour_on(screen, picture.scale, value) for value in values]
    if not screen.colours:
        return map_shade(picture.scale.place(values[0])) * picture.cell, ""
    if picture.lines == 1:
        return " " * picture.cell, Style(bgcolor=colours[0]) if colours[0] else ""
    return half_blocks(*colours)


def half_blocks(upper: Color | None, lower: Color | None = None) -> tuple[str, Style | str]:
    """Return a character whose halves have two colours; None for the background of the terminal."""
    if upper and lower:
        if upper == lower:
            return (" ", Style(bgcolor=upper))
        return (_UPPER, Style(color=upper, bgcolor=lower))
    if upper:
        return (_UPPER, Style(color=upper))
    if lower:
        return (_LOWER, Style(color=lower))
    return (" ", "")


def colour_on(screen: Screen, scale: Scale | LogScale, weight: float) -> Color | None:
    """Return the colour of a weight; None if it has no place on the scale, such as 0 on a logarithmic one, and NaN."""
    fraction = scale.place(weight)
    if fraction is None:
        return None
    return ground_of(screen.ramp(fraction, scale))


def map_shade(fraction: float | None) -> str:
    """Return the shade of a place on a logarithmic scale, without colours."""
    if fraction is None:
        return " "
    return shade(fraction, SHADES)


def draw_log_scale(screen: Screen, scale: LogScale, weights: Matrix) -> None:
    """Print the scale, and what has no place on it."""
    if not (weights > 0).any():
        if (weights == 0).any():
            screen.say(f"{NO_WEIGHT} is exactly zero")
        return
    if screen.colours:
        items = [ramp_text(scale, *scale.ends(weights), screen.colours, screen.surface)]
    elif scale.low == scale.high:
        items = [Text(f"[{SHADES[-1] * 2}] {scale.high:.2g}")]
    else:
        ratio = (scale.high / scale.low) ** (1 / len(SHADES))
        bounds = [
            *(f"{scale.low * ratio**i:.2g}" for i in range(1, len(SHADES))),
            f"{scale.high:.2g}",
        ]
        shades = [f"[{shade * 2}] {bound}" for shade, bound in zip(SHADES, bounds, strict=True)]
        items = [Text(f">0 {shades[0]}"), *map(Text, shades[1:])]
    zero = f"; {NO_WEIGHT} is exactly zero" if (weights == 0).any() else ""
    meaning = Text(f"logarithmic{zero}")
    screen.put(flow([flow(items, screen.line, " "), meaning], screen.line, "  "))
