"""Pages with pictures in a browser: what is drawn, pointed at and chosen."""

import msgspec
import numpy as np
import pytest

from attnscope.findings.images import encode_png
from attnscope.studies.formats import page
from attnscope.studies.run.every_head import EveryHead
from attnscope.views.palette import DARK, LIGHT
from attnscope.views.pictures import covered, percent
from attnscope.views.scales import Scale
from attnscope.views.settings import DisplaySettings
from tests.helpers.pictures import COLUMNS, ROWS, pixels, random_weights, report_on_picture
from tests.page.walking import shows

TOKENS = 2 + ROWS * COLUMNS
WEIGHTS = random_weights(2, 3, TOKENS)
COLOUR = """(canvas, [x, y]) => {
    const dots = canvas.width / canvas.clientWidth;
    return [...canvas.getContext('2d').getImageData(x * dots, y * dots, 1, 1).data].slice(0, 3);
}"""


@pytest.fixture(scope="module")
def path(tmp_path_factory):
    """A page of L1H2, with all weights of the other heads."""
    report = report_on_picture(WEIGHTS, layer=1, head=2)
    every_head = EveryHead(
        report_on_picture(WEIGHTS, layer="all", head="all", stages="weights"), [None]
    )
    path = tmp_path_factory.mktemp("pages") / "picture.html"
    path.write_bytes(b"".join(page(report, DisplaySettings(every_head=every_head))))
    return path


def shares(shown):
    found = shown.locator(".picture-panel [data-share]").all()
    return {one.get_attribute("data-share"): one.text_content() for one in found}


def expected(row):
    row = row.astype(float)
    return {"patches": percent(row[2:].sum()), "CLS": percent(row[0]), "registers": percent(row[1])}


def middle(canvas, row, column):
    """Where a patch is on the canvas, from its corner, beside the frame that marks one."""
    box = canvas.bounding_box()
    return (column + 0.3) * box["width"] / COLUMNS, (row + 0.3) * box["height"] / ROWS


@pytest.mark.parametrize(("theme", "surface"), [("light", LIGHT), ("dark", DARK)])
def test_every_patch_has_the_colour_of_its_weight(open_page, path, theme, surface):
    shown = open_page(path, theme=theme).page
    canvas = shown.locator("#panel-matrix")
    scale = Scale(0.0, 1.0, signed=False, shape="sqrt")
    drawn = covered(pixels(), WEIGHTS[1, 2, 0, 2:].reshape(ROWS, COLUMNS), scale, surface)
    for row in range(ROWS):
        for column in range(COLUMNS):
            colour = canvas.evaluate(COLOUR, middle(canvas, row, column))
            wanted = drawn[int((row + 0.3) * 6), int((column + 0.3) * 6)]
            # A ramp of 257 colours, against one without steps.
            assert np.abs(np.array(colour) - wanted.astype(int)).max() <= 4, (row, column)


def test_shares_stand_beside_the_picture_and_a_click_makes_a_patch_the_query(open_page, path):
    shown = open_page(path).page
    canvas = shown.locator("#panel-matrix")
    assert shares(shown) == expected(WEIGHTS[1, 2, 0])
    # patches are no words, and their distance is not along the text
    statistics = shown.locator("[data-statistic]").evaluate_all(
        "(all) => all.map((one) => one.dataset.statistic)"
    )
    assert set(statistics) == {"entropy", "self"}
    x, y = middle(canvas, 1, 2)
    canvas.hover(position={"x": x, "y": y})
    weight = WEIGHTS[1, 2, 0, 2 + COLUMNS + 2]
    assert (
        f"image row 1, column 2: {percent(float(weight))}"
        in shown.locator(".said-patch").text_content()
    )
    canvas.click(position={"x": x, "y": y})
    assert shares(shown) == expected(WEIGHTS[1, 2, 2 + COLUMNS + 2])
    canvas.press("ArrowLeft")
    assert shares(shown) == expected(WEIGHTS[1, 2, 2 + COLUMNS + 1])
    shown.get_by_role("button", name="weights of registers").click()
    assert shares(shown) == expected(WEIGHTS[1, 2, 1])


def test_heads_that_are_not_exact_show_their_rounded_weights(open_page, path):
    shown = open_page(path).page
    shown.keyboard.press("[")
    found = {name: float(share.rstrip(" %")) / 100 for name, share in shares(shown).items()}
    row = WEIGHTS[1, 1, 0].astype(float)
    assert found["CLS"] == pytest.approx(row[0], abs=2 * np.sqrt(row[0]) * 0.5 / 255 + 0.006)
    assert sum(found.values()) == pytest.approx(1, abs=0.03)


def test_the_matrix_is_a_click_away_and_back(open_page, path):
    shown = open_page(path).page
    shown.get_by_role("button", name="matrix", exact=True).click()
    assert shown.locator(".picture-panel").count() == 0
    shown.get_by_role("button", name="picture", exact=True).click()
    assert shown.locator(".picture-panel").count() == 1


@pytest.mark.parametrize("size", [(360, 640), (1280, 800), (1920, 1080)])
@pytest.mark.parametrize("theme", ["light", "dark"])
def test_a_picture_keeps_its_shape_and_fits_every_screen(open_page, path, size, theme):
    shown = open_page(path, size=size, theme=theme).page
    assert shown.evaluate("document.documentElement.scrollWidth") <= size[0]
    panel = shown.locator(".picture-panel").bounding_box()
    for canvas in shown.locator(".picture-canvas").all():
        box = canvas.bounding_box()
        height, width = pixels().shape[:2]
        assert box["width"] / box["height"] == pytest.approx(width / height, rel=0.03)
        assert box["x"] + box["width"] <= panel["x"] + panel["width"]
    ticks = shown.evaluate(
        "[...document.querySelectorAll('.picture-panel .stops span')].map((one) => [one.style.left, one.textContent])"
    )
    high = 1.0  # of 16 even shares among so few tokens
    for left, text in ticks:
        assert float(left.rstrip("%")) / 100 == pytest.approx(np.sqrt(float(text) / high), abs=5e-3)


def test_a_thumbnail_of_a_video_has_every_frame(open_page, tmp_path):
    """Four frames of a column of patches each stand in two rows of two: darker patches have more weight."""
    size = pixels().shape[1] // COLUMNS

    def with_frames(report):
        (text,) = report.texts
        (grid,) = text.images
        frames = [
            msgspec.structs.replace(
                grid,
                tokens=grid.tokens[:, n : n + 1],
                png=encode_png(np.ascontiguousarray(pixels()[:, n * size : n * size + size])),
                frame=n,
            )
            for n in range(COLUMNS)
        ]
        return msgspec.structs.replace(report, texts=[msgspec.structs.replace(text, images=frames)])

    every = with_frames(report_on_picture(WEIGHTS, layer="all", head="all", stages="weights"))
    one = with_frames(report_on_picture(WEIGHTS, layer=1, head=2))
    path = tmp_path / "video.html"
    settings = DisplaySettings(every_head=EveryHead(every, [None]))
    path.write_bytes(b"".join(page(one, settings)))
    shown = open_page(path, size=(1280, 800)).page
    canvas = shown.locator("#panel-heads")
    assert shows(shown, "document.querySelector('.heads-panel select').value", "thumbnails")
    left, top, side, _ = map(float, canvas.get_attribute("data-cells").split())
    (query,) = shown.evaluate("[Number(new URLSearchParams(location.hash.slice(1)).get('query'))]")
    for layer, head in ((0, 0), (1, 1)):
        row = WEIGHTS[layer, head, query, 2:].reshape(ROWS, COLUMNS)
        darkness = np.empty((ROWS, COLUMNS))
        high = side - 3  # the montage of 6 × 2 patches keeps its shape
        wide = high / 3
        for frame in range(COLUMNS):
            for patch in range(ROWS):
                x = left + head * side + 1.5 + wide * (frame % 2 + 0.5) / 2
                y = top + layer * side + 1.5 + high * (frame // 2 * ROWS + patch + 0.5) / (2 * ROWS)
                darkness[patch, frame] = -sum(canvas.evaluate(COLOUR, (x, y)))
        strong = np.argsort(-row, axis=None)[:6]
        assert (np.diff(darkness.ravel()[strong]) <= 0).all(), (layer, head)
        assert darkness.ravel()[strong[0]] > darkness.ravel()[strong[-1]]


def test_shares_of_rounded_weights_are_those_of_a_whole_row(open_page, path):
    shown = open_page(path).page

    def read(text):
        """Return a share, and half of its last digit."""
        digits = text.split(" %")[0]
        return float(digits) / 100, 0.5 * 10 ** (-2 - len(digits.partition(".")[2]))

    for head in range(3):
        for query in range(0, TOKENS, 5):
            shown.evaluate(f"location.hash = '#head=L0H{head}&query={query}&stage=weights'")
            assert shows(shown, "document.querySelector('#where').textContent", f"L0H{head}")
            read_shares = {name: read(text) for name, text in shares(shown).items()}
            total = sum(share for share, _ in read_shares.values())
            assert total == pytest.approx(1, abs=sum(half for _, half in read_shares.values()))
            beside = [read_shares["CLS"], read_shares["registers"]]
            outside, half = read(shown.locator("[data-summary]").text_content().split(" · ")[-1])
            assert outside == pytest.approx(
                sum(share for share, _ in beside), abs=half + sum(half for _, half in beside)
            )
            exact = float(WEIGHTS[0, head, query, :2].sum())
            assert outside == pytest.approx(exact, abs=half + 2e-3)
