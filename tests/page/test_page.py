"""What a page holds: every part, exact numbers, and nothing that a browser would obey."""

import json
import re
from base64 import b64encode
from hashlib import sha256

import numpy as np
import pytest

from attnscope.cli import main
from attnscope.studies.formats import export
from tests.helpers.sample_reports import report, text_report, tokens
from tests.page.reading import PageData, read_page

TEXT = "The bank by the river"
COMMANDS = {
    "run": ["run", TEXT],
    "compare": ["compare", TEXT],
    "explain": ["explain", TEXT, "--query", "bank"],
    "heads": ["heads", TEXT, "--measure", "entropy"],
    "ablate": ["ablate", TEXT, "--cut", "L2H0", "--at", "bank"],
}


def page_of(findings, tmp_path):
    return PageData(b"".join(export(findings, tmp_path / "page.html")).decode())


@pytest.mark.parametrize("command", COMMANDS)
def test_a_page_loads_nothing_and_allows_only_its_own_script(command, tmp_path):
    path = tmp_path / "page.html"
    assert main([*COMMANDS[command], "-o", str(path), "--quiet"]) == 0
    page = read_page(path)
    assert page.nodes
    shell = re.sub(r"<script.*?</script>|<style>.*?</style>", "", page.html, flags=re.DOTALL)
    assert not re.search(r"\b(src|href)=|refresh", shell)
    scripts = re.findall(r"<script>(.*?)</script>", page.html, re.DOTALL)
    styles = re.findall(r"<style>(.*?)</style>", page.html, re.DOTALL)
    hashes = [b64encode(sha256(text.encode()).digest()).decode() for text in (*scripts, *styles)]
    policy = re.search(r'Content-Security-Policy" content="([^"]*)"', page.html)[1]
    assert policy.startswith("default-src 'none'; ")
    assert re.findall(r"'sha256-([^']*)'", policy) == hashes
    assert "unsafe" not in policy


def test_numbers_of_heads_are_exact(tmp_path):
    for name in ("page.html", "exact.json"):
        assert main([*COMMANDS["heads"], "-o", str(tmp_path / name), "--quiet"]) == 0
    page, exact = read_page(tmp_path / "page.html"), json.loads((tmp_path / "exact.json").read_text())
    (node,) = page.of_kind("heads")
    np.testing.assert_array_equal(page.numbers(node["panels"][0]["matrix"]), np.array(exact["values"], np.float32))


def test_untrusted_text_is_data(tmp_path):
    hostile = "</script><img src=x onerror=alert(1)>\x1b\u202e"
    page = page_of(report(text_report(tokens([hostile, "b"]), text=hostile), notes=[hostile]), tmp_path)
    assert page.html.count("</script>") == 2
    assert "<img" not in page.html
    assert "&lt;/script&gt;&lt;img src=x" in page.html  # the title
    text = json.dumps(page.header, ensure_ascii=False)
    assert "</script><img src=x onerror=alert(1)>\\\\x1b\\\\u202e" in text
    assert not {"\x1b", "\u202e"} & set(text)
