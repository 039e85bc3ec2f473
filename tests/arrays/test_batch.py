"""Dumps of given arrays: a record for every text, with the numbers of a report; resumed, and refused where needed."""

import json

import numpy as np
import pytest

import attnscope
from attnscope.cli import main

LENGTHS = [3, 7, 5, 7]


@pytest.fixture
def path(tmp_path):
    rng = np.random.default_rng(0)
    rows, layers = sum(LENGTHS), {2: 0, 5: 1}
    arrays = {
        f"layer.{layer}.{name}": rng.normal(size=(rows, heads, 4)).astype(np.float32)
        for layer in layers
        for name, heads in (("q", 4), ("k", 2), ("v", 2))
    }
    words = [f"w{n % 5}" for n in range(rows)]
    settings = {
        "layout": "tokens,heads,width",
        "cu_seqlens": np.cumsum([0, *LENGTHS]),
        "tokens": words,
        "softcap": 3.0,
    }
    np.savez(tmp_path / "x.npz", **arrays, **settings)
    return tmp_path / "x.npz"


def test_a_record_for_every_text_with_the_numbers_of_the_report(path, tmp_path):
    assert (
        main(
            [
                "batch",
                "--qkv",
                str(path),
                "-o",
                str(tmp_path / "d.jsonl"),
                "--keep",
                "all",
                "--quiet",
            ]
        )
        == 0
    )
    report = attnscope.inspect(qkv=path, layer="all", head="all", stages="weights", top=3)
    records = list(attnscope.read_dump(tmp_path / "d.jsonl"))
    assert [len(record.tokens) for record in records] == LENGTHS
    for record, text in zip(records, report.texts, strict=True):
        assert record.tokens == text.tokens
        assert [tuple(unit) for unit in record.units] == [
            (layer, head) for layer in (2, 5) for head in range(4)
        ]
        entropy = np.array([head.rows.entropy for head in text])
        np.testing.assert_allclose(record.rows.entropy, entropy, atol=1e-6)
        keys = np.array([head.data.texts[0].heads[0].top.keys for head in text])
        np.testing.assert_array_equal(record.top.keys, keys)
    assert (
        main(
            [
                "batch",
                "--qkv",
                str(path),
                "-o",
                str(tmp_path / "d.jsonl"),
                "--keep",
                "all",
                "--quiet",
            ]
        )
        == 0
    )


def test_equal_texts_keep_their_own_arrays(tmp_path):
    q, k = np.random.default_rng(1).normal(size=(2, 8, 2, 4)).astype(np.float32)
    np.savez(
        tmp_path / "x.npz", q=q, k=k, layout="thd", cu_seqlens=[0, 4, 8], tokens=list("abcdabcd")
    )
    assert (
        main(
            ["batch", "--qkv", str(tmp_path / "x.npz"), "-o", str(tmp_path / "d.jsonl"), "--quiet"]
        )
        == 0
    )
    lines = [json.loads(line) for line in (tmp_path / "d.jsonl").read_text().splitlines()]
    first, second = (line["rows"]["entropy"] for line in lines if "rows" in line)
    assert first != second
    for number, rows in enumerate((slice(0, 4), slice(4, 8))):
        alone = attnscope.from_qkv(q[rows], k[rows], layout="thd")
        both = attnscope.inspect(qkv=tmp_path / "x.npz", layer="all", head="all").texts[number]
        np.testing.assert_allclose(both.weights, alone.weights, atol=1e-6)


def test_what_a_dump_of_arrays_refuses(path, tmp_path, capsys):
    output = str(tmp_path / "d.jsonl")
    for words, message in (
        (["texts.txt"], "--qkv and FILE cannot be used together"),
        (["--keep", "effects"], "cutting heads needs a model"),
        (["--layer", "0"], "layer 0 is not among the given ones; use some of 2,5, or all"),
        (["--output", str(path), "--force"], "x.npz"),
    ):
        assert main(
            [
                "batch",
                *words,
                "--qkv",
                str(path),
                *(["-o", output] if "--output" not in words else []),
            ]
        ) in (
            1,
            2,
        )
        error = capsys.readouterr().err
        assert message in error and error.count("\n") == 1, error
    assert path.stat().st_size > 1000
