"""Draw pictures with maps over them: the faint picture is pixels, and every patch a rectangle that can be edited."""

from base64 import b64encode
from collections.abc import Sequence

from attnscope.base.png import encode_png
from attnscope.findings.arrays import Array
from attnscope.views.figure.canvas import GAP, MARGIN, RAMPS, SIZE, SMALL, Canvas, text_width, wrap
from attnscope.views.figure.colours import ramp_colour
from attnscope.views.figure.labels import BAR
from attnscope.views.head_layout import lay_out_heads
from attnscope.views.palette import LIGHT
from attnscope.views.parts import PictureMap, Pictures
from attnscope.views.pictures import RELATIVE, UNIT, faint, patch_colour, percent, ticks
from attnscope.views.scales import Scale
from attnscope.views.spans import Span, Spans, ours

_SIDE = 224.0  # width of a picture
_LEAST = 120.0  # of one on a page whose width is named
_SMALLEST = 36.0  # width of a thumbnail
_LARGEST = 84.0


def draw_pictures(canvas: Canvas, pictures: Pictures) -> None:
    """Draw the picture beside its maps, or the map of every head."""
    canvas.paragraph(pictures.caption)
    canvas.y += 4
    if pictures.places is not None:
        _draw_heads(canvas, pictures.maps, pictures.places)
        canvas.paragraph(ours(f"below each: {pictures.facts}", "dim"), size=SMALL)
    else:
        _draw_maps(canvas, pictures.maps)
    _draw_scale(canvas, pictures.maps[0].scale, relative=pictures.relative)


def _draw_maps(canvas: Canvas, maps: Sequence[PictureMap]) -> None:
    titled_maps: list[tuple[PictureMap, Spans | None]] = []
    seen_pixels: set[bytes] = set()
    for picture in maps:
        key = picture.pixels.tobytes()
        if key not in seen_pixels:
            seen_pixels.add(key)
            titled_maps.append((picture, None))
        titled_maps.append((picture, picture.title))
    room = canvas.limit - 2 * MARGIN + GAP
    across = max(1, int(room // ((_LEAST if canvas.fixed else _SIDE) + GAP)))
    side = _SIDE
    if canvas.fixed:  # pictures of equal size fill the page
        across = min(across, len(titled_maps))
        side = room / across - GAP
    for start in range(0, len(titled_maps), across):
        top = canvas.y
        for n, (picture, title) in enumerate(titled_maps[start : start + across]):
            canvas.y = max(
                canvas.y, _draw_map(canvas, picture, title, (MARGIN + n * (side + GAP), top, side))
            )
        canvas.y += GAP


def _draw_map(
    canvas: Canvas,
    picture: PictureMap,
    title: Spans | None,
    corner_and_width: tuple[float, float, float],
) -> float:
    """Draw a picture, or its map with the shares of the row below it; return the lower edge.

    `place`: The left edge, the upper edge and the width.
    """
    x, y, side = corner_and_width
    rows, columns = picture.weights.shape
    height, width, _ = picture.pixels.shape
    down = side * float(height) / float(width)
    seen = "the picture, as the model saw it"
    if text_width(seen) > side:
        seen = "the picture"
    for line in wrap(ours(seen, "dim") if title is None else title, side, SIZE)[:1]:
        canvas.text(x, y + SIZE, line)
    y += SIZE + 5
    if title is None:
        _draw_pixels(canvas, picture.pixels, x, y, side, down)
        return y + down
    _draw_pixels(canvas, faint(picture.pixels, LIGHT).round().astype("uint8"), x, y, side, down)
    cell = side / columns, down / rows
    for row, weights in enumerate(picture.weights.tolist()):
        for column, weight in enumerate(weights):
            colour, cover = patch_colour(weight, picture.scale, LIGHT)
            if cover:
                corner = f'x="{x + column * cell[0]:.2f}" y="{y + row * cell[1]:.2f}"'
                size = f'width="{cell[0]:.2f}" height="{cell[1]:.2f}"'
                canvas.put(
                    f'<rect {corner} {size} fill="#{bytes(colour).hex()}" fill-opacity="{cover:.2f}"/>'
                )
    canvas.frame(x, y, side, down)
    if picture.query is not None:
        row, column = picture.query
        corner = f'x="{x + column * cell[0]:.2f}" y="{y + row * cell[1]:.2f}"'
        size = f'width="{cell[0]:.2f}" height="{cell[1]:.2f}"'
        canvas.put(f'<rect {corner} {size} fill="none" stroke="#000000" stroke-width="1.5"/>')
    y += down + 2
    said: list[Span] = []
    for n, (name, share) in enumerate(picture.shares):
        said += [Span(" · " * bool(n) + f"{name} "), Span(percent(share), "bold")]
    numbers = ours(" · ".join(picture.facts), "dim")
    for below in [*wrap(tuple(said), side, SIZE), *wrap(numbers, side, SIZE)]:
        y += SIZE * 1.35
        canvas.text(x, y, below)
    return y + 3


def _draw_pixels(
    canvas: Canvas, pixels: Array, x: float, y: float, width: float, height: float
) -> None:
    box = f'x="{x:.1f}" y="{y:.1f}" width="{width:.2f}" height="{height:.2f}" preserveAspectRatio="none"'
    canvas.put(
        f'<image {box} href="data:image/png;base64,{b64encode(encode_png(pixels)).decode()}"/>'
    )
    canvas.reach(x + width)


def _draw_heads(
    canvas: Canvas, maps: Sequence[PictureMap], places: Sequence[tuple[int, int]]
) -> None:
    """Draw the map of every head without the picture, layers below each other, with its numbers below it."""
    layout = lay_out_heads(places)
    rows, columns = maps[0].weights.shape
    left = MARGIN + max(text_width(name, SMALL) for name in layout.rows) + 4
    widest = max(text_width(" ".join(picture.facts), SMALL) for picture in maps) + 3
    room = (canvas.limit - MARGIN - left) / len(layout.columns) - 4
    side = max(_SMALLEST, min(_LARGEST, room))
    numbered = widest <= side + 4
    down = side * rows / columns
    step = down + (SMALL * 1.2 if numbered else 0) + 5
    for n, name in enumerate(layout.columns):
        x = left + n * (side + 4) + side / 2
        canvas.label(x, canvas.y + SMALL, name, anchor="middle")
    canvas.y += SMALL + 4
    for n, name in enumerate(layout.rows):
        canvas.label(left - 4, canvas.y + n * step + down / 2, name, anchor="end")
    for picture, (row, column) in zip(maps, layout.cells, strict=True):
        x = left + column * (side + 4)
        y = canvas.y + row * step
        colours: list[list[str | None]] = [
            [ramp_colour(picture.scale.place(weight) or 0.0, signed=False) for weight in line]
            for line in picture.weights.tolist()
        ]
        canvas.cells(x, y, (side / columns, down / rows), colours, apart=False)
        canvas.frame(x, y, side, down)
        if numbered:
            middle = x + side / 2
            canvas.label(
                middle,
                y + down + SMALL,
                " ".join(picture.facts),
                anchor="middle",
            )
    canvas.y += step * len(layout.rows)


def _draw_scale(canvas: Canvas, scale: Scale, *, relative: bool) -> None:
    canvas.y += 6
    canvas.frame(MARGIN, canvas.y, BAR, 8, f"url(#{RAMPS[0]})")
    if relative:
        canvas.label(MARGIN + BAR + 6, canvas.y + 8, RELATIVE)
        canvas.y += 10
        return
    for share, name in ticks(scale, relative=False):
        canvas.text(
            MARGIN + BAR * share, canvas.y + 8 + SMALL, ours(name), size=SMALL, anchor="middle"
        )
    canvas.label(MARGIN + BAR + 16, canvas.y + 8, UNIT)
    canvas.y += 10 + SMALL
