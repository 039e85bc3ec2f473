"""Make every picture of the README and of docs/: `python -m tests.pictures`, or only those named: `heads.svg`.

Screens and figures are made here, the pages of the gallery by `tests.page.gallery`, and the walk by
`tests.explore.recording`. Models are those of the second command in the README's *Install* section.
"""

import sys

from tests.explore import recording
from tests.page import gallery
from tests.pictures.drawn import DOCS, PICTURES, write


def main(names: list[str]) -> int:
    """Make pictures; return how many pages could not be made."""
    write([name for name in PICTURES if not names or name in names], DOCS.resolve())
    if not names or "explore.svg" in names:
        recording.write(DOCS / "explore.svg")
    if names and "gallery" not in names:
        return 0
    failed = gallery.write(gallery.FOLDER)
    gallery.picture(gallery.FOLDER, DOCS)
    return failed


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
