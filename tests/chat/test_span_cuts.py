"""`ablate --each span`: numbers against hooks on transformers, and what is refused."""

import csv
import re

import pytest
from msgspec.structs import replace

import attnscope
from attnscope.base.errors import UsageError
from attnscope.cli import main
from attnscope.studies.registry import present
from attnscope.views.terminal import as_text
from tests.chat import span_cuts

TEXT = "the bank by the river was old and we sat"


@pytest.mark.parametrize("engine", ["native", "transformers"])
@pytest.mark.parametrize("seed", range(6))
def test_every_number_is_that_of_hooks_on_transformers(gpt2, engine, seed):
    """`python -m tests.chat.span_cuts --cases 200` draws more."""
    span_cuts.check(*gpt2, engine, seed)


def test_from_python_and_as_a_table(gpt2, tmp_path, capsys):
    path, _ = gpt2
    spans = {"place": (0, 21), "time": (22, 33)}
    found = attnscope.ablate(TEXT, model=path, each="span", spans=spans, answer=" on it")
    assert set(found.spans) == {"(first)", "place", "time", "(rest)"}
    assert found.ranked_by == "loss"
    best = found.strongest(1)[0]
    assert (best.layer, best.head, best.query, best.key) == (-1, None, None, None)
    assert best.span == found.spans[int(found.effect.argmax())]
    assert list(found.to_pandas()["span"]) == found.spans
    words = [
        "ablate",
        TEXT,
        "--model",
        str(path),
        "--each",
        "span",
        "--spans",
        "river,old",
        "--answer",
        " on it",
    ]
    assert main([*words, "-o", str(tmp_path / "spans.csv")]) == 0
    rows = list(csv.DictReader((tmp_path / "spans.csv").read_text().splitlines()))
    assert list(rows[0]) == [
        *("span", "weight", "kl_renormalised", "hidden_renormalised", "loss_renormalised"),
        *("kl_unnormalised", "hidden_unnormalised", "loss_unnormalised"),
    ]
    capsys.readouterr()
    assert main(words) == 0
    out = capsys.readouterr().out
    assert "bits lost" in out and "river" in out and "on it" in out
    of_text = {row["span"]: float(row["loss_renormalised"]) for row in rows}
    of_text.pop("(first)")
    needed = max(of_text, key=lambda name: of_text[name])
    said = f"the answer loses most without {needed}: {of_text[needed]:.3f} bits"
    if of_text[needed] <= 0:
        said = "the answer needs none: without any one of them, it is at least as probable"
    assert f"Of the text's spans, {said}." in " ".join(out.split())
    assert "note (first): the first token; (rest): tokens of no other span." in " ".join(
        out.split()
    )
    assert main([*words[:-2]]) == 0
    assert "the answer is what the model generates" in " ".join(capsys.readouterr().out.split())
    sides = ["--spans", "river,old", "--each", "span", "--query", "bank"]
    assert main(["ablate", TEXT, "--model", str(path), *sides]) == 0
    out = " ".join(capsys.readouterr().out.split())
    position = re.search(r"cut off token (\d+), which --query names", out)
    assert position is not None and TEXT.split()[int(position[1])] == "bank"


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({}, "each='span': applies only to spans or messages; add spans"),
        ({"spans": "river", "answer": ""}, "has no tokens of its own"),
        ({"spans": "river", "answer": " on", "generate": 2}, "cannot be used together"),
        ({"spans": "river", "key": "bank"}, "key: applies only to each='edge'"),
        (
            {"spans": "river", "replacement": "mean"},
            "replacement='mean' and each='span' cannot be used together",
        ),
        (
            {"spans": "river", "each": "head", "answer": " on"},
            "use each='span' instead of each='head', or target=TOKEN instead of answer",
        ),
        (
            {"spans": "river", "hide": "bank"},
            "each='span': no answer can be generated: the mask is not defined",
        ),
        ({"spans": "river", "hide": "bank", "generate": 2}, "generate: the mask is not defined"),
    ],
)
def test_what_contradicts_itself_is_refused(gpt2, options, message):
    with pytest.raises(UsageError) as caught:
        attnscope.ablate(TEXT, model=gpt2[0], **{"each": "span", **options})
    assert message in caught.value.line()


def test_an_answer_that_is_a_range_of_the_text_is_the_one_that_is_cut(gpt2):
    spans = {"place": (0, 21), "answer": (22, 33)}
    given = attnscope.ablate(TEXT[:33], model=gpt2[0], each="span", spans=spans).data
    appended = attnscope.ablate(
        TEXT[:21], model=gpt2[0], each="span", spans={"place": (0, 21)}, answer=TEXT[21:33]
    ).data
    assert given.answer == appended.answer
    assert given.effects[0].loss == pytest.approx(appended.effects[0].loss, rel=1e-4, abs=1e-5)
    with pytest.raises(UsageError, match="the text ends with an answer"):
        attnscope.ablate(TEXT[:33], model=gpt2[0], each="span", spans=spans, answer=" on it")
    masked = attnscope.ablate(
        "the bank by the river", each="span", spans={"a": (0, 8), "answer": (9, 21)}
    ).data
    assert masked.answer == []
    assert masked.effects[0].loss is None
    assert masked.rows == masked.spans.tokens(masked.spans.names.index("answer"))


def test_only_an_effect_has_a_bar_and_a_small_one_its_digits(gpt2):
    path, _ = gpt2
    spans = {"place": (0, 21), "time": (22, 33)}
    found = attnscope.ablate(TEXT, model=path, each="span", spans=spans).data
    (effects, *others) = found.effects
    for factor, bars, small in ((1e-4, True, True), (0.0, False, False), (1e-6, False, True)):
        factors = {name: getattr(effects, name) * factor for name in ("kl", "hidden")}
        scaled = replace(found, effects=[replace(effects, **factors), *others])
        lines = as_text(present(scaled), 100).splitlines()
        (line,) = [line for line in lines if line.startswith("   place")]
        assert ("█" in line) == bars
        assert (" 0.000 " not in line) and ("e-" in line) == small, line
