"""The committed script and style are what `web/` builds."""

import re
import shutil
import subprocess
from pathlib import Path

import pytest

from attnscope.views.page import asset
from attnscope.views.page.walk import _PHRASES, _WORDS
from attnscope.views.walk.glossary import GLOSSARY

WEB = Path(__file__).parent.parent.parent / "web"
LARGEST = 83_000  # bytes of both scripts


def test_the_script_is_small_and_evaluates_nothing():
    script = asset("loader.js") + asset("page.js")
    assert len(script.encode()) <= LARGEST
    assert "eval(" not in script
    assert "new Function" not in script
    assert "</script" not in script.lower()


def test_no_word_of_the_data_is_a_name_that_the_build_shortens():
    source = (WEB / "build.mjs").read_text()
    (names,) = re.findall(r"INTERNAL =\s*/\^\((.*)\)\$/;", source)
    words = {*_WORDS, *_PHRASES, *GLOSSARY, "selects", "terms", "answer", "marks", "heading"}
    words |= {"back", "counts", "norms", "said", "scaling"}
    assert words & set(names.split("|")) == set()


def test_the_committed_bundle_is_what_web_builds():
    node = shutil.which("node")
    if node is None:
        pytest.skip("Node.js is not installed, so that the bundle cannot be built again")
    if not (WEB / "node_modules" / "esbuild").is_dir():
        pytest.skip(
            "web/node_modules is missing (npm ci --prefix web), so that the bundle cannot be built again"
        )
    built = subprocess.run(
        [node, "build.mjs", "--verify"], cwd=WEB, capture_output=True, text=True, check=False
    )
    assert built.returncode == 0, built.stdout + built.stderr
