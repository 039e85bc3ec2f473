"""Walks without a terminal, for tests that call the command line in their own process."""

import asyncio

import pytest

from tests.explore.proof import settled


def walk_without_terminal(monkeypatch, *keys):
    """Let `attnscope explore` draw nowhere, press some keys, and quit; return what the screen showed, as lists."""
    pytest.importorskip("textual", reason="textual is not installed")
    from attnscope.cli import explore
    from attnscope.views.explore.app import ExploreApp

    screens = []

    def run(app):
        async def walk():
            async with app.run_test(size=(120, 40)) as pilot:
                await settled(app, pilot)
                for key in keys:
                    await pilot.press(key)
                await settled(app, pilot)
                screens.append([strip.text for strip in app.screen._compositor.render_strips()])
                await pilot.press("q")

        asyncio.run(walk())

    monkeypatch.setattr(ExploreApp, "run", run)
    for name in ("_check_terminal", "_at_terminal"):
        monkeypatch.setattr(explore, name, lambda: None)
    return screens
