"""The colours of numbers: one direction, one background, and roles that people with deuteranopia tell apart."""

import itertools

import numpy as np
import pytest

from attnscope.findings.head_roles import HEAD_ROLES
from attnscope.views.palette import DARK, LIGHT, surface_on
from attnscope.views.scales import SHAPES, TICKS, Scale

BACKGROUNDS = {
    "page": "ffffff",
    "card": "14181f",
    "black": "000000",
    "paper": "fdf6e3",
    "solarized": "002b36",
}
# Linear RGB as seen with deuteranopia (Machado, Oliveira and Fernandes, 2009, severity 1).
DEUTERANOPIA = np.array(
    [
        [0.367322, 0.860646, -0.227968],
        [0.280085, 0.672501, 0.047413],
        [-0.011820, 0.042940, 0.968881],
    ]
)
# From linear sRGB to XYZ (IEC 61966-2-1), and its white, D65.
XYZ = np.array([[0.4124, 0.3576, 0.1805], [0.2126, 0.7152, 0.0722], [0.0193, 0.1192, 0.9505]])
WHITE = np.array([0.9505, 1.0, 1.089])
LEAST = 10.0  # ΔE*ab (CIE 1976); 2.3 is a just noticeable difference


def lab(rgb, seen=None):
    """CIELAB of colours of 0 to 255, as some see them."""
    share = np.asarray(rgb, dtype=np.float64) / 255
    linear = np.where(share <= 0.04045, share / 12.92, ((share + 0.055) / 1.055) ** 2.4)
    if seen is not None:
        linear = np.clip(linear @ seen.T, 0, 1)
    ratio = linear @ XYZ.T / WHITE
    root = np.where(ratio > 216 / 24389, np.cbrt(ratio), (24389 / 27 * ratio + 16) / 116)
    return np.stack(
        [
            116 * root[..., 1] - 16,
            500 * (root[..., 0] - root[..., 1]),
            200 * (root[..., 1] - root[..., 2]),
        ],
        -1,
    )


@pytest.mark.parametrize("background", BACKGROUNDS.values())
def test_both_ramps_leave_the_background_in_one_direction(background):
    rgb = bytes.fromhex(background)
    surface = surface_on(rgb)
    assert surface.colour(0.0, signed=False) == surface.colour(0.5, signed=True) == list(rgb)
    for places, signed in (
        (np.linspace(0, 1, 33), False),
        (np.linspace(0.5, 1, 33), True),
        (np.linspace(0.5, 0, 33), True),
    ):
        lightness = np.array([lab(surface.colour(place, signed=signed))[0] for place in places])
        steps = np.diff(lightness)
        assert (steps < 0).all() or (steps > 0).all(), (background, lightness)
        assert abs(lightness[-1] - lightness[0]) > 50
    more, less = (lab(surface.colour(place, signed=True), DEUTERANOPIA) for place in (0.8, 0.2))
    assert more[2] < -20 < 20 < less[2]  # blue, and yellow as far from it


def test_roles_are_apart_at_half_strength():
    roles = [role for role in HEAD_ROLES if role.rank is not None]
    letters = [role.letter for role in roles]
    assert len(set(letters)) == len(letters)
    for background, seen in itertools.product(
        (LIGHT, DARK, surface_on((0, 0, 0))), (None, DEUTERANOPIA)
    ):
        base = np.array([*bytes.fromhex(background.background)])
        half = {
            role.name: lab(np.rint((base + np.array([*bytes.fromhex(role.colour[1:])])) / 2), seen)
            for role in roles
        }
        half["nothing"] = lab(base, seen)
        for first, second in itertools.combinations(half, 2):
            distance = np.linalg.norm(half[first] - half[second])
            assert distance >= LEAST, (background.background, first, second, distance)


def test_shapes_keep_the_ends_and_the_order():
    weights = np.linspace(0, 1, 101)
    for shape in SHAPES:
        places = [Scale(0.0, 1.0, False, shape).place(weight) for weight in weights]
        assert (places[0], places[-1]) == (0, 1)
        assert (np.diff(places) >= 0).all()
        signed = Scale(-2.0, 2.0, True, shape)
        assert [signed.place(value) for value in (-2, 0, 2)] == [0, 0.5, 1]
        assert signed.place(0.6) + signed.place(-0.6) == pytest.approx(1)
    assert [Scale(0.0, 1.0, False, "sqrt").place(tick) for tick in TICKS] == pytest.approx(
        [0, 0.1, 0.1**0.5, 0.5**0.5, 1]
    )
    assert Scale(0.0, 1.0, False, "log").place(0.1) == pytest.approx(2 / 3)
