"""A needle by length and depth: every number against transformers, and what is refused."""

import csv

import numpy as np
import pytest

import attnscope
from attnscope.base.errors import UsageError
from attnscope.cli import main
from attnscope.request.arguments import series
from attnscope.studies.heads.needle import split_needle
from tests.chat import span_cuts
from tests.helpers.architectures import WORDS

NEEDLE, FILLER = "the bank was old", "water ran all day while we sat on it by river"
LENGTHS, DEPTHS = [20, 29], [0, 0.4, 1]


def prompt(length, depth):
    """The ids of a text, and where the needle is: built again from words."""
    words = {word: number for number, word in enumerate(WORDS)}
    needle, filler = ([words[word] for word in text.split()] for text in (NEEDLE, FILLER))
    count = length - 2 * len(needle) - 1
    text = [filler[n % len(filler)] for n in range(count)]
    at = round(depth * count)
    begin = [words["<s>"]]  # which the model's config names
    return [*begin, *text[:at], *needle, *text[at:], *needle], range(1 + at, 1 + at + len(needle))


@pytest.mark.parametrize("engine", ["native", "transformers"])
def test_every_number_is_that_of_transformers(gpt2, engine):
    path, model = gpt2
    found = attnscope.heads(
        path, needle=NEEDLE, filler=FILLER, lengths=LENGTHS, depths=DEPTHS, draws=2, engine=engine
    )
    roles = attnscope.heads(path, role="retrieval", draws=2, engine=engine).data.roles[0].values
    strongest = sorted(np.ndindex(roles.shape), key=lambda at: -roles[at])[:10]
    assert [roles[at] for at in found.heads] == pytest.approx([roles[at] for at in strongest])
    assert (found.data.cue, found.data.answer) == ("the bank was", "old")
    for n, length in enumerate(LENGTHS):
        for m, depth in enumerate(DEPTHS):
            ids, needle = prompt(length, depth)
            before, _, weights = span_cuts.ran(model, ids)
            assert len(ids) == length
            assert found.log_probability[n, m] == pytest.approx(
                before[-2, ids[-1]] / np.log(2), rel=1e-4
            )
            read = weights[:, :, -2, list(needle)].sum(-1)
            assert found.all_heads[n, m] == pytest.approx(read.mean(), abs=1e-6)
            assert found.weight[n, m] == pytest.approx(
                np.mean([read[at] for at in found.heads]), abs=1e-6
            )


def test_on_the_command_line_and_as_a_table(gpt2, tmp_path, capsys):
    (tmp_path / "filler.txt").write_text(FILLER)
    words = [
        "heads",
        "--needle",
        NEEDLE,
        "--model",
        str(gpt2[0]),
        "--filler",
        str(tmp_path / "filler.txt"),
    ]
    words += ["--lengths", "20,29", "--depths", "0,0.5,…,1", "--draws", "2"]
    assert main(words) == 0
    out = capsys.readouterr().out
    assert "depth × length" in out and "needle   the bank was old" in out
    assert main([*words, "-o", str(tmp_path / "needle.csv")]) == 0
    rows = list(csv.DictReader((tmp_path / "needle.csv").read_text().splitlines()))
    assert [(row["length"], row["depth"]) for row in rows][:4] == [
        ("20", "0.0"),
        ("20", "0.5"),
        ("20", "1.0"),
        ("29", "0.0"),
    ]
    found = attnscope.heads(
        gpt2[0], needle=NEEDLE, filler=FILLER, lengths=[20, 29], depths=[0, 0.5, 1], draws=2
    )
    assert [float(row["weight"]) for row in rows] == pytest.approx(found.weight.ravel().tolist())
    assert list(found.to_pandas()["log_probability"]) == pytest.approx(
        found.log_probability.ravel().tolist()
    )


@pytest.mark.parametrize(
    ("text", "numbers"),
    [
        ("0,0.1,…,1", tuple(n / 10 for n in range(11))),
        ("0,0.25,...,1", (0, 0.25, 0.5, 0.75, 1)),
        ("0.5", (0.5,)),
        ("0,0.3,…,1", (0, 0.3, 0.6, 0.9, 1)),
    ],
)
def test_series_of_depths(text, numbers):
    assert series("depths", 0, 1, text, integers=False) == pytest.approx(numbers)


def test_series_of_lengths():
    assert series("lengths", 8, 1 << 24, "512,1024,…,4096", integers=True) == (
        512,
        1024,
        1536,
        2048,
        2560,
        3072,
        3584,
        4096,
    )
    for wrong in (
        "",
        "x",
        "512,",
        "7",
        "12.5",
        "nan",
        "inf",
        "1024,512",
        "…",
        "8,…,9",
        "8,9,…",
        "8,9,…,900000",
        "8,8.5,…,9",
    ):
        with pytest.raises(UsageError):
            series("lengths", 8, 1 << 24, wrong, integers=True)


def test_the_answer_is_the_last_word_or_the_part_that_is_named():
    assert split_needle("The key is 71432.", None) == ("The key is", " 71432")
    assert split_needle("The key is red and blue.", "red and blue") == (
        "The key is",
        " red and blue",
    )
    for needle, answer in (("key", None), ("", None), ("The key is red", "blue")):
        with pytest.raises(UsageError):
            split_needle(needle, answer)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--lengths", "8"], "of which the needle and its question take 9"),
        (
            ["--lengths", "4000"],
            "4,000 tokens, but the model takes at most 48; use --lengths 48 or less",
        ),
        (["--role", "retrieval"], "--needle and --role cannot be used together"),
        (["some text"], "--needle and TEXT cannot be used together"),
        (["--answer", "young"], "is not in the needle"),
    ],
)
def test_what_cannot_be_done_is_said_in_one_line(gpt2, capsys, words, message):
    assert main(["heads", "--needle", NEEDLE, "--model", str(gpt2[0]), *words]) == 2
    err = capsys.readouterr().err
    assert message in err and err.count("\n") == 1


def test_a_model_without_predictions_and_options_without_a_needle_are_refused(capsys):
    assert main(["heads", "--needle", NEEDLE]) == 2
    assert "does not predict the next token" in capsys.readouterr().err
    assert main(["heads", "--depths", "0,1"]) == 2
    assert "--depths: applies only to --needle" in capsys.readouterr().err
    with pytest.raises(
        attnscope.AttnscopeError, match=r"^depths: applies only to needle; add needle=TEXT$"
    ):
        attnscope.heads(depths=[0, 1])
    with pytest.raises(attnscope.AttnscopeError, match=r"^needle and text cannot be used together"):
        attnscope.heads(text="some text", needle=NEEDLE)
