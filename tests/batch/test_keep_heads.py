"""`batch --keep heads`: the numbers of every head are recomputed from the whole matrices of the same texts."""

import json

import numpy as np
import pytest

import attnscope
from attnscope.batch.dump_reader import Dump
from attnscope.cli import main
from attnscope.findings.head_averages import AVERAGES
from tests.helpers.schemas import validate

TEXTS = (
    "the bank by the river was old and the bank in town was closed",
    "river",
    "the the the bank the bank",
    "a man who swims in the sea at noon takes care to avoid the sun and a man who walks takes care to drink",
    "we sat on the old bank by the river all day and on the bank by the sea all night and then we went to the bank",
)


def recomputed(record, unit):
    """The numbers of one head in float64, row by row from its matrices: averages of words, and the largest of all."""
    weights = record.stages["weights"][unit].astype(np.float64)
    masked = record.stages["masked"][unit].astype(np.float64)
    ids = [token.id for token in record.tokens]
    words = [row for row in record.queries if not record.tokens[row].special] or record.queries
    numbers = {name: [] for name in AVERAGES}
    for at, row in enumerate(record.queries):
        alpha = weights[at]
        if not np.isfinite(masked[at]).any():
            continue
        numbers["max_score"].append(masked[at][np.isfinite(masked[at])].max())
        if row not in words:
            continue
        numbers["entropy"].append(-sum(a * np.log2(a) for a in alpha if a > 0))
        numbers["first"].append(alpha[0])
        numbers["special"].append(
            sum(a for a, token in zip(alpha, record.tokens, strict=True) if token.special)
        )
        numbers["self"].append(alpha[row])
        numbers["distance"].append(sum(a * abs(row - key) for key, a in enumerate(alpha)))
        numbers["largest"].append(alpha.max())
        if row > 0:
            numbers["previous"].append(alpha[row - 1])
        earlier = [place for place in range(row - 1) if ids[place] == ids[row]]
        if earlier:
            numbers["induction"].append(alpha[earlier[-1] + 1])
    return {
        name: np.nan if not values else max(values) if name == "max_score" else np.mean(values)
        for name, values in numbers.items()
    }


def dumped(tmp_path, name, *options, texts=TEXTS):
    (tmp_path / "texts.txt").write_text("".join(f"{text}\n" for text in texts))
    output = f"{tmp_path}/{name}"
    arguments = [
        "batch",
        str(tmp_path / "texts.txt"),
        "-o",
        output,
        "--keep",
        "heads",
        "--force",
        "--quiet",
    ]
    assert main([*arguments, *map(str, options)]) == 0
    return tmp_path / name


OPTIONS = {
    "the sample": (),
    "some rows": ("--query", "1:4"),
    "causal": ("--mask", "causal"),
    "a window": ("--mask", "causal+window:3", "--what-if", "same-scores"),
    "keys hidden": ("--hide", "0"),
    "rows that see nothing": ("--mask", "window:2", "--hide", "0:2"),
    "some heads": ("--layer", "1,0", "--head", "1"),
}


@pytest.mark.parametrize("case", [*OPTIONS, "MiniLM"])
def test_averages_equal_those_of_the_matrices(tmp_path, minilm, case):
    options = OPTIONS.get(case, ("--model", minilm))
    exact = ("--stage", "weights,masked", *options)
    texts = TEXTS if "--query" not in options and "--hide" not in options else TEXTS[2:]
    path = dumped(tmp_path, "dump", *exact, texts=texts)
    checked = 0
    for record in Dump(path).records():
        for unit in range(len(record.units)):
            for name, value in recomputed(record, unit).items():
                there = getattr(record.heads, name)[unit]
                np.testing.assert_allclose(
                    there, value, rtol=2e-5, atol=2e-6, err_msg=f"{case}: {name} of {unit}"
                )
                checked += bool(np.isfinite(value))
    assert checked > 50


def test_long_rows_go_through_compiled_loops_and_tiles(tmp_path, monkeypatch):
    """One text of several tiles, with loops and with operators."""
    words = "the bank by the river was old and we sat on it all day near the sea".split()
    text = " ".join(words[n * n % len(words)] for n in range(700))
    monkeypatch.setattr("attnscope.model.tiling._ON_CPU", 1 << 17)
    for loops in (True, False):
        monkeypatch.setattr(
            "attnscope.model.row_summary.WORTH_COMPILED_LOOPS", 1 if loops else 1 << 60
        )
        path = dumped(
            tmp_path,
            f"long-{loops}",
            "--stage",
            "weights,masked",
            "--config",
            "grouped-query",
            texts=[text],
        )
        (record,) = Dump(path).records()
        expected = recomputed(record, 0)
        for name in AVERAGES:
            np.testing.assert_allclose(
                getattr(record.heads, name)[0], expected[name], rtol=1e-4, atol=1e-5
            )


def test_every_format_holds_the_same(tmp_path):
    lines = dumped(tmp_path, "dump.jsonl")
    expected = [record.heads for record in Dump(lines).records()]
    for line in lines.read_bytes().splitlines():
        value = json.loads(line)
        validate(value, {"schema": "header", "index": "record", "end": "end"}[next(iter(value))])
    for name in ("folder", "dump.json"):
        path = dumped(tmp_path, name)
        for record, heads in zip(Dump(path).records(), expected, strict=True):
            for average in AVERAGES:
                np.testing.assert_array_equal(
                    getattr(record.heads, average), getattr(heads, average)
                )
        assert main(["verify", str(path), "--quiet"]) == 0
    pytest.importorskip("pyarrow")
    from pyarrow import parquet

    assert main(["convert", str(lines), str(tmp_path / "heads.parquet"), "--quiet"]) == 0
    written = dumped(tmp_path, "tables.parquet/")
    for table in (
        parquet.read_table(tmp_path / "heads.parquet"),
        parquet.read_table(sorted(written.glob("0*.parquet"))),
    ):
        assert table.column_names == ["index", "id", "layer", "head", *AVERAGES]
        for average in AVERAGES:
            every = np.concatenate([getattr(heads, average) for heads in expected])
            np.testing.assert_array_equal(table[average].to_numpy(), every)
    frame = attnscope.read_dump(lines).to_pandas("heads")
    assert len(frame) == sum(len(heads.entropy) for heads in expected)


def test_a_walk_through_a_dump_shows_the_averages(tmp_path):
    from attnscope.batch.walks import dump_source
    from attnscope.views.walk.scene import Variant

    walk = dump_source(dumped(tmp_path, "dump.jsonl"))
    assert walk.store.reach(0)
    scene = walk.scene(Variant(0, walk.masks[0]))
    record = next(Dump(tmp_path / "dump.jsonl").records())
    numbers = {number.name: number.values for number in scene.numbers}
    assert set(AVERAGES) <= set(numbers)
    np.testing.assert_array_equal(numbers["largest"].reshape(-1), record.heads.largest)


def test_a_mean_over_heads_is_refused(tmp_path, capsys):
    (tmp_path / "texts.txt").write_text("river\n")
    words = [
        "batch",
        str(tmp_path / "texts.txt"),
        "-o",
        str(tmp_path / "x.jsonl"),
        "--keep",
        "heads",
        "--head",
        "mean",
    ]
    assert main(words) == 2
    said = (
        "--head: a mean has no averages of its own; use all or numbers, or remove heads from --keep"
    )
    assert capsys.readouterr().err == f"attnscope: error: {said}\n"
