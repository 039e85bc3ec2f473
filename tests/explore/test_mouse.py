"""The mouse: clicks and the wheel on every panel, the footer, and what is shown over the panels."""

import asyncio

import pytest

pytest.importorskip("textual", reason="textual is not installed")

from textual import events

from attnscope.views.explore.app import ExploreApp
from attnscope.views.walk.place import Begin
from tests.explore import subjects
from tests.explore.proof import region_text


def use(act, size=(120, 40)):
    """Let a coroutine function use the mouse on a saved report; return what it returns."""

    async def run():
        app = ExploreApp(subjects.report()[0], begin=Begin(layer="2", head="1", query="5"))
        async with app.run_test(size=size) as pilot:
            await pilot.pause()

            async def wheel(pane, down=True, shift=False):
                kind = events.MouseScrollDown if down else events.MouseScrollUp
                region = app.panes[pane].region
                await pilot._post_mouse_events(
                    [kind], offset=(region.x + 20, region.y + 2), button=0, shift=shift
                )
                await pilot.pause()

            async def click(pane, x, y):
                region = app.panes[pane].region
                await pilot.click(offset=(region.x + x, region.y + y))
                await pilot.pause()

            result = await act(app, wheel, click, pilot)
        assert not app.failure, app.failure
        return result

    return asyncio.run(run())


def test_the_wheel_moves_in_every_panel():
    async def act(app, wheel, _click, _pilot):
        spot = app.state.place.spot
        await wheel("heads")
        assert app.state.place.spot.layer == spot.layer + 1
        await wheel("heads", down=False)
        await wheel("matrix")
        assert app.state.place.spot.query == spot.query + 3
        await wheel("matrix", down=False)
        before = app.state.key
        await wheel("matrix", down=before > 6, shift=True)
        await wheel("matrix", down=before <= 6, shift=True)
        assert abs(app.state.key - before) <= 3 and app.state.key != 0
        await wheel("row")
        await wheel("text")
        assert app.state.place.spot.query == spot.query + 2
        await wheel("text", down=False)
        return app.state.place.spot.query, spot.query, app.state.place.panel

    here, before, panel = use(act)
    assert here == before + 1 and panel == "matrix"


def test_a_click_on_the_text_goes_to_its_token():
    async def act(app, _wheel, click, _pilot):
        line = region_text(app, "text")[1]
        await click("text", 1 + line.index("lent"), 1)
        return app.state.scene.queries.names[app.state.place.spot.query].text, app.state.place.panel

    assert use(act) == ("le", "text")


def test_clicks_on_the_footer_call_what_they_name():
    async def act(app, _wheel, click, pilot):
        async def footer(word):
            await click("footer", region_text(app, "footer")[0].index(word), 0)

        await footer("help")
        assert len(app.screen_stack) == 3
        await pilot.click(offset=(1, 1))  # beside the box
        assert len(app.screen_stack) == 2
        await footer("stage")
        assert app.state.place.stage == "output"
        await footer("compare")
        assert app.state.place.pinned is not None
        await footer("compare")
        await pilot.press("y")
        await pilot.pause()
        await footer("row")
        return app.clipboard.splitlines()[0].split("\t")

    assert use(act)[:2] == ["output", "dim 0"]


def test_on_a_small_screen_the_footer_changes_panels_and_helps():
    async def act(app, _wheel, click, _pilot):
        await click("footer", 2, 0)
        panel = app.state.place.panel
        await click("footer", region_text(app, "footer")[0].index("help"), 0)
        return panel, len(app.screen_stack)

    assert use(act, (70, 20)) == ("row", 3)
