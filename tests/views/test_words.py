"""Weights between words, each recomputed from the weights between tokens."""

import re
import unicodedata
from itertools import product

import numpy as np
import pytest
from msgspec.structs import replace

from attnscope.base.errors import NotInText
from attnscope.checkpoints.tokenization.hugging_face import load_tokenizer
from attnscope.cli import main
from attnscope.findings.run import with_words
from attnscope.findings.tokens import Token, continues, group_words, spell_piece, spell_word
from attnscope.request.selection import parse_positions
from attnscope.studies.registry import present
from attnscope.views import parts
from tests.helpers.sample_reports import causal, report, text_report
from tests.helpers.screens import draw, read_tables
from tests.helpers.tokenizer_files import content, write

PIECES = ["[CLS]", "the", "un", "##believ", "##able", "ri", "##ver", ",", "ran", "[SEP]"]
BYTE_LEVEL = {6}  # spelled by its text alone: no blank before it
WORDS = [[0], [1], [2, 3, 4], [5, 6], [7], [8], [9]]


def pieces(spelled=PIECES):
    found, at = [], 0
    for i, piece in enumerate(spelled):
        if piece in ("[CLS]", "[SEP]"):
            found.append(Token(100 + i, piece, piece, special=True))
            continue
        joined = piece.startswith(("##", ","))
        text = piece.removeprefix("##")
        at += not joined and at > 0
        found.append(Token(100 + i, text if i in BYTE_LEVEL else piece, text, at, at + len(text)))
        at += len(text)
    return found


def test_a_piece_that_goes_on_with_a_word_says_so():
    spelled = pieces()
    assert [spell_piece(spelled, i) for i in range(len(spelled))] == PIECES
    assert [continues(spelled, i) for i in range(len(spelled))] == [p[0] == "#" for p in PIECES]
    assert group_words(spelled, range(len(spelled))) == WORDS
    assert group_words(spelled, [0, 2, 4, 5, 6]) == [[0], [2], [4], [5, 6]]
    assert parse_positions("##able").find(spelled, ("the unbelievable river, ran",), "--query") == [
        4
    ]
    assert parse_positions("##ver").find(spelled, ("the unbelievable river, ran",), "--query") == [
        6
    ]


def test_labels_are_taken_as_they_are_printed():
    spelled = pieces()
    text = "the unbelievable river, ran"
    for position, piece in enumerate(PIECES):
        assert parse_positions(f"{position} {piece}").find(spelled, (text,), "--query") == [
            position
        ]
        with pytest.raises(NotInText):
            parse_positions(f"{(position + 1) % len(PIECES)} {piece}").find(
                spelled, (text,), "--query"
            )
    for word in WORDS:
        label = f"{word[0]} {''.join(PIECES[i].removeprefix('##') for i in word)}"
        assert parse_positions(label).find(spelled, (text,), "--query") == word, label
    assert parse_positions("1 the,6 ##ver").find(spelled, (text,), "--query") == [1, 6]
    house = [
        Token(n, word, word, start, start + len(word))
        for n, (word, start) in enumerate([("in", 0), ("4", 3), ("houses", 5)])
    ]
    # words of the text
    assert parse_positions("4 houses").find(house, ("in 4 houses",), "--query") == [1, 2]


@pytest.mark.parametrize("text", ["漢字", "a,b", "x 3"])
def test_ideographs_marks_and_what_follows_a_blank_start_words(text):
    spelled = [Token(i, c, c, i, i + 1) for i, c in enumerate(text) if c != " "]
    assert not any(continues(spelled, i) for i in range(len(spelled)))


@pytest.mark.parametrize(
    ("kind", "text", "words"),
    [
        ("byte-level", "naïve cafe\u0301s", ["naïve", "cafe\u0301s"]),
        ("byte-level", "привет мир", ["привет", "мир"]),
        ("byte-level", "हिन्दी में", ["हिन्दी", "में"]),
        ("byte-level", "می\u200cخواهم", ["می\u200cخواهم"]),
        ("byte-level", "don’t… 👍", ["don", "’", "t", "…", "👍"]),
        ("byte-level", "日本語 テスト", ["日", "本", "語", "テスト"]),
        ("byte-level", "a<C3>", ["a", "<", "C3", ">"]),
        ("byte-fallback", "naïve é!", ["naïve", "é", "!"]),
        ("byte-level with NFKC", "ﬁve", ["ﬁve"]),
    ],
)
def test_words_of_any_script_are_whole_whatever_their_pieces_are(kind, text, words, tmp_path):
    found = load_tokenizer(write(tmp_path, content(kind))).encode(text)
    groups = group_words(found, range(len(found)))
    spans = [(min(found[p].start for p in word), max(found[p].end for p in word)) for word in groups
             if any(found[p].text != "␣" for p in word)]  # fmt: skip
    assert [text[start:end] for start, end in spans] == words
    normal = [unicodedata.normalize("NFKC", word) if "NFKC" in kind else word for word in words]
    assert [word for word in (spell_word(found, word) for word in groups) if word != "␣"] == normal
    assert spell_word(found, groups[0][:1]) == found[0].text  # a part of it


@pytest.mark.parametrize("case", ["whole", "window", "sink", "masked", "left out"])
def test_every_weight_between_words_is_the_sum_over_keys_and_the_mean_over_queries(case):
    spelled = pieces()
    kw = {"window": {"queries": [2, 3, 8], "keys": [1, 2, 3, 5]}, "sink": {"sink": 0.5}}.get(
        case, {}
    )
    allowed = (
        causal if case != "masked" else lambda query, key: key <= query and query not in (3, 7)
    )
    made = report(text_report(spelled, allowed=allowed, size=4.0, **kw))
    text = made.texts[0]
    (head,) = text.heads
    if case == "left out":
        head.top.left_out.extend(["special tokens", "first token"])
    made = replace(made, texts=[with_words(text)])
    (group,) = (part for part in present(made) if isinstance(part, parts.Matrices))
    (ranking,) = (part for part in present(made) if isinstance(part, parts.Bars))
    (stage,) = group.panels
    whole = not kw.get("keys")
    rows, columns = (
        [[p for p in word if p in some] for word in WORDS] for some in (text.queries, text.keys)
    )
    rows, columns = [word for word in rows if word], [word for word in columns if word]
    assert "summed over a word's keys, averaged over its queries" in stage.arithmetic[0].text
    assert [span.text for span in stage.columns.names[: len(columns)]] == [
        "".join(spelled[p].text for p in word) for word in columns
    ]
    weights = head.stages["weights"].astype(float)
    merged = np.full((len(rows), len(columns)), np.nan)
    for (r, word), (c, keys) in product(enumerate(rows), enumerate(columns)):
        seen = [q for q in word if q not in head.fully_masked]
        if seen:
            cells = [weights[text.queries.index(q), text.keys.index(k)] for q in seen for k in keys]
            merged[r, c] = sum(cells) / len(seen)
    np.testing.assert_allclose(stage.matrix[:, : len(columns)], merged, atol=1e-6)
    if case == "sink":
        np.testing.assert_allclose(stage.matrix.sum(1), 1.0, atol=1e-5)
    elif whole:
        np.testing.assert_allclose(
            np.nan_to_num(merged, nan=1 / len(columns)).sum(1), 1.0, atol=1e-5
        )
    excluded = {n for n, word in enumerate(columns) if case == "left out" and {0, 9} & set(word)}
    for row, listed, rest in zip(merged, ranking.rows, ranking.row_remainders(), strict=True):
        if np.isnan(row).all():
            assert listed is None
            continue
        top = [n for n in np.argsort(-row, kind="stable") if n not in excluded and row[n] > 0][:3]
        large = [n for n in top if row[n] >= 0.005 or not whole]
        assert [source.index for source in listed] == large
        assert all(
            abs(float(source.numbers[0]) - row[source.index]) <= 0.00051 for source in listed
        )
        others = [w for n, w in enumerate(row) if n not in large and n not in excluded and w > 0]
        assert (rest is not None) == (whole and sum(others) > 0)
        if rest is not None:
            assert rest[0] == f"{len(others)} more"
            assert (
                sum(others) < 0.0005
                if rest[1] == "<0.001"
                else abs(float(rest[1]) - sum(others)) <= 0.00051
            )


def test_words_and_ids_are_on_the_screen():
    made = with_words_of(report(text_report(pieces(), allowed=causal)))
    shown = draw(made, 100, ids=True)
    (block,) = read_tables(shown, len(WORDS))["weights"]
    assert block.columns == [word[0] for word in WORDS]
    ids = " ".join(re.search(r"^ids .*?(?=\n\n)", shown, re.MULTILINE | re.DOTALL)[0].split())
    assert ids == "ids " + " · ".join(f"{i} {piece} {100 + i}" for i, piece in enumerate(PIECES))


def with_words_of(made):
    return replace(made, texts=[with_words(text) for text in made.texts])


def test_words_need_weights_and_ids_a_terminal(capsys):
    for args in (["--ids", "--output", "x.txt"], ["--words", "--stage", "scores"]):
        assert main(["run", "a bank", *args]) == 2
        assert args[0] in capsys.readouterr().err


@pytest.mark.parametrize(
    ("asked", "said"),
    [
        ("--by value", "--words and --by value cannot be used together: only weights"),
        (
            "--stage masked,weights",
            "--words and --stage masked,weights cannot be used together: only weights",
        ),
        ("--stage none", "--words and --stage none cannot be used together: only weights"),
        ("--measure rollout", "--measure rollout and --words cannot be used together: a measure"),
    ],
)
def test_what_words_do_not_have_is_refused(capsys, asked, said):
    """Before, it was left out without a word: contributors asked for by value were ranked by weight."""
    assert main(["run", "a bank", "--words", *asked.split()]) == 2
    assert said in capsys.readouterr().err


def test_words_of_some_columns_are_counted_and_ranked_among_them():
    """Positions are those of pieces, so that a range of them out of so many words would be no share of them."""
    made = with_words_of(
        report(text_report(pieces(), allowed=causal, queries=[8, 9], keys=[2, 3, 4, 8]))
    )
    shown = draw(made, 100)
    assert "\n2 of 7 columns: unbelievable … ran\n" in shown
    assert "words, by weight, of the columns shown" in shown
    assert "--stage" not in shown
    assert "weights: 2 of 7" in draw(made, 100, format="heat")


def test_every_command_leads_with_unknown_words(capsys, minilm):
    for args in (["run"], ["explain", "--query", "0"], ["compare"], ["heads", "--key", "the"]):
        assert (
            main([args[0], "the \N{SNOWMAN WITHOUT SNOW} ran", *args[1:], "--model", str(minilm)])
            == 0
        )
        assert capsys.readouterr().out.lstrip().startswith("UNKNOWN WORDS"), args


def test_a_heat_map_names_every_column_that_no_row_names(capsys):
    """A row that is one piece of a word does not name the word's column."""
    assert (
        main(
            [
                "run",
                "the unbelievable bank",
                "--words",
                "--format",
                "heat",
                "--query",
                "2",
                "--top",
                "0",
            ]
        )
        == 0
    )
    assert "columns: 0 the · 1 unbelievable · 5 bank\n" in capsys.readouterr().out
