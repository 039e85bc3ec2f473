"""Maps on pictures in the terminal and as figures: every number and colour, recomputed from the given weights."""

import re
from io import StringIO

import numpy as np
import pytest
from msgspec import structs
from rich.color import Color
from rich.console import Console

from attnscope.findings.predictions import PredictedToken, Prediction
from attnscope.findings.run import Report
from attnscope.studies.registry import present
from attnscope.views.figure import as_svg
from attnscope.views.palette import DARK, LIGHT
from attnscope.views.parts import Bars, Pictures
from attnscope.views.pictures import covered, faint, percent, resized
from attnscope.views.scales import Scale, luminance
from attnscope.views.terminal import as_text, draw
from attnscope.views.terminal.screen import Screen
from tests.helpers.pictures import COLUMNS, ROWS, pixels, random_weights, report_on_picture
from tests.helpers.row_statistics import entropy

PATCHES = ROWS * COLUMNS
TOKENS = 2 + PATCHES
WEIGHTS = random_weights(2, 3, TOKENS)


def maps_of(report: Report, **options: object) -> Pictures:
    """The one part with pictures of a report's screen."""
    (found,) = (
        part for part in present(report, brief=True, **options) if isinstance(part, Pictures)
    )  # type: ignore[arg-type]
    return found


def test_the_default_row_is_that_of_cls_and_shares_sum_to_one() -> None:
    (drawn,) = maps_of(report_on_picture(WEIGHTS, layer=1, head=2)).maps
    row = WEIGHTS[1, 2, 0].astype(float)
    assert [name for name, _ in drawn.shares] == ["patches", "CLS", "registers"]
    np.testing.assert_allclose(
        [share for _, share in drawn.shares], [row[2:].sum(), row[0], row[1]], atol=1e-6
    )
    np.testing.assert_array_equal(drawn.weights, WEIGHTS[1, 2, 0, 2:].reshape(ROWS, COLUMNS))
    # The mean over all patches of how far each reads, in patches.
    at = np.array([(r, c) for r in range(ROWS) for c in range(COLUMNS)])
    distances = np.hypot(*(at[:, None] - at[None]).transpose(2, 0, 1))
    of_patches = WEIGHTS[1, 2, 2:, 2:].astype(float)
    mean = ((of_patches * distances).sum(1) / of_patches.sum(1)).mean()
    assert list(drawn.facts) == [
        f"entropy {entropy(row):.2f} bits",
        f"mean distance of all patches {mean:.1f}",
    ]
    assert drawn.query is None


def test_a_patch_as_query_is_marked_and_has_its_own_distance() -> None:
    (drawn,) = maps_of(report_on_picture(WEIGHTS, layer=0, head=0, query=[2 + COLUMNS + 2])).maps
    row = WEIGHTS[0, 0, 2 + COLUMNS + 2, 2:].astype(float).reshape(ROWS, COLUMNS)
    distances = np.hypot(*(np.indices((ROWS, COLUMNS)) - np.array([1, 2])[:, None, None]))
    assert drawn.query == (1, 2)
    assert drawn.facts[1] == f"mean distance {(row * distances).sum() / row.sum():.1f} patches"


def test_without_cls_the_map_is_the_mean_of_patches_and_says_so() -> None:
    weights = random_weights(1, 1, PATCHES)
    part = maps_of(report_on_picture(weights, beside=(), layer=0, head=0))
    np.testing.assert_allclose(part.maps[0].weights.ravel(), weights[0, 0].mean(0), atol=1e-7)
    assert "mean of 12 patches" in "".join(span.text for span in part.caption)
    assert part.maps[0].shares == [("patches", pytest.approx(1.0))]


def test_every_generated_word_has_the_map_of_the_row_that_predicted_it() -> None:
    report = report_on_picture(WEIGHTS, beside=("cls", "word"), layer=0, head=1)
    (text,) = report.texts
    token = PredictedToken(id=5, piece="x", text="x", logit=1.0, probability=0.5)
    made = [Prediction("next", TOKENS - 3, [token]), Prediction("next", TOKENS - 2, [token])]
    part = maps_of(structs.replace(report, texts=[structs.replace(text, generated=made)]))
    for drawn, row in zip(part.maps, (TOKENS - 3, TOKENS - 2), strict=True):
        np.testing.assert_array_equal(drawn.weights.ravel(), WEIGHTS[0, 1, row, 2:])
        assert (
            "".join(span.text for span in drawn.title) == f"L0H1 for {text.tokens[row + 1].piece}"
        )


def test_only_drawn_rows_have_contributors() -> None:
    parts = list(present(report_on_picture(WEIGHTS, layer=0, head=1), brief=True))
    (ranking,) = (part for part in parts if isinstance(part, Bars))
    (row,) = ranking.rows
    assert row is not None
    assert [bar.index for bar in row] == np.argsort(-WEIGHTS[0, 1, 0])[: len(row)].tolist()


def test_all_heads_are_thumbnails_with_their_numbers() -> None:
    weights = random_weights(3, 4, TOKENS)
    part = maps_of(report_on_picture(weights, layer="all", head="all"))
    assert part.places == [(layer, head) for layer in range(3) for head in range(4)]
    for (layer, head), drawn in zip(part.places, part.maps, strict=True):
        row = weights[layer, head, 0].astype(float)
        assert [drawn.facts[0], drawn.facts[2]] == [
            f"{entropy(row):.1f}",
            f"{100 * row[:2].sum():.0f}%",
        ]
    assert len({drawn.scale for drawn in part.maps}) == 1
    screen = as_text([part], 60)
    for drawn in part.maps:
        assert " ".join(drawn.facts) in screen


def test_the_scale_depends_on_the_number_of_tokens_alone() -> None:
    scales = {
        maps_of(report_on_picture(random_weights(1, 1, TOKENS, seed=n), layer=0, head=0))
        .maps[0]
        .scale
        for n in (1, 2)
    }
    assert scales == {Scale(0.0, 1.0, signed=False, shape="sqrt")}


def test_the_largest_patch_ends_the_scale_only_if_asked_for_and_says_so() -> None:
    report = report_on_picture(WEIGHTS, layer=0, head=1)
    part = maps_of(report, map_scale="max")
    largest = float(WEIGHTS[0, 1, 0, 2:].max())
    assert part.maps[0].scale.high == largest
    screen = as_text([part], 100)
    assert "relative to the largest of its map" in screen
    assert f"largest patch {percent(largest)}" in screen
    svg = as_svg([part])
    assert "the largest patch of each map" in svg and "% of the row on one patch" not in svg
    assert "largest patch" not in as_text([maps_of(report)], 100)


def test_a_patch_without_weight_shows_the_faint_picture_and_others_its_colour() -> None:
    weights = np.zeros((ROWS, COLUMNS), dtype=np.float32)
    weights[1, 2] = 1.0
    for surface in (LIGHT, DARK):
        drawn = covered(pixels(), weights, Scale(0.0, 1.0, signed=False, shape="sqrt"), surface)
        below = faint(pixels(), surface)
        changed = np.abs(drawn - below).max(-1) > 0.5
        inside = np.zeros(changed.shape, dtype=bool)
        inside[6:12, 12:18] = True
        np.testing.assert_array_equal(changed, inside)
        fullest = np.array(surface.colour(1.0, signed=False))
        np.testing.assert_allclose(drawn[8, 14], 0.95 * fullest + 0.05 * below[8, 14], atol=0.51)


def test_resizing_takes_means_or_repeats() -> None:
    picture = pixels()
    np.testing.assert_allclose(resized(picture, ROWS, COLUMNS), picture[::6, ::6])
    np.testing.assert_allclose(
        resized(picture, 9, 24)[:, 0], picture.reshape(9, 2, 24, 3).mean(1)[:, 0]
    )
    np.testing.assert_array_equal(resized(picture, 36, 48), picture.repeat(2, 0).repeat(2, 1))


def test_half_blocks_have_the_colours_of_the_picture_and_of_the_map() -> None:
    # rich remembers how it wrote a colour first: no other test writes those of this picture.
    part = maps_of(report_on_picture(WEIGHTS, layer=0, head=1, seed=7))
    file = StringIO()
    console = Console(
        file=file, width=80, color_system="truecolor", force_terminal=True, legacy_windows=False
    )
    draw([part], console)
    drawn_lines = [
        line for line in file.getvalue().splitlines() if re.match(r"\x1b\[[34]8;2", line)
    ]
    found = np.array([_colours(line) for line in drawn_lines])  # (lines, characters, halves, 3)
    seen, mapped = np.split(
        found.transpose(0, 2, 1, 3).reshape(2 * len(found), -1, 3)[:27], 2, axis=1
    )
    size = 27, 36  # nine pixels for a patch
    np.testing.assert_array_equal(seen, np.rint(resized(pixels(7), *size)))
    picture = part.maps[0]
    np.testing.assert_array_equal(
        mapped,
        covered(resized(pixels(7), *size), picture.weights, picture.scale, Screen(console).surface),
    )


def _colours(line: str) -> list[list[list[int]]]:
    """The colours of the upper and the lower half of every character of a line that has any."""
    found = []
    for codes, letters in re.findall(r"\x1b\[([0-9;]*)m([▀ ]+)\x1b\[0m", line):
        colours = {
            kind: [int(n) for n in rgb.split(";")]
            for kind, rgb in re.findall(r"([34]8);2;(\d+;\d+;\d+)", codes)
        }
        upper, lower = colours["38" if letters[0] == "▀" else "48"], colours.get("48", [0, 0, 0])
        found += [[upper, lower]] * len(letters)
    return found


def test_of_256_colours_a_patch_has_one_and_a_mixture_is_none() -> None:
    """Mixtures with the picture were the colours of other weights: of nothing, that of 2 %."""
    part = maps_of(report_on_picture(WEIGHTS, layer=0, head=1))
    file = StringIO()
    console = Console(
        file=file, width=60, color_system="256", force_terminal=True, legacy_windows=False
    )
    draw([part], console)
    rows = [
        halves
        for line in file.getvalue().splitlines()
        if "▀" in line and (halves := _numbers(line))
    ]
    size = 7 * ROWS, 7 * COLUMNS  # seven pixels for a patch
    # behind the picture
    drawn = np.array(rows).transpose(0, 2, 1).reshape(2 * len(rows), -1)[: size[0], -size[1] :]
    patches = drawn.reshape(ROWS, 7, COLUMNS, 7).transpose(0, 2, 1, 3).reshape(ROWS * COLUMNS, -1)
    row = WEIGHTS[0, 1, 0, 2:]
    found = []
    for patch in np.argsort(row):
        colours = {
            int(number) for number in patches[patch] if not (number in (16, 231) or number >= 232)
        }
        assert len(colours) <= 1
        light = [luminance(Color.from_ansi(number).get_truecolor()) for number in colours]
        found.append((max(light, default=0.0), np.isin(patches[patch], list(colours)).mean()))
    lights = [light for light, _ in found]
    assert lights == sorted(lights)
    assert len(set(lights)) > 3
    assert found[0][1] < 0.5 < found[-1][1]  # the more of it, the larger the weight


def _numbers(line: str) -> list[list[int]]:
    """The numbers of the colours of the upper and the lower half of every character of a line that has any."""
    found = []
    for codes, letters in re.findall(r"\x1b\[([0-9;]*)m([▀ ]+)\x1b\[0m", line):
        colours = {kind: int(number) for kind, number in re.findall(r"([34]8);5;(\d+)", codes)}
        if colours:
            found += [[colours["38" if letters[0] == "▀" else "48"], colours.get("48", 16)]] * len(
                letters
            )
    return found


@pytest.mark.parametrize("system", ["standard", "256"])
def test_the_colour_of_letters_is_none_of_a_thumbnail(system: str) -> None:
    """A cell of the background in the upper half was drawn as letters are: white on black."""
    part = maps_of(report_on_picture(random_weights(3, 4, TOKENS), layer="all", head="all"))
    file = StringIO()
    console = Console(
        file=file, width=80, color_system=system, force_terminal=True, legacy_windows=False
    )  # type: ignore[arg-type]
    draw([part], console)
    runs = re.findall(r"([0-9;]*)m([^\x1b]*[▀▄][^\x1b]*)", file.getvalue())
    assert {letter for _, letters in runs for letter in letters} >= {"▀", "▄"}
    assert all(re.search(r"\b(3[0-7]|9[0-7]|38;5;\d+)\b", codes) for codes, _ in runs)


@pytest.mark.parametrize("system", [None, "standard", "256", "truecolor"])
def test_every_terminal_has_the_shares_in_numbers(system: str | None) -> None:
    row = WEIGHTS[0, 1, 0].astype(float)
    file = StringIO()
    part = maps_of(report_on_picture(WEIGHTS, layer=0, head=1))
    console = Console(
        file=file, width=40, color_system=system, force_terminal=True, legacy_windows=False
    )  # type: ignore[arg-type]
    draw([part], console)
    plain = re.sub(r"\x1b\[[0-9;]*m", "", file.getvalue())
    for name, share in (("patches", row[2:].sum()), ("CLS", row[0]), ("registers", row[1])):
        assert (
            f"{name} {100 * share:.{0 if share >= 0.0995 else 1 if share >= 0.00995 else 2}f} %"
            in plain
        )
    assert max(map(len, plain.splitlines())) <= 40


def test_without_colours_darker_shades_are_larger_weights() -> None:
    part = maps_of(report_on_picture(WEIGHTS, layer=0, head=1))
    lines = [line[1:-1] for line in as_text([part], 60).splitlines() if line.startswith("|")]
    shades = [" ░▒▓█".index(line[2 * column]) for line in lines for column in range(COLUMNS)]
    # The scale goes from 0 to 1, by the root.
    assert shades == [min(4, int(weight**0.5 * 5)) for weight in WEIGHTS[0, 1, 0, 2:].astype(float)]


def test_a_figure_has_a_rectangle_for_every_patch_with_weight() -> None:
    part = maps_of(report_on_picture(WEIGHTS, layer=0, head=1), format="heat")
    svg = as_svg([part])
    found = re.findall(
        r'<rect x="([\d.]+)" y="([\d.]+)" width="56.00" height="56.00" fill="#\w+" fill-opacity="([\d.]+)"',
        svg,
    )
    covers = np.array([float(cover) for _, _, cover in found]).reshape(ROWS, COLUMNS)
    weights = WEIGHTS[0, 1, 0, 2:].astype(float).reshape(ROWS, COLUMNS)
    np.testing.assert_allclose(covers, np.minimum(0.95, 0.1 + 1.4 * np.sqrt(weights)), atol=0.006)
    corners = np.array([(float(x), float(y)) for x, y, _ in found])
    assert (np.diff(corners.reshape(ROWS, COLUMNS, 2)[..., 0], axis=1) > 55).all()
    assert svg.count("data:image/png;base64") == 2
