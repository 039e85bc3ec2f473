"""What is painted after many keys is what a fresh application paints at the same place: nothing of before is left."""

import asyncio
import time

import numpy as np
import pytest
from rich.cells import cell_len

pytest.importorskip("textual", reason="textual is not installed")

from textual._compositor import ChopsUpdate, LayoutUpdate
from textual.strip import Strip

from attnscope.views.explore.app import ExploreApp
from attnscope.views.walk.place import PANELS
from tests.explore import subjects
from tests.explore.proof import KEYS, PAINTING, press, settled
from tests.helpers.draws import drawn

SIZES = ((120, 40), (80, 24), (200, 60), (60, 15), (101, 29))
COLOURS = (1 << 24, 256, 0)
# What one sees of a walk beside its place: what the application says, and where panels are scrolled to.
SAID = "_mode", "_notice", "_enlarged"
SCROLLED = "top", "left", "seen"
# Keys between two comparisons.
EVERY = 8


class PaintedApp(ExploreApp):
    """An application whose updates of the terminal are applied to cells, each a character and its style."""

    def _display(self, screen, renderable):
        width, height = self.size
        if not hasattr(self, "cells") or len(self.cells) != height:
            self.cells = [[(" ", None)] * width for _ in range(height)]
        if isinstance(renderable, LayoutUpdate):
            left, top = renderable.region.offset
            for y, strips in enumerate(renderable.strips, top):
                self._paint(Strip.join(strips), left, y)
        elif isinstance(renderable, ChopsUpdate):
            for y, start, stop in renderable.spans:
                chops = renderable.chops[y].items()
                for end, (x, strip) in zip(renderable.chop_ends[y], chops, strict=False):
                    if strip is not None and x <= stop and end > start:
                        self._paint(strip.crop(0, min(end, stop) - x), x, y)
        super()._display(screen, renderable)

    def _paint(self, strip, x, y):
        for character, look in cells_of(strip):
            self.cells[y][x] = character, look
            x += cell_len(character)


def cells_of(strip):
    """Return the characters of a line, each with its style; that of a cell without one is None."""
    return [
        (character, str(style) if style and str(style) != "none" else None)
        for text, style, _ in strip
        for character in text
    ]


def is_arranged(app):
    """Tell whether panels have the sizes that they were given."""
    shown = [app.panes[name] for name in PANELS if app.panes[name].display]
    return all(pane.size == (pane.styles.width.value, pane.styles.height.value) for pane in shown)


async def painted(app, pilot):
    """Return the cells when everything has been painted."""
    until = time.monotonic() + PAINTING
    await pilot.pause()
    while not is_arranged(app):
        assert time.monotonic() < until
        await asyncio.sleep(0.005)
    app.redraw()
    # a panel may get its lines between two looks
    while app.cells != (lines := [cells_of(s) for s in app.screen._compositor.render_strips()]):
        assert time.monotonic() < until, "what is drawn is not painted"
        await asyncio.sleep(0.005)
    return lines


def scrolled(app):
    return {
        (name, what): getattr(panel, what)
        for name, panel in app._panels.items()
        for what in SCROLLED
        if hasattr(panel, what)
    }


async def walked(source, size, colours, rng):
    """Walk by random keys; return some of the places, each with what the screen showed there."""
    app = PaintedApp(source, colours=colours)
    found = []
    async with app.run_test(size=size) as pilot:
        await settled(app, pilot)
        for n in range(1, 6 * EVERY + 1):
            if rng.random() < 0.1:
                app.do("display", str(rng.choice(app.state.bounds.displays)))
            elif (key := str(rng.choice(KEYS))) not in ("x", "X"):
                press(app, key)
            if n % EVERY == 0:
                await settled(app, pilot)
                # panels have the sizes that they get at a place which is opened
                app.arrange(*size)
                seen = await painted(app, pilot)
                said = {name: getattr(app, name) for name in SAID}
                found.append((app.state.place, app.state.error, said, scrolled(app), seen))
    return found


async def fresh(source, size, colours, place, error, said, panels):
    """Return what an application shows that has just been opened at a place."""
    app = PaintedApp(source, colours=colours)
    async with app.run_test(size=size) as pilot:
        await settled(app, pilot)
        # the text is read first if it is another one
        app.state.place = place
        app.ask()
        await settled(app, pilot)
        assert app.state.place == place
        app.state.error = error
        for name, value in said.items():
            setattr(app, name, value)
        for (name, what), value in panels.items():
            setattr(app._panels[name], what, value)
        app.arrange(*size)
        return await painted(app, pilot)


@pytest.mark.parametrize("subject", ["report", "comparison", "long_dump"])
def test_a_screen_after_random_keys_is_that_of_a_fresh_application(subject):
    for seed in range(drawn(2)):
        rng = np.random.default_rng([seed, *subject.encode()])
        size, colours = SIZES[int(rng.integers(len(SIZES)))], COLOURS[int(rng.integers(3))]
        make = getattr(subjects, subject)
        for place, error, said, panels, seen in asyncio.run(walked(make()[0], size, colours, rng)):
            expected = asyncio.run(fresh(make()[0], size, colours, place, error, said, panels))
            different = [
                (x, y)
                for y, lines in enumerate(zip(seen, expected, strict=True))
                for x, cells in enumerate(zip(*lines, strict=True))
                if cells[0] != cells[1]
            ]
            assert not different, (seed, size, colours, place, different[:3])
