"""Every kind of dump becomes every other, byte for byte; tables hold the numbers that the dump holds."""

import csv
import json
import zlib
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Annotated

import msgspec
import numpy as np
import pytest
from msgspec.structs import replace

from attnscope.base.errors import AttnscopeError, UsageError
from attnscope.batch import convert as conversion
from attnscope.batch import records, tables
from attnscope.batch.convert import convert, write_document
from attnscope.batch.dump import write_dump
from attnscope.batch.dump_reader import Dump
from attnscope.batch.header import Settings
from attnscope.batch.loading import DumpConfig
from attnscope.batch.records import Record, arrays_of
from attnscope.cli import main
from attnscope.findings.arrays import Matrices, along
from attnscope.findings.codec import to_json
from attnscope.findings.record_parts import RecordPart, RecordTable
from attnscope.findings.row_statistics import STATISTICS
from attnscope.request.run_config import TextInput
from attnscope.run.session import Session, inspect
from attnscope.studies.rollout.measure import measure_rollout
from tests.batch.test_dump import dump, found
from tests.helpers.requests import requested
from tests.helpers.sample_overviews import overview
from tests.helpers.sample_reports import report, text_report, tokens

KEPT = ("top", "rows", "columns", "heads", "pooled", "spans", "effects", "span_effects", "stages")
SETTINGS = Settings(top=2, by="value", keep=KEPT, stages=("masked",), spans="words")
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


def test_members_of_the_input_have_the_same_bytes_in_every_kind(tmp_path, monkeypatch):
    """Python's json writes spaces within lists and objects, and é as \\u00e9."""
    monkeypatch.chdir(tmp_path)
    members = {"text": "bank", "label": {"a": [1, 2.5], "b": "é"}, "large": 10**30, "none": None}
    (tmp_path / "texts.jsonl").write_text(json.dumps(members).replace("2.5", "2.50") + "\n")
    assert main(["batch", "texts.jsonl", "-o", "dump.jsonl", "--quiet"]) == 0
    assert main(["batch", "texts.jsonl", "-o", "shards", "--quiet"]) == 0
    assert main(["batch", "texts.jsonl", "-o", "one.json", "--quiet"]) == 0
    assert b"2.50" in (tmp_path / "dump.jsonl").read_bytes()
    for source in ("dump.jsonl", "shards", "one.json"):
        convert(tmp_path / source, tmp_path / "back.jsonl", force=True)
        assert (tmp_path / "back.jsonl").read_bytes() == (tmp_path / "dump.jsonl").read_bytes()
    (record,) = found(tmp_path)
    assert record.fields == {name: members[name] for name in ("label", "large", "none")}


def read(path):
    with open(path, newline="") as file:
        return list(csv.DictReader(file))


@pytest.mark.parametrize("most", [2, 2048])
def test_shards_hold_as_many_numbers_as_those_of_batch(folder, monkeypatch, most):
    """A window takes records up to its limit, inclusive, and at least one."""
    monkeypatch.setattr(conversion, "MAX_WINDOW_RECORDS", most)
    one = Dump(folder / "dump.jsonl")
    header, records = one.header, [*one.records()] * 2
    sizes = [sum(array.size for array in arrays_of(record).values()) for record in records]
    assert sizes[1] == 0 < sizes[3] < sizes[0]
    for limit in (1, *np.cumsum(sizes), *(np.cumsum(sizes) - 1), *(np.cumsum(sizes[2:]) + 1)):
        expected, first = [], 0
        while first < len(records):
            end = first + 1
            while (
                end < len(records) and end - first < most and sum(sizes[first : end + 1]) <= limit
            ):
                end += 1
            expected.append(list(range(first, end)))
            first = end
        asked = SimpleNamespace(
            header=replace(header, grouping=replace(header.grouping, window=int(limit))),
            records=lambda: iter(records),
        )
        numbers = iter(range(len(records)))
        assert [
            [next(numbers) for _ in window] for window in conversion._windows(asked)
        ] == expected


def test_contributors_have_a_row_for_every_text_unit_query_and_rank(folder):
    count, what = convert(folder / "dump.jsonl", folder / "dump.csv", force=False)
    rows = read(folder / "dump.csv")
    assert (count, what) == (len(rows), "rows of contributors")
    expected = sum(
        int((record.top.keys >= 0).sum()) for record in found(folder) if record.status == "ok"
    )
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
        assert "entropy" not in row


def test_rows_have_a_row_for_every_text_unit_and_query(folder):
    count, what = convert(folder / "dump.jsonl", folder / "rows.csv", "rows", force=False)
    rows = {
        tuple(int(row[name]) for name in ("index", "layer", "head", "query")): row
        for row in read(folder / "rows.csv")
    }
    assert (count, what) == (len(rows), "rows")
    records = [record for record in found(folder) if record.status == "ok"]
    assert count == sum(len(record.units) * len(record.tokens) for record in records)
    for record in records:
        for u, unit in enumerate(record.units):
            for query, token in enumerate(record.tokens):
                row = rows[record.index, *unit, query]
                assert row["query_token"] == token.text
                assert row["sink"] == ""
                for name in STATISTICS:
                    assert np.float32(row[name]) == getattr(record.rows, name)[u, query]


def test_columns_have_a_row_for_every_text_unit_and_source(folder):
    count, what = convert(folder / "dump.jsonl", folder / "c.csv", "columns", force=False)
    rows = read(folder / "c.csv")
    assert (count, what) == (len(rows), "rows of columns")
    found_mass = {
        tuple(int(row[n]) for n in ("index", "layer", "head", "key")): row["mass"] for row in rows
    }
    for record in found(folder):
        for u, q in np.ndindex((0, 0) if record.columns is None else record.columns.shape):
            assert (
                np.float32(found_mass.pop((record.index, *record.units[u], q)))
                == record.columns[u, q]
            )
    assert not found_mass


def test_a_part_becomes_a_table_by_its_declaration_alone(monkeypatch):
    """Places by its axes, and a column of each array that the declaration names."""

    class Gaps(msgspec.Struct):
        gap: Annotated[Matrices, along("unit", "query", "source")]
        no: Annotated[Matrices, along("unit", "query", "source")] | None = None

    class RecordWithGaps(Record, frozen=True):
        gaps: Gaps | None = None

    part = RecordPart("gaps", "", lambda kept: 0, table=RecordTable("gaps", "", ("gap", "no")))
    for module in (tables, records):
        monkeypatch.setattr(module, "Record", RecordWithGaps)
    monkeypatch.setitem(tables.TABLES, "gaps", "gaps")
    monkeypatch.setitem(tables.PARTS, "gaps", part)
    gap = np.arange(12, dtype=np.float32).reshape(2, 2, 3)
    record = RecordWithGaps(4, "a", 1, "", "ok", tokens=tokens("xyz"), queries=[0, 2], units=[(1, 0), (1, 3)],
                            gaps=Gaps(gap))  # fmt: skip
    (table,) = tables.tables("gaps", record)
    assert list(table) == tables.columns("gaps", Settings())
    rows = list(
        zip(
            *(table[name] for name in ("layer", "head", "query", "key", "key_token", "gap")),
            strict=True,
        )
    )
    assert rows[5:8] == [(1, 0, 2, 2, "z", 5.0), (1, 3, 0, 0, "x", 6.0), (1, 3, 0, 1, "y", 7.0)]
    assert len(rows) == 12 and np.isnan(table["no"]).all()


@pytest.mark.parametrize("name", ["dump.jsonl", "shards"])
@pytest.mark.parametrize("part", [3, 1 << 16])
def test_matrices_have_a_row_for_every_cell(folder, monkeypatch, name, part):
    monkeypatch.setattr(tables, "_PART", part)
    settings = replace(SETTINGS, stages=("masked", "weights", "output"), query="0", key="0")
    dump(folder, TEXTS, name=name, settings=settings, config="causal", force=True)
    count, what = convert(folder / name, folder / "cells.csv", "matrices", force=False)
    rows = read(folder / "cells.csv")
    assert (count, what) == (len(rows), "rows of matrices")
    cells = {}
    for row in rows:
        column = row["key"] if row["stage"] != "output" else row["dimension"]
        assert "" in (row["key"], row["dimension"])
        place = (int(row[n]) for n in ("index", "layer", "head", "query"))
        cells[*place, row["stage"], int(column)] = (
            row["value"],
            row["query_token"],
            row["key_token"],
        )
    assert len(cells) == count
    for record in found(folder, name):
        for stage, array in record.stages.items():
            for u, q, k in np.ndindex(array.shape):
                value, query, key = cells.pop(
                    (record.index, *record.units[u], record.queries[q], stage, k)
                )
                if np.isfinite(array[u, q, k]):
                    assert np.float32(value) == array[u, q, k]
                else:
                    assert value == ""
                assert query == record.tokens[0].text
                assert key == ("" if stage == "output" else record.tokens[0].text)
    assert not cells


def test_masked_cells_are_null_in_every_table(folder):
    pytest.importorskip("pyarrow", reason="the extra parquet is not installed")
    from pyarrow import parquet

    convert(folder / "dump.jsonl", folder / "shards", force=False)
    for name in ("dump.jsonl", "shards"):
        convert(folder / name, folder / "cells.parquet", "matrices", force=True)
        cells = parquet.read_table(folder / "cells.parquet").to_pylist()
        assert cells
        for cell in cells:
            assert (cell["value"] is None) == (cell["key"] > cell["query"])


def test_masked_cells_are_minus_infinity_in_memory(folder):
    convert(folder / "dump.jsonl", folder / "shards", force=False)
    convert(folder / "shards", folder / "one.json", force=False)
    for name in ("dump.jsonl", "shards", "one.json"):
        for record in found(folder, name):
            for masked in record.stages.get("masked", ()):
                count = len(masked)
                assert np.array_equal(np.isneginf(masked), ~np.tri(count, dtype=bool))
                assert np.isfinite(masked).sum() == count * (count + 1) // 2


def test_a_mean_has_no_number(folder):
    pytest.importorskip("pyarrow", reason="the extra parquet is not installed")
    from pyarrow import parquet

    settings = Settings(layer="0", head="mean", stages=("weights",), keep=("top", "rows", "stages"))
    dump(folder, TEXTS, name="mean.jsonl", settings=settings)
    for table in ("contributors", "rows", "matrices"):
        convert(folder / "mean.jsonl", folder / "a.parquet", table, force=True)
        columns = parquet.read_table(folder / "a.parquet").to_pydict()
        assert set(columns["layer"]) == {0}
        assert set(columns["head"]) == {None}
        convert(folder / "mean.jsonl", folder / "b.csv", table, force=True)
        assert {row["head"] for row in read(folder / "b.csv")} == {""}


@pytest.mark.parametrize("table", tables.TABLES)
def test_words_of_a_table_are_stored_once(folder, table):
    """A column of words has the words of the text and a number for each row, not an object for each row."""
    pytest.importorskip("pyarrow", reason="the extra parquet is not installed")
    record = next(Dump(folder / "dump.jsonl").records())
    part = next(tables.tables(table, record))
    columns = {name: part[name] for name in tables.WORDS if name in part}
    if table == "matrices":
        assert set(columns.pop("key_token", [])) != {None}
    for words in columns.values():
        assert isinstance(words, tables.Words)
        assert len(words.words) <= len(record.tokens) + 1
        assert words.to_arrow().to_pylist() == list(words)


@pytest.mark.parametrize("table", [*tables.TABLES, "some statistics"])
def test_both_kinds_of_tables_hold_the_same(folder, table):
    pytest.importorskip("pyarrow", reason="the extra parquet is not installed")
    from pyarrow import parquet

    source = folder / "dump.jsonl"
    if table == "some statistics":
        dump(
            folder,
            TEXTS,
            name="brief.jsonl",
            settings=Settings(statistics=("entropy", "first", "other")),
        )
        source = folder / "brief.jsonl"
        table = "rows"
    convert(source, folder / "a.csv", table, force=False)
    convert(source, folder / "a.parquet", table, force=False)
    with open(folder / "a.parquet", "rb") as file:
        opened = parquet.ParquetFile(file)
        assert opened.num_row_groups == 1, "short texts share a row group"
        stored = opened.read().to_pylist()
    assert len(stored) > 5
    for row, cells in zip(stored, read(folder / "a.csv"), strict=True):
        assert list(row) == list(cells)
        for name, value in row.items():
            if isinstance(value, float):
                assert np.float32(cells[name]) == np.float32(value)
            else:
                assert cells[name] == ("" if value is None else str(value))


@contextmanager
def full_disk(size):
    """Refuse to write more than so many bytes to a file."""
    resource = pytest.importorskip("resource", reason="this system has no limits on files")
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


@pytest.mark.parametrize(
    "name", ["out.jsonl", "out.jsonl.gz", "out.json", "out", "out.csv", "out.parquet"]
)
def test_a_full_disk_is_named_with_the_target_and_leaves_nothing(folder, name):
    if name.endswith(".parquet"):
        pytest.importorskip("pyarrow", reason="the extra parquet is not installed")
    before = sorted(folder.iterdir())
    with full_disk(100), pytest.raises(AttnscopeError) as caught:
        convert(folder / "dump.jsonl", folder / name, force=False)
    assert (
        str(caught.value)
        == f"{folder / name}: cannot be written (File too large); nothing was written"
    )
    assert sorted(folder.iterdir()) == before


def test_a_full_folder_for_temporary_files_is_named(folder, monkeypatch):
    """A dump in one document is written to lines first."""
    (folder / "tmp").mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(folder / "tmp"))
    order = DumpConfig(
        str(folder / "texts.txt"),
        None,
        folder / "x.json",
        Settings(),
        requested((), config="causal"),
    )
    with (
        full_disk(2000),
        pytest.raises(
            AttnscopeError, match=r"cannot be written \(.+\); set TMPDIR to a folder"
        ) as caught,
    ):
        write_document(order, lambda summary, total: None)
    assert str(caught.value).startswith(str(folder / "tmp"))
    assert not list((folder / "tmp").iterdir())
    assert not (folder / "x.json").exists()


@pytest.mark.parametrize("ending", [".json", ".jsonl"])
def test_a_record_that_is_missing_is_noticed(folder, ending):
    """A document counts its records, too: a program that leaves one out may write a checksum that is right."""
    convert(folder / "dump.jsonl", folder / "one.json", force=False)
    document = json.loads((folder / "one.json").read_bytes())
    del document["records"][2]
    del document["check"]
    content = json.dumps(document, separators=(",", ":")).encode()[:-1]
    (folder / "one.json").write_bytes(content + b',"check":"%08x"}\n' % zlib.crc32(content))
    with pytest.raises(
        AttnscopeError,
        match=r"one.json: has 3 records, but its end says 4; restore it from a backup",
    ):
        convert(folder / "one.json", folder / f"two{ending}", force=False)
    assert not (folder / f"two{ending}").exists()


def test_a_line_end_in_a_cell_is_quoted(tmp_path):
    """A carriage return, which ends a row for readers, too."""
    names, source = ["a\rb", "c\nd", "e\r\nf", "g\r"], tmp_path / "in.jsonl"
    source.write_text("".join(json.dumps({"id": name, "text": "bank"}) + "\n" for name in names))
    order = DumpConfig(
        str(source), None, tmp_path / "dump.jsonl", Settings(), requested((), config="causal")
    )
    write_dump(order, lambda summary, total: None)
    convert(order.output, tmp_path / "t.csv", force=False)
    with open(tmp_path / "t.csv", newline="") as file:
        rows = list(csv.DictReader(file))
    assert list(dict.fromkeys(row["id"] for row in rows)) == names


def test_a_cell_that_readers_of_csv_refuse_is_refused(tmp_path):
    """Python's reads up to 131,072 characters; a .parquet file takes more."""
    for length, fits in ((131_072, True), (131_073, False)):
        source = tmp_path / f"{length}.jsonl"
        source.write_text(json.dumps({"id": "x" * length, "text": "bank"}))
        order = DumpConfig(
            str(source),
            None,
            tmp_path / f"dump{length}.jsonl",
            Settings(),
            requested((), config="causal"),
        )
        write_dump(order, lambda summary, total: None)
        convert(order.output, tmp_path / f"{length}.parquet", force=False)
        if fits:
            convert(order.output, tmp_path / f"{length}.csv", force=False)
            assert {len(row["id"]) for row in read(tmp_path / f"{length}.csv")} == {length}
        else:
            with pytest.raises(
                AttnscopeError, match=r"the id of record 0 has 131,073 characters; a .csv cell"
            ):
                convert(order.output, tmp_path / f"{length}.csv", force=False)
            assert not (tmp_path / f"{length}.csv").exists()


def test_a_table_is_no_dump(folder, capsys):
    convert(folder / "dump.jsonl", folder / "a.csv", force=False)
    for name in ("b.jsonl", "b.csv", "b.parquet"):
        with pytest.raises(
            UsageError, match=r"a\.csv' is a table, which holds a part of a dump; pass the dump"
        ):
            convert(folder / "a.csv", folder / name, force=False)
    dump(folder, TEXTS, name="rows.jsonl", settings=Settings(keep=("rows",)))
    assert convert(folder / "rows.jsonl", folder / "b.csv", force=False)[1] == "rows", (
        "the first that there is"
    )
    with pytest.raises(
        AttnscopeError, match="no contributors; run batch with keep='top'; this dump has rows"
    ):
        convert(folder / "rows.jsonl", folder / "c.csv", "contributors", force=False)
    with pytest.raises(
        AttnscopeError, match="no matrices; run batch with stages='weights'; this dump has rows"
    ):
        convert(folder / "rows.jsonl", folder / "c.csv", "matrices", force=False)
    dump(folder, TEXTS, name="pooled.jsonl", settings=Settings(keep=("pooled",)))
    with pytest.raises(AttnscopeError, match="a dump of pooled cannot become a table"):
        convert(folder / "pooled.jsonl", folder / "c.csv", force=False)
    assert main(["convert", str(folder / "dump.jsonl"), "c.jsonl", "--table", "rows"]) == 2
    assert "--table rows: applies only to OUT.csv or .parquet" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (
            lambda data: data[: data.rindex(b"\n", 0, -1) + 1],
            "is not finished; to resume, run the command that started it again",
        ),
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
    with pytest.raises(AttnscopeError, match="exists; pass force=True"):
        convert(folder / "dump.jsonl", folder / "dump.csv", force=False)
    assert (folder / "dump.csv").read_text() == "precious"
    convert(folder / "dump.jsonl", folder / "dump.csv", force=True)
    assert (folder / "dump.csv").read_text().startswith("index,id,layer,head,")
    with pytest.raises(UsageError, match="has no known extension"):
        convert(folder / "dump.jsonl", folder / "dump.doc", force=False)
    with pytest.raises(AttnscopeError, match="no such file"):
        convert(folder / "missing.jsonl", folder / "a.csv", force=False)


@pytest.mark.parametrize("table", ["contributors", "rows", "matrices"])
def test_a_report_of_run_becomes_a_table(folder, table):
    """The same rows as those of a dump of the same texts, but for what a dump calls them."""
    texts = [text for text in TEXTS if text]
    given = tuple(TextInput(text) for text in texts)
    run = requested(
        given, config="causal", layer="all", head="all", stages=("masked",), top=2, by="value"
    )
    (folder / "report.json").write_bytes(to_json(inspect(run)))
    count, what = convert(folder / "report.json", folder / "report.csv", table, force=False)
    dump(folder, texts, name="same.jsonl", settings=SETTINGS, config="causal")
    assert convert(folder / "same.jsonl", folder / "same.csv", table, force=False) == (count, what)
    assert count > 0
    for one, other in zip(read(folder / "report.csv"), read(folder / "same.csv"), strict=True):
        assert list(one) == list(other)
        for name, cell in one.items():
            if name in ("weight", "value", *STATISTICS) and cell:
                assert float(cell) == pytest.approx(float(other[name]), rel=1e-6, abs=1e-6)
            elif name != "id":
                assert cell == other[name]


def test_sinks_and_sources_of_a_report_are_in_its_tables(folder):
    words = tokens(["a", "b", "c"])
    made = report(text_report(words, sink=1.5, heads=((2, 1), (2, 3))))
    (folder / "sink.json").write_bytes(to_json(made))
    convert(folder / "sink.json", folder / "sink.csv", "rows", force=False)
    given = [np.float32(row["sink"]) for row in read(folder / "sink.csv")]
    np.testing.assert_array_equal(
        given, np.concatenate([head.rows.sink for head in made.texts[0].heads])
    )
    long = overview(100, size=8)
    (folder / "long.json").write_bytes(to_json(long))
    convert(folder / "long.json", folder / "long.csv", "columns", force=False)
    mass = [np.float32(row["mass"]) for row in read(folder / "long.csv")]
    np.testing.assert_array_equal(mass, long.texts[0].heads[0].columns.astype(np.float32))


def test_a_report_of_a_measure_over_layers_is_no_table(folder):
    run = requested((TextInput("the bank"),), config="causal", measure="rollout-no-residual")
    (folder / "report.json").write_bytes(to_json(measure_rollout(run, Session(run.texts))))
    with pytest.raises(
        AttnscopeError,
        match="the report holds rollout-no-residual, not the weights of heads; save a",
    ):
        convert(folder / "report.json", folder / "a.csv", force=False)
    assert not (folder / "a.csv").exists()


def test_a_report_is_no_dump(folder):
    run = requested((TextInput("bank"),), config="causal", layer="0", head="0", by="projected")
    data = to_json(inspect(run))
    (folder / "report.json").write_bytes(data)
    with pytest.raises(UsageError, match="a report is not a dump"):
        convert(folder / "report.json", folder / "b.jsonl", force=False)
    convert(folder / "report.json", folder / "b.csv", force=False)
    assert "weight,value,projected\n" in (folder / "b.csv").read_text()
    (folder / "old.json").write_bytes(data.replace(b"attnscope.report/2", b"attnscope.report/0"))
    with pytest.raises(AttnscopeError, match=r"old.json: schema is 'attnscope.report/0'"):
        convert(folder / "old.json", folder / "c.csv", force=False)
    (folder / "odd.json").write_text("[1")
    with pytest.raises(AttnscopeError, match=r"odd.json: is not a dump"):
        convert(folder / "odd.json", folder / "c.csv", force=False)
