import os
import pty
import re
import threading
from itertools import combinations, pairwise

import numpy as np
import pytest
from rich.console import Console
from rich.style import Style
from rich.text import Text

from attnscope.findings.head_roles import HEAD_ROLES
from attnscope.views import parts
from attnscope.views.figure.colours import ink_on
from attnscope.views.palette import ASSUMED, DARK, LIGHT, surface_on
from attnscope.views.scales import SHAPES, WEIGHTS, LogScale, Scale, scale_for
from attnscope.views.spans import ours
from attnscope.views.terminal import as_text
from attnscope.views.terminal import background as asking
from attnscope.views.terminal import screen as module
from attnscope.views.terminal.background import named_background, read_answer
from attnscope.views.terminal.colours import (
    bar_style,
    ground_of,
    limits_of,
    ramp_pieces,
    ramp_style,
    role_style,
)
from attnscope.views.terminal.screen import STYLES, style_of
from tests.helpers.sample_overviews import overview
from tests.helpers.sample_reports import bank, many_heads, sized
from tests.helpers.screens import draw
from tests.views.test_palette import DEUTERANOPIA, LEAST, XYZ, lab

# From XYZ to what cones see, and from its cube root to OKLab.
OKLAB_CONES = np.array(
    [
        [0.8189330101, 0.3618667424, -0.1288597137],
        [0.0329845436, 0.9293118715, 0.0361456387],
        [0.0482003018, 0.2643662691, 0.6338517070],
    ]
)
OKLAB = np.array(
    [
        [0.2104542553, 0.7936177850, -0.0040720468],
        [1.9779984951, -2.4285922050, 0.4505937099],
        [0.0259040371, 0.7827717662, -0.8086757660],
    ]
)

BLACK, WHITE, SOLARIZED = (surface_on(rgb) for rgb in ((0, 0, 0), (255, 255, 255), (0, 43, 54)))
PLACES = np.linspace(0, 1, 65)
COLOURS = pytest.mark.parametrize("colours", [256, 1 << 24])
SURFACES = pytest.mark.parametrize(
    "surface", [BLACK, WHITE, SOLARIZED], ids=["black", "white", "solarized"]
)


def rgb(color):
    return tuple(color.get_truecolor())


def oklab(color):
    """OKLab of red, green and blue of 0 to 255, by way of XYZ (Ottosson, 2020)."""
    share = np.asarray(color, dtype=np.float64) / 255
    linear = np.where(share <= 0.04045, share / 12.92, ((share + 0.055) / 1.055) ** 2.4)
    cones = np.cbrt(OKLAB_CONES @ XYZ @ linear)
    return OKLAB @ cones


def turn(one, other):
    """Degrees between the hues of two colours of OKLab."""
    angles = [np.degrees(np.arctan2(yellow, red)) for _, red, yellow in (one, other)]
    return abs((angles[0] - angles[1] + 180) % 360 - 180)


def luminance(color):
    linear = [
        c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4
        for c in (v / 255 for v in color)
    ]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def seen(place, signed, colours, surface):
    """The colour that a cell has for an eye: the background, if it has none of its own."""
    style = ramp_style(place, signed, colours, surface)
    return tuple(bytes.fromhex(surface.background)) if style.bgcolor is None else rgb(style.bgcolor)


@COLOURS
@SURFACES
@pytest.mark.parametrize("signed", [True, False])
def test_every_number_is_readable_on_its_background(signed, colours, surface):
    for place in PLACES:
        style = ramp_style(place, signed, colours, surface)
        assert (style.color is None) == (style.bgcolor is None)
        if style.bgcolor is not None:
            high, low = sorted(
                (luminance(rgb(style.color)), luminance(rgb(style.bgcolor))), reverse=True
            )
            assert (high + 0.05) / (low + 0.05) >= 4.5, place


@COLOURS
@SURFACES
def test_zero_is_the_background_and_ramps_leave_it_in_one_direction(colours, surface):
    assert ramp_style(0.0, False, colours, surface) == ramp_style(0.5, True, colours, surface)
    assert ramp_style(0.0, False, colours, surface).bgcolor is None
    start = luminance(bytes.fromhex(surface.background))
    for places, signed in ((PLACES, False), (PLACES[32:], True), (PLACES[32::-1], True)):
        shades = [luminance(seen(place, signed, colours, surface)) for place in places]
        rises = [b - a for a, b in pairwise(shades)]
        assert (min(rises) >= 0) if start < 0.2 else (max(rises) <= 0), (signed, shades)
        assert len(set(shades)) >= (5 if colours == 256 else 30)
    for place in (0.1, 0.25):
        less, more = (
            lab(seen(p, True, 1 << 24, surface), DEUTERANOPIA) for p in (place, 1 - place)
        )
        assert more[2] < 0 < less[2]  # blue, and yellow


@SURFACES
def test_more_is_blue_and_less_is_orange_in_256_colours(surface):
    """The nearest of 256 colours to dark blue was a dark green, and to a pale one a violet."""
    for place in PLACES:
        style = ramp_style(place, True, 256, surface)
        if style.bgcolor is not None:
            red, green, blue = rgb(style.bgcolor)
            first, second, third = (blue, green, red) if place > 0.5 else (red, green, blue)
            is_pale = first == second == 255 and third == 215
            assert first > second > third or second == third == 0 or is_pale
            exact = oklab(surface.colour(place, signed=True))
            max_turn = (
                29 if surface is SOLARIZED else 25
            )  # the dark of an olive was 29 from orange on black
            # beside the ground, the exact colour is nearly grey
            has_hue = not is_pale and np.hypot(*exact[1:]) >= 0.03
            assert not has_hue or turn(oklab((red, green, blue)), exact) <= max_turn, place


@pytest.mark.parametrize("surface", [BLACK, WHITE], ids=["black", "white"])
def test_small_differences_have_as_many_of_256_colours_on_both_sides(surface):
    """−0.01 to −0.12 had one dark red, and 0.01, 0.05 and 0.1 a blue each."""
    differences = Scale(-1.0, 1.0, True, "sqrt")
    steps = {
        sign: {
            ramp_style(differences.place(sign * size), True, 256, surface).bgcolor
            for size in (0.01, 0.1, 0.3)
        }
        for sign in (1, -1)
    }
    assert len(steps[1]) == len(steps[-1]) == 3


# The sixteen colours of themes in their order, for which letters are grey or white, and their backgrounds.
THEMES = {
    "xterm": (
        "000000 cd0000 00cd00 cdcd00 0000ee cd00cd 00cdcd e5e5e5"
        " 7f7f7f ff0000 00ff00 ffff00 5c5cff ff00ff 00ffff ffffff",
        ("000000", "ffffff"),
    ),
    "vscode dark": (
        "000000 cd3131 0dbc79 e5e510 2472c8 bc3fbc 11a8cd e5e5e5"
        " 666666 f14c4c 23d18b f5f543 3b8eea d670d6 29b8db e5e5e5",
        ("1e1e1e",),
    ),
    "vscode light": (
        "000000 cd3131 107c10 949800 0451a5 bc05bc 0598bc 555555"
        " 666666 cd3131 14ce14 b5ba00 0451a5 bc05bc 0598bc a5a5a5",
        ("ffffff",),
    ),
    "solarized": (
        "073642 dc322f 859900 b58900 268bd2 d33682 2aa198 eee8d5"
        " 002b36 cb4b16 586e75 657b83 839496 6c71c4 93a1a1 fdf6e3",
        ("002b36", "fdf6e3"),
    ),
    "macos": (
        "000000 990000 00a600 999900 0000b2 b200b2 00a6b2 bfbfbf"
        " 666666 e50000 00d900 e5e500 0000ff e500e5 00e5e5 e5e5e5",
        ("000000", "ffffff"),
    ),
}


@pytest.mark.parametrize("theme", THEMES)
@pytest.mark.parametrize("is_known", [True, False])
def test_steps_of_sixteen_colours_are_read_and_told_apart_in_common_themes(theme, is_known):
    """Bright blue was blue in VS Code's light theme, grey in Solarized, and black letters on blue had a contrast of 2.7."""
    colours, grounds = THEMES[theme]
    palette = [bytes.fromhex(colour) for colour in colours.split()]
    # VS Code says its background
    for ground in grounds if is_known or theme == "vscode dark" else ():
        behind = bytes.fromhex(ground)
        surface = surface_on(behind) if is_known else ASSUMED

        def shown(color, default):
            return default if color is None else palette[color.number]

        cells = {}
        for place in PLACES:
            style = ramp_style(place, True, 16, surface)
            ink = bytes([255 - 255 * (luminance(behind) > 0.2)] * 3)
            pair = shown(style.bgcolor, behind), shown(style.color, ink)
            cells[style] = pair[::-1] if style.reverse else pair
            if style.reverse:
                cells[style] = shown(style.color, ink), behind
        assert len(cells) == 5
        for cell, letters in cells.values():
            assert contrast_of(cell, letters) >= 3.9, (ground, cell.hex(), letters.hex())
        for (one, _), (other, _) in combinations(cells.values(), 2):
            assert np.linalg.norm(lab(list(one)) - lab(list(other))) >= 25, (one.hex(), other.hex())


@SURFACES
def test_sixteen_colours_are_named_so_that_the_terminal_may_choose_them(surface):
    for signed in (True, False):
        styles = {ramp_style(place, signed, 16, surface) for place in PLACES}
        grounds = [ground_of(style) for style in styles if style != Style()]
        assert all(
            (color.number is not None and color.number < 8) or color.name == "bright_white"
            for color in grounds
        )
        assert len(set(grounds)) == (4 if signed else 2)


@SURFACES
def test_a_role_is_fuller_the_stronger_it_is(surface):
    base = np.array([*bytes.fromhex(surface.background)])
    distances = [
        np.abs(np.array(rgb(role_style("#4269d0", s, 1 << 24, surface).bgcolor)) - base).sum()
        for s in PLACES
    ]
    assert all(a <= b for a, b in pairwise(distances))
    assert distances[0] > 20


@pytest.mark.parametrize(("colours", "least"), [(16, 3.0), (256, 4.5), (1 << 24, 4.5)])
def test_remarks_and_warnings_are_readable_on_white(colours, least):
    """Yellow on white has a contrast of 1.7, and green of 2."""
    for look in STYLES:
        style = Style.parse(style_of(look, colours, lambda: WHITE))
        if style.color is not None and style.bgcolor is None:
            assert 1.05 / (luminance(rgb(style.color)) + 0.05) >= least, look


@SURFACES
@pytest.mark.parametrize(("colours", "least"), [(16, 0.03), (256, 0.01)])
def test_a_small_weight_has_a_colour_where_there_are_few(surface, colours, least):
    places = [WEIGHTS.place(weight) for weight in (0.3 * least, least)]
    none, some = (ramp_style(place, False, colours, surface).bgcolor for place in places)
    assert none is None and some is not None


@SURFACES
def test_numbers_beside_bars_have_no_colour_of_a_scale_of_sixteen(surface):
    """Blue letters of all contributors on white were those of weights below .05 in the key."""
    scale = {
        color.name
        for place in PLACES
        for style in [ramp_style(float(place), True, 16, surface)]
        for color in (style.color, style.bgcolor)
        if color is not None
    }
    bars = [bar_style(16, surface, more=more).color for more in (True, False)]
    assert len(set(bars)) == 2
    assert not scale & {color.name for color in bars if color is not None}


def contrast(style):
    high, low = sorted((luminance(rgb(style.color)), luminance(rgb(style.bgcolor))), reverse=True)
    return (high + 0.05) / (low + 0.05)


@COLOURS
@SURFACES
def test_letters_of_roles_are_readable(surface, colours):
    """White on the red of `copying` had a contrast of 3.8 in 256 colours: it was chosen for another red."""
    for role in HEAD_ROLES:
        own = surface_on(bytes.fromhex(role.colour[1:]))  # a terminal of the role's own colour
        for strength in PLACES:
            for behind in (surface, own):
                style = role_style(role.colour, strength, colours, behind)
                assert contrast(style) >= 4.5, (role.name, strength)


def test_a_role_keeps_its_hue_in_256_colours():
    """The content role was olive in the picture and salmon in its key."""
    numbers = {}
    for role in HEAD_ROLES:
        own = oklab([*bytes.fromhex(role.colour[1:])])
        color = role_style(role.colour, 1.0, 256, BLACK).bgcolor
        numbers[role.letter] = color.number
        found = oklab(rgb(color))
        if np.hypot(*own[1:]) < 0.03:
            assert np.hypot(*found[1:]) < 0.01, role.name
            continue
        assert turn(found, own) <= 15.5, role.name
        assert np.linalg.norm(found - own) < 0.1, role.name
        for strength, surface in ((0.1, BLACK), (0.5, WHITE), (1.0, SOLARIZED)):
            # strength has shades: a colour that is closer to one background can be a louder one
            assert role_style(role.colour, strength, 256, surface).bgcolor == color
    assert len(set(numbers.values())) == len(numbers)


def test_roles_have_no_colours_among_sixteen():
    """Green stood for three roles, and a letter on it had a contrast of 2.2."""
    for role in HEAD_ROLES:
        assert role_style(role.colour, 0.5, 16, BLACK) == Style()


def test_a_legend_of_weights_names_the_same_weights_everywhere():
    pieces = ramp_pieces(WEIGHTS, "0.00", "1.00", 1 << 24, BLACK)
    assert re.sub(" +", " ", "".join(text for text, _ in pieces)) == "0 .01 .1 .5 1"
    cells = [style.bgcolor for _, style in pieces[1:-1]]
    assert None not in cells  # no number is a gap
    letters = "".join(text for text, _ in pieces[1:-1])
    for tick in (0.01, 0.1, 0.5):
        name = f"{tick}".replace("0.", ".")
        middle = letters.index(name) + len(name) / 2
        assert abs(middle / len(letters) - tick**0.5) < 0.03
    others = ramp_pieces(Scale(-2.0, 2.0, True), "−2", "2", 1 << 24, BLACK)
    assert (others[0][0], others[-1][0]) == ("−2 ", " 2")
    assert "".join(
        text for text, _ in ramp_pieces(LogScale(0.1, 1.0), "<0.1", "1", 256, BLACK)
    ).split() == [
        "<0.1",
        "1",
    ]


@pytest.mark.parametrize("colours", [16, 256, 1 << 24])
def test_a_legend_of_percentages_has_percentages(colours):
    pieces = ramp_pieces(WEIGHTS, "0", "100", colours, BLACK, percent=True)
    words = re.sub("from|to", "", "".join(text for text, _ in pieces)).split()
    shown = [float(number) for number in words]
    assert (
        shown == sorted(shown)
        and shown[-1] == 100
        and {30.0 if colours == 16 else 50.0} < set(shown)
    )
    assert "e" not in "".join(text for text, _ in pieces)


@pytest.mark.parametrize("surface", [BLACK, WHITE], ids=["black", "white"])
@pytest.mark.parametrize("scale", [WEIGHTS, Scale(-1.0, 1.0, True, "sqrt"), Scale(0.0, 1.0, False)])
def test_each_of_sixteen_colours_begins_at_the_number_of_the_legend(scale, surface):
    """0.01 was as loud as 0.25."""
    pieces = ramp_pieces(scale, "low", "high", 16, surface)

    def style_of_number(value):
        return ramp_style(scale.place(value), scale.signed, 16, surface, limits_of(scale))

    named = {text.strip(): style for text, style in pieces if style != Style()}
    assert len(named) == len(set(named.values())) == (4 if scale.signed else 2)
    for name, style in named.items():
        number = float(name.replace("−", "-"))
        assert style_of_number(1.02 * number) == style, name
        assert style_of_number(0.97 * number) != style, name
    # what is small has no background, and what is larger is further from that of the terminal
    more = [style_of_number(value) for value in (0.001, 0.1, 0.3, 0.5, 0.9)]
    # words say that a colour begins at its number
    assert re.findall("[a-z]+", "".join(text for text, _ in pieces)) == (
        ["to", "from", "to"] if scale.signed else ["from", "to"]
    )
    distances = [
        0
        if style.bgcolor is None
        else abs(luminance(rgb(style.bgcolor)) - luminance(bytes.fromhex(surface.background)))
        for style in more
    ]
    assert distances == sorted(distances)
    assert style_of_number(0.01).bgcolor is None


@pytest.mark.parametrize("largest", [27.72, 39.2, 0.322, 17.5, 6.19, 1.0])
def test_no_cell_of_sixteen_colours_is_below_the_number_of_its_colour(largest):
    """−27.72 had the colour that the key called −28."""
    scale = Scale(-largest, largest, True)
    pieces = ramp_pieces(scale, "low", "high", 16, BLACK)
    named = {style: text.strip() for text, style in pieces if style != Style()}
    assert len(named) == 4
    for value in np.linspace(-largest, largest, 2001).tolist():
        style = ramp_style(scale.place(value), True, 16, BLACK, limits_of(scale))
        if style.bgcolor is not None:
            assert abs(value) >= abs(float(named[style].replace("−", "-"))) * (1 - 1e-5)
            assert abs(value) > 1e-9 and (value < 0) == named[style].startswith("−")


@SURFACES
def test_sixteen_colours_are_shared_out_by_the_kind_of_scale(surface):
    """Effects of 0.09 to 0.32 had two colours, and the smallest weights of a map none, as zero."""
    effects = Scale(0.0, 0.322, False, "sqrt")
    colours = {
        ramp_style(effects.place(value), False, 16, surface, limits_of(effects)).bgcolor.name
        for value in (0.086, 0.119, 0.189, 0.322)
    }
    assert len(colours) == 2
    weights = LogScale(0.001, 0.8)
    values = np.geomspace(0.001, 0.8, 50).tolist()
    styles = [
        ramp_style(weights.place(value), False, 16, surface, limits_of(weights)) for value in values
    ]
    assert all(style.bgcolor is not None for style in styles)
    pieces = ramp_pieces(weights, "0.001", "0.8", 16, surface)
    least = {style: float(text) for text, style in pieces if style != Style()}
    assert len(least) == 2
    for value, style in zip(values, styles, strict=True):
        assert value >= 0.999 * least[style]
        assert all(value < 1.1 * other for other in least.values() if other > least[style])


@SURFACES
@pytest.mark.parametrize("sign", [0, 1, -1])
def test_a_ramp_of_256_colours_has_steps_of_one_hue_that_are_told_apart(surface, sign):
    """Blue turned from navy to teal, violet and cyan, as if the cells were of several kinds, and two had one lightness."""
    weights = np.arange(0.01, 1.0001, 0.005)
    scale = Scale(-1.0, 1.0, True, "sqrt") if sign else WEIGHTS
    places = [scale.place((sign or 1) * weight) for weight in weights.tolist()]
    colours = [seen(place, bool(sign), 256, surface) for place in places]
    steps = [colours[0], *(after for before, after in pairwise(colours) if after != before)]
    assert len(set(steps)) == len(steps) >= 8
    ground = tuple(bytes.fromhex(surface.background))
    for one, other in pairwise([ground, *steps]):
        # 2.3 is a just noticeable difference
        assert np.linalg.norm(lab(one) - lab(other)) >= 5, (one, other)
    exact = [oklab(step) for step in steps]
    rises = np.diff([lightness for lightness, _, _ in exact])
    assert min(rises * np.sign(rises[0])) >= 0.02
    # the palest is nearly white, and dark red has no darker orange
    hues = [np.degrees(np.arctan2(b, a)) % 360 for _, a, b in exact if np.hypot(a, b) >= 0.06]
    low, high = (235, 266) if sign >= 0 else (28, 70)
    assert len(hues) >= len(steps) - 1 and low <= min(hues) and max(hues) <= high, hues
    saturation = [np.hypot(a, b) for _, a, b in exact]
    assert np.abs(np.diff(saturation)).max() <= 0.091
    # no step has more than this part of the scale of roots
    roots = np.sqrt(weights)
    for step in steps:
        of_step = [root for root, colour in zip(roots, colours, strict=True) if colour == step]
        assert of_step[-1] - of_step[0] <= 0.14, step


@pytest.mark.parametrize(
    ("scale", "numbers"),
    [
        (Scale(0.0, 0.9993, False), ".1 .5"),
        (Scale(0.0, 1.0, False), ".1 .5"),
        (Scale(0.0, 0.7312, False, "sqrt"), ".029 .26"),
        (Scale(-0.9993, 0.9993, True), "−.5 −.1 0 .1 .5"),
    ],
)
def test_the_numbers_of_sixteen_colours_are_round_and_exact(scale, numbers):
    """The key of spans said .049 .24 .49 .74."""
    pieces = ramp_pieces(scale, "low", "high", 16, BLACK)
    names = [text.replace("from", "").split()[0] for text, _ in pieces[1:-1]]
    assert " ".join(names) == numbers
    for name in names:
        if number := float(name.replace("−", "-")):
            below, at = (
                ramp_style(scale.place(factor * number), scale.signed, 16, BLACK, limits_of(scale))
                for factor in (0.9995, 1.0)
            )
            assert below != at, name


def test_weights_have_one_scale_and_everything_else_is_centred_at_zero():
    matrix = np.array([[0.25, 0.5], [np.nan, -np.inf]])
    assert (
        scale_for("weights", matrix)
        == scale_for("shares", matrix)
        == Scale(0.0, 1.0, False, "sqrt")
    )
    assert scale_for("difference", matrix) == Scale(-1.0, 1.0, True, "sqrt")
    assert scale_for("masked", matrix) == Scale(-0.5, 0.5, signed=True)


def test_the_scale_of_weights_follows_them_as_asked_with_or_without_sinks():
    matrix = np.array([[0.9, 0.1, 0.4], [0.8, -0.2, np.nan]])
    for shape in SHAPES:
        assert scale_for("weights", matrix, shape) == Scale(0.0, 1.0, False, shape)
        assert scale_for("weights", matrix, shape, [True, False, False]) == Scale(
            0.0, 0.4, False, shape
        )
        assert scale_for("difference", matrix, shape, [True, False, True]) == Scale(
            -0.2, 0.2, True, shape
        )
    assert scale_for("weights", matrix, sinks=[True, True, True]) == WEIGHTS
    for shape, ticks in (("sqrt", "0 .01 .1 0.4"), ("log", "0 .01 .1 0.4"), ("linear", "0 0.4")):
        pieces = ramp_pieces(Scale(0.0, 0.4, False, shape), "0", "0.4", 1 << 24, BLACK)
        assert re.sub(" +", " ", "".join(text for text, _ in pieces)) == ticks


def test_a_place_of_a_scale_has_the_number_that_has_this_place():
    for shape in SHAPES:
        for scale in (Scale(0.0, 3.0, False, shape), Scale(-3.0, 3.0, True, shape)):
            for place in (0.0, 0.1, 0.4, 0.5, 0.9, 1.0):
                logarithmic_zero = shape == "log" and place in (0.0, 0.5)
                if not logarithmic_zero:
                    assert scale.place(scale.value(place)) == pytest.approx(place, abs=1e-6), (
                        scale,
                        place,
                    )


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_what_is_not_finite_has_no_colour(value):
    assert Scale(0, 1, signed=False).place(value) is None


def test_a_matrix_of_equal_values_has_a_place_for_them():
    assert Scale(0, 0, signed=False).place(0) == 0
    assert [Scale(0, 2, signed=False).place(value) for value in (-1, 0, 1, 3)] == [0, 0, 0.5, 1]
    assert Scale(0, 0, signed=True).place(0) == 0.5


@pytest.mark.parametrize(
    ("answer", "colour"),
    [
        (b"\x1b]11;rgb:0000/2b2b/3636\x1b\\\x1b[?62;c", (0, 43, 54)),
        (b"\x1b]11;rgb:ff/fe/00\x07\x1b[?1;2c", (255, 254, 0)),
        (b"\x1b]11;rgba:ffff/ffff/ffff/ffff\x1b\\", (255, 255, 255)),
        (b"\x1b]11;rgb:f/0/8\x07", (255, 0, 136)),
        (b"\x1b[?62;c", None),
        (b"keys that were typed", None),
    ],
)
def test_the_answer_of_a_terminal_is_its_background(answer, colour):
    assert read_answer(answer) == colour


@pytest.mark.parametrize(
    ("value", "colour"),
    [
        ("15;0", 0),
        ("0;15", 255),
        ("0;default;15", 255),
        ("7;8", 0),
        ("0;7", 255),
        ("", 0),
        ("x", 0),
        ("0;default", 0),
    ],
)
def test_colorfgbg_names_a_dark_or_a_light_background(value, colour):
    assert named_background(value) == (colour,) * 3


@pytest.mark.unix
@pytest.mark.parametrize("answers", [True, False])
def test_a_terminal_is_asked_and_is_left_as_it_was(answers, monkeypatch):
    """A terminal that says nothing costs a moment, and COLORFGBG counts."""
    import termios

    theirs, ours = pty.openpty()
    asked = []

    def answer():
        asked.append(os.read(theirs, 64))
        if answers:
            os.write(theirs, b"\x1b]11;rgb:fdfd/f6f6/e3e3\x1b\\\x1b[?62;4c")

    thread = threading.Thread(target=answer)
    thread.start()
    before = termios.tcgetattr(ours)
    opened = os.open
    monkeypatch.setattr(
        asking.os,
        "open",
        lambda path, flags: os.dup(ours) if path == "/dev/tty" else opened(path, flags),
    )
    monkeypatch.setattr(asking.os, "tcgetpgrp", lambda _: os.getpgrp())
    monkeypatch.setenv("TERM", "xterm-256color")
    monkeypatch.setenv("COLORFGBG", "0;15")
    try:
        assert asking.announced_background.__wrapped__() == (
            (253, 246, 227) if answers else (255, 255, 255)
        )
        assert asked == [b"\x1b]11;?\x1b\\\x1b[c"]
        assert termios.tcgetattr(ours) == before
    finally:
        thread.join()
        os.close(theirs)
        os.close(ours)


@pytest.mark.parametrize("background", [(0, 0, 0), (255, 255, 255)], ids=["black", "white"])
@pytest.mark.parametrize("colours", [256, 1 << 24])
def test_a_bar_below_zero_is_orange(background, colours):
    """The changes of a row were all blue."""
    columns = [parts.Column("change", ["−0.5", "0.7"])]
    bars = parts.Table("key", columns, labels=[ours("one"), ours("two")], bars=[-0.7, 1.0])
    lines = as_text([bars], 60, colours=colours, surface=surface_on(background)).splitlines()
    text = Text.from_ansi("\n".join(lines)).split("\n")
    (less,), (more,) = (
        {rgb(span.style.color) for span in line.spans if span.style.color is not None}
        for line in text[1:3]
    )
    assert less[0] > less[1] > less[2] and more[0] <= more[1] < more[2]


# Of xterm; of a light theme, these are darker.
XTERM = (
    "000000 cd0000 00cd00 cdcd00 0000ee cd00cd 00cdcd e5e5e5 7f7f7f ff0000 00ff00 ffff00 5c5cff ff00ff 00ffff ffffff"
).split()


def letters_of(screen):
    """The text, colour and background of every piece of a screen that has one of these; None for the terminal's own."""

    def known(color):
        if color is None or color.is_default:
            return None
        if color.number is not None and color.number < 16:
            return bytes.fromhex(XTERM[color.number])
        return rgb(color)

    for line in Text.from_ansi(screen).split():
        for segment in line.render(Console(color_system="truecolor", width=500)):
            style = segment.style
            if segment.text.strip() and style is not None:
                yield segment.text, known(style.color), known(style.bgcolor)


def contrast_of(one, other):
    high, low = sorted((luminance(one), luminance(other)), reverse=True)
    return (high + 0.05) / (low + 0.05)


@pytest.mark.parametrize("colours", [16, 256, 1 << 24])
def test_what_stands_on_a_background_that_is_not_known_is_read_on_black_and_on_white(
    colours, monkeypatch
):
    """Bars and words were those for black: pale blue, yellow and green, which white hides; zero was white beside black."""
    monkeypatch.setattr(module, "chosen_background", lambda *, on_terminal: None)
    system = {16: "standard", 256: "256", 1 << 24: "truecolor"}[colours]
    looks = [parts.paragraph(ours(look or "plain", look)) for look in STYLES]
    shown = [as_text(looks, 80, colours=colours)]
    for made, formats in (
        (bank(), ("table", "heat")),
        (sized(12), ("table", "heat")),
        (sized(40), ("table", "heat")),
        (many_heads(2, 5, 6), ("heat",)),
        (many_heads(6, 9, 40), ("heat",)),
        (overview(200), ("table",)),
    ):
        shown += [draw(made, 120, colour=system, format=form) for form in formats]
    numbers = 0
    for text, color, ground in (piece for screen in shown for piece in letters_of(screen)):
        if set(text) <= set("▀▄ "):
            continue
        if ground is not None:
            numbers += 1
            assert color is not None and contrast_of(color, ground) >= 3.6, text
        elif color is not None:
            for own in ((0, 0, 0), (255, 255, 255)):
                assert contrast_of(color, own) >= 3.9, (text, color)
    assert numbers > 100
    # what is zero has the ground on which its neighbours are small
    ground = ramp_style(0.0, False, colours, ASSUMED).bgcolor
    assert ground is not None and rgb(ground)[:3] == (0, 0, 0)


@pytest.mark.parametrize("surface", [LIGHT, DARK])
@pytest.mark.parametrize("eye", [None, DEUTERANOPIA])
def test_hatching_is_seen_on_zero_and_is_no_number(surface, eye):
    """Its lines are told from the background that zero has, and from the colours of both ramps."""
    line = lab([*bytes.fromhex(surface.hatch)], eye)
    zero = lab([*bytes.fromhex(surface.background)], eye)
    assert np.linalg.norm(line - zero) >= LEAST
    # fainter than letters, because forbidden cells are half of a causal matrix
    dim = lab([*bytes.fromhex(surface.dim)], eye)
    assert np.linalg.norm(line - zero) < np.linalg.norm(dim - zero)


@pytest.mark.parametrize("surface", [LIGHT, DARK])
def test_letters_and_marks_on_canvases_are_seen(surface):
    """Labels and the numbers in cells have a contrast of 4.5, and a cursor, ink on a line of the background, as well."""

    def ratio(first, second):
        high, low = sorted((luminance(bytes.fromhex(one)) for one in (first, second)), reverse=True)
        return (high + 0.05) / (low + 0.05)

    for letters in (surface.ink, surface.dim):
        assert ratio(letters, surface.background) >= 4.5
    for signed in (False, True):
        for step in range(257):
            cell = bytes(surface.colour(step / 256, signed=signed)).hex()
            assert ratio(ink_on(f"#{cell}")[1:], cell) >= 4.5
            # a cursor is two lines, of which one is seen on any cell
            assert max(ratio(surface.ink, cell), ratio(surface.background, cell)) >= 3
