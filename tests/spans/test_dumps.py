"""Weights between spans in dumps and tables: those of `inspect`, and the same after an interruption."""

import csv
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import attnscope
from attnscope.cli import main
from tests.helpers.schemas import validate
from tests.referee.models import ROWS, Models

TEXTS = [
    "the bank by river was old",
    "we sat on it all day while water ran down from hills to sea",
    "the bank ?!",
]


@pytest.fixture
def texts(tmp_path: Path) -> Path:
    path = tmp_path / "texts.jsonl"
    spans: list[Any] = [
        {"bank": [0, 8], "river": [12, 17]},
        [
            {"name": "we", "start": 0, "end": 6, "unit": "tokens"},
            {"name": "sea", "start": 6, "end": 12, "unit": "tokens"},
        ],
        {"bank": [4, 8]},
    ]
    lines = (
        json.dumps({"text": text, "spans": some, "id": f"t{n}"})
        for n, (text, some) in enumerate(zip(TEXTS, spans, strict=True))
    )
    path.write_text("\n".join(lines) + "\n")
    return path


def dump(path: Path, target: Path, *options: str) -> Path:
    assert (
        main(["batch", str(path), "-o", str(target), "--quiet", "--max-memory", "4G", *options])
        == 0
    )
    return target


@pytest.mark.parametrize("name", ["llama", "gpt_oss"])
@pytest.mark.parametrize("target", ["dump.jsonl", "shards"])
def test_records_have_the_weights_of_inspect(
    models: Models, texts: Path, tmp_path: Path, name: str, target: str
) -> None:
    folder = models[next(row for row in ROWS if row.startswith(name))].path
    made = dump(texts, tmp_path / target, "--keep", "spans", "--model", str(folder))
    records = list(attnscope.read_dump(made))
    for record, line in zip(records, texts.read_text().splitlines(), strict=True):
        given = json.loads(line)
        report = attnscope.inspect(
            given["text"], spans=given["spans"], model=folder, max_memory="4G"
        )
        found = report.data.texts[0].spans
        assert found is not None
        assert record.divided == found.text
        np.testing.assert_allclose(
            record.spans.weights.reshape(found.weights.shape), found.weights, atol=1e-6
        )
        assert (record.spans.sink is None) == (found.sink is None) == (name != "gpt_oss")
        if found.sink is not None:
            np.testing.assert_allclose(
                record.spans.sink.reshape(found.sink.shape), found.sink, atol=1e-6
            )
    if target.endswith(".jsonl"):
        lines = [json.loads(line) for line in made.read_text().splitlines()]
        for kind, line in zip(("header", *["record"] * len(TEXTS), "end"), lines, strict=True):
            validate(line, kind)


def test_means_over_layers_and_heads(texts: Path, tmp_path: Path) -> None:
    one = dump(texts, tmp_path / "one.jsonl", "--keep", "spans")
    mean = dump(
        texts, tmp_path / "mean.jsonl", "--keep", "spans", "--layer", "mean", "--head", "mean"
    )
    for every, record in zip(attnscope.read_dump(one), attnscope.read_dump(mean), strict=True):
        assert record.units == [("mean", "mean")]
        np.testing.assert_allclose(record.spans.weights[0], every.spans.weights.mean(0), atol=1e-6)


@pytest.mark.parametrize("format", ["csv", "parquet"])
def test_the_table_has_every_pair(texts: Path, tmp_path: Path, format: str) -> None:
    made = dump(texts, tmp_path / "dump.jsonl", "--keep", "spans")
    table = tmp_path / f"spans.{format}"
    assert main(["convert", str(made), str(table), "--quiet"]) == 0
    if format == "parquet":
        parquet = pytest.importorskip(
            "pyarrow.parquet", reason="the extra parquet is not installed"
        )
        rows = parquet.read_table(table).to_pylist()
    else:
        with table.open() as file:
            rows = list(csv.DictReader(file))
    assert list(rows[0]) == ["index", "id", "layer", "head", "query_span", "key_span", "weight"]
    records = list(attnscope.read_dump(made))
    assert len(rows) == sum(record.spans.weights.size for record in records)
    for row in rows[:: max(1, len(rows) // 60)]:
        record = records[int(row["index"])]
        unit = record.units.index((int(row["layer"]), int(row["head"])))
        query, key = (record.divided.names.index(row[name]) for name in ("query_span", "key_span"))
        assert float(row["weight"]) == pytest.approx(
            record.spans.weights[unit, query, key], abs=1e-7
        )


@pytest.mark.parametrize("name", ["dump.jsonl", "shards"])
def test_effects_of_spans_are_those_of_ablate(models: Models, tmp_path: Path, name: str) -> None:
    """With an answer in the text, and with `--query`; an interrupted dump becomes the same."""
    folder = models[next(row for row in ROWS if row.startswith("llama"))].path
    ranges = {"bank": [0, 8], "river": [9, 17], "answer": [18, 25]}
    lines = [
        {"text": text, "spans": ranges if n != 1 else {"we": [0, 6], "sea": [9, 30]}}
        for n, text in enumerate(TEXTS[:2])
    ]
    source = tmp_path / "texts.jsonl"
    source.write_text("".join(json.dumps(line) + "\n" for line in lines))
    options = ("--keep", "span_effects", "--model", str(folder), "--head", "0-2")
    made = dump(source, tmp_path / name, *options)
    records = list(attnscope.read_dump(made))
    for record, line in zip(records, lines, strict=True):
        query = {} if "answer" in line["spans"] else {"query": len(record.tokens) - 1}
        found = attnscope.ablate(
            line["text"],
            spans=line["spans"],
            each="span",
            model=folder,
            head=[0, 1, 2],
            max_memory="4G",
            **query,
        )
        expected, effects = found.data, found.data.effects[0]
        assert (effects.loss is None) == (record.span_effects.loss is None) == bool(query)
        assert (record.span_rows, record.span_positions) == (expected.rows, expected.positions)
        assert effects.kl is not None
        numbers = {
            "weight": expected.weights,
            "hidden": effects.hidden,
            "kl": effects.kl,
            "loss": effects.loss,
        }
        for measure, values in numbers.items():
            if values is not None:
                every = np.full(len(record.divided.names), np.nan)
                every[expected.span_numbers] = values
                np.testing.assert_allclose(
                    getattr(record.span_effects, measure),
                    every,
                    rtol=1e-4,
                    atol=1e-6,
                    err_msg=measure,
                )
    assert main(["convert", str(made), str(tmp_path / "effects.csv"), "--quiet"]) == 0
    rows = list(csv.DictReader((tmp_path / "effects.csv").read_text().splitlines()))
    assert list(rows[0]) == [
        "index",
        "id",
        "layer",
        "head",
        "key_span",
        "loss",
        "kl",
        "hidden",
        "weight",
    ]
    cut = [
        (record, n)
        for record in records
        for n in np.flatnonzero(~np.isnan(record.span_effects.hidden))
    ]
    for row, (record, n) in zip(rows, cut, strict=True):
        assert (row["index"], row["layer"], row["key_span"]) == (
            str(record.index),
            "",
            record.divided.names[n],
        )
        assert float(row["hidden"]) == pytest.approx(record.span_effects.hidden[n], rel=1e-6)
    if name == "dump.jsonl":
        whole = made.read_bytes()
        for line in whole.splitlines():
            value = json.loads(line)
            validate(
                value, {"schema": "header", "index": "record", "end": "end"}[next(iter(value))]
            )
        made.write_bytes(b"".join(whole.splitlines(keepends=True)[:2]))
        assert dump(source, made, *options).read_bytes() == whole


def test_a_report_has_the_table_too() -> None:
    pytest.importorskip("pandas", reason="the extra pandas")
    report = attnscope.inspect(TEXTS[0], spans="words")
    frame = report.to_pandas("spans")
    assert len(frame) == report.span_weights.size
    row = frame[
        (frame.layer == 2)
        & (frame["head"] == 1)
        & (frame.query_span == "bank")
        & (frame.key_span == "river")
    ]
    names = report.spans
    assert (
        float(row.weight.iloc[0])
        == report.span_weights[2, 1, names.index("bank"), names.index("river")]
    )


def test_a_dump_that_was_cut_off_becomes_the_same(texts: Path, tmp_path: Path) -> None:
    options = ("--keep", "spans,top", "--spans", "words")
    whole = dump(texts, tmp_path / "whole.jsonl", *options).read_bytes()
    part = tmp_path / "part.jsonl"
    part.write_bytes(b"".join(whole.splitlines(keepends=True)[:2]))
    assert dump(texts, part, *options).read_bytes() == whole


def test_spans_that_a_dump_cannot_have_are_refused(
    texts: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    made = dump(texts, tmp_path / "dump.jsonl", "--keep", "spans", "--spans", "words")
    (tmp_path / "spans.json").write_text('{"a": [0, 3]}')
    for options, code, message in [
        (
            ("--keep", "spans", "--spans", str(tmp_path / "spans.json")),
            2,
            "give each text a member 'spans'",
        ),
        (("--spans", "words"), 2, "--spans words: applies only to --keep spans"),
        (("--keep", "spans", "--spans", "lines"), 1, "spans"),
    ]:
        assert main(["batch", str(texts), "-o", str(made), "--quiet", *options]) == code
        assert message in capsys.readouterr().err
    plain = tmp_path / "plain.txt"
    plain.write_text("the bank\n")
    assert main(["batch", str(plain), "-o", str(tmp_path / "plain.jsonl"), "--keep", "spans"]) == 3
    assert "no member 'spans'" in capsys.readouterr().err
