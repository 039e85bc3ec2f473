import pytest
from rich.cells import cell_len
from rich.console import Console

from attnscope.findings.tokens import Token
from attnscope.studies.compare.screen import both_axis
from attnscope.views.axes import format_positions
from attnscope.views.spans import Span, spell_token, token_span
from attnscope.views.terminal.labels import labels, shorten
from attnscope.views.terminal.screen import Screen


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
def test_a_name_shows_what_is_there(text, name):
    assert spell_token(text, ascii=False) == name


def test_a_name_in_ascii_tells_blanks_and_marks_from_what_stands_for_them():
    spelled = [spell_token(text, ascii=True) for text in (" the", "␣the", "\u0301x", "é")]
    assert spelled == ["_the", r"\u2423the", r"\u0301x", r"\xe9"]


def test_a_token_without_text_is_spelled_by_its_piece():
    assert token_span([Token(id=0, piece="[PAD]", text="")], 0) == Span("[PAD]", origin="token")


def test_a_token_that_the_tokenizer_does_not_know_says_so():
    unknown = Token(id=0, piece="[UNK]", text="xyz", unknown=True)
    assert token_span([unknown], 0, "dim") == Span("xyz", "dim", "unknown token")


@pytest.mark.parametrize("cells", range(1, 9))
@pytest.mark.parametrize(
    "name", ["internationalization", "漢字仮名交じり文", "e\u0301" * 12, r"\x1b[2J\x00"]
)
def test_a_shortened_name_fits_and_says_that_it_is_short(name, cells):
    short = shorten(name, cells)
    assert cell_len(short) <= cells
    assert short == name or short.endswith("…")


@pytest.mark.parametrize(
    ("positions", "said"),
    [
        ([], ""),
        ([3], "3"),
        ([0, 1, 2], "0–2"),
        ([0, 5, 7, 8, 9], "0, 5, 7–9"),
        ([4, 2, 3], "4, 2–3"),
    ],
)
def test_positions_are_named_as_runs(positions, said):
    assert format_positions(positions) == said


def test_tokens_that_only_one_text_has_are_told_apart_where_they_are_shortened():
    """Both were called 2, and one full name was lost."""
    texts = [
        [Token(id=n, piece=word, text=word) for n, word in enumerate(words)]
        for words in (["the", "international"], ["the", "intergovernmental"])
    ]
    axis = both_axis("key", *texts, [(0, 0), (1, None), (None, 1)])
    shortened = labels(Screen(Console()), axis).shortened(8)
    assert list(shortened.items()) == [
        ((1, "1/–"), "international/–"),
        ((1, "–/1"), "–/intergovernmental"),
    ]
