"""The committed pictures of screens and figures are those that their commands draw now."""

import re
from pathlib import Path

import pytest

from tests.pictures.drawn import DOCS, PICTURES, draw, missing

README = (DOCS.parent / "README.md").read_text()


def shown(picture):
    """The words of a picture in order, without how they are laid out; numbers by two digits, as machines round."""
    words = [
        word
        for text in re.findall(r">([^<]+)</text>", picture)
        for word in text.replace("&#160;", " ").split()
    ]
    return [f"{float(word):.2g}" if re.fullmatch(r"-?\d+\.\d+", word) else word for word in words]


@pytest.mark.parametrize("name", PICTURES)
def test_a_picture_is_shown_by_a_page_and_says_something(name):
    assert len(shown((DOCS / name).read_text())) > 20
    assert any(
        f"{name})" in page.read_text() for page in [*DOCS.glob("*.md"), DOCS.parent / "README.md"]
    )


# An agent reads SKILL.md, and nothing there is seen.
@pytest.mark.parametrize(
    "page", [page for page in sorted(DOCS.glob("*.md")) if page.name != "SKILL.md"], ids=str
)
def test_every_document_opens_with_a_picture(page):
    found = [re.search(r"!\[.+\]\((\S+)\)", line) for line in page.read_text().splitlines()[:8]]
    pictures = [match[1] for match in found if match]
    assert pictures and (DOCS / pictures[0]).is_file()


def test_the_readme_types_the_commands_of_its_pictures():
    for name, (command, _) in PICTURES.items():
        assert (f"docs/{name})" in README) == (f"\n    {command}\n" in README), name
    assert len(README.splitlines()) <= 100


@pytest.mark.exhaustive
@pytest.mark.parametrize("name", PICTURES)
def test_a_picture_is_what_its_command_draws(name, tmp_path, monkeypatch):
    if packages := missing(name):
        pytest.skip(f"needs {', '.join(packages)}")
    monkeypatch.chdir(tmp_path)
    made = draw(name)
    committed = Path(DOCS / name).read_text()
    assert shown(made) == shown(committed)
    assert abs(len(made) - len(committed)) < 0.02 * len(committed)
