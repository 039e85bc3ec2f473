"""`attnscope explain` from argv to screen, JSON, files and errors."""

import json
import re
import shlex
from inspect import cleandoc

import pytest
from rich.cells import cell_len

from attnscope.cli import main
from attnscope.studies.registry import study
from tests.helpers.schemas import validate

TEXT = "The bank by the river"
STACK = ["--config", "grouped-query", "--layer", "1", "--head", "5"]


def run(capsys, *argv):
    code = main(["explain", *argv])
    out, err = capsys.readouterr()
    return code, out, err


def test_a_walk_from_top_to_bottom(capsys):
    code, out, err = run(capsys, TEXT, "--query", "river", *STACK)
    assert (code, err) == (0, "")
    steps = [line for line in out.splitlines() if line[:1].isdigit()]
    assert steps == [
        "1  what enters layer 1",
        "2  query and keys",
        "3  scores: q·k",
        "4  scaled: ÷ √8 (head width); then masked",
        "5  weights: softmax",
        "6  output: the weighted sum of the values",
        "7  the rest of the layer",
    ]
    assert "check: all 11 hold" in out and out.count("check: ") == 1 + 11
    assert out.index("= weight") < out.index("1  what enters")  # the answer first
    assert "DOES NOT HOLD" not in out


def test_json_gives_the_numbers_of_the_screen(capsys):
    _, out, _ = run(capsys, TEXT, "--query", "river", "--key", "bank", *STACK, "--format", "json")
    data = json.loads(out)
    validate(data, "explain")
    _, screen, _ = run(capsys, TEXT, "--query", "river", "--key", "bank", *STACK)
    rows = [line.split() for line in screen.splitlines() if line.startswith("   1 bank ")]
    _, scores, scaled, softmax, blend = rows
    row = {name: values[1] for name, values in data["row"].items() if values}
    assert scores[2:] == [f"{row['key_norms']:.4f}", scores[3], f"{row['scores']:.4f}"]
    assert scaled[2:] == [f"{row[name]:.4f}" for name in ("scores", "times_scale", "masked")]
    assert softmax[4:6] == [f"{row['exponentials']:.4f}", f"{row['weights']:.4f}"]
    assert blend[2:4] == [f"{row['weights']:.4f}", f"{row['value_norms']:.4f}"]
    for part in data["cells"][0]["parts"]:
        assert f"{part['product']:.4f}" in screen
        assert f"{part['wavelength']:,.4g} tokens" in screen


@pytest.mark.parametrize("options", [[], ["--format", "json"]])
def test_keys_of_a_long_text(capsys, options):
    text = " ".join(f"word{i}" for i in range(40))
    argv = [text, "--query", "39", *STACK, *options]
    _, out, _ = run(capsys, *argv)
    _, few, _ = run(capsys, *argv, "--top", "3")
    if options:
        assert len(json.loads(out)["keys"]) == 40 and json.loads(out)["rest"] is None
        assert len(json.loads(few)["keys"]) == 3 and json.loads(few)["rest"]["allowed"] == 37
    else:
        assert "left out: 24 allowed (" in " ".join(out.split())
        assert "left out: 37 allowed (" in " ".join(few.split())


def test_explain_writes_json_text_and_figures(capsys, tmp_path):
    for ending in ("json", "txt", "svg"):
        target = tmp_path / f"out.{ending}"
        assert (
            run(capsys, TEXT, "--query", "bank", *STACK, "--output", str(target), "--quiet")[0] == 0
        )
        assert target.stat().st_size > 1000
    assert json.loads((tmp_path / "out.json").read_text())["schema"] == "attnscope.explain/1"
    assert "7  the rest of the layer" in (tmp_path / "out.txt").read_text()


@pytest.mark.parametrize(
    ("argv", "said"),
    [
        ([], "--query: explain needs one token"),
        (["--query", "boat"], "--query: 'boat' is not in the text"),
        (["--query", "bank", "--head", "mean"], "--head: explain needs a single head, not a mean"),
        (["--query", "bank", "--format", "heat"], "--format: must be table or json, not 'heat'"),
        (["--query", "bank", "--top", "0"], "--top: 0 is out of range; use 1 or more"),
        (["--query", "bank", "--stage", "scores"], "no such option '--stage'"),
        (
            ["--query", "bank", "--output", "x.safetensors"],
            "x.safetensors: what explain finds cannot be written as .safetensors; use .json .txt .svg .png .pdf .html",
        ),
    ],
)
def test_what_cannot_be_explained_is_a_usage_error(capsys, argv, said):
    code, out, err = run(capsys, TEXT, "--config", "grouped-query", *argv)
    assert (code, out) == (2, "")
    assert said in err
    assert err.count("\n") == 1


@pytest.mark.parametrize("width", [20, 40, 80, 120])
@pytest.mark.parametrize("config", ["causal", "grouped-query", "sliding-window"])
def test_no_line_is_wider_than_the_terminal(capsys, monkeypatch, width, config):
    monkeypatch.setenv("COLUMNS", str(width))
    _, out, _ = run(capsys, TEXT, "--config", config, "--query", "river", "--key", "0:")
    assert max(map(cell_len, out.splitlines())) <= max(width, 40)


def test_hostile_tokens_are_harmless(capsys):
    code, out, _ = run(
        capsys,
        "a [red]b[/red] \x1b[2J \u202e",
        "--config",
        "causal",
        "--query",
        "-1",
        "--key",
        "0:",
    )
    assert code == 0
    assert not {c for c in out if ord(c) < 32} - {"\n"}
    assert "\u202e" not in out


@pytest.mark.parametrize("line", cleandoc(study("explain").command.examples).splitlines())
def test_examples_run(capsys, line):
    name, *argv = shlex.split(line.split(" | ")[0])
    assert name == "attnscope" and main(argv) == 0


def test_the_step_of_the_mask_names_hidden_tokens(capsys):
    """Their cells have the sign of keys that are not allowed, beside a mask that allows them."""
    _, out, _ = run(
        capsys, TEXT, "--query", "river", *STACK, "--hide", "The", "--mask", "bidirectional"
    )
    assert "   mask: bidirectional, with 'The' hidden\n" in out


@pytest.mark.parametrize(
    ("args", "said"),
    [
        (["run", "--query", "tree"], "the text has tokens 0 to 3: unb ##el ##iev ##able"),
        (["explain"], "the text has 0 unb, 1 ##el, 2 ##iev, 3 ##able"),
        (
            ["explain", "--query", "unbelievable"],
            "selects 4 tokens: 0 unb, 1 ##el, 2 ##iev, 3 ##able; select",
        ),
    ],
)
def test_errors_spell_pieces_as_screens_do(capsys, args, said):
    assert main([*args, "unbelievable"]) == 2
    assert said in capsys.readouterr().err


def test_hidden_pieces_are_spelled_as_in_the_tables(capsys):
    assert (
        main(
            [
                "run",
                "the unbelievable bank",
                "--hide",
                "el,able,bank",
                "--top",
                "0",
                "--stage",
                "none",
            ]
        )
        == 0
    )
    assert re.search(r"^hidden +##el 2, ##able 4, bank 5$", capsys.readouterr().out, re.MULTILINE)
