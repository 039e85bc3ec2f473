from itertools import pairwise

import numpy as np
import pytest

from attnscope.views.scales import Scale, scale_for
from attnscope.views.terminal.colours import ramp_style


def luminance(color):
    linear = [
        c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in (v / 255 for v in color.get_truecolor())
    ]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


PLACES = np.linspace(0, 1, 65)


COLOURS = pytest.mark.parametrize("colours", [256, 1 << 24])


@COLOURS
@pytest.mark.parametrize("signed", [True, False])
def test_every_number_is_readable_on_its_background(signed, colours):
    for place in PLACES:
        style = ramp_style(place, signed, colours)
        high, low = sorted((luminance(style.color), luminance(style.bgcolor)), reverse=True)
        assert (high + 0.05) / (low + 0.05) >= 4.5, place


@COLOURS
def test_more_weight_is_brighter(colours):
    shades = [luminance(ramp_style(place, False, colours).bgcolor) for place in PLACES]
    assert all(a <= b for a, b in pairwise(shades))


@COLOURS
def test_further_from_zero_is_brighter_on_both_sides_and_the_sides_differ_in_hue(colours):
    shades = [luminance(ramp_style(place, True, colours).bgcolor) for place in PLACES]
    assert shades[:33] == sorted(shades[:33], reverse=True)
    assert shades[32:] == sorted(shades[32:])
    for place in (0.1, 0.3):
        negative, positive = (ramp_style(p, True, colours).bgcolor.get_truecolor() for p in (place, 1 - place))
        assert negative.blue > negative.red
        assert positive.red > positive.blue


@pytest.mark.parametrize("signed", [True, False])
def test_sixteen_colours_are_named_so_that_the_terminal_may_choose_them(signed):
    styles = [ramp_style(place, signed, 16) for place in PLACES]
    assert all(style.bgcolor.number is not None and style.bgcolor.number < 16 for style in styles)
    assert all((style.color.name == "bright_white") != (style.color.name == "black") for style in styles)
    assert len({style.bgcolor.name for style in styles}) >= 5


def test_weights_start_at_zero_and_everything_else_is_centred_there():
    matrix = np.array([[0.25, 0.5], [np.nan, -np.inf]])
    assert scale_for("weights", matrix) == Scale(0.0, 0.5, signed=False)
    assert scale_for("masked", matrix) == Scale(-0.5, 0.5, signed=True)


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_what_is_not_finite_has_no_colour(value):
    assert Scale(0, 1, signed=False).place(value) is None


def test_a_matrix_of_equal_values_has_a_place_for_them():
    assert Scale(0, 0, signed=False).place(0) == 0
    assert [Scale(0, 2, signed=False).place(value) for value in (-1, 0, 1, 3)] == [0, 0, 0.5, 1]
    assert Scale(0, 0, signed=True).place(0) == 0.5
