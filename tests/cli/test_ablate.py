"""The command `attnscope ablate` as a user types it, and the same from Python."""

import csv
import json

import numpy as np
import pytest

import attnscope
from attnscope.cli import main
from tests.helpers.schemas import validate

TEXT = "She sat by the [MASK] of the river"
EDGE = ("--each", "edge", "--layer", "2", "--head", "0,2", "--query", "[MASK]")


@pytest.mark.parametrize(
    ("name", "args"),
    [
        ("ablation", ["--cut", "L1", "--cut", "*: [MASK]←river"]),
        ("ablation", ["--cut", "L1H0", "--with", "mean", "--at", "river", "--mask", "causal"]),
        ("effects", ["--each", "head"]),
        ("effects", ["--each", "layer", "--layer", "1-2"]),
        ("effects", [*EDGE]),
    ],
)
def test_json_keeps_to_its_schema_and_screens_say_what_it_holds(name, args, capfdbinary):
    assert main(["ablate", TEXT, *args, "--format", "json"]) == 0
    found = json.loads(capfdbinary.readouterr().out)
    validate(found, name)
    assert main(["ablate", TEXT, *args, "--precision", "5"]) == 0
    shown = capfdbinary.readouterr().out.decode()
    if name == "ablation":
        numbers = [f"{p['kl']:.5f}" for effect in found["effects"] for p in effect["predictions"]]
        several = len(found["effects"]) > 1
        sizes = [] if several else found["effects"][0]["change"]
        states = [value for effect in found["effects"] for value in effect["cosine"]] + sizes
        # as they are, not as their digits say
        numbers += [f"{float(np.float32(value)):.5f}" for value in states]
        numbers += [
            f"{100 * float(np.float32(change)) / float(np.float32(norm)):.1f} %"
            for effect in found["effects"]
            for change, norm in zip(effect["change"], found["norms"], strict=True)
        ]
        numbers += [f"{part['weight']:.5f}" for part in found["cuts"]]
        assert len(found["effects"]) == (2 if any("←" in arg for arg in args) else 1)
    else:
        best = np.argsort([-value for value in found["effects"][0]["kl"]], kind="stable")[:10]
        sizes = [effects["kl"][n] for effects in found["effects"] for n in best] + [
            found["weights"][n] for n in best
        ]
        # never 0.00000: a size that is not 0 has two digits
        numbers = [
            "0" if size == 0 else f"{size:.5f}" if size >= 5e-6 else f"{size:.1e}" for size in sizes
        ]
        if found["unit"] == "edge":
            assert any(0 < size < 5e-6 for size in sizes)
            assert "edge A ← B: what query A reads from key B" in shown
            assert "0.00000" not in shown
        numbers += [
            f"{effects['correlation']:.2f}".replace("-", "−")
            for effects in found["effects"]
            if effects["correlation"] and len(found["weights"]) >= 8
        ]
        if found["unit"] != "edge":
            numbers += [f"{value:.5f}" for value in found["effects"][0]["kl"]]
    assert [number for number in numbers if number not in shown] == []


def test_layers_are_no_heads(capsys):
    """The effects of layers stood in a column of `head 0`."""
    assert main(["ablate", TEXT, "--each", "layer"]) == 0
    shown = capsys.readouterr().out
    assert "the outputs of its heads are replaced by 0" in " ".join(shown.split())
    assert "head  " not in shown


def test_files_of_ablate_hold_the_same_effects(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    for name in ("e.json", "e.csv", "e.parquet", "e.txt", "e.svg"):
        assert main(["ablate", TEXT, *EDGE, "-o", name, "--quiet"]) == 0
    found = json.loads((tmp_path / "e.json").read_text())
    with open("e.csv", newline="") as file:
        rows = list(csv.DictReader(file))
    assert len(rows) == len(found["layers"]) == 16
    for n, row in enumerate(rows):
        assert [int(row[name]) for name in ("layer", "head", "query", "key")] == [
            found[name][n] for name in ("layers", "heads", "queries", "keys")
        ]
        assert row["key_text"] == found["tokens"][found["keys"][n]]["text"]
        assert float(row["weight"]) == found["weights"][n]
        for effects in found["effects"]:
            assert float(row[f"kl_{effects['how']}"]) == effects["kl"][n]
            assert float(row[f"hidden_{effects['how']}"]) == effects["hidden"][n]
    assert main(["ablate", TEXT, "--cut", "L0", "-o", "c.csv"]) == 2
    assert (
        "c.csv: what ablate finds cannot be written as .csv; use .json .txt .svg .png .pdf .html"
        in capsys.readouterr().err
    )


@pytest.mark.parametrize(
    ("args", "said"),
    [
        ([], "--cut and --each are both missing"),
        (["--cut", "L1", "--each", "head"], "--cut and --each head cannot be used together"),
        (["--cut", "L9"], "there is no layer 9; this model has layers 0 to 3"),
        (["--cut", "L1: sea←river"], "'sea' is not in the text"),
        (["--cut", "L1", "--layer", "1"], "--layer: applies only to --each; remove it"),
        (
            ["--each", "layer", "--head", "1"],
            "--head: applies only to --each head, edge or span; use --each head instead of --each layer",
        ),
        (["--each", "head", "--query", "river"], "--query: applies only to --each edge or span"),
        (
            ["--each", "edge"],
            "--each edge: applies only to --layer other than all, --head other than all or --query",
        ),
        (["--each", "edge", "--layer", "0", "--with", "mean"], "applies to heads and layers"),
        (["--each", "head", "--layer", "mean"], "a mean cannot be cut"),
        (["--each", "heads"], "must be head, layer, edge or span"),
        (["--cut", "L1", "--reference", "a text"], "add --replacement mean"),
        (["--cut", "L1", "--with", "noise"], "must be zero, mean or resample"),
        (["--cut", "L1", "--at", "sea"], "'sea' is not in the text"),
    ],
)
def test_what_does_not_fit_is_refused(args, said, capsys):
    assert main(["ablate", TEXT, *args]) == 2
    assert said in capsys.readouterr().err


def test_too_many_edges_are_counted(capsys):
    assert main(["ablate", "bank " * 60, "--each", "edge", "--layer", "0-1"]) == 2
    assert "28,800 edges: 8 heads × 3,600 pairs of tokens" in capsys.readouterr().err


def test_several_texts_are_refused(tmp_path, capsys):
    (tmp_path / "two.txt").write_text("a bank\na river\n")
    assert main(["ablate", "--file", str(tmp_path / "two.txt"), "--cut", "L0"]) == 2
    assert "2 texts; ablate takes one" in capsys.readouterr().err


def test_python_gives_what_the_command_gives(capfdbinary):
    for args, options in (
        (["--cut", "L1", "--cut", "L2H0: 4←river"], {"cut": ["L1", "L2H0: 4←river"]}),
        (["--cut", "L1H2", "--with", "mean", "--reference", "a bank"],
         {"cut": "L1H2", "replacement": "mean", "reference": "a bank"}),
        (["--each", "head", "--layer", "1-2", "--at", "river"], {"each": "head", "layer": slice(1, 3), "at": "river"}),
        ([*EDGE], {"each": "edge", "layer": 2, "head": [0, 2], "query": "[MASK]"}),
    ):  # fmt: skip
        assert main(["ablate", TEXT, *args, "--format", "json", "--quiet"]) == 0
        assert attnscope.ablate(TEXT, **options).to_json() == capfdbinary.readouterr().out.rstrip(
            b"\n"
        )


def test_results_have_labels():
    with attnscope.open_model("riverbank") as model:
        heads = model.ablate(TEXT, each="head", layer=[1, 2])
        edges = model.ablate(TEXT, each="edge", layer=2, head=1, query="[MASK]")
        one = model.ablate(TEXT, cut="L2H1")
    assert (heads.unit, heads.ranked_by, heads.values.shape) == ("head", "kl", (4, 4))
    assert np.isnan(heads.values[[0, 3]]).all() and not np.isnan(heads.values[1:3]).any()
    best = heads.strongest(1)[0]
    assert (best.layer, best.head, best.query) == (2, 1, None)
    assert best.effect == heads.values[2, 1] == pytest.approx(one.kl[0], rel=1e-5)
    table = edges.to_pandas()
    assert list(table.columns[:7]) == [
        "layer",
        "head",
        "query",
        "query_text",
        "key",
        "key_text",
        "weight",
    ]
    first = edges.strongest(1)[0]
    assert (first.query, first.effect) == (4, table["kl_renormalised"].max())
    with pytest.raises(attnscope.AttnscopeError, match="effects of edges are not a matrix"):
        edges.values  # noqa: B018
    assert "L2H1" in repr(heads)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({}, "both missing"),
        ({"cut": 3}, "3 is not a cut"),
        ({"cut": "5"}, "cannot read '5'"),
        ({"each": "token"}, "must be head, layer, edge or span"),
        ({"cut": "L1", "each": "head"}, "cut and each='head' cannot be used together"),
        ({"cutt": "L1"}, "no argument 'cutt'"),
    ],
)
def test_python_refuses_what_does_not_fit(options, said):
    with pytest.raises(attnscope.AttnscopeError, match=said):
        attnscope.ablate(TEXT, **options)


def test_a_list_of_what_is_cut_alone_is_not_asked_of_a_cut(capsys):
    assert main(["ablate", TEXT, "--cut", "L0H0", "--top", "3"]) == 2
    assert "--top: applies only to --each; remove it" in capsys.readouterr().err
