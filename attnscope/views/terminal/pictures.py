"""Draw pictures with maps over them in half blocks: a character has two pixels, one above the other.

Without enough colours for a picture, a map is cells of colour or shade, without the picture below it.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
from rich.color import Color
from rich.style import Style
from rich.text import Text

from attnscope.findings.arrays import Array
from attnscope.views.head_layout import lay_out_heads
from attnscope.views.parts import PictureMap, Pictures
from attnscope.views.pictures import covered, percent, resized, ticks, two_digits
from attnscope.views.scales import Scale, pool_largest
from attnscope.views.terminal.colours import SHADES, cell_shade, ramp_style
from attnscope.views.terminal.map import half_blocks
from attnscope.views.terminal.screen import Screen, flow

_WIDEST = 64  # characters of a picture
_LINES = 24  # lines of a picture
_BETWEEN = 3  # blanks between two pictures
_FEWEST = 16  # colours of a terminal that cannot show a picture
_RAMP = 24  # characters of a legend's ramp
# Characters of a thumbnail.
_NARROWEST = 8
_THUMBNAIL = 16

Lines = list[Text]


@dataclass(frozen=True)
class _Size:
    """A picture in pixels, two of which are one character."""

    width: int
    height: int

    @property
    def lines(self) -> int:
        return -(-self.height // 2)


def draw_pictures(screen: Screen, pictures: Pictures) -> None:
    """Print maps on pictures with their shares; many heads as thumbnails."""
    screen.put(screen.text(pictures.caption))
    if pictures.places is not None:
        _draw_heads(screen, pictures.maps, pictures.places, pictures.facts)
    else:
        _draw_maps(screen, pictures.maps)
    screen.put(_legend(screen, pictures.maps[0].scale))


def _draw_maps(screen: Screen, maps: Sequence[PictureMap]) -> None:
    """Print the picture as it is, then its maps; as many side by side as fit."""
    room = (screen.width - _BETWEEN) // 2
    drawn: list[tuple[Text, Lines]] = []
    shown: set[bytes] = set()
    for picture in maps:
        size = _size_of(picture.weights.shape, room if _has_pictures(screen) else screen.width)
        key = picture.pixels.tobytes()
        if _has_pictures(screen) and key not in shown:
            shown.add(key)
            drawn.append(
                (Text("the picture, as the model saw it", "dim"), half_block_lines(screen, _seen(picture, size)))
            )
        drawn.append((screen.text(picture.title), map_lines(screen, picture, size)))
    for start, end in _bands([lines[0].cell_len for _, lines in drawn], screen.width):
        _draw_band(screen, drawn[start:end])
    for picture in maps:
        said = Text()
        if len(maps) > 1:
            said.append_text(screen.text(picture.title)).append("  ")
        items = [Text.assemble(f"{name} ", (percent(share), "bold")) for name, share in picture.shares]
        screen.put(said.append_text(flow(items, screen.line - said.cell_len, " · ")))
        if picture.facts:
            screen.say((" · ".join(picture.facts), "dim"))


def _bands(widths: Sequence[int], room: int) -> list[tuple[int, int]]:
    """Return the first and the last picture, which is not included, of every line of pictures."""
    bands = [[0, 0]]
    used = 0
    for n, width in enumerate(widths):
        if used and used + _BETWEEN + width > room:
            bands.append([n, n])
            used = 0
        used += width + _BETWEEN * bool(used)
        bands[-1][1] = n + 1
    return [(start, end) for start, end in bands]


def _draw_band(screen: Screen, drawn: Sequence[tuple[Text, Lines]]) -> None:
    widths = [lines[0].cell_len for _, lines in drawn]
    heading = Text()
    for (title, _), width in zip(drawn, widths, strict=True):
        shown_title = title.copy()
        shown_title.truncate(width, overflow="ellipsis", pad=True)
        heading.append_text(shown_title).append(" " * _BETWEEN)
    screen.put(heading, width=screen.width)
    for n in range(max(len(lines) for _, lines in drawn)):
        row = Text()
        for (_, lines), width in zip(drawn, widths, strict=True):
            row.append_text(lines[n] if n < len(lines) else Text(" " * width)).append(" " * _BETWEEN)
        screen.put(row, width=screen.width)


def _draw_heads(screen: Screen, maps: Sequence[PictureMap], places: Sequence[tuple[int, int]], facts: str) -> None:
    """Print the map of every head as a thumbnail, with its numbers below it."""
    layout = lay_out_heads(places)
    by_place = dict(zip(layout.cells, maps, strict=True))
    label = max(map(len, layout.rows)) + 1 if layout.rows != [""] else 0
    widest = max(len(" ".join(picture.facts)) for picture in maps)
    rows, columns = maps[0].weights.shape
    count = len(layout.columns)
    step = max(_NARROWEST, widest, max(map(len, layout.columns))) + 1
    at_once = max(1, min(count, (screen.width - label) // step))
    width = min(columns, _THUMBNAIL, max(_NARROWEST, (screen.width - label) // at_once - 1))
    step = max(step, width + 1)
    size = _Size(width, max(1, round(rows * width / columns)))
    for first in range(0, count, at_once):
        heads = range(first, min(first + at_once, count))
        names = "".join(layout.columns[head].ljust(step) for head in heads)
        screen.put(Text(" " * label + names, "dim"), width=screen.width)
        for index, layer in enumerate(layout.rows):
            drawn = [by_place.get((index, head)) for head in heads]
            cells = [_thumbnail_lines(screen, picture, size) for picture in drawn]
            for n in range(max(map(len, cells))):
                row = Text.assemble(((layer if not n else "").ljust(label), "dim"))
                for lines in cells:
                    line = lines[n] if n < len(lines) else Text()
                    row.append_text(line).append(" " * (step - line.cell_len))
                screen.put(row, width=screen.width)
    if facts:
        screen.say((f"below each: {facts}", "dim"))


def _thumbnail_lines(screen: Screen, picture: PictureMap | None, size: _Size) -> Lines:
    if picture is None:
        return [Text()]
    cells = pool_largest(picture.weights, size.height, size.width)
    lines = []
    for n in range(0, size.height, 2):
        line = Text()
        for column in range(size.width):
            pair = [picture.scale.place(weight) or 0.0 for weight in cells[n : n + 2, column].tolist()]
            if not screen.colours:
                line.append(SHADES[min(len(SHADES) - 1, int(max(pair) * len(SHADES)))])
            elif screen.ascii:
                line.append(" ", Style(bgcolor=screen.ramp(max(pair)).bgcolor))
            else:
                line.append(*half_blocks(*(_colour(screen, place) for place in pair)))
        lines.append(line)
    return [*lines, Text(" ".join(picture.facts), "dim")]


def _colour(screen: Screen, place: float) -> Color:
    if screen.colours > _FEWEST:
        return Color.from_rgb(*screen.surface.colour(place, signed=False))
    return screen.ramp(place).bgcolor or Color.default()


def _has_pictures(screen: Screen) -> bool:
    return screen.colours > _FEWEST and not screen.ascii


def _size_of(shape: tuple[int, ...], room: int) -> _Size:
    """Return the size of a picture: all patches have the same number of pixels if they have one at all."""
    rows, columns = shape
    room = min(room, _WIDEST)
    each = min(room // columns, 2 * _LINES // rows)
    if each:
        return _Size(columns * each, rows * each)
    shrunk = min(room / columns, 2 * _LINES / rows)
    return _Size(max(1, int(columns * shrunk)), max(2, int(rows * shrunk)))


def _seen(picture: PictureMap, size: _Size) -> Array:
    return np.rint(resized(picture.pixels, size.height, size.width)).astype(np.uint8)


def map_lines(screen: Screen, picture: PictureMap, size: _Size) -> Lines:
    """Return a map as lines of characters."""
    if not _has_pictures(screen):
        return _shaded_lines(screen, picture)
    pixels = covered(resized(picture.pixels, size.height, size.width), picture.weights, picture.scale, screen.surface)
    lines = half_block_lines(screen, pixels)
    if picture.query is not None:
        _mark(lines, picture, size)
    return lines


def _mark(lines: Lines, picture: PictureMap, size: _Size) -> None:
    """Put brackets around the patch that is the query; its colour stays."""
    assert picture.query is not None
    rows, columns = picture.weights.shape
    row, column = picture.query
    line = min(len(lines) - 1, (2 * row + 1) * size.height // (4 * rows))
    left = column * size.width // columns
    right = max(left + 1, (column + 1) * size.width // columns)
    text = lines[line]
    marked = text[:left]
    for at in range(left, right):
        style = text[at].spans[0].style if text[at].spans else text[at].style
        below = style.bgcolor if isinstance(style, Style) else None
        letter = "[" if at == left and right - left > 1 else "]" if at == right - 1 and right - left > 1 else " "
        letter = "◆" if right - left == 1 else letter
        marked.append(letter, Style(bgcolor=below, bold=True))
    lines[line] = marked.append_text(text[right:])


def half_block_lines(screen: Screen, pixels: Array) -> Lines:
    """Return pixels, (height, width, 3), as lines of half blocks."""
    lines = []
    for n in range(0, len(pixels), 2):
        line = Text()
        for column in range(pixels.shape[1]):
            pair = [Color.from_rgb(*pixel) for pixel in pixels[n : n + 2, column].tolist()]
            line.append(*half_blocks(*pair))
        lines.append(line)
    return lines


def _shaded_lines(screen: Screen, picture: PictureMap) -> Lines:
    """Return a map as cells of two characters, of colour or shade, with a frame that a blank patch needs."""
    lines = []
    for row, weights in enumerate(picture.weights.tolist()):
        line = Text("|")
        for column, weight in enumerate(weights):
            place = picture.scale.place(weight) or 0.0
            cell = cell_shade(place, False) if not screen.colours else "  "
            if picture.query == (row, column):
                cell = "[]"
            line.append(cell, ramp_style(place, False, screen.colours, screen.surface) if screen.colours else "")
        lines.append(line.append("|"))
    edge = Text("+" + "-" * (2 * picture.weights.shape[1]) + "+")
    return [edge, *lines, edge]


def _legend(screen: Screen, scale: Scale) -> Text:
    """Draw what the colours of patches mean."""
    unit = "% of the row on one patch"
    if not screen.colours:
        steps = [
            f"[{shade * 2}] {two_digits(100 * scale.value((n + 1) / len(SHADES)))}" for n, shade in enumerate(SHADES)
        ]
        return flow([Text(step) for step in steps] + [Text(f"{unit}, at most", "dim")], screen.line, " ")
    line = Text("0 ")
    for (start, _), (end, name) in pairwise(ticks(scale)):
        cells = max(1, round((end - start) * _RAMP))
        for n in range(cells):
            line.append(" ", screen.ramp(start + (end - start) * (n + 0.5) / cells))
        line.append(f" {name}{' ' * (end < 1)}")
    return line.append(f" {unit}", "dim")
