"""A real browser without a network, if there is one."""

import os
import shutil

import pytest

from attnscope.cli import main
from attnscope.request.run_config import RunConfig, TextInput
from attnscope.request.selection import PAGE, WALKED
from attnscope.run.session import Session, inspect_every_head

SHORT = "The bank by the river was steep , so they walked"
LONG = " ".join(
    ["the river ran past an old bank while committees argued about money and water"] * 8
)

BROWSERS = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")


def find_browser():
    """The browser to test with: ATTNSCOPE_CHROMIUM, or the first that is installed."""
    return os.environ.get("ATTNSCOPE_CHROMIUM") or next(
        filter(None, map(shutil.which, BROWSERS)), None
    )


@pytest.fixture(scope="package")  # its event loop must not outlive these tests
def chromium():
    playwright = pytest.importorskip(
        "playwright.sync_api", reason="playwright is not installed (extra test)"
    )
    path = find_browser()
    if path is None:
        pytest.skip(f"no browser: none of {', '.join(BROWSERS)} is installed")
    with playwright.sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=path, args=["--no-sandbox"])
        yield browser
        browser.close()


class Watched:
    """A page of the browser, with everything that it asked of a network or said on the console."""

    def __init__(self, page):
        self.page, self.requests, self.messages = page, [], []
        page.on("request", lambda request: self.requests.append(request.url))
        page.on("console", lambda message: self.messages.append(message.text))
        page.on("pageerror", lambda error: self.messages.append(str(error)))

    def open(self, path, fragment=""):
        url = path.resolve().as_uri() + fragment
        self.page.goto(url)
        self.page.wait_for_selector("html[data-ready]", timeout=20_000)
        assert [one for one in self.requests if one.split("#")[0] != url.split("#")[0]] == []
        assert self.messages == []
        return self.page


@pytest.fixture
def open_page(chromium):
    """A function that opens a page from disk, offline, and what it returns: see Watched."""
    contexts = []

    def open_page(path, fragment="", size=(1280, 900), theme="light", *, touch=False):
        shape = {"width": size[0], "height": size[1]}
        context = chromium.new_context(
            viewport=shape, color_scheme=theme, offline=True, has_touch=touch, is_mobile=touch
        )
        contexts.append(context)
        context.add_init_script(
            "window.copied = []; Object.defineProperty(navigator, 'clipboard', "
            "{value: {writeText: async (text) => { window.copied.push(text); }}});"
        )
        watched = Watched(context.new_page())
        watched.open(path, fragment)
        return watched

    yield open_page
    for context in contexts:
        context.close()


@pytest.fixture(scope="module")
def pages(tmp_path_factory):
    """Two pages and every number of the model: all heads exact, and all but one in summary."""
    folder, found = tmp_path_factory.mktemp("pages"), {}
    for name, text in (("short", SHORT), ("long", LONG)):
        path = folder / f"{name}.html"
        assert main(["run", text, "-o", str(path), "--quiet"]) == 0
        run = RunConfig(
            (TextInput(text),), model="riverbank", window=PAGE, stages=WALKED, predict=None
        )
        found[name] = path, *inspect_every_head(run, Session(run.texts))
    return found
