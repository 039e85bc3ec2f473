"""Pages of sounds in a browser: the loudness of every frame above the matrix, and frames as words apart."""

import numpy as np
import pytest
import soundfile

from attnscope.cli import main
from tests.helpers.tiny_sound import noise, write_tiny_sound
from tests.page.reading import read_page
from tests.page.test_heads import click_cell
from tests.page.walking import shows

RATE = 16_000
FRAME = RATE // 50  # samples of 0.02 s
# Height of the dark middle of the strip above a column, in pixels of the canvas.
BAR = """(canvas, x) => {
    const dots = canvas.width / canvas.clientWidth;
    const { data } = canvas.getContext('2d').getImageData(Math.round(x * dots), 0, 1, Math.round(30 * dots));
    return Array.from({ length: data.length / 4 }, (_, n) => data[4 * n + 3] > 128).filter(Boolean).length / dots;
}"""


@pytest.fixture(scope="module")
def heard(tmp_path_factory):
    """A sound that grows loud and quiet, and a page of it: every frame of a tiny wav2vec2 is a key."""
    folder = tmp_path_factory.mktemp("sound")
    seconds = np.arange(2 * RATE) / RATE
    samples = (0.5 * noise(2) * (0.1 + np.abs(np.sin(3 * seconds)))).astype(np.float32)
    soundfile.write(folder / "noise.wav", samples, RATE)
    model = write_tiny_sound("wav2vec2", folder / "model")
    path = folder / "page.html"
    command = ["run", "--audio", str(folder / "noise.wav"), "-m", str(model), "--head", "L1H0"]
    assert main([*command, "-o", str(path), "--quiet"]) == 0
    return path, soundfile.read(folder / "noise.wav", dtype="float32")[0]


@pytest.mark.parametrize("size", [(360, 640), (1280, 800), (1920, 1080)])
def test_the_loudness_of_every_frame_is_above_the_matrix(open_page, heard, size):
    path, samples = heard
    (scene,) = read_page(path).of_kind("walk")[0]["scenes"]
    count = len(scene["queries"]["names"])
    loudness = [np.abs(samples[n * FRAME : (n + 1) * FRAME]).max() for n in range(count)]
    np.testing.assert_allclose(scene["levels"], loudness, atol=0.0051)
    page = open_page(path, size=size).page
    assert page.evaluate("document.documentElement.scrollWidth") <= size[0]
    canvas = page.locator("#panel-matrix")
    left, top, wide, _ = map(float, canvas.get_attribute("data-cells").split())
    assert top > 36 and left + count * wide <= canvas.bounding_box()["width"] + 1
    frames = np.linspace(0, count - 1, 12).astype(int)
    bars = [canvas.evaluate(BAR, left + (frame + 0.5) * wide) for frame in frames]
    expected = 30 * np.array(loudness)[frames] / max(loudness)
    # a canvas has whole pixels, and at the smallest size, a column is narrower than one
    np.testing.assert_allclose(bars, expected, atol=2 if wide > 1 else 7)


def test_frames_are_words_apart_and_the_name_of_the_file_is_none(open_page, heard):
    page = open_page(heard[0]).page
    text = page.locator("#panel-text").text_content()
    assert text.split()[:3] == ["0.00s", "0.02s", "0.04s"]
    assert "noise.wav" not in text
    click_cell(page.locator("#panel-matrix"), 30, 40)
    assert shows(page, "document.querySelector('.heads-panel h2').textContent", "0.60s ← 0.80s")
