"""Whole screens at three sizes, with and without colours, and the recording in docs/, as reviewed.

`ATTNSCOPE_SNAPSHOTS=write python -m pytest tests/explore` writes them anew; read the difference.
"""

import asyncio
import html
import re
from pathlib import Path

import pytest

pytest.importorskip("textual", reason="textual is not installed")

from attnscope.views.explore.app import ExploreApp
from attnscope.views.walk.place import Begin
from tests.explore import recording, subjects
from tests.explore.proof import settled
from tests.test_docs import DOCS, REWRITE

HERE = Path(__file__).parent / "snapshots"
WALKS = {
    "start": [],
    "digits": ["s", "s", "s", "d"],
    "compare": ["c", "}", "a", "d"],
    "rows": ["3", "p"],
}


def screen(source, size, keys, colours):
    async def walk():
        app = ExploreApp(source, begin=Begin(layer="2", head="0", query="lent"), colours=colours)
        async with app.run_test(size=size) as pilot:
            await settled(app, pilot)
            for key in keys:
                await pilot.press(key)
                await settled(app, pilot)
            return [strip.text.rstrip() for strip in app.screen._compositor.render_strips()]

    return asyncio.run(walk())


@pytest.mark.parametrize(
    "size", [(80, 24), (120, 40), (200, 60)], ids=lambda size: f"{size[0]}x{size[1]}"
)
@pytest.mark.parametrize("name", WALKS)
def test_screens_are_as_reviewed(name, size):
    source, _ = subjects.report()
    lines = []
    for colours in (1 << 24, 0) if name == "start" else (1 << 24,):
        lines += [f"--- {colours} colours", *screen(source, size, WALKS[name], colours)]
    path = HERE / f"{name}-{size[0]}x{size[1]}.txt"
    if REWRITE:
        HERE.mkdir(exist_ok=True)
        path.write_text("\n".join(lines) + "\n")
    assert "\n".join(lines) + "\n" == path.read_text()


@pytest.mark.exhaustive
def test_the_recording_shows_what_the_application_shows(smollm2, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "SmolLM2.gguf").symlink_to(smollm2)
    picture = recording.picture(asyncio.run(recording.frames()))
    path = DOCS / "explore.svg"
    if REWRITE:
        path.write_text(picture)
    shown, kept = (
        re.findall(r"<text[^>]*>([^<]*)</text>", each) for each in (picture, path.read_text())
    )
    assert shown == kept and len(shown) > 300
    check_captions(picture)
    said = set(map(html.unescape, shown))
    # the head, and what the model says without it
    assert {"cut L13H8 to 0 · E: its rank", "L13H8 matters little after 10 too"} <= said
    assert {'5 L13H8 reads "animal" most: 0.70', '"it" reads "animal" more in L13H8'} <= said


def check_captions(picture):
    """Captions are not wider than the picture, one says what Enter does while a search is typed, and all take 15 s."""
    width = float(re.search(r'viewBox="0 0 (\d+)', picture)[1])
    captions = re.findall(
        r'<text y="\d+" fill="#f2c14e" font-size="([\d.]+)"[^>]*>([^<]*)<', picture
    )
    assert {size for size, _ in captions} == {"18"}
    assert max(0.61 * float(size) * len(html.unescape(said)) for size, said in captions) < width
    enter = [said for _, said in captions if said.startswith("Enter")]
    assert enter[0] == "Enter  End the search." and "Follow" in enter[-1]
    assert {float(seconds) for seconds in re.findall(r"f\d+ ([\d.]+)s step-end", picture)} == {15.0}
