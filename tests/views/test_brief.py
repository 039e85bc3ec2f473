"""What a screen leaves out to stay short: it says so, and every sum stands for what it replaces."""

import json
import re
from io import StringIO

import numpy as np
import pytest
from rich.console import Console

from attnscope.cli import main
from attnscope.findings.compare import Side
from attnscope.studies.compare.reports import compare_sides
from attnscope.studies.run.page import present_page
from attnscope.studies.run.screen import present_report
from attnscope.studies.screens.header import short_path
from attnscope.views.parts import Facts, FirstFitting, WeightMap
from attnscope.views.settings import DisplaySettings
from attnscope.views.terminal import draw as put
from tests.helpers.sample_reports import causal, report, sized, text_report, tokens, words
from tests.helpers.screens import contributors, draw, read_tables

# for MiniLM, with [CLS] and [SEP]
FIFTEEN = "The bank by the river was eroded and the old mill fell in"


@pytest.mark.parametrize("width", [80, 120])
def test_the_first_screen_of_a_real_model_is_short(minilm, monkeypatch, capsys, width):
    monkeypatch.setenv("COLUMNS", str(width))
    assert main(["run", FIFTEEN, "--model", str(minilm)]) == 0
    shown = capsys.readouterr().out
    assert "15 tokens" in shown
    assert len(shown.splitlines()) <= (75 if width <= 80 else 50)
    header = shown.split("\n\n")[0].splitlines()
    assert [line.split()[0] for line in header] == ["model", "mask", "text"]
    assert list(read_tables(shown, 15)) == ["weights"]
    assert "(--stage scores,masked,weights)" in shown


@pytest.mark.parametrize("width", [60, 80, 120, 200])
@pytest.mark.parametrize("count", [20, 36, 50, 64])
def test_numbers_that_would_take_several_screens_are_a_picture(count, width):
    """64 tokens took 490 lines at 80 columns."""
    shown = draw(sized(count), width, brief=True)
    stages = "--stage scores,masked,weights"
    drawn = f"map of {count} × {count} weights" in shown
    listed = shown[re.search(r"^weights", shown, re.MULTILINE).start() : shown.index("more  ")]
    assert drawn or len(listed.splitlines()) <= 103
    assert len(shown.splitlines()) <= 220
    assert (f"the weights as numbers ({stages})" in " ".join(shown.split())) == drawn
    assert drawn or (count, width) != (50, 80)
    assert not drawn or (count, width) != (20, 120)
    assert "top contributors" in shown


def test_a_picture_has_every_weight_that_it_stands_for():
    made = sized(50)
    settings = DisplaySettings(precision=2, brief=True)
    (found,) = (part for part in present_report(made, settings) if isinstance(part, FirstFitting))
    (drawn,) = (part for part in found.picture if isinstance(part, WeightMap))
    np.testing.assert_array_equal(drawn.weights, made.texts[0].heads[0].stages["weights"])
    assert drawn.queries == drawn.keys == list(range(51))
    for partly in (sized(50, queries=[1, 2]), sized(50, keys=[0, 3]), sized(50, sink=0.5)):
        (found,) = (
            part for part in present_report(partly, settings) if isinstance(part, FirstFitting)
        )
        assert found.picture is None


def test_verbose_and_json_say_what_the_short_header_leaves_out(minilm, monkeypatch, capsys):
    monkeypatch.setenv("COLUMNS", "200")
    notes = [
        "ignoring the truncation stored in tokenizer.json",
        "ignoring the padding stored in tokenizer.json",
    ]
    assert main(["run", "a river", "--model", str(minilm), "--verbose"]) == 0
    shown = capsys.readouterr().out
    assert all(f"note     {note}" in shown for note in notes)
    assert f"{minilm} (bert)" in shown
    assert "cpu · float32" in shown
    assert list(read_tables(shown, 4)) == ["scores", "masked", "weights"]
    assert main(["run", "a river", "--model", str(minilm), "--format", "json"]) == 0
    made = json.loads(capsys.readouterr().out)["provenance"]
    assert (made["details"], made["notes"], made["model"]) == (notes, [], str(minilm))


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("riverbank", "riverbank"),
        ("org/name", "org/name"),
        ("/a/very/long/path/to/a/checkpoint/of/my-llama-7b", "my-llama-7b"),
        ("/a/very/long/path/to/some/thing/my-bert/model", "my-bert/model"),
        ("C:\\a\\very\\long\\path\\to\\some\\thing\\bert-large\\", "bert-large"),
        ("x" * 50, "x" * 50),
        ("/srv/my-llama-7b", "my-llama-7b"),
        ("/srv/my-bert", "srv/my-bert"),
        ("~/models/my-llama-7b", "my-llama-7b"),
        ("D:\\models\\my-llama-7b", "my-llama-7b"),
        ("./my-llama-7b", "./my-llama-7b"),
        ("/my-llama", "/my-llama"),
    ],
)
def test_a_long_or_absolute_path_is_named_by_its_end(name, said):
    assert short_path(name) == said


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("left_out", [[], ["special tokens", "first token"]])
@pytest.mark.parametrize("width", [40, 120])
def test_the_sum_of_small_contributors_is_that_of_all_that_are_not_listed(width, left_out, seed):
    """Counted and added up again from the weights, for every row."""
    spelled = tokens(words(9), special=(3, 8))
    made = report(text_report(spelled, allowed=causal, size=5.0, index=seed))
    head = made.texts[0].heads[0]
    head.top.left_out.extend(left_out)
    excluded = {0, 3, 8} if left_out else set()
    keys = head.top.keys
    for r in range(9):  # what a ranking that leaves these out would have found
        eligible = [
            k for k in np.argsort(-head.stages["weights"][r], kind="stable") if k not in excluded
        ]
        chosen = [k for k in eligible if head.stages["weights"][r, k] > 0][:3]
        keys[r] = chosen + [-1] * (3 - len(chosen))
        head.top.weight[r] = [head.stages["weights"][r, k] if k >= 0 else np.nan for k in keys[r]]
    shown = " ".join(contributors(draw(made, width)).split("\n", 1)[1].split())
    rows = re.split(r"(?=\b\d [a-z]+ (?:← |\d+ more|nothing))", shown)
    expected = []
    for row, listed in zip(head.stages["weights"].astype(np.float64), keys.tolist(), strict=True):
        large = [key for key in listed if key >= 0 and row[key] >= 0.005]
        others = [w for k, w in enumerate(row) if k not in large and k not in excluded and w > 0]
        if others and any(key >= 0 for key in listed):
            expected.append((len(others), sum(others)))
    found = [(int(n), text) for n, text in re.findall(r"(\d+) more:? (<?[\d.]+)", " ".join(rows))]
    assert [n for n, _ in found] == [n for n, _ in expected]
    assert expected or left_out
    for (_, said), (_, weight) in zip(found, expected, strict=True):
        assert weight < 0.0005 if said == "<0.001" else abs(float(said) - weight) <= 0.00051


def test_small_contributors_are_listed_one_by_one_where_that_is_asked_for_or_the_row_is_not_whole():
    made = report(text_report(tokens(words(9)), allowed=causal, size=5.0))
    assert "more" in contributors(draw(made, 120))
    assert "more" not in contributors(draw(made, 120, verbose=True))
    window = report(text_report(tokens(words(9)), allowed=causal, size=5.0, keys=list(range(8))))
    assert "more" not in contributors(draw(window, 120))


@pytest.mark.parametrize(
    ("count", "width", "stages"), [(15, 80, 1), (8, 250, 3), (6, 80, 3), (8, 80, 1)]
)
def test_weights_stand_alone_where_all_matrices_fill_more_than_a_screen(count, width, stages):
    shown = draw(sized(count), width, brief=True)
    assert len(read_tables(shown, count)) == stages
    assert ("not shown: scores, masked (--stage scores,masked,weights)" in shown) == (stages == 1)
    assert len(read_tables(draw(sized(count), width), count)) == 3


@pytest.mark.parametrize(("height", "stages"), [(24, 1), (50, 1), (60, 3)])
def test_a_high_terminal_has_room_for_all_matrices(height, stages):
    class Terminal(StringIO):
        def isatty(self):
            return True

    file = Terminal()
    console = Console(file=file, width=200, height=height, color_system=None)
    names = "the quick brown fox jumps over the lazy dog near the river".split()
    made = report(text_report(tokens(names), allowed=causal))
    put(present_report(made, DisplaySettings(brief=True)), console)
    assert len(read_tables(file.getvalue(), len(names))) == stages
    assert len(file.getvalue().splitlines()) <= max(height, 55)


@pytest.mark.parametrize("width", [60, 80, 100, 120, 160, 200])
def test_no_screen_of_fifteen_tokens_or_fewer_is_long_at_any_width(width):
    """Matrices and contributors were short each, but not together, and a wider or shorter screen could be longer."""
    names = "the quick brown fox jumps over the lazy dog near the old river by night".split()
    for count in range(1, 16):
        made = report(text_report(tokens(names[:count]), allowed=causal))
        shown = draw(made, width, brief=True)
        assert "weights" in shown and "top contributors" in shown
        # two blocks of columns where one is too narrow
        assert len(shown.splitlines()) <= (56 if width > 80 else 88), count


@pytest.mark.parametrize("width", range(60, 140, 7))
def test_every_weight_has_the_same_form_at_every_width(width):
    names = ["antidisestablishmentarianism", *(f"word{i}" for i in range(1, 18))]
    made = report(text_report(tokens(names), allowed=causal, stages=("weights",)))
    weights = made.texts[0].heads[0].stages["weights"]
    shown = draw(made, width)
    blocks = read_tables(shown, 18)["weights"]
    assert [column for block in blocks for column in block.columns] == list(range(18))
    for block in blocks:
        for r, (_, cells) in block.rows.items():
            for column, cell in zip(block.columns, cells, strict=True):
                assert (cell == "·") == (weights[r, column] == 0)
                assert cell == "·" or cell == f"{weights[r, column]:.2f}"


@pytest.mark.parametrize(
    ("labels", "shown"),
    [
        (
            (
                "/a/long/path/to/some/place/bert-base-one",
                "/a/long/path/to/some/place/bert-base-two",
            ),
            "bert-base-one →",
        ),
        (
            (
                "/a/long/path/to/some/place/one/bert-base",
                "/a/long/path/to/some/place/two/bert-base",
            ),
            "/a/long/path/to",
        ),
    ],
)
def test_sides_are_called_by_the_ends_of_their_paths_where_these_differ(labels, shown):
    made = compare_sides("model", [Side(label, sized(3)) for label in labels])
    assert f"compare  model: {shown}" in draw(made, 200)
    assert f"compare  model: {labels[0]} → {labels[1]}" in draw(made, 200, verbose=True)


@pytest.mark.parametrize("screen", [present_report, present_page])
def test_texts_of_a_part_of_a_report_keep_their_numbers(screen):
    made = report(*(text_report(tokens(words(3)), index=index) for index in (1, 4)))
    found = screen(made, DisplaySettings())
    names = [
        name
        for part in found
        if isinstance(part, Facts)
        for name, _ in part.lines
        if name.startswith("text")
    ]
    assert names == ["text 1", "text 4"]


def test_compared_texts_are_named_in_the_header():
    made = compare_sides("text", [Side(f"text {n}", sized(3)) for n in (0, 1)])
    header = draw(made, 200).split("\n\n")[0]
    assert re.findall(r"^(text \d) ", header, re.MULTILINE) == ["text 0", "text 1"]
