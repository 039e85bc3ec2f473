"""`attnscope info` on shipped configs: facts, cost, and JSON that says the same."""

import json
import re

import pytest

from attnscope.checkpoints.samples import sample_names
from attnscope.cli import main


@pytest.fixture(autouse=True)
def no_model(monkeypatch):
    monkeypatch.delenv("ATTNSCOPE_MODEL", raising=False)


def info(capfdbinary, *args):
    assert main(["info", *args]) == 0
    out, err = capfdbinary.readouterr()
    assert err == b""
    return out.decode()


@pytest.mark.parametrize("name", sample_names("configs"))
def test_every_shipped_config(capfdbinary, name, monkeypatch):
    monkeypatch.setenv("COLUMNS", "200")  # a fact a line
    facts = dict(
        line.split(maxsplit=1) for line in info(capfdbinary, "--config", name).splitlines()
    )
    found = json.loads(info(capfdbinary, "--config", name, "--format", "json"))
    assert facts["name"] == found["name"] == name
    assert facts["weights"] == "random (the model is untrained)"
    assert found["weights"] == "random"
    assert facts["mask"] == found["mask"]
    assert facts["layers"].startswith(
        f"{found['config']['n_layers']}, {found['config']['d_model']} wide"
    )
    assert facts["parameters"] == f"{found['parameters']:,} in embeddings and blocks"
    assert "cost" not in found


@pytest.mark.parametrize(
    ("layers", "mask"),
    [
        ("n_layers = 1_000_000_000", "causal"),
        (
            f"n_layers = 50_000\nwindows = {[1 + i for i in range(50_000)]}",
            "causal, with window:1…50000 in 50000 of 50000 layers",
        ),
    ],
    ids=["a billion alike", "all different"],
)
def test_layers_are_counted_and_not_walked_through(attnscope, tmp_path, layers, mask):
    (tmp_path / "deep.toml").write_text(layers)
    done = attnscope("", "info", "--config", "deep.toml", "--cost", cwd=tmp_path)  # within a minute
    assert done.returncode == 0
    facts = dict(line.split(maxsplit=1) for line in done.stdout.decode().splitlines() if line)
    assert facts["mask"] == mask
    assert len(facts["131,072"].split()) == 12


@pytest.mark.parametrize(
    "pick", [["--layer", "all"], ["--layer", "0-999999999"], ["--layer", "mean"], []]
)
def test_a_billion_layers_are_refused_before_any_is_made(attnscope, tmp_path, pick):
    (tmp_path / "deep.toml").write_text("n_layers = 1_000_000_000")
    done = attnscope("", "run", "the bank", "--config", "deep.toml", *pick, cwd=tmp_path)
    assert (done.returncode, done.stdout) == (1, b"")
    assert b"needs about" in done.stderr


def test_one_of_a_billion_layers_is_shown(attnscope, tmp_path):
    (tmp_path / "deep.toml").write_text("n_layers = 1_000_000_000")
    done = attnscope(
        "", "run", "the bank", "--config", "deep.toml", "--layer", "0", "--head", "0", cwd=tmp_path
    )
    assert done.returncode == 0, done.stderr
    assert b"1,000,000,000 layers" in done.stdout


def test_a_model_may_be_an_argument(capsys):
    assert main(["info", "--model", "riverbank", "--json"]) == 0
    described = capsys.readouterr().out
    assert main(["info", "riverbank", "--json"]) == 0
    assert capsys.readouterr().out == described


def test_a_line_breaks_between_numbers_and_not_before_what_they_count(capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "50")
    assert main(["info"]) == 0
    lines = capsys.readouterr().out.splitlines()
    (heads,) = [n for n, line in enumerate(lines) if line.startswith("heads")]
    assert lines[heads].endswith(" 4, queries and keys 48 wide,")
    assert lines[heads + 1].split() == ["values", "48", "wide"]


def test_grouped_heads(capfdbinary):
    assert "share 2 key/value heads" in info(capfdbinary, "--config", "grouped-query")


def test_costs_of_table_and_json_are_equal(capfdbinary):
    lines = info(capfdbinary, "--config", "causal", "--cost").splitlines()
    rows = json.loads(info(capfdbinary, "--config", "causal", "--cost", "--format", "json"))["cost"]
    table = [line for line in lines if re.match(r" *[\d,]+ +\d", line)]
    assert len(table) == len(rows) == 11
    assert table[0].split()[0] == "128"
    assert table[-1].split()[0] == f"{rows[-1]['tokens']:,}" == "131,072"
    assert [line.endswith("*") for line in table] == [not row["fits"] for row in rows]
    assert "* more tokens than the model has positions" in lines
    assert all(len(line) <= 120 for line in lines)


@pytest.mark.parametrize(
    "args", [["--cost"], ["--model", "riverbank"], ["--config", "causal"], ["--trust-config"]]
)
def test_a_list_of_all_models_describes_none(args, capsys):
    assert main(["info", "--list", *args]) == 2
    assert (
        capsys.readouterr().err
        == f"attnscope: error: --list and {args[0]} cannot be used together: no model is opened; remove one of them\n"
    )


def test_a_list_of_all_models_ignores_the_model_of_the_environment(monkeypatch, capfdbinary):
    monkeypatch.setenv("ATTNSCOPE_MODEL", "riverbank")
    assert "riverbank" in info(capfdbinary, "--list")


def test_quiet_leaves_out_notes_and_what_columns_mean(capfdbinary, tmp_path, monkeypatch):
    monkeypatch.setenv("COLUMNS", "200")
    facts = {"model_type": "bert", "vocab_size": 9, "hidden_size": 8, "num_hidden_layers": 1, "num_attention_heads": 2,
             "intermediate_size": 8, "hidden_act": "gelu", "colour": "blue"}  # fmt: skip
    (tmp_path / "config.json").write_text(json.dumps(facts))
    given = "--model", str(tmp_path / "config.json"), "--cost"
    every, quiet = (info(capfdbinary, *given, *more).splitlines() for more in ((), ("--quiet",)))
    left_out = [line.split()[0] for line in every if line not in quiet]
    assert {"note", "cost", "*", "growth"} <= {*left_out}
    assert [line for line in every if line in quiet] == quiet
    assert quiet[-1].split()[0] == "131,072"


def test_the_cost_of_attention_says_which_columns_are_flops(capsys):
    """A heading of three columns was a name alone, above numbers such as 285 M."""
    assert main(["info", "--cost"]) == 0
    title, headings, first = capsys.readouterr().out.partition("cost of")[2].splitlines()[:3]
    assert title.endswith(": three columns of FLOPs, then bytes")
    assert headings.split() == [
        "tokens",
        "q·k",
        "weights·v",
        "projections",
        "scores",
        "weights",
        "kept",
    ]
    units = re.findall(r"[\d.]+ (\S+)", first.partition("128")[2])
    assert [unit.endswith("B") for unit in units] == [False] * 3 + [True] * 3
