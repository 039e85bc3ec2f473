"""Draw weights over seconds: the loudness of a sound, and below it a row for every token, with a path."""

import numpy as np

from attnscope.views.figure.canvas import MARGIN, SMALL, Canvas, text_width
from attnscope.views.figure.colours import ramp_colour
from attnscope.views.figure.labels import draw_legend, draw_names, names_of
from attnscope.views.parts import SoundMap
from attnscope.views.scales import LogScale
from attnscope.views.sound import second_ticks
from attnscope.views.spans import Span

_ROW = 9.0
_STRIP = 26.0  # height of the loudest frame
_INK = "#222222"


def draw_sound(canvas: Canvas, drawn: SoundMap) -> None:
    """Draw the map as wide as the page."""
    n_rows, n_frames = drawn.weights.shape
    canvas.paragraph(
        (Span(drawn.of, "bold"), Span(f"  {drawn.meaning}".replace("━", "the line"), "dim"))
    )
    rows = names_of(drawn.rows, canvas.settings.labels)
    x = MARGIN + max(text_width(name, SMALL) for name in rows) + 16
    frame = (canvas.limit - MARGIN - x) / n_frames
    canvas.y += 4
    loudest = max(drawn.levels, default=0.0) or 1.0
    middle = canvas.y + _STRIP / 2
    for index, level in enumerate(drawn.levels):
        height = max(0.4, _STRIP * level / loudest)
        canvas.fill(x + index * frame, middle - height / 2, frame, height, "#888888")
    canvas.y += _STRIP + SMALL + 4
    for column, text in second_ticks(drawn.seconds, int((canvas.limit - MARGIN - x) / SMALL)):
        canvas.label(x + column * frame, canvas.y - 3, text)
    canvas.label(x - 6, canvas.y - 3, "seconds →", anchor="end")
    y = canvas.y
    draw_names(canvas, x, y, _ROW, rows)
    scale = LogScale.of(drawn.weights)
    places = [[scale.place(weight) for weight in row] for row in drawn.weights.tolist()]
    colours = [
        ["#ffffff" if place is None else ramp_colour(place, signed=False) for place in row]
        for row in places
    ]
    canvas.cells(x, y, (frame, _ROW), colours, apart=False)
    canvas.frame(x, y, frame * n_frames, _ROW * n_rows)
    if drawn.path:
        points = [
            (x + edge * frame, y + (row + 0.5) * _ROW)
            for row in range(n_rows)
            for frames in (drawn.path_of(row),)
            for edge in (frames.start, frames.stop)
        ]
        joined = " ".join(f"{across:.1f},{down:.1f}" for across, down in points)
        for colour, width in (("#ffffff", 2.4), (_INK, 1.0)):
            canvas.put(
                f'<polyline points="{joined}" fill="none" stroke="{colour}" stroke-width="{width}"/>'
            )
    canvas.y = y + _ROW * n_rows
    blank = "; white: exactly zero" if (drawn.weights == 0).any() else ""
    draw_legend(canvas, scale, *scale.ends(np.asarray(drawn.weights)), f"logarithmic{blank}")
