"""Draw docs/cat.png, a cat by a river: `python -m tests.helpers.cat_picture`. The picture is CC0."""

from pathlib import Path

from PIL import Image, ImageDraw

TARGET = Path(__file__).parents[2] / "docs" / "cat.png"
WIDTH, HEIGHT = 400, 300
_FINER = 4  # drawn so many times larger, for smooth edges
_COLOURS = 64

Points = list[tuple[float, float]]


def draw() -> Image.Image:
    """Draw the picture: sky, hills, a river with a boat, a bank, a tree and a cat."""
    image = Image.new("RGB", (WIDTH * _FINER, HEIGHT * _FINER))
    brush = ImageDraw.Draw(image)
    for line in range(120):
        shade = line / 119
        colour = tuple(round(a + (b - a) * shade) for a, b in ((118, 219), (183, 236), (228, 246)))
        _box(brush, 0, line, WIDTH, line + 1, colour)
    _ellipse(brush, 318, 40, 20, 20, "#ffe08a")
    for x, y, size in ((70, 36, 1.0), (190, 56, 0.7)):
        for dx, dy, radius in ((-18, 4, 11), (0, -3, 15), (18, 3, 12), (2, 6, 13)):
            _ellipse(
                brush,
                x + dx * size,
                y + dy * size,
                radius * size * 1.3,
                radius * size * 0.8,
                "#f7fbff",
            )
    _shape(brush, [(0, 118), (60, 84), (130, 112), (200, 78), (290, 114), (350, 92), (400, 112), (400, 140), (0, 140)],
           "#7fa98a")  # fmt: skip
    _shape(
        brush,
        [(0, 126), (90, 108), (190, 128), (300, 106), (400, 128), (400, 150), (0, 150)],
        "#5f9470",
    )
    _box(brush, 0, 136, WIDTH, HEIGHT, "#4b8fc2")
    for y, x, length in ((146, 20, 70), (152, 250, 90), (164, 120, 60), (176, 300, 70), (184, 30, 90), (204, 210, 80),
                         (214, 330, 60), (236, 300, 90), (262, 350, 50)):  # fmt: skip
        _box(brush, x, y, x + length, y + 2, "#86bbdf")
    _shape(brush, [(292, 168), (372, 168), (358, 184), (304, 184)], "#8a4b2d")
    _box(brush, 328, 122, 331, 168, "#5b3a24")
    _shape(brush, [(333, 124), (333, 162), (364, 162)], "#fbf3e2")
    _shape(brush, [(326, 130), (326, 162), (304, 162)], "#e5533f")
    bank: Points = [
        (0, 196),
        (50, 188),
        (110, 196),
        (170, 212),
        (214, 240),
        (250, 268),
        (286, 300),
        (0, 300),
    ]
    _shape(brush, [(x + 8, y - 6) if x else (x, y - 6) for x, y in bank], "#d8c08a")
    _shape(brush, bank, "#6da544")
    for x, y in (
        (16, 236),
        (40, 268),
        (92, 284),
        (20, 290),
        (206, 282),
        (180, 262),
        (66, 222),
        (232, 292),
    ):
        _shape(brush, [(x - 4, y), (x - 6, y - 11), (x, y - 2), (x + 1, y - 14), (x + 3, y - 2), (x + 8, y - 10),
                       (x + 6, y)], "#3f7a2c")  # fmt: skip
    for x, y in ((34, 250), (74, 272), (198, 292), (56, 292), (10, 262)):
        for dx, dy in ((-3, 0), (3, 0), (0, -3), (0, 3)):
            _ellipse(brush, x + dx, y + dy, 2.4, 2.4, "#ffffff")
        _ellipse(brush, x, y, 2, 2, "#f2b632")
    _shape(brush, [(30, 218), (34, 130), (44, 130), (50, 218)], "#6b4a2f")
    for x, y, radius in ((38, 84, 36), (14, 106, 26), (66, 108, 25), (40, 118, 30)):
        _ellipse(brush, x, y, radius, radius * 0.85, "#3e7f3a")
    for x, y, radius in ((30, 72, 16), (58, 98, 12), (10, 98, 12)):
        _ellipse(brush, x, y, radius, radius * 0.7, "#58994c")
    _cat(brush)
    return image.resize((WIDTH, HEIGHT), Image.Resampling.LANCZOS)


def _cat(brush: ImageDraw.ImageDraw) -> None:
    """Draw a sitting cat that looks at whoever looks at it."""
    fur, dark, light = "#e08a3c", "#b8641f", "#fbe6cc"
    for step in range(25):  # the tail, as a row of discs along a curve
        share = step / 24
        x = 172 + 44 * share + 10 * share * (1 - share)
        y = 268 - 66 * share * share
        _ellipse(
            brush, x, y, 7 - 2 * share, 7 - 2 * share, dark if step > 19 or step % 6 == 5 else fur
        )
    _ellipse(brush, 144, 232, 32, 44, fur)
    _ellipse(brush, 170, 256, 18, 22, fur)
    _ellipse(brush, 118, 256, 18, 22, fur)
    _ellipse(brush, 144, 238, 17, 28, light)
    for x in (132, 156):
        _ellipse(brush, x, 258, 9, 20, fur)
        _ellipse(brush, x, 274, 11, 7, light)
    for side in (-1, 1):
        _shape(brush, [(144 + 36 * side, 140), (144 + 33 * side, 180), (144 + 8 * side, 160)], fur)
        _shape(
            brush,
            [(144 + 33 * side, 149), (144 + 30 * side, 170), (144 + 16 * side, 160)],
            "#eab0a0",
        )
    _ellipse(brush, 144, 182, 37, 31, fur)
    for dx in (-10, 0, 10):
        _shape(brush, [(141 + dx, 153), (147 + dx, 153), (144 + dx * 0.8, 168)], dark)
    _ellipse(brush, 144, 195, 17, 12, light)
    for side in (-1, 1):
        _ellipse(brush, 144 + 15 * side, 179, 7.5, 8, "#f4f6d2")
        _ellipse(brush, 144 + 15 * side, 179, 3, 7, "#22301c")
        for dy in (-3, 3):
            brush.line(
                [(_at(144 + 8 * side)), _at(194), _at(144 + 44 * side), _at(192 + 2 * dy)],
                "#fff6e6",
                _FINER,
            )
    _shape(brush, [(139, 187), (149, 187), (144, 193)], "#a8434d")
    brush.line([_at(144), _at(193), _at(144), _at(201)], "#7a3b2a", _FINER)
    brush.line([_at(136), _at(198), _at(144), _at(201), _at(152), _at(198)], "#7a3b2a", _FINER)


def _at(place: float) -> float:
    return place * _FINER


def _box(
    brush: ImageDraw.ImageDraw, x: float, y: float, right: float, bottom: float, colour: object
) -> None:
    brush.rectangle((_at(x), _at(y), _at(right) - 1, _at(bottom) - 1), fill=colour)  # type: ignore[arg-type]


def _ellipse(
    brush: ImageDraw.ImageDraw, x: float, y: float, across: float, down: float, colour: str
) -> None:
    """Draw an ellipse around a point."""
    brush.ellipse((_at(x - across), _at(y - down), _at(x + across), _at(y + down)), fill=colour)


def _shape(brush: ImageDraw.ImageDraw, points: Points, colour: str) -> None:
    brush.polygon([(_at(x), _at(y)) for x, y in points], fill=colour)


if __name__ == "__main__":
    draw().quantize(_COLOURS).save(TARGET, optimize=True)
