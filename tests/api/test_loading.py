"""Saved findings are loaded to the last bit; what was damaged is refused in one line."""

import copy
import json
import re

import numpy as np
import pytest

import attnscope
from attnscope.api.results import Result, result_type
from attnscope.studies.registry import kind_of, kinds
from tests.chat import span_cuts

TEXT, MASKED = "The bank by the river", "The [MASK] by the bank"


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    """Each kind of result with its file."""
    folder, gpt2 = tmp_path_factory.mktemp("saved"), tmp_path_factory.mktemp("gpt2")
    span_cuts.save(gpt2)
    made = {
        "report": attnscope.inspect(
            [TEXT, "an old river"], layer="all", head=[0, 2], mask="causal"
        ),
        "compare": attnscope.compare(TEXT, layer=0, head=(0, 1), tolerance=0.1),
        "texts": attnscope.compare(TEXT, "The bank by the wide lake"),
        "explain": attnscope.explain(TEXT, query="by", mask="causal"),
        "heads": attnscope.heads(text=TEXT, draws=2, role="previous"),
        "measured": attnscope.heads(text=TEXT, measure="entropy"),
        "ablate": attnscope.ablate(TEXT, cut="L0H0"),
        "effects": attnscope.ablate(TEXT, each="layer"),
        "check": attnscope.check(TEXT),
        "needle": attnscope.heads(
            gpt2, needle="the bank was old", filler="water ran", lengths=[20], depths=[0], draws=2
        ),
        "doctor": attnscope.doctor(attn="eager"),
        "changes": attnscope.heads(None, TEXT, measure="entropy", dtype=["float32", "bfloat16"]),
        "generated": attnscope.inspect(
            TEXT, layer=0, head=0, mask="causal", generate=2, predict=True
        ),
    }
    for name, result in made.items():
        result.save(folder / f"{name}.json")
    return folder, made


@pytest.mark.parametrize(
    "asked",
    [
        {
            "layer": "all",
            "head": "all",
            "mask": "causal",
            "stages": ("scores", "masked", "weights", "output"),
        },
        {
            "layer": "mean",
            "head": [1, 3],
            "pool": 2,
            "predict": True,
            "by": "projected",
            "special": False,
        },
        {"layer": "all", "head": "auto", "query": [0, -1], "key": 1},
        {"measure": "rollout", "layer": [0, 1]},
    ],
    ids=["stages", "pool", "auto", "rollout"],
)
def test_a_file_of_arrays_is_the_report(tmp_path, asked):
    for text, ending in (
        (MASKED, "npz"),
        (MASKED, "safetensors"),
        ([MASKED, "an old [MASK]"], "npz"),
    ):
        report = attnscope.inspect(text, **asked)
        report.save(tmp_path / f"r.{ending}", force=True)
        loaded = attnscope.load(tmp_path / f"r.{ending}")
        assert loaded.to_json() == report.to_json()
        assert repr(loaded) == repr(report)


def test_an_array_file_is_a_side_of_a_comparison(tmp_path):
    first, second = (
        attnscope.inspect(TEXT, layer=0, head=0, mask=mask) for mask in ("causal", "own")
    )
    first.save(tmp_path / "first.npz")
    change = attnscope.compare(tmp_path / "first.npz", second).changes[0]
    np.testing.assert_array_equal(
        change.heads[0].difference, second[0, 0].weights - first[0, 0].weights
    )


def test_findings_of_every_kind_are_loaded_to_the_last_bit(saved):
    """The kinds are those that studies declare; the type of the result follows from the file."""
    folder, made = saved
    for name, result in made.items():
        for kind in (None, type(result)):
            loaded = attnscope.load(folder / f"{name}.json", kind)
            assert type(loaded) is type(result)
            assert loaded.to_json() == result.to_json()
            assert repr(loaded) == repr(result)
    there = {kind_of(result.data).name for result in made.values()}
    with_class = {each.name for each in kinds() if result_type(each.findings_type()) is not Result}
    assert with_class <= there, "a kind with a class of its own that no file of this test holds"
    assert np.isneginf(attnscope.load(folder / "explain.json").masked[3:]).all()


def test_what_a_file_holds_instead_is_said(saved, tmp_path):
    folder, _ = saved
    for name, there in (
        ("compare", "Compare"),
        ("explain", "Explain"),
        ("heads", "Survey"),
        ("check", "Check"),
    ):
        with pytest.raises(
            attnscope.AttnscopeError, match=rf"{name}\.json: holds the findings of {name}; "
        ) as error:
            attnscope.load(folder / f"{name}.json", attnscope.InspectResult)
        assert (
            error.value.hint
            == f"attnscope.load({str(folder / f'{name}.json')!r}, attnscope.{there}Result)"
        )
    with pytest.raises(
        attnscope.AttnscopeError, match=r"holds the findings of run; attnscope\.load\(.*Inspect"
    ):
        attnscope.load(folder / "report.json", attnscope.CompareResult)
    with pytest.raises(
        attnscope.AttnscopeError, match="kind: HeadResult cannot be loaded; use InspectResult, Comp"
    ):
        attnscope.load(folder / "report.json", attnscope.HeadResult)
    np.savez(tmp_path / "x.npz", weights=np.zeros(3))
    with pytest.raises(
        attnscope.AttnscopeError,
        match=r"x\.npz: not an attnscope file of arrays .*; pass a file of arrays",
    ):
        attnscope.load(tmp_path / "x.npz")


def shortened(tree):
    """Copies of a tree of JSON, each with the last entry of one of its first lists missing."""
    paths = []

    def walk(node, path):
        if isinstance(node, list) and node:
            paths.append(path)
        for name in (
            node
            if isinstance(node, dict)
            else range(len(node[:2]))
            if isinstance(node, list)
            else ()
        ):
            walk(node[name], (*path, name))

    walk(tree, ())
    for path in paths:
        changed = copy.deepcopy(tree)
        node = changed
        for name in path:
            node = node[name]
        node.pop()
        yield path, changed


@pytest.mark.parametrize(
    ("name", "kind"), [("compare", attnscope.CompareResult), ("explain", attnscope.ExplainResult)]
)
def test_what_was_cut_short_is_refused_or_shown(saved, tmp_path, name, kind):
    tree = json.loads((saved[0] / f"{name}.json").read_text())
    refused = set()
    for path, changed in shortened(tree):
        (tmp_path / "x.json").write_text(json.dumps(changed))
        try:
            repr(attnscope.load(tmp_path / "x.json", kind))
        except attnscope.AttnscopeError as error:
            refused.add((path[-1], str(error).startswith(str(tmp_path / "x.json"))))
    assert len(refused) > 5
    assert all(named for _, named in refused)


@pytest.mark.parametrize(
    ("name", "place", "value", "said"),
    [
        ("compare", "verdict.stages.0.side", 2, "verdict.stages[0].side is 2 of 2 sides"),
        ("compare", "verdict.stages.0.text", -1, "verdict.stages[0].text is -1 of 1 texts"),
        ("compare", "verdict.stages.0.cell.query", 99, "verdict.stages[0].cell.query is 99 of"),
        ("compare", "verdict.stages.0.cell.key", -7, "verdict.stages[0].cell.key is -7 of"),
        (
            "compare",
            "sides.1.report.texts.0.heads.stages",
            {},
            "whose weights its side does not hold",
        ),
        ("explain", "row.capped", lambda row: row["scores"], "row.capped is there, unlike softcap"),
        ("explain", "bias", "alibi", "row.bias is missing, unlike bias"),
        (
            "generated",
            "texts.0.predictions.0.tokens",
            [],
            "texts[0].predictions[0].tokens is empty",
        ),
        ("generated", "texts.0.generated.0.tokens", [], "texts[0].generated[0].tokens is empty"),
        (
            "generated",
            "texts.0.padding",
            5,
            "texts[0].predictions[0].position has a position of 2 or more",
        ),
    ],
)
def test_what_was_edited_is_refused(saved, tmp_path, name, place, value, said):
    tree = json.loads((saved[0] / f"{name}.json").read_text())
    *path, last = (int(part) if part.isdigit() else part for part in place.split("."))
    node = tree
    for part in path:
        node = node[part]
    node[last] = value(node) if callable(value) else value
    (tmp_path / "x.json").write_text(json.dumps(tree))
    kinds = {
        "compare": attnscope.CompareResult,
        "explain": attnscope.ExplainResult,
        "generated": attnscope.InspectResult,
    }
    with pytest.raises(attnscope.AttnscopeError, match=re.escape(said)) as error:
        attnscope.load(tmp_path / "x.json", kinds[name])
    assert str(error.value).startswith(f"{tmp_path / 'x.json'}: ")


@pytest.mark.parametrize(
    ("weights", "said"),
    [
        ([-0.25, 1.25], "-0.25, expected 0 or more"),
        ([0.5, 1.25], "a sum of 1.75, expected 1"),
        ([0.5, 0.25], "a sum of 0.75, expected 1"),
        ([np.nan, 1], "null in some columns, expected in all or none"),
    ],
)
@pytest.mark.parametrize("ending", ["json", "npz"])
def test_weights_that_no_softmax_gives_are_refused_by_head_and_row(tmp_path, weights, said, ending):
    """Compared, they would be shown as numbers, and their divergence would be none."""
    result = attnscope.inspect("The bank", layer=[0, 1], head=3, query=1)
    result.data.texts[0].heads.stages["weights"][1, 0] = weights
    path = tmp_path / f"x.{ending}"
    result.save(path)
    with pytest.raises(attnscope.AttnscopeError) as error:
        attnscope.load(path)
    where = f"{path}: texts[0].heads.stages.weights of L1H3, query 1: "
    assert str(error.value).startswith(f"{where}{said}; ")


def test_the_weights_of_a_map_that_no_softmax_gives_are_refused(tmp_path):
    result = attnscope.inspect(TEXT, layer=0, head=0, pool=2)
    result.data.texts[0].heads.pooled.weights[0, 1, 0] = 3
    result.save(tmp_path / "x.npz")
    said = (
        r"x\.npz: texts\[0\]\.heads\.pooled\.weights of L0H0, query 3: a sum of 3\.\d+, expected 1;"
    )
    with pytest.raises(attnscope.AttnscopeError, match=said):
        attnscope.load(tmp_path / "x.npz")


def test_rows_that_lack_some_keys_or_all_have_weights_of_a_softmax(tmp_path):
    """And so have given ones that one head has none of: the mean of heads has a part of that row."""
    given = np.float32([[[1, 0], [0.5, 0.5]], [[1, 0], [0, 0]]])
    kept = {
        "some": attnscope.inspect(TEXT, layer=0, head=0, key=[1, 2]),
        "masked": attnscope.inspect(TEXT, layer=0, head=0, hide=TEXT.split()),
        "given": attnscope.from_weights(given, head="mean"),
    }
    for name, result in kept.items():
        weights = result.data.texts[0].heads.stages["weights"]
        sums = weights.sum(-1)
        assert np.any((sums < 0.99) | np.isnan(sums)), name
        result.save(tmp_path / f"{name}.npz")
        loaded = attnscope.load(tmp_path / f"{name}.npz")
        np.testing.assert_array_equal(loaded.data.texts[0].heads.stages["weights"], weights)


@pytest.mark.parametrize("ending", ["npz", "safetensors"])
def test_a_damaged_file_of_arrays_is_refused(tmp_path, ending):
    attnscope.inspect(TEXT).save(tmp_path / f"r.{ending}")
    data = (tmp_path / f"r.{ending}").read_bytes()
    for cut in (0, 7, 8, 40, len(data) // 2, len(data) - 5):
        (tmp_path / f"x.{ending}").write_bytes(data[:cut])
        with pytest.raises(attnscope.AttnscopeError, match=rf"x\.{ending}: "):
            attnscope.load(tmp_path / f"x.{ending}")
