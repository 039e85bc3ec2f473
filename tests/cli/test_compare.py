"""`attnscope compare` from argv to screen, JSON and exit code."""

import json
import re
import shutil
from pathlib import Path
from random import Random

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from attnscope.checkpoints.samples import samples_folder
from attnscope.cli import main

TEXT = "The bank by the river"
STACK = ["--config", "bidirectional"]


def run(capsys, *argv):
    code = main(["compare", *argv])
    out, err = capsys.readouterr()
    return code, out, err


def test_without_any_side_the_two_masks_are_compared(capsys):
    code, out, _ = run(capsys, TEXT, *STACK)
    assert code == 0
    assert "mask     " not in out  # the header had the first side's mask as that of both
    said = " ".join(out.split())
    assert (
        "compare mask: causal → bidirectional in every layer (the model's own: bidirectional)"
        in said
    )
    assert "bidirectional − causal" in out


@pytest.mark.parametrize(
    ("options", "axis", "labels"),
    [
        (
            ["--mask", "own", "--mask", "own+window:2", "--mask", "prefix:2"],
            "mask",
            ["own", "own+window:2", "prefix:2"],
        ),
        (["--layer", "0", "--layer", "-1", "--head", "all"], "layer", ["0", "-1"]),
        (["--head", "0", "--head", "1"], "head", ["0", "1"]),
        (["--dtype", "float32", "--dtype", "bfloat16"], "dtype", ["float32", "bfloat16"]),
    ],
)
def test_whatever_is_given_several_times_is_compared(capsys, options, axis, labels):
    code, out, _ = run(capsys, TEXT, *STACK, *options, "--format", "json")
    found = json.loads(out)
    assert (code, found["axis"], [side["label"] for side in found["sides"]]) == (0, axis, labels)
    assert [change["side"] for change in found["changes"]] == list(range(1, len(labels)))


def test_one_row_is_a_list_of_keys_with_both_weights_and_their_difference(capsys):
    run_code, reported = (
        main(["compare", TEXT, "--query", "bank", "--json"]),
        json.loads(capsys.readouterr().out),
    )
    code, out, _ = run(capsys, TEXT, "--query", "bank", "--precision", "4")
    ((layer, head),) = re.findall(r"^L(\d)H(\d)  causal → ", out, re.MULTILINE)  # where most moved
    heads = [side["report"]["texts"][0]["heads"] for side in reported["sides"]]
    sides = [
        np.array(side["stages"]["weights"][side["units"].index([int(layer), int(head)])][0])
        for side in heads
    ]
    rows = re.findall(r"^   (\d) \w+ +(\S+) +(\S+) +(\S+) ", out, re.MULTILINE)
    assert (run_code, code, [int(row[0]) for row in rows]) == (0, 0, [0, 1, 2, 3, 4])
    for number, *cells in rows:
        expected = [side[int(number)] for side in sides]
        expected.append(expected[1] - expected[0])
        for cell, value in zip(cells, expected, strict=True):
            said = 0.0 if cell == "·" else float(cell.replace("−", "-"))
            assert said == pytest.approx(value, abs=0.00005)


@pytest.mark.parametrize("mask", ["causal", "bidirectional"])
def test_weight_on_later_tokens_is_a_column_where_a_side_has_any(capsys, mask):
    asked = [TEXT, "The bank by the road", *STACK, "--mask", mask]
    heads = json.loads(run(capsys, *asked, "--json")[1])["changes"][0]["heads"]
    ahead = any(value for head in heads for side in head["future"] for value in side)
    assert ahead == (mask == "bidirectional")
    out = run(capsys, *asked)[1]
    assert bool(re.search(r"^query .* future ", out, re.MULTILINE)) == ahead
    assert ("future: weight on later tokens" in " ".join(out.split())) == ahead


def test_a_long_row_lists_the_keys_whose_weight_changes_most(capsys):
    args = [
        " ".join(f"w{i % 13}" for i in range(90)),
        *STACK,
        "-l",
        "1",
        "-H",
        "0",
        "--mask",
        "own",
    ]
    args += ["--mask", "window:8", "--query", "-1"]
    found = json.loads(run(capsys, *args, "--json")[1])
    moved = (_weights(found, 1) - _weights(found, 0))[0]
    out = run(capsys, *args, "--precision", "4")[1]
    shown = re.findall(r"^ {1,4}(\d+) (?:w\d+|others) +\S+ +\S+ +(\S+)", out, re.MULTILINE)
    *keys, (omitted, rest) = [
        (int(number), float(cell.replace("−", "-"))) for number, cell in shown
    ]
    listed = [number for number, _ in keys]
    assert len(listed) == 32 and omitted == 90 - 32 and "--key 0:90 lists all" in out
    assert listed == np.argsort(-np.abs(moved), kind="stable")[:32].tolist()
    assert [cell for _, cell in keys] == pytest.approx(moved[listed], abs=0.00006)
    assert rest == pytest.approx(np.delete(moved, listed).sum(), abs=0.00006)
    assert (
        len(re.findall(r"^ {1,4}\d+ w\d+ ", run(capsys, *args, "--key", "0:90")[1], re.MULTILINE))
        == 90
    )


def test_a_summary_has_every_head_and_no_matrix(capsys):
    every = json.loads(run(capsys, TEXT, "--layer", "all", "--head", "all", "--json")[1])[
        "changes"
    ][0]["heads"]
    moved = {"L{}H{}".format(*head["first"]): np.max(head["total_variation"]) for head in every}
    code, out, _ = run(capsys, TEXT, "--summary")
    grid = {
        f"L{line[0]}H{n}": float(cell)
        for line in re.findall(r"^ +L(\d) ( .+)", out, re.MULTILINE)
        for n, cell in enumerate(line[1].split())
    }
    assert code == 0 and "query ↓" not in out and len(out.splitlines()) < 20
    assert grid == pytest.approx(moved, abs=0.005)


@pytest.mark.parametrize(
    "option",
    ["--by value", "--what-if stack", "--query 1", "--pair x", "--top 2", "-q 0", "--part=encoder"],
)
def test_an_option_whose_values_are_not_compared_is_refused_when_repeated(capsys, option):
    """Before, the last value counted, and the masks were compared instead."""
    code, out, err = run(capsys, TEXT, *STACK, *option.split(), *option.split())
    named = {"-q 0": "--query", "--part=encoder": "--part"}.get(option, option.split()[0])
    assert (code, out) == (2, "")
    assert f"{named}: its values cannot be compared; pass it once" in err


def test_rows_of_two_texts_in_a_heat_map_have_the_positions_and_tokens_of_both(capsys):
    """All pictures share the labels of their rows; those of the first text alone misname the second's."""
    texts = ("The bank by the river", "The very old bank by a river")
    _, out, _ = run(capsys, *texts, "--layer", "0", "--head", "0", "--format", "heat")
    picture = out.split("only in")[-1].split("what moved")[0]
    labels = re.findall(r"^ *(\S+ \S+?) +[ ░▒▓█·]*$", picture, re.MULTILINE)
    assert list(dict.fromkeys(labels)) == ["0 The", "1/3 bank", "2/4 by", "3/5 the/a", "4/6 river"]


@pytest.mark.parametrize(
    ("options", "hints"),
    [
        ([], ["--query WORD"]),  # every head is compared
        (["--head", "all", "--query", "1"], []),
        (["--head", "0", "--head", "1"], ["--query WORD"]),
    ],
)
def test_options_that_show_no_more_are_not_recommended(capsys, options, hints):
    _, out, _ = run(capsys, TEXT, *STACK, "--layer", "0", *options)
    (line,) = [line for line in out.splitlines() if line.startswith("more")]
    assert line.removeprefix("more     ").split(" · ") == [*hints, "--json (every digit)"]


def test_hidden_tokens_are_compared_with_none(capsys):
    """A side is what `run` gives with the same --hide; one value is held against none."""
    asked = ["--layer", "0", "--head", "all", "--format", "json"]
    code, out, _ = run(capsys, TEXT, *STACK, "--hide", "the,0", *asked)
    found = json.loads(out)
    assert (code, found["axis"], [side["label"] for side in found["sides"]]) == (
        0,
        "hide",
        ["none", "the,0"],
    )
    code, again, _ = run(capsys, TEXT, *STACK, "--hide", "none", "--hide", "the,0", *asked)
    assert json.loads(again) == found
    reports = []
    for hide in ("none", "the,0"):
        assert main(["run", TEXT, *STACK, "--hide", hide, *asked]) == 0
        reports.append(json.loads(capsys.readouterr().out))
    weights = [report["texts"][0]["heads"]["stages"]["weights"] for report in reports]
    assert weights == [
        side["report"]["texts"][0]["heads"]["stages"]["weights"] for side in found["sides"]
    ]
    assert weights[0] != weights[1]
    assert [row[3] for row in weights[1][0]] == [0] * 5


@pytest.mark.parametrize("sides", [[], ["--mask", "window:2", "--mask", "own"], ["--hide", "0"]])
def test_both_engines_choose_a_head_on_the_same_side(capsys, sides):
    """Under transformers, only a run shows which side has the model's own mask."""
    chosen = []
    for engine in ("native", "transformers"):
        code, out, _ = run(capsys, TEXT, "--engine", engine, *sides)
        assert code == 0
        chosen.append(next(line for line in out.splitlines() if re.match(r"L\d+H\d+  .* → ", line)))
    assert chosen[0] == chosen[1]


def test_both_engines_say_the_same(capsys):
    # scores of 82, where neighbouring numbers of float32 are 7.6e-6 apart
    sides = ["--engine", "native", "--engine", "transformers"]
    code, out, err = run(
        capsys, TEXT, "--model", "riverbank", *sides, "--head", "all", "--tolerance", "5e-5"
    )
    assert (code, err) == (0, "")
    within = (
        "within 5e-5 (weights: as they are; scores, masked: 5e-5 of their layer's largest value)"
    )
    assert f"verdict passed: 1,200 cells of 16 of 16 heads agree {within} scores " in " ".join(
        out.split()
    )
    one = ["--layer", "1", "--head", "2"]
    code, out, err = run(
        capsys,
        TEXT,
        "--model",
        "riverbank",
        *sides,
        *one,
        "--tolerance",
        "5e-5",
        "--format",
        "table",
    )
    assert (code, err) == (0, "")
    assert "compare  engine: native → transformers" in out
    assert "verdict  passed: 75 cells of 1 of 16 heads agree within 5e-5" in out


def changed_copy(path, *, factor=1.5, layers=(2, 3), name="attention.self.query.weight"):
    """The bundled model with some tensors multiplied."""
    shutil.copytree(samples_folder("sample_weights") / "riverbank", path)
    tensors = load_file(path / "model.safetensors")
    chosen = [
        key for key in tensors if name in key and any(f"layer.{layer}." in key for layer in layers)
    ]
    assert len(chosen) == len(layers)
    save_file(
        {k: v * factor if k in chosen else v for k, v in tensors.items()},
        path / "model.safetensors",
    )
    return str(path)


def test_a_tolerance_judges_every_head_and_names_the_first_layer_that_differs(capsys, tmp_path):
    """One head, chosen automatically in layer 1, was equal; layers 2 and 3 were not looked at."""
    sides = [TEXT, "-m", "riverbank", "-m", changed_copy(tmp_path / "changed")]
    code, out, err = run(capsys, *sides, "--tolerance", "1e-5")
    assert code == 1
    assert "1,200 cells of 16 of 16 heads do not agree" in " ".join(out.split())
    assert "layer 2 is the first that differs" in " ".join(out.split())
    assert err.endswith("; layer 2 is the first that differs\n")
    code, out, _ = run(capsys, *sides, "--tolerance", "1e-5", "--format", "json")
    verdict = json.loads(out)["verdict"]
    assert (code, verdict["heads"], verdict["of_heads"], verdict["first_layer"]) == (1, 16, 16, 2)
    assert {stage["stage"]: stage["scale"] > 1 for stage in verdict["stages"]} == {
        "scores": True, "masked": True, "weights": False
    }  # fmt: skip
    code, out, err = run(capsys, *sides, "--tolerance", "1e-5", "--layer", "0-1")
    assert (code, err) == (0, "")
    assert "600 cells of 8 of 16 heads agree" in " ".join(out.split())
    code, out, err = run(capsys, *sides, "--tolerance", "1e-5", "--layer", "1", "--head", "auto")
    assert (code, "75 cells of 1 of 16 heads agree" in " ".join(out.split())) == (0, True)
    _, out, _ = run(capsys, *sides, "--tolerance", "1e-5", "--layer", "1", "--head", "mean")
    assert "75 cells of 1 mean over heads (the model has 16) agree" in " ".join(out.split())


def test_models_are_compared_in_every_head_and_the_one_that_moved_most_is_shown(capsys, tmp_path):
    sides = [TEXT, "-m", "riverbank", "-m", changed_copy(tmp_path / "changed")]
    code, out, _ = run(capsys, *sides)
    assert (code, "nothing" in out, out.count("query ↓")) == (0, False, 2)
    assert "the head in which most moved follows" in out
    (shown,) = re.findall(r"^(L\dH\d)  riverbank → ", out, re.M)
    assert f"strongest  {shown} " in out
    rows = re.findall(r"^ +L(\d)   (.*)$", out, re.M)[:2]
    assert [(layer, row.split()) for layer, row in rows] == [("0", ["0"] * 4), ("1", ["0"] * 4)]
    code, out, _ = run(capsys, *sides, "--layer", "1")
    assert "what moved  nothing: both sides have the same weights in all 4 heads\n" in out
    assert "query ↓" not in out
    code, out, _ = run(capsys, *sides, "--layer", "1", "--head", "0")
    assert "what moved  nothing: both sides have the same weights in this head\n" in out
    code, out, _ = run(capsys, TEXT, "--engine", "native", "--engine", "transformers")
    # or rounding, by how many threads there are
    same = "nothing: both sides have the same weights in all 16 heads"
    assert re.search(
        f"^what moved  ({same}|at most .e-0[78] of a row's weight in any of 16 heads)$", out, re.M
    )


def test_models_of_different_sizes_are_compared_in_what_both_have(capsys, tmp_path):
    """An automatically chosen layer that the second model lacks was an error about --layer."""
    sides = [TEXT, "--config", "causal", "--config", "multi-head"]
    code, out, err = run(capsys, *sides)
    sizes = "'causal' has 2 layers × 4 heads, 'multi-head' has 1 layer × 4 heads"
    assert (code, err, f"{sizes}; what both have is compared" in " ".join(out.split())) == (
        0,
        "",
        True,
    )
    code, out, err = run(capsys, *sides, "--tolerance", "1e9")
    assert (code, err.startswith(f"attnscope: error: {sizes}")) == (1, True)
    code, out, err = run(capsys, *sides, "--layer", "0", "--stage", "weights", "--tolerance", "1e9")
    assert (code, err) == (0, "")
    assert "100 cells of 4 of 8 heads agree" in out


@pytest.mark.parametrize(
    "shown", [[], ["--format", "heat"], ["--output", "a.svg"], ["--output", "a.txt"]]
)
@pytest.mark.parametrize("stage", ["masked", "weights,scores", "none"])
def test_stages_that_a_table_does_not_show_are_refused(capsys, tmp_path, monkeypatch, shown, stage):
    monkeypatch.chdir(tmp_path)
    for sides in ([TEXT, *STACK], ["a.json", "b.json"]):
        code, out, err = run(capsys, *sides, "--stage", stage, *shown)
        assert (code, out) == (2, "")
        assert (
            ": applies only to --tolerance, --json, --format json or --output FILE.json; add --tolerance"
            in err
        )
    assert not list(tmp_path.iterdir())


def test_stages_that_are_shown_are_not_refused(capsys):
    one = [TEXT, *STACK, "--layer", "0", "--head", "0"]
    code, out, err = run(capsys, *one, "--stage", "weights")
    assert (code, err) == (0, "")
    assert out == run(capsys, *one)[1]
    code, out, _ = run(capsys, *one, "--stage", "scores", "--tolerance", "9", "--format", "table")
    assert re.search("^scores  ", out, re.M)
    code, out, err = run(capsys, *one, "--stage", "scores", "--format", "json")
    (side, _) = json.loads(out)["sides"]
    assert (code, list(side["report"]["texts"][0]["heads"]["stages"])) == (0, ["scores", "weights"])


def test_without_any_stage_the_weights_are_judged(capsys):
    code, out, err = run(capsys, TEXT, *STACK, "--stage", "none", "--tolerance", "0.01")
    assert (code, out.count("weights  "), err.count("weights, query")) == (1, 1, 1)


def test_configs_and_texts_are_sides_too(capsys):
    code, out, _ = run(
        capsys, TEXT, "--config", "causal", "--config", "multi-head", "--layer", "0", "--head", "0"
    )
    assert (code, "config: causal → multi-head" in out) == (0, True)
    code, out, _ = run(capsys, "the river bank", "the savings bank", *STACK)
    assert (code, "1 river/savings" in out) == (0, True)
    code, out, _ = run(capsys, "the river bank", "the bank", *STACK)
    assert (code, "only in the river bank: 1 river" in out) == (0, True)
    _, out, _ = run(capsys, "the old river bank", "the bank", *STACK)
    assert "only in the old river bank: 1 old · 2 river\n" in out


@pytest.mark.parametrize(
    ("axis", "one", "shown"), [("head", "layer", "L0H0 → L0H1"), ("layer", "head", "L0H0 → L1H0")]
)
def test_sides_that_are_numbers_say_what_they_number(capsys, axis, one, shown):
    code, out, _ = run(capsys, TEXT, *STACK, f"--{axis}", "0", f"--{axis}", "1", f"--{one}", "0")
    assert (code, out.count(f"{axis} 1 − {axis} 0")) == (0, 1)
    assert f"\ncompare  {axis} 0 → {axis} 1\n" in out
    assert f"\n{shown}\n" in out


@pytest.mark.parametrize(
    ("argv", "said"),
    [
        (
            ["--mask", "own", "--mask", "causal", "--layer", "0", "--layer", "1"],
            "--layer and --mask have several values; compare one thing at a time",
        ),
        (
            ["--mask", "causal"],
            "--mask: 'causal' needs another mask to be compared with; use --mask own --mask causal",
        ),
        (["--relative", "x"], "--relative: must be a number, 0 or more, not 'x'"),
        (["--tolerance", "-1"], "--tolerance: must be a number, 0 or more, not '-1'"),
        (
            ["--mask", "casual", "--mask", "own"],
            "--mask: unknown mask 'casual'; did you mean 'causal'?",
        ),
        (
            ["--output", "x.safetensors"],
            "x.safetensors: what compare finds cannot be written as .safetensors; use .json .txt .svg .png .pdf .html",
        ),
    ],
)
def test_what_cannot_be_compared_is_a_usage_error(capsys, argv, said):
    code, out, err = run(capsys, TEXT, *STACK, *argv)
    assert (code, out) == (2, "")
    assert said in err
    assert err.count("\n") == 1


def test_saved_reports_and_the_tolerance_of_a_check(capsys, tmp_path):
    paths = [str(tmp_path / name) for name in ("a.json", "b.json")]
    for path, mask in zip(paths, ("own", "causal"), strict=True):
        assert (
            main(
                [
                    "run",
                    TEXT,
                    *STACK,
                    "--mask",
                    mask,
                    "--output",
                    path,
                    "--layer",
                    "0",
                    "--head",
                    "0",
                ]
            )
            == 0
        )
    capsys.readouterr()
    code, out, err = run(capsys, paths[0], paths[0], "--tolerance", "0")
    assert (code, err) == (0, "")
    assert out.splitlines() == [
        "verdict  passed: 75 cells of 1 of 8 heads agree within 0",
        *(f"{stage:9}equal in all 25 cells" for stage in ("scores", "masked", "weights")),
    ]
    code, out, err = run(capsys, *paths, "--relative", "1e-3", "--tolerance", "1e-9")
    assert code == 1
    assert out.startswith("verdict  FAILED: ")
    assert (
        "30 of 75 cells of 1 of 8 heads do not agree within 1e-9 + 0.001·|first| (weights: as they are; "
        in " ".join(out.split())
    )
    said = "masked 10 of 25 cells do not agree; the largest difference is infinite (one side is masked): text 0, L0H0,"
    assert said in " ".join(out.split())
    assert "what moved" not in out
    assert err.startswith("attnscope: error: text 0, L0H0, masked, query 0 'The', key 1 'bank': ")
    assert (
        "against masked, which fails at any tolerance; compare under the same mask, or exclude the stage"
        in err
    )
    assert err.count("\n") == 1
    code, out, err = run(capsys, *paths, "--tolerance", "1e-3", "--format", "table")
    assert (code, "what moved" in out, "verdict  FAILED" in out) == (1, True, True)
    code, out, err = run(capsys, *paths, "--tolerance", "1e-3", "--format", "json")
    found = json.loads(out)["verdict"]
    assert (code, found["passed"], found["absolute"], found["relative"]) == (1, False, 1e-3, 0)
    assert json.loads(run(capsys, *paths, "--format", "json")[1])["verdict"] is None
    target = str(tmp_path / "c.txt")
    code, out, err = run(capsys, *paths, "--tolerance", "1e-3", "--output", target, "--quiet")
    assert (code, out.startswith("verdict  FAILED"), err.count("\n")) == (1, True, 1)
    assert "what moved" in (tmp_path / "c.txt").read_text()


_ANY_HEADS = [
    ["--layer", "all", "--head", "all"],
    ["--layer", "1-2", "--head", "0,3"],
    ["--head", "L1H2,L3H0"],
    [],
]
_ANY_MASK = [
    [],
    ["--mask", "causal"],
    ["--mask", "own+window:2", "--what-if", "same-scores"],
    ["--hide", "by"],
]
_ANY_CELLS = [
    [],
    ["--query", "river"],
    ["--key", "0:3"],
    ["--stage", "weights"],
    ["--head", "mean"],
]


def test_a_text_is_run_as_a_saved_report_was_made(capsys, tmp_path):
    """Whatever a report was made with, the same model agrees exactly, and one with other layers fails from these on."""
    golden = str(tmp_path / "golden.json")
    changed = changed_copy(tmp_path / "changed")
    draw = Random(50).choice
    for _ in range(8):
        options = [*draw(_ANY_HEADS), *draw(_ANY_MASK), *draw(_ANY_CELLS)]
        assert (
            main(["run", TEXT, "-m", "riverbank", *options, "-o", golden, "--force", "--quiet"])
            == 0
        )
        capsys.readouterr()
        sides = [golden, TEXT] if draw([True, False]) else [TEXT, golden]
        code, out, err = run(capsys, *sides, "-m", "riverbank", "--tolerance", "0", "--json")
        comparison = json.loads(out)
        first, second = (side["report"] for side in comparison["sides"])
        assert (code, err, comparison["verdict"]["passed"]) == (0, "", True), options
        for report in (first, second):
            report["texts"][0]["heads"].pop("chosen", None)
        for name in ("queries", "keys", "heads", "hidden"):
            assert first["texts"][0][name] == second["texts"][0][name], (options, name)
        assert first["mask"]["used"] == second["mask"]["used"], options
        code, out, err = run(capsys, *sides, "-m", changed, "--tolerance", "1e-6", "--json")
        layers = {unit[0] for unit in first["texts"][0]["heads"]["units"]}
        differ = sorted(layer for layer in layers if layer == "mean" or layer >= 2)
        assert code == int(bool(differ)), options
        verdict = json.loads(out)["verdict"]
        assert verdict["passed"] == (not differ), options
        if differ and "mean" not in layers:
            assert verdict["first_layer"] == differ[0], options
            assert f"layer {differ[0]} is the first that differs" in err, options


def test_a_saved_report_beside_another_text_says_what_only_one_has(capsys, tmp_path):
    golden = str(tmp_path / "golden.json")
    assert main(["run", TEXT, "-o", golden, "--quiet"]) == 0
    capsys.readouterr()
    code, _, err = run(capsys, golden, "The bank by a river", "--tolerance", "1e-5")
    assert (
        code,
        "only 'golden.json' has the tokens 3 'the'" in err.replace(str(tmp_path) + "/", ""),
    ) == (1, True)
    code, _, err = run(capsys, golden, TEXT, "--mask", "own", "--mask", "causal")
    assert (
        code,
        "TEXT and --mask have several values; compare one thing at a time" in err,
    ) == (2, True)


def test_options_choose_among_what_is_saved_or_are_refused(capsys, tmp_path, monkeypatch):
    # what the environment says is no option that was typed
    monkeypatch.setenv("ATTNSCOPE_MODEL", "riverbank")
    path = str(tmp_path / "a.json")
    assert main(["run", TEXT, *STACK, "--output", path, "--layer", "0", "--head", "all"]) == 0
    capsys.readouterr()
    chosen = ["--head", "1,2", "--query", "bank", "--key", "0", "--stage", "masked"]
    code, out, _ = run(capsys, path, path, *chosen, "--format", "json")
    (heads,) = (change["heads"] for change in json.loads(out)["changes"])
    assert (code, [head["first"] for head in heads]) == (0, [[0, 1], [0, 2]])
    for head in heads:
        assert (head["queries"], head["keys"]) == ([[1, 1]], [[0, 0]])
        assert [cell["stage"] for cell in head["worst"]] == ["masked"]
    code, out, err = run(capsys, path, path, "--layer", "1")
    assert (code, out) == (2, "")
    assert "has no layer 1; it has 0" in err
    for option in (
        ["--mask", "causal"], ["--what-if", "stack"], ["--model", "riverbank"], ["--dtype", "float32"], ["--pool", "8"],
        ["--top", "3"], ["--pair", "x"], ["--device", "cpu"], ["--truncate"], ["--engine", "native"],
        ["--by", "weight"],
    ):  # fmt: skip
        code, out, err = run(capsys, path, path, *option)
        assert (code, out) == (2, ""), option
        assert f"{option[0]}: " in err and "saved reports" in err
    code, out, err = run(
        capsys, path, path, "--precision", "3", "--color", "never", "--quiet", "--format", "heat"
    )
    assert (code, err) == (0, "")


def test_keys_that_were_not_saved_are_told_on_the_screen(capsys, tmp_path):
    paths = [str(tmp_path / name) for name in ("a.json", "b.json")]
    for path, mask in zip(paths, ("own", "causal"), strict=True):
        assert (
            main(
                [
                    "run",
                    TEXT,
                    *STACK,
                    "--mask",
                    mask,
                    "--output",
                    path,
                    "--head",
                    "0",
                    "--key",
                    "0,4",
                ]
            )
            == 0
        )
    capsys.readouterr()
    for format in ("table", "heat"):
        code, out, err = run(capsys, *paths, "--format", format)
        assert (code, err) == (0, "")
        assert "has 2 of 5 keys; 0." in " ".join(out.split())
        assert re.search("query +outside", out)
        assert "moved    JS" not in out
    code, out, err = run(capsys, *paths, "--tolerance", "1e9")
    assert code == 1, "a causal mask forbids key 4"
    code, out, err = run(capsys, paths[0], paths[0], "--tolerance", "1e-9")
    assert (code, "has 2 of 5 keys" in " ".join(out.split())) == (0, True)


@pytest.mark.parametrize("width", [20, 40, 80, 120])
@pytest.mark.parametrize("format", ["table", "heat"])
def test_no_line_is_wider_than_the_terminal(capsys, monkeypatch, width, format):
    from rich.cells import cell_len

    monkeypatch.setenv("COLUMNS", str(width))
    _, out, _ = run(
        capsys,
        "She sat by the river bank",
        "She sat by the savings bank",
        *STACK,
        "--format",
        format,
    )
    assert max(map(cell_len, out.splitlines())) <= max(width, 40)


def test_hostile_tokens_are_harmless(capsys):
    code, out, _ = run(capsys, "a [red]b[/red] \x1b[2J \u202e", "a [/] c", *STACK)
    assert code == 0
    assert not {c for c in out if ord(c) < 32} - {"\n"}
    assert "\u202e" not in out


@pytest.mark.parametrize(
    ("options", "matrices"),
    [
        ([], False),
        (["--query", "1"], True),
        (["--key", "1"], True),
        (["The bank by the lake"], True),
    ],
)
def test_a_map_that_was_asked_for_is_shown_for_each_side(capsys, options, matrices):
    """Beside selected rows, and of two texts, there was no map."""
    code, out, err = run(
        capsys, TEXT, *STACK, *options, "--layer", "0", "--head", "1", "--pool", "3"
    )
    out = " ".join(out.split())
    assert (code, err) == (0, "")
    said = "note a map of 3 × 3 cells"
    assert out.count("map of 3 × 3 cells") == 2 + out.count(said)
    assert ("difference" in out) == matrices
    assert (said in out) == (not matrices)


@pytest.mark.parametrize(("tokens", "pool", "runs"), [(200, 16, 16), (1030, None, 64)])
def test_a_text_of_over_a_thousand_tokens_or_with_pool_is_compared_through_maps(
    tokens, pool, runs, capsys
):
    long = " ".join(f"w{i % 17}" for i in range(tokens))
    arguments = [
        long,
        *STACK,
        "--layer",
        "0",
        "--head",
        "1",
        *(["--pool", f"{pool}"] if pool else []),
    ]
    code, out, err = run(capsys, *arguments)
    assert (code, err) == (0, "")
    assert out.count(f"map of {runs} × {runs} cells") == 3  # two, and the note that says why
    code, whole, _ = run(capsys, long, *STACK, "--layer", "0", "--head", "1", "--format", "json")
    first, second = (_weights(json.loads(whole), side).sum(0) for side in (0, 1))
    share = 100 * np.abs(second - first).sum() / 2 / tokens
    assert (
        f"what moved  {share:.0f} % of all weight; sources whose total weight changes most" in out
    )
    code, out, _ = run(capsys, long, *STACK, "--layer", "0", "--head", "1", "--tolerance", "1e-6")
    assert code == 1
    code, out, _ = run(
        capsys, long, *STACK, "--layer", "0", "--head", "1", "--query", "150:152", "--key", "0:3"
    )
    assert (code, "cells, which includes every weight" in out, "bidirectional − causal" in out) == (
        0,
        False,
        True,
    )


def test_two_long_texts_are_compared_row_by_row(capsys):
    texts = [" ".join(f"w{i % n}" for i in range(count)) for n, count in ((17, 80), (13, 60))]
    code, out, err = run(capsys, *texts, *STACK, "--layer", "0", "--head", "0")
    assert (code, err, "a map of" in out) == (0, "", False)


@pytest.mark.parametrize(
    ("texts", "typed", "rows"),
    [
        (("a b c d", "a b x d"), "x", [[2, 2]]),
        (("a b c d", "a b x d"), "c,x", [[2, 2]]),
        (("a b c", "new a b c"), "c", [[2, 3]]),
        (("a b c", "new a b c"), "2", [[1, 2], [2, 3]]),  # a number is a position in each
    ],
)
def test_a_word_of_either_text_selects_its_row_and_column(capsys, texts, typed, rows):
    """The word that took another's place was not in the first text, which was an error."""
    args = [*texts, *STACK, "--layer", "1", "--head", "0"]
    code, out, err = run(capsys, *args, "--query", typed, "--format", "json")
    assert (code, err) == (0, "")
    assert json.loads(out)["changes"][0]["heads"][0]["queries"] == rows
    _, out, _ = run(capsys, *args, "--key", typed, "--format", "json")
    assert json.loads(out)["changes"][0]["heads"][0]["keys"] == rows


@pytest.mark.parametrize(
    ("typed", "said"),
    [("zzz", "'zzz' is not in the text"), ("new", "'new' has no counterpart in another text")],
)
def test_a_word_that_no_row_of_both_texts_has_is_refused(capsys, typed, said):
    code, _, err = run(capsys, "a b c", "new a b c", *STACK, "--query", typed)
    assert (code, f"--query: {said}" in err) == (2, True)


@pytest.mark.parametrize("count", [5, 90])
def test_equal_sides_say_that_nothing_moved(capsys, count):
    code, out, _ = run(
        capsys,
        *[" ".join(f"w{i}" for i in range(count))] * 2,
        *STACK,
        "--layer",
        "1",
        "--head",
        "0",
    )
    assert code == 0
    assert "what moved  nothing: both sides have the same weights" in out
    assert "where most weight moves" not in out
    assert "legend" not in out


def test_rounding_is_named_where_every_number_would_be_a_zero(capsys, tmp_path):
    files = [str(tmp_path / name) for name in ("before.json", "after.json")]
    assert main(["run", "a b c", *STACK, "--layer", "1", "--head", "0", "-o", files[0]]) == 0
    capsys.readouterr()
    report = json.loads(Path(files[0]).read_text())
    report["texts"][0]["heads"]["stages"]["weights"][0][1][0] += 2e-5
    report["texts"][0]["heads"]["stages"]["weights"][0][1][1] -= 2e-5
    Path(files[1]).write_text(json.dumps(report))
    code, out, _ = run(capsys, *files)
    assert code == 0
    assert "what moved  at most 2e-05 of a row's weight" in out


def test_the_header_shows_the_part_of_long_texts_that_differs(capsys):
    words = [f"w{i % 9}" for i in range(80)]
    other = [*words[:60], "changed", *words[61:]]
    _, out, _ = run(capsys, " ".join(words), " ".join(other), *STACK, "--layer", "0", "--head", "0")
    first, second = (line for line in out.splitlines() if re.match(r"text [01] .*80 tokens", line))
    assert "w5 w6 w7" in first
    assert "w5 changed w7" in second
    assert f"… · {len(' '.join(words))} characters · 80 tokens" in first


@pytest.mark.parametrize("columns", ["60", "80", "200"])
@pytest.mark.parametrize(
    "more", ["", "; the river was full of water that came down from the hills"]
)
def test_headers_of_texts_that_differ_at_their_ends_show_the_difference(
    capsys, monkeypatch, columns, more
):
    """Both ended in `… because it …`."""
    monkeypatch.setenv("COLUMNS", columns)
    start = f"The animal did not cross the street{more} because it was too "
    _, out, _ = run(
        capsys, start + "tired.", start + "wide.", *STACK, "--layer", "0", "--head", "0"
    )
    first, second = (line for line in out.splitlines() if re.match(r"text [01] .* tokens", line))
    assert ("too tired. ·" in first, "too wide. ·" in second) == (True, True)
    assert max(len(first), len(second)) <= int(columns)


def _weights(comparison, side):
    (weights,) = comparison["sides"][side]["report"]["texts"][0]["heads"]["stages"]["weights"]
    return np.array(weights, dtype=float)


def _difference(out):
    """Rows and columns of the printed difference, with its cells."""
    rows, columns = {}, []
    for line in (
        re.split(r"  difference(?:; · is exactly zero)?\n", out)[1]
        .split("what moved")[0]
        .splitlines()
    ):
        if line.startswith("query ↓"):
            columns += line.split("↓")[1].split()
        elif re.match(r" *\d+ w", line):
            position, _, *cells = line.replace("−", "-").split()
            rows.setdefault(int(position), []).extend(
                0.0 if cell == "·" else float(cell) for cell in cells
            )
    return rows, list(map(int, columns))


@pytest.mark.parametrize(
    ("sides", "rows"),
    [
        (["--mask", "own", "--mask", "window:8"], 10),
        (["--mask", "own", "--mask", "window:8", "--query", "40:60"], 20),
        (["OTHER"], 10),
        (["OTHER", "--query", "70,80"], 2),
    ],
)
def test_of_long_texts_the_rows_and_columns_are_shown_where_most_moves(
    monkeypatch, capsys, sides, rows
):
    """The first 64 columns were shown, whatever moved."""
    monkeypatch.setenv("COLUMNS", "80")
    words = [f"w{i % 13}" for i in range(90)]
    other = [*words[:50], "changed", *words[51:]]
    args = [
        " ".join(words),
        *(" ".join(other) if one == "OTHER" else one for one in sides),
        *STACK,
        "-l",
        "1",
        "-H",
        "0",
    ]
    code, out, err = run(capsys, *args)
    assert (code, err) == (0, "")
    found = json.loads(run(capsys, *args, "--json")[1])
    moved = _weights(found, 1) - _weights(found, 0)
    queries = found["sides"][0]["report"]["texts"][0]["queries"]
    shown, columns = _difference(out.replace("w11/changed", "w11"))
    assert (len(shown), len(columns)) == (rows, 10)
    at = [queries.index(row) for row in shown]
    assert np.allclose(np.array(list(shown.values())), moved[at][:, columns], atol=0.0051)
    if rows < len(queries):
        left = np.delete(np.abs(moved).sum(1), at)
        assert np.abs(moved).sum(1)[at].min() >= left.max()
    # the columns where a row moves most, of the rows that move most, and others where most moves
    sizes = np.abs(moved[at])
    largest = sizes.argmax(1)[np.argsort(-sizes.max(1), kind="stable")]
    first = [*dict.fromkeys(largest.tolist())][:10]
    assert set(first) <= set(columns)
    others = sizes.sum(0)[[n for n in columns if n not in first]]
    assert not others.size or others.min() >= np.delete(sizes.sum(0), columns).max()
    said = " ".join(out.split())
    assert "10 of 90 columns, where most weight moves" in said
    assert ("10 of 90 rows and 10 of 90 columns" in said) == (rows < len(queries))
    assert "--key 0:90" in said
    whole = run(capsys, *args, "--key", "0:90")[1]
    assert "where most weight moves" not in whole or "of 90 columns" not in whole


def test_sides_with_the_same_name_are_numbered(capsys):
    assert (
        "mask: own (1) → own (2)" in run(capsys, TEXT, *STACK, "--mask", "own", "--mask", "own")[1]
    )
    assert "text: text 0 → text 1" in run(capsys, TEXT, TEXT, *STACK)[1]
    out = run(capsys, "a bank", "a bank by the old mill near the river", *STACK)[1]
    assert "text: text 0 → text 1" in out
    assert re.findall(r"^text \d .* tokens", out, re.MULTILINE) == [
        "text 0   a bank · 2 tokens",
        "text 1   a bank by the old mill near the river · 9 tokens",
    ]


def test_what_each_side_hides_is_said_once(capsys):
    _, out, _ = run(
        capsys, TEXT, *STACK, "--layer", "0", "--head", "0", "--hide", "The", "--hide", "river"
    )
    header = " ".join(out[: out.index("L0H0")].split())
    assert (
        "mask bidirectional (the model's own) compare 'The' hidden → 'river' hidden in every layer"
        in header
    )
    assert header.count("hidden") == 2


def test_saved_reports_of_different_masks_name_both(capsys, tmp_path):
    files = [str(tmp_path / f"{mask}.json") for mask in ("own", "causal", "window:1")]
    for path in files:
        mask = Path(path).stem
        assert (
            main(["run", TEXT, *STACK, "--mask", mask, "--layer", "0", "--head", "0", "-o", path])
            == 0
        )
    capsys.readouterr()
    out = run(capsys, *files)[1]
    said = " ".join(out[: out.index("L0H0")].split())
    assert "mask bidirectional (the model's own) compare" in said
    assert "causal.json: causal in every layer; the model's own is bidirectional" in said
    assert "window:1.json: window:1 in every layer" in said


def test_findings_of_another_command_are_called_by_their_schema(capsys, tmp_path):
    path = str(tmp_path / "e.json")
    assert main(["explain", TEXT, *STACK, "--query", "bank", "-o", path]) == 0
    capsys.readouterr()
    code, _, err = run(capsys, path, path)
    assert code == 1
    assert (
        "e.json: holds 'attnscope.explain/1', not a report; use a file of 'attnscope.report/2'"
        in err
    )


@pytest.mark.parametrize("width", [80, 120])
def test_texts_that_would_take_many_lines_are_compared_where_most_moves(monkeypatch, capsys, width):
    """33 tokens took 440 lines at 80 columns."""
    monkeypatch.setenv("COLUMNS", str(width))
    words = [f"w{i % 13}" for i in range(40)]
    other = [*words[:20], "changed", *words[21:]]
    args = [" ".join(words), " ".join(other), *STACK, "--layer", "1", "--head", "0"]
    out = run(capsys, *args)[1]
    assert "10 of 40 rows and 10 of 40 columns, where most weight moves" in " ".join(out.split())
    # where a row moves most is in sight
    losses = re.findall(r"−(\d\.\d\d)\s+(\d+) \S+$", out[out.rindex("what moved") :], re.MULTILINE)
    headings = re.findall(r"query ↓ (.*)", out[out.index("difference") :])
    columns = {key for line in headings for key in re.findall(r"\d+", line)}
    assert len(losses) == 9 and len(columns) == 10  # the row 3 gains more than it loses
    assert {key for _, key in losses} <= columns
    assert len(out.splitlines()) <= 100
    assert "of 40 rows" not in run(capsys, *args, "--query", "0:40", "--key", "0:40")[1]


def test_eleven_rows_are_all_shown(monkeypatch, capsys):
    monkeypatch.setenv("COLUMNS", "80")
    words = [f"w{i}" for i in range(11)]
    other = [*words[:5], "changed", *words[6:]]
    args = [" ".join(words), " ".join(other), *STACK, "--layer", "1", "--head", "0"]
    out = run(capsys, *args)[1]
    assert "where most weight moves" not in " ".join(out.split())


def test_layers_without_counterpart_are_named_with_their_option(capsys):
    code, _, err = run(capsys, TEXT, "--layer", "0,1", "--layer", "2", "--head", "all")
    assert (
        code == 1
        and "L0H0 is not in '2'" in err
        and "name as many layers with every --layer" in err
    )


def test_reports_that_chose_different_heads_say_what_to_do(capsys, tmp_path):
    files = [str(tmp_path / name) for name in ("a.json", "b.json")]
    assert main(["run", TEXT, *STACK, "-o", files[0]]) == 0
    other = json.loads(Path(files[0]).read_text())
    ((layer, head),) = other["texts"][0]["heads"]["units"]
    other["texts"][0]["heads"]["units"][0][1] = (int(head) + 1) % 2
    Path(files[1]).write_text(json.dumps(other))
    capsys.readouterr()
    code, _, err = run(capsys, *files)
    assert code == 1
    assert f"which has L{layer}H{(int(head) + 1) % 2}; each side chose its own head" in err
    assert f"run one again with --layer {layer} --head {head}" in err


def test_sides_under_which_tokens_are_hidden_say_so(capsys):
    out = run(capsys, TEXT, *STACK, "--hide", "The")[1]
    assert "compare  nothing hidden → 'The' hidden" in out
    assert "'The' hidden − nothing hidden" in out


@pytest.mark.parametrize(
    ("other", "named"), [("The size was minute.", "1 took/size"), ("It took me one.", "–/2 –/me")]
)
def test_the_legend_of_a_heat_map_names_the_tokens_of_both_texts(capsys, other, named):
    out = run(capsys, "It took one minute.", other, *STACK, "--format", "heat", "--query", "0")[1]
    assert named in " ".join(out.split("columns: ")[1].split("\n\n")[0].split())


def test_a_text_that_is_truncated_is_said_to_be(minilm, capsys):
    args = ["a river " * 300, *("--query", "0", "--model", str(minilm), "--truncate")]
    assert "truncated" in run(capsys, *args)[1].split("what moved")[0]


def test_names_of_reports_may_be_in_capitals(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert main(["run", TEXT, *STACK, "--output", "A.JSON", "--quiet"]) == 0
    assert run(capsys, "A.JSON", "A.JSON", "--tolerance", "0")[0] == 0
    code, _, err = run(capsys, "A.JSON")
    assert (code, "there is only one report; a comparison needs" in err) == (2, True)


def test_what_enters_and_leaves_the_top_has_weight(capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "160")
    head = ("The bank by the river", "--layer", "2", "--head", "0")
    code, out, _ = run(capsys, *head)
    assert code == 0
    table = out.partition("weights that change")[2].partition("\n\n")[0].splitlines()
    rows = [re.split("  +", line) for line in table[1:]]
    assert rows[0] == ["query", "enters the top 3", "leaves the top 3", "other changes"]
    weights = []
    for mask in ("causal", "bidirectional"):
        assert main(["run", *head, "--mask", mask, "--json"]) == 0
        weights.append(
            json.loads(capsys.readouterr().out)["texts"][0]["heads"]["stages"]["weights"][0]
        )
    words = head[0].split()

    def said(query, keys):
        sides = [side[query] for side in weights]
        return ", ".join(
            f"{key} {words[key]} {sides[0][key]:.2f}→{sides[1][key]:.2f}" for key in keys
        )

    # The loses nearly all of its weight in the first row, where nothing else had any
    assert rows[1] == ["0 The", said(0, [2, 1, 3]), said(0, [0])]
    # it is still the third of three in the second row; 1 bank leaves them, with a weight of 0.0005
    assert rows[2] == ["1 bank", said(1, [4, 2]), said(1, [0])]
    # none of its weights changes by 0.005
    assert [row for row in rows if row[:2] == ["4", "river"]] == []


@pytest.mark.parametrize("rows", [[], ["--query", "3"]])
def test_every_weight_that_changes_by_a_tenth_is_listed(capsys, monkeypatch, rows):
    """Rows whose three strongest keys stayed the same were left out."""
    monkeypatch.setenv("COLUMNS", "160")
    texts = ["The bank by the river", "The bank by the road"]
    out = run(capsys, *texts, "--layer", "0", "--head", "0", *rows)[1]
    table = out.partition("weights that change")[2].partition("\n\n")[0]
    found = {
        (int(line.split()[0]), int(key)): (float(before), float(after))
        for line in table.splitlines()[2:]
        for key, before, after in re.findall(r"(\d) \S+ (\d\.\d\d)→(\d\.\d\d)", line)
    }
    weights = []
    for text in texts:
        assert main(["run", text, "--layer", "0", "--head", "0", "--json"]) == 0
        report = json.loads(capsys.readouterr().out)["texts"][0]
        weights.append(np.array(report["heads"]["stages"]["weights"][0]))
    change = weights[1] - weights[0]
    expected = {
        (int(row), int(key)): pytest.approx((weights[0][row, key], weights[1][row, key]), abs=0.005)
        for row, key in np.argwhere(np.abs(change) >= 0.1)
        if not rows or row == 3
    }
    assert {(3, 1), (3, 4)} <= expected.keys()
    assert found == expected


def test_a_token_that_replaces_another_has_one_name(capsys):
    """The screen called it river, road, and both, divided as blocks of columns are."""
    texts = ["The bank by the river", "The bank by the road"]
    out = run(capsys, *texts, "--layer", "0", "--head", "0")[1]
    changes = out[out.index("what moved in each row") :]
    assert changes.count("river/road") == changes.count("river") == changes.count("road") > 5
    assert "│" not in changes


@pytest.mark.parametrize("width", ["80", "120"])
def test_headings_of_both_sides_differ(capsys, monkeypatch, width):
    """Both were "The bank by t…"."""
    monkeypatch.setenv("COLUMNS", width)
    out = run(capsys, "The bank by the river", "The bank by the road", "--query", "3")[1]
    assert re.search(r"^ +key +…river +…road +difference$", out, re.MULTILINE)
    assert re.search(r"^text 0 +The bank by the river.*\ntext 1 +The bank by the road", out, re.M)


def test_heads_that_moved_almost_as_much_are_told_apart(capsys):
    """The strongest of a model were ten times 1.00."""
    out = run(capsys, "The bank by the river", "--layer", "2", "--head", "0,1", "--summary")[1]
    both = run(capsys, "The bank by the river", "--layer", "2", "--head", "0,1", "--json")[1]
    (change,) = json.loads(both)["changes"]
    moved = {
        "L{}H{}".format(*head["second"]): max(head["total_variation"]) for head in change["heads"]
    }
    listed = re.findall(r"(L2H[01]) (\d\.\d{4})\b", out)
    assert {name: float(value) for name, value in listed} == pytest.approx(moved, abs=5e-5)
    assert len({value for _, value in listed}) == 2


def test_the_legend_has_the_unit_of_each_column_in_bits(capsys):
    """Entropy had none, beside a divergence that has one."""
    _, out, _ = run(capsys, TEXT, "--layer", "2", "--head", "0")
    said = " ".join(out.partition("legend")[2].split())
    assert {"JS", "entropy"} <= set(re.search("query +moved.*", out)[0].split())
    assert all(re.search(rf"\b{name}: [^·]*in bits", said) for name in ("JS", "entropy"))
