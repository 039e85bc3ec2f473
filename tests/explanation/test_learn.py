"""Lessons: every number is recomputed from the model's scores, and the keyboard walks through them."""

import json
import os
import re

import numpy as np
import pytest

import attnscope
from attnscope.cli import main
from attnscope.cli.learn import read_progress
from attnscope.request.arguments import LESSON_NAMES
from attnscope.studies.learn.lessons import LESSONS
from tests.explore.pseudo_terminal import PseudoTerminal
from tests.helpers.architectures import save_gpt2, write_tokenizer
from tests.helpers.draws import in_two
from tests.helpers.row_statistics import entropy
from tests.helpers.tiny_models import TABLE

TEXT = "The bank by the river was eroded"


@pytest.fixture(autouse=True)
def own_folder(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "settings"))


@pytest.fixture
def lesson(capsys):
    """A function that returns a lesson as JSON."""

    def make(name, *words, text=TEXT):
        assert main(["learn", name, text, "--json", "--quiet", *words]) == 0, (
            capsys.readouterr().err
        )
        return json.loads(capsys.readouterr().out)

    return make


def softmax(row):
    powers = np.exp(row - row.max())
    return powers / powers.sum()


def stages(found, mask=None):
    """The row of a lesson: its scores, scaled scores, masked scores and weights, in float64."""
    report = attnscope.inspect(
        TEXT, layer=found["layer"], head=found["head"], query=found["query"], mask=mask,
        stages=["scores", "scaled", "masked", "weights"],
    )  # fmt: skip
    head = report[found["layer"], found["head"]]
    return [
        np.asarray(getattr(head, stage), np.float64)[0]
        for stage in ("scores", "scaled", "masked", "weights")
    ]


def column(step, heading):
    index = step["columns"].index(heading)
    return np.array(
        [np.nan if row["values"][index] is None else row["values"][index] for row in step["rows"]]
    )


def right(step):
    return step["choices"][step["answer"]]


def numbers(text):
    return [
        float(number.replace("−", "-")) for number in re.findall(r"−?\d+\.?\d*(?:e-?\d+)?", text)
    ]


def test_there_are_eight_lessons_with_steps_to_predict(lesson):
    assert tuple(LESSONS) == LESSON_NAMES and len(LESSONS) == 8
    for name in LESSONS:
        found = lesson(name)
        assert 2 <= len(found["steps"]) <= 5
        for step in found["steps"]:
            assert 2 <= len(step["choices"]) <= 5
            assert len(set(step["choices"])) == len(step["choices"])
            assert 0 <= step["answer"] < len(step["choices"])
            assert step["says"] and step["formula"] and step["reveal"]


@pytest.mark.parametrize("name", LESSON_NAMES)
def test_nothing_above_a_question_is_its_answer(name, lesson):
    for step in lesson(name)["steps"]:
        shown = re.findall(r"L\dH\d|−?\d+\.\d+|\d [a-z]+", f"{step['says']} {step['formula']}")
        if name not in ("scale", "softmax"):  # whose formulas name the smallest of wrong answers
            assert right(step) not in shown


def test_numbers_to_compare_have_as_many_decimals(capsys):
    assert main(["learn", "mask", TEXT, "--plain"]) == 0
    table = capsys.readouterr().out.rpartition("mask before")[2].split("\n3  ")[0]
    rows = [re.findall(r" (\d\.\d+)", line) for line in table.splitlines()[1:]]
    assert {len(cell) for row in rows for cell in row} == {6} and max(map(len, rows)) == 3


@pytest.mark.parametrize("query", ["1", "6"])
def test_scores_are_dot_products(lesson, query):
    found = lesson("scores", "--query", query)
    scores, *_ = stages(found)
    first, second, _ = found["steps"]
    np.testing.assert_allclose(column(first, "q·k"), scores, rtol=1e-5)
    assert right(first).split()[0] == str(scores.argmax())
    assert numbers(first["formula"])[-1] == pytest.approx(scores.max(), abs=0.006)
    length, width, cosine, product = numbers(second["formula"])
    assert length * width * cosine == pytest.approx(product, rel=0.05)
    assert right(second) == "no"


def test_the_scale_narrows_the_scores_and_keeps_the_softmax_soft(lesson):
    found = lesson("scale")
    scores, scaled, _, weights = stages(found)
    first, second = found["steps"]
    width = attnscope.explain(
        TEXT, query=found["query"], layer=found["layer"], head=found["head"]
    ).data
    root = np.sqrt(width.key_vectors.shape[1])
    np.testing.assert_allclose(scores / root, scaled, rtol=1e-5)
    assert float(right(first)) == pytest.approx(scaled.std(), abs=0.0006)
    with_scale, without = numbers(second["formula"])[0], numbers(second["formula"])[-1]
    assert with_scale == pytest.approx(entropy(weights), abs=0.006)
    assert without == pytest.approx(entropy(softmax(scores)), abs=0.006)
    assert float(right(second)) == pytest.approx(softmax(scores).max(), abs=0.0006)


def test_a_mask_after_the_softmax_loses_the_weight_of_the_hidden_keys(lesson):
    found = lesson("mask", "--query", "3")
    _, scaled, _, weights = stages(found)
    allowed = np.arange(len(scaled)) <= 3
    left = weights[allowed].sum()
    first, second, third = found["steps"]
    assert int(right(first)) == 4
    assert float(right(second)) == pytest.approx(left, abs=0.0006)
    np.testing.assert_allclose(column(second, "no mask"), weights, atol=1e-6)
    np.testing.assert_allclose(column(second, "mask after"), weights * allowed, atol=1e-6)
    expected = np.zeros(len(scaled))
    expected[allowed] = softmax(scaled[allowed])
    np.testing.assert_allclose(column(second, "mask before"), expected, atol=1e-6)
    np.testing.assert_allclose(weights * allowed / left, expected, atol=1e-6)
    assert right(third) == "yes, up to rounding"


def test_the_softmax_and_its_temperature(lesson):
    found = lesson("softmax", "--mask", "causal", "--query", "4")
    _, _, masked, weights = stages(found, mask="causal")
    first, second, third = found["steps"]
    np.testing.assert_allclose(
        np.nan_to_num(column(first, "exp")), np.exp(masked - masked.max()), rtol=1e-4, atol=1e-9
    )
    np.testing.assert_allclose(column(second, "weight"), weights, atol=1e-6)
    assert right(second).split()[0] == str(weights.argmax())
    assert float(right(third)) == pytest.approx(entropy(softmax(masked / 0.5)), abs=0.006)
    sharper = lesson("softmax", "--mask", "causal", "--query", "4", "--temperature", "0.5")
    np.testing.assert_allclose(
        column(sharper["steps"][1], "weight"), softmax(masked / 0.5), atol=1e-6
    )


def test_the_output_is_the_sum_of_weighted_values(lesson):
    found = lesson("output")
    e = attnscope.explain(TEXT, query=found["query"], layer=found["layer"], head=found["head"]).data
    values = np.asarray(e.value_vectors, np.float64)
    weights = stages(found)[3]
    first, second, third = found["steps"]
    parts = weights * np.linalg.norm(values, axis=1)
    np.testing.assert_allclose(column(first, "weight × ‖v‖"), parts, rtol=1e-4)
    assert right(first).split()[0] == str(parts.argmax())
    assert numbers(second["formula"]) == pytest.approx(
        [np.linalg.norm(weights @ values)], abs=0.006
    )
    assert numbers(second["reveal"]) == pytest.approx([parts.sum()], abs=0.006)
    assert float(right(third)) == pytest.approx(e.projected.norm / e.inputs[-1].norm, abs=0.006)


@pytest.mark.parametrize(("text", "others"), [("The bank", False), ("The bank by the", True)])
def test_a_sum_of_few_values_has_no_others(lesson, text, others):
    step = lesson("output", text=text)["steps"][0]
    products = re.findall(r"\(([\d.]+) × ([−\d.]+)\)", str(step))
    assert len(products) == min(3, len(text.split()))
    assert ("+ …" in str(step)) == others


def test_heads_are_those_of_the_layer(lesson):
    found = lesson("heads")
    report = attnscope.inspect(TEXT, layer=found["layer"], head="all")
    rows = np.asarray(report.weights, np.float64)[0, :, found["query"]]
    best = rows[found["head"]].argmax()
    first, second, third = found["steps"]
    layer = found["layer"]
    assert right(first) == f"L{layer}H{rows[:, best].argmax()}"
    np.testing.assert_allclose(column(second, "entropy"), [entropy(row) for row in rows], atol=1e-5)
    assert right(second) == f"L{layer}H{np.argmax([entropy(row) for row in rows])}"
    assert float(right(third)) == pytest.approx(rows.max(), abs=0.0006)


def test_directions_compare_two_runs_of_the_whole_model(lesson):
    found = lesson("directions")
    both, past = (
        np.asarray(
            attnscope.inspect(TEXT, layer=found["layer"], head=found["head"], mask=mask).weights[
                0, 0
            ],
            float,
        )
        for mask in ("bidirectional", "causal")
    )
    ahead = np.triu(both, 1).sum(1).mean()
    first, second, third = found["steps"]
    assert numbers(first["formula"])[-1] == pytest.approx(ahead, abs=0.0006)
    assert float(right(first)) == 0 and np.triu(past, 1).sum() == 0
    assert float(right(second)) == 1
    moved = np.abs(both - past).sum(1) / 2
    np.testing.assert_allclose(column(third, "moved"), moved, atol=1e-5)
    assert right(third).split()[0] == str(moved.argmax())


def test_sinks_and_padding(lesson):
    found = lesson("sinks")
    weights = np.asarray(attnscope.inspect(TEXT, layer=found["layer"], head="all").weights, float)[
        0
    ]
    first, second, third = found["steps"]
    np.testing.assert_allclose(column(first, "on the first"), weights[:, 1:, 0].mean(1), atol=1e-5)
    assert numbers(first["reveal"])[-1] == pytest.approx(1 / weights.shape[2], abs=0.0006)
    assert float(right(second)) == 0
    assert right(third) == "yes, up to rounding"


def test_an_even_share_is_of_the_keys_that_the_mask_allows(lesson):
    first, *_ = lesson("sinks", "--mask", "causal", text="a river bank")["steps"]
    assert numbers(first["reveal"])[-1] == pytest.approx((1 / 2 + 1 / 3) / 2, abs=0.0006)


@pytest.mark.parametrize(
    ("positions", "temperature"), [("alibi", 1.0), ("alibi", 0.5), ("none", 2.0)]
)
def test_without_the_scale_bias_and_temperature_stay(lesson, tmp_path, positions, temperature):
    config = tmp_path / "stack.toml"
    config.write_text(
        f'd_model = 16\nn_heads = 2\nmask = "causal"\nseed = 4\npositions = "{positions}"\n'
    )
    row = ["--config", str(config), "--layer", "0", "--head", "1", "--query", "5"]
    found = lesson("scale", *row, "--temperature", str(temperature))
    head = attnscope.inspect(
        TEXT, config=str(config), layer=0, head=1, query=5, stages=["scores", "scaled"]
    )[0, 1]
    scores, scaled = (np.asarray(stage, np.float64)[0, :6] for stage in (head.scores, head.scaled))
    bias = scaled - scores / np.sqrt(8)
    _, second = found["steps"]
    with_scale, without = (softmax(row / temperature) for row in (scaled, scores + bias))
    np.testing.assert_allclose(column(second, "with"), with_scale, atol=1e-5)
    np.testing.assert_allclose(column(second, "without"), without, atol=1e-5)
    said = ("nearly all weight", "more weight", "not the largest weight")
    expected = 0 if without.max() >= 0.9 else 1
    if without.max() <= with_scale.max():
        expected = 2
    assert said[expected] in second["says"]


def test_a_head_that_writes_nothing_adds_nothing(lesson, tmp_path):
    _, model = save_gpt2(tmp_path)
    for block in model.transformer.h:
        block.attn.c_proj.weight.data.zero_()
    model.save_pretrained(tmp_path)
    *_, last = lesson("output", "--model", str(tmp_path), text="the bank by river")["steps"]
    assert right(last) == "0.00"


def test_a_head_of_two_dimensions_has_no_others(lesson, tmp_path):
    config = tmp_path / "stack.toml"
    config.write_text('d_model = 4\nn_heads = 2\nmask = "causal"\nseed = 4\n')
    first, _, third = lesson("scores", "--config", str(config), "--layer", "0")["steps"]
    assert first["formula"].count("×") == 2 and " more" not in first["formula"]
    assert third["formula"].startswith("the 2 largest products")
    assert third["reveal"].endswith("there are no others.")


def test_a_lesson_that_a_model_cannot_show_is_refused(tmp_path, capsys):
    (row,) = (row for row in TABLE if row.name == "gpt_neo")
    row.save(tmp_path)
    write_tokenizer(tmp_path)
    text = "the bank by river"
    assert main(["learn", "scale", text, "--model", str(tmp_path), "--plain"]) == 2
    assert "multiplies its scores by 1, which narrows nothing" in capsys.readouterr().err
    path = tmp_path / "gpt2"
    _, model = save_gpt2(path)
    for block in model.transformer.h:
        for parameter in block.attn.c_attn.parameters():
            parameter.data.zero_()
    model.save_pretrained(path)
    assert main(["learn", "scores", text, "--model", str(path), "--plain"]) == 2
    assert "every q·k of this row is 0" in capsys.readouterr().err
    config = tmp_path / "stack.toml"
    config.write_text('d_model = 4\nn_heads = 1\nmask = "causal"\nseed = 4\n')
    assert main(["learn", "heads", text, "--config", str(config), "--plain"]) == 2
    assert "this model has one head in a layer" in capsys.readouterr().err


@in_two("names", list(LESSONS), short=2)
def test_another_model_and_causal_mask(names, lesson, smollm2):
    for name in names:
        found = lesson(
            name,
            "--model",
            str(smollm2),
            "--layer",
            "3",
            "--head",
            "1",
            text="The cat sat on the mat",
        )
        assert (found["layer"], found["head"], found["query"]) == (3, 1, 5)


@pytest.mark.parametrize(
    ("words", "line"),
    [
        (["score"], "no such lesson 'score'; did you mean 'scores'?"),
        (["The bank"], "before the text, such as attnscope learn scores 'The bank'"),
        (["scores", "bank"], "the text has 1 token; pass one with 2 to 64 tokens"),
        (["scores", "a b " * 40], "the text has 80 tokens"),
        (["scores", "a b", "--temperature", "0"], "--temperature: must be"),
    ],
)
def test_what_cannot_be_taught_is_refused(words, line, capsys):
    assert main(["learn", *words, "--plain"]) == 2
    assert line in capsys.readouterr().err


def test_a_handout_has_every_question_and_answer(tmp_path, capsys):
    assert main(["learn", "mask", "-o", str(tmp_path / "mask.html")]) == 0
    assert (tmp_path / "mask.html").read_text().startswith("<!doctype html>")
    assert main(["learn", "mask", "-o", str(tmp_path / "mask.txt")]) == 0
    assert "Why before the softmax?" in (tmp_path / "mask.txt").read_text()
    assert main(["learn", "mask", "--plain"]) == 0
    out = capsys.readouterr().out
    assert (
        out.index("Why before the softmax?")
        < out.index("Answers")
        < out.index("is lost instead of shared out")
    )


@pytest.mark.unix
def test_keys_answer_change_and_finish_a_lesson(tmp_path, lesson, capsys):
    steps = lesson("scale", text="The bank by the river")["steps"]
    settings = {"XDG_CONFIG_HOME": os.environ["XDG_CONFIG_HOME"]}
    terminal = PseudoTerminal("learn", "scale", size=(80, 40), **settings)
    try:
        for number, step in enumerate(steps):
            terminal.wait_for(b"your answer")
            terminal.written = b""
            wrong = number == 1
            chosen = (step["answer"] + wrong) % len(step["choices"])
            terminal.press("abcde"[chosen].encode())
            terminal.wait_for("✗ it is".encode() if wrong else "✓ right".encode())
            terminal.wait_for(b"Enter next")
            if number == 0:
                terminal.press(b"t")
                terminal.wait_for(b"now: temperature 0.5")
                terminal.wait_for(b"your answer")
                terminal.written = b""
                terminal.press(b"a")
                terminal.wait_for(b"Enter next")
                terminal.written = b""
                terminal.press(b"t")
                terminal.wait_for(b"now: temperature 1")
                terminal.wait_for(b"your answer")
                terminal.press(b"a")
                terminal.wait_for(b"Enter next")
                terminal.written = b""
            terminal.press(b"\n")
        terminal.wait_for(b"1 of 2 right")
        assert terminal.end() == 0
        assert b"attnscope: next: attnscope learn mask" in terminal.written
    finally:
        terminal.close()
    assert read_progress() == {"scale": {"right": 1, "questions": 2}}
    assert main(["learn"]) == 0
    assert "done, 1 of 2 right" in capsys.readouterr().out


@pytest.mark.unix
def test_keys_change_something_at_the_question_too(tmp_path):
    terminal = PseudoTerminal("learn", "scale", size=(80, 40), XDG_CONFIG_HOME=str(tmp_path))
    try:
        terminal.wait_for(b"your answer")
        terminal.press(b"t")
        terminal.wait_for(b"now: temperature 0.5")
        terminal.wait_for(b"your answer")
        terminal.press(b"w")
        terminal.wait_for(b"word to replace")
        terminal.press(b"lake\r")
        terminal.wait_for(b"nothing; press w, then type one of these words alone: The bank by the")
        terminal.written = b""
        terminal.press(b"m")
        terminal.wait_for(b"the last token sees every key under both")
        terminal.press(b"q")
    finally:
        terminal.close()
