from io import StringIO

import pytest
from rich.cells import cell_len
from rich.console import Console

from attnscope.report import Token
from attnscope.views.terminal.labels import shorten, spans, token_name
from attnscope.views.terminal.screen import Screen


@pytest.fixture
def screen():
    return Screen(Console(file=StringIO(), width=80, color_system=None, legacy_windows=False), 2)


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("the", "the"),
        (" the", "␣the"),
        ("  ", "␣␣"),
        ("New York", "New York"),
        ("", '""'),
        ("\n", r"\n"),
        ("\u0301x", "◌\u0301x"),
        ("\u00a0", r"\u00a0"),
        ("a\u3000b", r"a\u3000b"),
        ("\\", r"\\"),
        ("[bold]", "[bold]"),
    ],
)
def test_a_name_shows_what_is_there(screen, text, name):
    assert token_name(screen, Token(id=0, piece="", text=text)) == name


def test_a_token_without_text_is_spelled_by_its_piece(screen):
    assert token_name(screen, Token(id=0, piece="[PAD]", text="")) == "[PAD]"


@pytest.mark.parametrize("cells", range(1, 9))
@pytest.mark.parametrize("name", ["internationalization", "漢字仮名交じり文", "e\u0301" * 12, r"\x1b[2J\x00"])
def test_a_shortened_name_fits_and_says_that_it_is_short(name, cells):
    short = shorten(name, cells)
    assert cell_len(short) <= cells
    assert short == name or short.endswith("…")


@pytest.mark.parametrize(
    ("positions", "said"),
    [([], ""), ([3], "3"), ([0, 1, 2], "0–2"), ([0, 5, 7, 8, 9], "0, 5, 7–9"), ([4, 2, 3], "4, 2–3")],
)
def test_positions_are_named_as_runs(positions, said):
    assert spans(positions) == said
