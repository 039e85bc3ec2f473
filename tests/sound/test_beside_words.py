"""What else a sound changes: explanations have its padding, and without one its libraries are not imported."""

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import attnscope


def test_an_explanation_has_the_padding_that_the_softmax_has(
    tiny: Callable[[str], Path], sound: Path
) -> None:
    explained = attnscope.explain(
        "abc de", model=tiny("whisper"), audio=sound, query=3, layer=1, head=2
    )
    (found,) = [explained.data] if hasattr(explained, "data") else []
    names = [token.text for token in found.context]
    assert names[99:101] == ["1.98s", "(pad)"]
    assert len(names) == 150


def test_without_a_sound_its_libraries_are_not_imported(tmp_path: Path) -> None:
    code = (
        "import sys; from attnscope.cli import main; main(['run', 'The bank', '--quiet', '-o', 'x.json']); "
        "print({'soundfile', 'soxr', 'attnscope.run.sound'} & set(sys.modules))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=tmp_path
    )
    assert done.stdout.split()[-1] == "set()"
