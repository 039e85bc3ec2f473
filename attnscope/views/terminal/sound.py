"""Draw weights over seconds: the loudness of a sound, and below it a row for every token, with a path."""

from collections.abc import Sequence

import numpy as np
from rich.style import Style
from rich.text import Text

from attnscope.views.numbers import NO_WEIGHT
from attnscope.views.parts import SoundMap
from attnscope.views.scales import LogScale
from attnscope.views.sound import second_ticks
from attnscope.views.terminal.colours import shade
from attnscope.views.terminal.labels import labels
from attnscope.views.terminal.map import SHADES, colour_on, draw_log_scale, half_blocks
from attnscope.views.terminal.screen import Screen

_LEVELS = " ▁▂▃▄▅▆▇█"
_LEVELS_ASCII = " .:-=+*#@"
_PATH = "━"
_PATH_ASCII = "="
_NAME = 12  # cells of a row's name
_QUIET = 0.02  # of the loudest sample: below it, nothing is drawn


def draw_sound(screen: Screen, sound_map: SoundMap) -> None:
    """Print a map as wide as fits: neighbouring frames share a column, with the sum of their weights."""
    rows = labels(screen, sound_map.rows)
    name = min(rows.widest, _NAME)
    label = max(rows.axis.digits + 1 + name, len("seconds →"))
    space = screen.width - label - 1
    n_frames = sound_map.weights.shape[1]
    factor = -(-n_frames // space)
    starts = np.arange(0, n_frames, factor)
    weights = np.add.reduceat(sound_map.weights, starts, axis=1).astype(np.float32)
    scale = LogScale.of(weights)
    halves = (
        not sound_map.path
        and bool(screen.colours)
        and not screen.ascii
        and len(weights) > screen.width // 4
    )
    screen.say((sound_map.of, "bold"), f"  {sound_map.meaning}")
    levels = np.maximum.reduceat(np.array(sound_map.levels), starts)
    screen.put(
        Text(f"{'sound':>{label}} {spell_levels(levels.tolist(), ascii_=screen.ascii)}"),
        width=screen.width,
    )
    seconds = [*np.array(sound_map.seconds)[starts].tolist(), sound_map.seconds[-1]]
    screen.put(Text(f"{'seconds →':>{label}} {spell_ticks(seconds)}"), width=screen.width)
    for row in range(0, len(weights), 2 if halves else 1):
        line = rows.label(row, name)
        line.append(" " * (label + 1 - line.cell_len))
        path = {frame // factor for frame in sound_map.path_of(row)}
        for column in range(weights.shape[1]):
            if halves and row + 1 < len(weights):
                below = weights[row + 1, column]
            else:
                below = np.nan
            line.append(*_cell(screen, scale, weights[row, column], below, on_path=column in path))
        screen.put(line, width=screen.width)
    draw_log_scale(screen, scale, weights)


def _cell(
    screen: Screen, scale: LogScale, weight: float, below: float, *, on_path: bool
) -> tuple[str, Style | str]:
    colour = colour_on(screen, scale, weight) if screen.colours else None
    if on_path:
        mark = _PATH_ASCII if screen.ascii else _PATH
        return mark, Style(bold=True, bgcolor=colour) if colour else "bold"
    if weight == 0 and not below > 0:
        return NO_WEIGHT, "dim"
    if not screen.colours:
        fraction = scale.place(weight)
        return " " if fraction is None else shade(fraction, SHADES), ""
    if np.isnan(below):
        return " ", Style(bgcolor=colour) if colour else ""
    return half_blocks(colour, colour_on(screen, scale, below))


def spell_levels(levels: Sequence[float], *, ascii_: bool = False) -> str:
    """Draw loudness as blocks, relative to the loudest."""
    marks = _LEVELS_ASCII if ascii_ else _LEVELS
    loudest = max(levels, default=0.0) or 1.0
    shares = [level / loudest for level in levels]
    return "".join(
        marks[0] if share < _QUIET else marks[max(1, round(share * (len(marks) - 1)))]
        for share in shares
    )


def spell_ticks(seconds: Sequence[float]) -> str:
    """Write round seconds above the columns that hold them."""
    columns = len(seconds) - 1
    line = ""
    for column, text in second_ticks(seconds, columns):
        if column >= len(line) and column + len(text) <= columns:
            line = f"{line:<{column}}{text}"
    return line
