"""The site of docs/: every page is in its navigation, and it builds without warnings or a network."""

import importlib.util
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent


def test_every_page_is_in_the_navigation():
    pages = {page.name for page in (ROOT / "docs").glob("*.md")}
    navigation = (ROOT / "mkdocs.yml").read_text().partition("\nnav:\n")[2]
    assert pages == set(
        re.findall(r"(?<![\w/])[\w-]+\.md", re.sub(r"project/[\w.]+", "", navigation))
    )


def test_the_navigation_has_the_groups_of_the_readme_in_its_order():
    """It had ten groups, and the tasks were the fifth page of the third."""
    readme = (ROOT / "README.md").read_text().partition("## Documentation")[2]
    navigation = (ROOT / "mkdocs.yml").read_text().partition("\nnav:\n")[2]
    groups = re.findall(r"^  - ([^:]+): \[([^]]+)\]", navigation, re.MULTILINE)
    assert [name for name, _ in groups] == re.findall(r"^(\w[\w, ]+):$", readme, re.MULTILINE)
    assert groups[0][1].split(", ")[1] == "tasks.md"
    for name, pages in groups:
        listed = readme.partition(f"\n{name}:\n")[2].partition("\n\n")[0]
        told = [page for page in re.findall(r"\(docs/([\w-]+\.md)\)", listed) if page in pages]
        assert told == [page for page in re.split(r",\s+", pages) if page in told]
        assert len(told) >= 3


def test_the_site_loads_nothing_from_elsewhere():
    assert "font: false" in (ROOT / "mkdocs.yml").read_text()


def test_every_page_of_the_gallery_is_embedded():
    gallery = (ROOT / "docs" / "gallery.md").read_text()
    files = {f"gallery/{page.name}" for page in (ROOT / "docs" / "gallery").glob("*.html")}
    assert set(re.findall(r'<iframe src="([^"]+)"', gallery)) == files


@pytest.mark.skipif(importlib.util.find_spec("mkdocs") is None, reason="needs the extra docs")
def test_the_site_builds_without_a_warning(tmp_path):
    environment = {**os.environ, "NO_MKDOCS_2_WARNING": "1", "http_proxy": "http://127.0.0.1:9"}
    words = [sys.executable, "-m", "mkdocs", "build", "--site-dir", str(tmp_path)]
    ran = subprocess.run(
        words, cwd=ROOT, env=environment, capture_output=True, text=True, check=False
    )
    assert ran.returncode == 0, ran.stderr
    index = (tmp_path / "index.html").read_text()
    assert "Which head" in index
    assert not re.findall(
        r'(?:src|href)="https?://(?!squidfunk|github)[^"]+\.(?:js|css|woff2?)"', index
    )
    assert "inspect" in (tmp_path / "reference.html").read_text()
    assert (tmp_path / "search" / "search_index.json").stat().st_size > 100_000
    assert (tmp_path / "gallery" / "masks.html").is_file()
