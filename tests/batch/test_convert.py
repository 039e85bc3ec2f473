"""Every kind of dump becomes every other, byte for byte; tables hold the numbers that the dump holds."""

import csv
import json

import numpy as np
import pytest

from attnscope.batch.convert import convert
from attnscope.batch.dumps import Dump
from attnscope.batch.header import Settings
from attnscope.batch.records import STATISTICS
from attnscope.config import RunConfig, TextInput
from attnscope.errors import AttnscopeError, UsageError
from attnscope.pipeline import inspect
from attnscope.report import to_json
from tests.batch.test_dump import dump, found

SETTINGS = Settings(top=2, by="value", keep=("top", "rows", "columns", "pooled", "stages"), stages=("masked",))
TEXTS = ("The bank by the river", "", '"quoted", twice', "bank")


@pytest.fixture
def folder(tmp_path):
    dump(tmp_path, TEXTS, settings=SETTINGS, config="causal")
    return tmp_path


def test_around_every_kind_and_back(folder):
    """.jsonl → folder → .json → .jsonl."""
    assert convert(folder / "dump.jsonl", folder / "shards", force=False) == (4, "records")
    assert convert(folder / "shards", folder / "one.json", force=False) == (4, "records")
    assert convert(folder / "one.json", folder / "back.jsonl", force=False) == (4, "records")
    assert (folder / "back.jsonl").read_bytes() == (folder / "dump.jsonl").read_bytes()
    document = json.loads((folder / "one.json").read_bytes())
    assert [record["status"] for record in document["records"]] == ["ok", "skipped", "ok", "ok"]
    assert sorted(path.name for path in folder.iterdir()) == [
        "back.jsonl",
        "dump.jsonl",
        "one.json",
        "shards",
        "texts.txt",
    ]


def test_a_table_has_a_row_for_every_text_unit_query_and_rank(folder):
    count, what = convert(folder / "dump.jsonl", folder / "dump.csv", force=False)
    with open(folder / "dump.csv", newline="") as file:
        rows = list(csv.DictReader(file))
    assert (count, what) == (len(rows), "rows")
    expected = sum(int((record.top.keys >= 0).sum()) for record in found(folder) if record.status == "ok")
    assert count == expected
    records = {record.index: record for record in found(folder)}
    for row in rows:
        record = records[int(row["index"])]
        unit = record.units.index((int(row["layer"]), int(row["head"])))
        query, rank = int(row["query"]), int(row["rank"])
        assert row["query_token"] == record.tokens[query].text
        assert row["key_token"] == record.tokens[int(row["key"])].text
        assert int(row["key"]) == record.top.keys[unit, query, rank]
        assert np.float32(row["value"]) == record.top.value[unit, query, rank]
        assert np.float32(row["entropy"]) == record.rows.entropy[unit, query]


def test_tables_become_each_other(folder):
    pytest.importorskip("pyarrow", reason="the extra parquet is not installed")
    from pyarrow import parquet

    convert(folder / "dump.jsonl", folder / "a.csv", force=False)
    convert(folder / "dump.jsonl", folder / "a.parquet", force=False)
    convert(folder / "a.parquet", folder / "b.csv", force=False)
    convert(folder / "a.csv", folder / "b.parquet", force=False)
    assert (folder / "b.csv").read_bytes() == (folder / "a.csv").read_bytes()
    assert parquet.read_table(folder / "b.parquet").equals(parquet.read_table(folder / "a.parquet"))


def test_a_table_is_no_dump(folder):
    convert(folder / "dump.jsonl", folder / "a.csv", force=False)
    with pytest.raises(UsageError, match="a table holds less than a dump"):
        convert(folder / "a.csv", folder / "b.jsonl", force=False)
    dump(folder, TEXTS, name="rows.jsonl", settings=Settings(keep=("rows",)))
    with pytest.raises(AttnscopeError, match="without top contributors is no table"):
        convert(folder / "rows.jsonl", folder / "b.csv", force=False)
    (folder / "c.csv").write_text("a,b\n1,2\n")
    with pytest.raises(AttnscopeError, match="is not a table of a dump"):
        convert(folder / "c.csv", folder / "b.csv", force=False)


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lambda data: data[: data.rindex(b"\n", 0, -1) + 1], "is not finished; the command that began it goes on"),
        (lambda data: data[:-5], "is not finished"),
        (lambda data: data.replace(b"river", b"rover"), r"dump.jsonl:\d+: the line is damaged"),
        (lambda data: b"{}\n", "is not a dump"),
        (lambda data: b"", "is not a dump"),
    ],
)
def test_a_dump_that_is_not_whole_is_refused(folder, damage, message):
    path = folder / "dump.jsonl"
    path.write_bytes(damage(path.read_bytes()))
    with pytest.raises(AttnscopeError, match=message):
        convert(path, folder / "out.csv", force=False)
    assert sorted(p.name for p in folder.iterdir()) == ["dump.jsonl", "texts.txt"]


def test_a_damaged_shard_is_refused(folder):
    convert(folder / "dump.jsonl", folder / "shards", force=False)
    (shard,) = (folder / "shards").glob("*.safetensors")
    data = bytearray(shard.read_bytes())
    data[-3] ^= 4
    shard.write_bytes(data)
    with pytest.raises(AttnscopeError, match="the shard is damaged"):
        list(Dump(folder / "shards").records())


def test_targets_that_are_there_stay_without_force(folder):
    (folder / "dump.csv").write_text("precious")
    with pytest.raises(AttnscopeError, match="exists; give --force"):
        convert(folder / "dump.jsonl", folder / "dump.csv", force=False)
    assert (folder / "dump.csv").read_text() == "precious"
    convert(folder / "dump.jsonl", folder / "dump.csv", force=True)
    assert (folder / "dump.csv").read_text().startswith("index,id,layer,head,")
    with pytest.raises(UsageError, match="has no known ending"):
        convert(folder / "dump.jsonl", folder / "dump.doc", force=False)
    with pytest.raises(AttnscopeError, match="there is no such file"):
        convert(folder / "missing.jsonl", folder / "a.csv", force=False)


def test_a_report_of_run_becomes_a_table(folder):
    """The same rows as those of a dump of the same texts, but for what a dump calls them."""
    texts = [text for text in TEXTS if text]
    given = tuple(TextInput(text) for text in texts)
    run = RunConfig(given, config="causal", layer="all", head="all", stages=("masked",), top=2, by="value")
    (folder / "report.json").write_bytes(to_json(inspect(run)))
    count, what = convert(folder / "report.json", folder / "report.csv", force=False)
    dump(folder, texts, name="same.jsonl", settings=SETTINGS, config="causal")
    assert convert(folder / "same.jsonl", folder / "same.csv", force=False) == (count, what)
    tables = []
    for name in ("report.csv", "same.csv"):
        with open(folder / name, newline="") as file:
            tables.append(list(csv.DictReader(file)))
    assert count > 0
    for one, other in zip(*tables, strict=True):
        assert list(one) == list(other)
        for name, cell in one.items():
            if name in ("weight", "value", *STATISTICS):
                assert float(cell) == pytest.approx(float(other[name]), abs=1e-6)
            elif name != "id":
                assert cell == other[name]


def test_a_report_is_no_dump(folder):
    run = RunConfig((TextInput("bank"),), config="causal", layer="0", head="0", by="projected")
    data = to_json(inspect(run))
    (folder / "report.json").write_bytes(data)
    with pytest.raises(UsageError, match="a report of one run is no dump"):
        convert(folder / "report.json", folder / "b.jsonl", force=False)
    convert(folder / "report.json", folder / "b.csv", force=False)
    assert "weight,value,projected,entropy" in (folder / "b.csv").read_text()
    (folder / "old.json").write_bytes(data.replace(b"attnscope.report/1", b"attnscope.report/0"))
    with pytest.raises(AttnscopeError, match=r"old.json: schema is 'attnscope.report/0'"):
        convert(folder / "old.json", folder / "c.csv", force=False)
    (folder / "odd.json").write_text("[1")
    with pytest.raises(AttnscopeError, match=r"odd.json: is not a dump"):
        convert(folder / "odd.json", folder / "c.csv", force=False)
