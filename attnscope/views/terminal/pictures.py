"""Draw pictures with maps over them in half blocks: a character has two pixels, one above the other.

Without enough colours for a picture, a map is cells of colour or shade, without the picture below it.
"""

from collections.abc import Sequence
from itertools import pairwise
from typing import NamedTuple, Protocol

import numpy as np
from rich.color import Color
from rich.style import Style
from rich.text import Text

from attnscope.findings.arrays import Array, Matrix
from attnscope.views.head_layout import lay_out_heads
from attnscope.views.palette import Surface
from attnscope.views.parts import PictureMap, Pictures
from attnscope.views.pictures import (
    RELATIVE,
    UNIT,
    covered,
    faint,
    patch_colour,
    percent,
    resized,
    ticks,
    two_digits,
)
from attnscope.views.scales import Scale, needs_black, pool_largest
from attnscope.views.terminal.colours import SHADES, cell_shade, ramp_style
from attnscope.views.terminal.screen import Screen, flow

_WIDEST = 64  # characters of a picture
_LINES = 24  # lines of a picture
_SMALL = 24  # the same if there are more than a few
_FEW = 4
_BETWEEN = 3  # blanks between two pictures
_FEWEST = 16  # colours of a terminal that cannot show a picture
_FEW_COLOURS = 256
_RAMP = 24  # characters of a legend's ramp
# Characters of a thumbnail.
_NARROWEST = 8
_THUMBNAIL = 16

Lines = list[Text]
Pieces = list[tuple[str, Style]]


class Terminal(Protocol):
    """What a terminal can show: a Screen, or the Ink of a walk."""

    @property
    def colours(self) -> int:
        """How many colours it has."""

    @property
    def ascii(self) -> bool:
        """Whether its encoding knows ASCII only."""

    @property
    def surface(self) -> Surface:
        """The colours of numbers on its background."""


class Size(NamedTuple):
    """A picture in pixels, two of which are one character."""

    width: int
    height: int


def draw_pictures(screen: Screen, pictures: Pictures) -> None:
    """Print maps on pictures with their shares; many heads as thumbnails."""
    screen.put(screen.text(pictures.caption))
    if pictures.places is not None:
        _draw_heads(screen, pictures.maps, pictures.places, pictures.facts)
    else:
        _draw_maps(screen, pictures.maps)
    screen.put(
        Text.assemble(*legend_pieces(pictures.maps[0].scale, screen, relative=pictures.relative))
    )


def _lines(rows: Sequence[Pieces]) -> Lines:
    return [Text.assemble(*row) for row in rows]


def _draw_maps(screen: Screen, maps: Sequence[PictureMap]) -> None:
    """Print the picture as it is, then its maps; as many side by side as fit."""
    # The picture and one map stand side by side; of many, more do.
    each = min(
        _WIDEST, screen.width, (screen.width - _BETWEEN) // 2 if len(maps) <= _FEW else _SMALL
    )
    pictured = has_pictures(screen)
    titled_maps: list[tuple[Text, Lines]] = []
    seen_pixels: set[bytes] = set()
    for picture in maps:
        size = size_of(picture.weights.shape, each)
        key = picture.pixels.tobytes()
        if pictured and key not in seen_pixels:
            seen_pixels.add(key)
            pixels = np.rint(resized(picture.pixels, size.height, size.width)).astype(np.uint8)
            titled_maps.append(
                (Text("the picture, as the model saw it", "dim"), _lines(half_block_rows(pixels)))
            )
        titled_maps.append((screen.text(picture.title), _lines(map_rows(picture, size, screen))))
    for start, end in _bands([lines[0].cell_len for _, lines in titled_maps], screen.width):
        _draw_band(screen, titled_maps[start:end])
    for picture in (drawn_map for drawn_map in maps if drawn_map.shares):
        said = Text()
        if len(maps) > 1:
            said.append_text(screen.text(picture.title)).append("  ")
        items = [
            Text.assemble(f"{name} ", (percent(share), "bold")) for name, share in picture.shares
        ]
        screen.put(said.append_text(flow(items, screen.line - said.cell_len, " · ")))
        if picture.facts:
            screen.say(" · ".join(picture.facts))


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


def _draw_band(screen: Screen, titled_maps: Sequence[tuple[Text, Lines]]) -> None:
    widths = [lines[0].cell_len for _, lines in titled_maps]
    heading = Text()
    for (title, _), width in zip(titled_maps, widths, strict=True):
        shown_title = title.copy()
        shown_title.truncate(width, overflow="ellipsis", pad=True)
        heading.append_text(shown_title).append(" " * _BETWEEN)
    screen.put(heading, width=screen.width)
    for n in range(max(len(lines) for _, lines in titled_maps)):
        row = Text()
        for (_, lines), width in zip(titled_maps, widths, strict=True):
            row.append_text(lines[n] if n < len(lines) else Text(" " * width)).append(
                " " * _BETWEEN
            )
        screen.put(row, width=screen.width)


def _draw_heads(
    screen: Screen,
    maps: Sequence[PictureMap],
    layers_and_heads: Sequence[tuple[int, int]],
    facts: str,
) -> None:
    """Print the map of every head as a thumbnail, with its numbers below it."""
    layout = lay_out_heads(layers_and_heads)
    map_of_cell = dict(zip(layout.cells, maps, strict=True))
    label = max(map(len, layout.rows)) + 1 if layout.rows != [""] else 0
    widest = max(len(" ".join(picture.facts)) for picture in maps)
    rows, columns = maps[0].weights.shape
    count = len(layout.columns)
    step = max(_NARROWEST, widest, max(map(len, layout.columns))) + 1
    at_once = max(1, min(count, (screen.width - label) // step))
    width = min(columns, _THUMBNAIL, max(_NARROWEST, (screen.width - label) // at_once - 1))
    step = max(step, width + 1)
    size = Size(width, max(1, round(rows * width / columns)))
    for start in range(0, count, at_once):
        heads = range(start, min(start + at_once, count))
        names = "".join(layout.columns[head].ljust(step) for head in heads)
        screen.put(Text(" " * label + names), width=screen.width)
        for index, layer in enumerate(layout.rows):
            maps_of_row = [map_of_cell.get((index, head)) for head in heads]
            cells = [_thumbnail_lines(screen, picture, size) for picture in maps_of_row]
            for n in range(max(map(len, cells))):
                row = Text((layer if not n else "").ljust(label))
                for lines in cells:
                    line = lines[n] if n < len(lines) else Text()
                    row.append_text(line).append(" " * (step - line.cell_len))
                screen.put(row, width=screen.width)
    coarser = "; a cell is the largest of the patches in it"
    if size == (columns, rows):
        coarser = ""
    if facts:
        screen.say(f"below each: {facts}{coarser}")


def _thumbnail_lines(screen: Screen, picture: PictureMap | None, size: Size) -> Lines:
    if picture is None:
        return [Text()]
    cells = pool_largest(picture.weights, size.height, size.width)
    lines = []
    for n in range(0, size.height, 2):
        line = Text()
        for column in range(size.width):
            pair = [
                picture.scale.place(weight) or 0.0 for weight in cells[n : n + 2, column].tolist()
            ]
            if not screen.colours:
                line.append(SHADES[min(len(SHADES) - 1, int(max(pair) * len(SHADES)))])
            elif screen.ascii:
                line.append(" ", Style(bgcolor=screen.ramp(max(pair)).bgcolor))
            else:
                line.append(*half_block(*(_colour(screen, fraction) for fraction in pair)))
        lines.append(line)
    return [*lines, Text(" ".join(picture.facts))]


def _colour(screen: Screen, fraction: float) -> Color:
    if screen.colours > _FEW_COLOURS:
        return Color.from_rgb(*screen.surface.colour(fraction, signed=False))
    return screen.ramp(fraction).bgcolor or Color.default()


def half_block(upper: Color, lower: Color | None = None) -> tuple[str, Style]:
    """Return a character whose halves have two colours; without a lower one, that of the terminal's background."""
    if upper == lower:
        return " ", Style(bgcolor=upper)
    if upper.is_default:  # as a foreground, it is the colour of letters
        if lower is None:
            return " ", Style()
        return "▄", Style(color=lower)
    return "▀", Style(color=upper, bgcolor=lower)


def has_pictures(look: Terminal) -> bool:
    """Tell whether a terminal can show a picture: it has half blocks and enough colours."""
    return look.colours > _FEWEST and not look.ascii


def size_of(shape: tuple[int, ...], room: int, lines: int = _LINES) -> Size:
    """Return the size of a picture: all patches have the same number of pixels if they have one at all."""
    rows, columns = shape
    each = min(room // columns, 2 * lines // rows)
    if each:
        return Size(columns * each, rows * each)
    shrunk = min(room / columns, 2 * lines / rows)
    return Size(max(1, int(columns * shrunk)), max(2, int(rows * shrunk)))


def map_rows(picture: PictureMap, size: Size, look: Terminal) -> list[Pieces]:
    """Return a map as lines of characters; the patch that is the query is in brackets, on its own colour."""
    if not has_pictures(look):
        return _shaded_rows(picture, look)
    pixels = resized(picture.pixels, size.height, size.width)
    over = covered if look.colours > _FEW_COLOURS else _covered_by_steps
    lines = half_block_rows(over(pixels, picture.weights, picture.scale, look.surface))
    if picture.query is not None:
        rows, columns = picture.weights.shape
        row, column = picture.query
        line = lines[min(len(lines) - 1, (2 * row + 1) * size.height // (4 * rows))]
        left = column * size.width // columns
        right = max(left + 1, (column + 1) * size.width // columns)
        letters = "◆" if right - left == 1 else f"[{' ' * (right - left - 2)}]"
        for at, letter in zip(range(left, right), letters, strict=True):
            line[at] = letter, Style(bgcolor=line[at][1].bgcolor, color=_ink(look), bold=True)
    return lines


def _covered_by_steps(pixels: Array, weights: Matrix, scale: Scale, surface: Surface) -> Array:
    """Return what `covered` does for 256 colours: a mixture of a colour and the picture would be another weight's."""
    height, width, _ = pixels.shape
    rows, columns = weights.shape
    steps: Array = np.repeat(faint(pixels, surface).mean(-1, keepdims=True), 3, -1)
    dither = np.array([[0.1, 0.6], [0.8, 0.35]])[
        np.arange(height)[:, None] % 2, np.arange(width) % 2
    ]
    patches = (np.arange(height) * rows // height)[:, None] * columns + np.arange(
        width
    ) * columns // width
    for patch, weight in enumerate(weights.ravel().tolist()):
        colour = ramp_style(scale.place(weight) or 0.0, False, _FEW_COLOURS, surface).bgcolor
        if colour is not None:
            _, cover = patch_colour(weight, scale, surface)
            steps[(patches == patch) & (dither < cover)] = colour.get_truecolor()
    return np.rint(steps).astype(np.uint8)


def _ink(look: Terminal) -> Color:
    return Color.parse(
        "black" if needs_black(bytes.fromhex(look.surface.background)) else "bright_white"
    )


def half_block_rows(pixels: Array) -> list[Pieces]:
    """Return pixels, (height, width, 3), as lines of half blocks; a last odd row has the background below it."""
    lines: list[Pieces] = []
    for n in range(0, len(pixels), 2):
        pairs = zip(*(row.tolist() for row in pixels[n : n + 2]), strict=True)
        lines.append([half_block(*(Color.from_rgb(*pixel) for pixel in pair)) for pair in pairs])
    return lines


def _shaded_rows(picture: PictureMap, look: Terminal) -> list[Pieces]:
    """Return a map as cells of two characters, of colour or shade, with a frame that blank patches need."""
    lines: list[Pieces] = []
    for row, weights in enumerate(picture.weights.tolist()):
        line: Pieces = [("|", Style())]
        for column, weight in enumerate(weights):
            fraction = picture.scale.place(weight) or 0.0
            if picture.query == (row, column):
                cell = "[]"
            elif look.colours:
                cell = "  "
            else:
                cell = cell_shade(fraction, False)
            line.append(
                (
                    cell,
                    ramp_style(fraction, False, look.colours, look.surface)
                    if look.colours
                    else Style(),
                )
            )
        lines.append([*line, ("|", Style())])
    edge = "+" + "-" * (2 * picture.weights.shape[1]) + "+"
    return [[(edge, Style())], *lines, [(edge, Style())]]


def legend_pieces(scale: Scale, look: Terminal, *, relative: bool = False) -> Pieces:
    """Return what the colours of patches mean; see Pictures."""
    unit = "" if relative else f" {UNIT}"
    if relative and not look.colours:
        return [(f"0 {SHADES} {RELATIVE}", Style())]
    if not look.colours:
        steps = [
            f"[{shade * 2}] {two_digits(100 * scale.value((n + 1) / len(SHADES)))} "
            for n, shade in enumerate(SHADES)
        ]
        return [*((step, Style()) for step in steps), (f"{unit[1:]}, at most", Style())]
    pieces: Pieces = [("0 ", Style())]
    for (start, _), (end, name) in pairwise(ticks(scale, relative=relative)):
        cells = max(1, round((end - start) * _RAMP))
        for n in range(cells):
            fraction = start + (end - start) * (n + 0.5) / cells
            pieces.append((" ", ramp_style(fraction, False, look.colours, look.surface)))
        pieces.append((f" {name}{' ' * (end < 1)}", Style()))
    return [*pieces, (unit, Style())]
