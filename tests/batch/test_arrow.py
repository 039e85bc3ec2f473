"""Arrow files, and folders that `datasets` saved, as inputs: the texts of the same table as .jsonl."""

import json
import struct
import sys

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyarrow import feather, ipc

from attnscope.base.errors import AttnscopeError, UsageError
from attnscope.batch import arrow_input
from attnscope.batch.items import from_row, size_of
from attnscope.batch.reader import InputReader
from attnscope.cli import main

ROWS = [
    {"body": "the bank by the river", "id": 7, "stars": 4.5},
    {"body": "", "id": 8, "stars": None},
    {"body": "a bank that lends money", "id": 9, "stars": 1.0},
    {"body": None, "id": 10, "stars": 2.0},
]


def write_stream(path, rows):
    table = pa.Table.from_pylist(
        rows, schema=pa.schema([("body", pa.string()), ("id", "int64"), ("stars", "float64")])
    )
    with ipc.new_stream(path, table.schema) as out:
        out.write_table(table, max_chunksize=2)
    return table


def save(folder, names=("data-00000-of-00002.arrow", "data-00001-of-00002.arrow"), **more):
    """Write what `Dataset.save_to_disk` writes."""
    folder.mkdir()
    write_stream(folder / "data-00000-of-00002.arrow", ROWS[:3])
    write_stream(folder / "data-00001-of-00002.arrow", ROWS[3:])
    (folder / "state.json").write_text(
        json.dumps({"_data_files": [{"filename": n} for n in names], **more})
    )
    return folder


def read(path, column="body"):
    with InputReader(str(path), None, column) as given:
        facts = given.facts()
        return [
            (i.index, i.id, i.hash, i.text and i.text.text, i.fields, i.error)
            for i in given.items()
        ], facts


@pytest.fixture
def expected(tmp_path):
    """The table as .jsonl, which copies other members as they are written."""
    (tmp_path / "t.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in ROWS))
    return [
        (index, id, hash, text, {name: json.loads(bytes(raw)) for name, raw in fields.items()})
        for index, id, hash, text, fields, error in read(tmp_path / "t.jsonl")[0]
        if error is None
    ]


@pytest.mark.parametrize("kind", ["stream", "file", "feather", "folder"])
def test_a_table_has_the_texts_of_its_jsonl(tmp_path, kind, expected):
    path = (
        tmp_path
        / {"stream": "t.arrow", "file": "u.arrow", "feather": "t.feather", "folder": "t"}[kind]
    )
    if kind == "folder":
        save(path)
    else:
        table = write_stream(tmp_path / "t.arrow", ROWS)
    if kind == "file":
        with ipc.new_file(path, table.schema) as out:
            out.write_table(table, max_chunksize=3)
    elif kind == "feather":
        feather.write_feather(table, path, compression="zstd")
    found, facts = read(path)
    assert [row[:5] for row in found if row[5] is None] == expected
    assert len(expected) == 3
    assert found[3][:2] == (3, 10) and found[3][5] == "body: no text"
    assert (facts.format, facts.records) == ("arrow", 4)


def test_datasets_saves_such_folders(tmp_path, expected):
    datasets = pytest.importorskip("datasets", reason="datasets is not installed")
    datasets.disable_progress_bars()
    made = datasets.Dataset.from_list(ROWS)
    made.save_to_disk(tmp_path / "d", num_shards=2)
    assert [row[:5] for row in read(tmp_path / "d")[0] if row[5] is None] == expected
    made.select([2, 0]).save_to_disk(tmp_path / "e")
    assert [row[3] for row in read(tmp_path / "e")[0]] == [ROWS[2]["body"], ROWS[0]["body"]]
    datasets.DatasetDict(train=made, test=made).save_to_disk(tmp_path / "f")
    with pytest.raises(AttnscopeError, match=r"holds several splits \(test, train\).*") as error:
        read(tmp_path / "f")
    assert error.value.parts.hint == f"pass one of them, such as {tmp_path / 'f' / 'test'}"


@pytest.mark.parametrize("ending", ["arrow", "parquet"])
def test_a_folder_of_files_is_one_table(tmp_path, ending, expected):
    for name, rows in (("b", ROWS[3:]), ("a", ROWS[:3])):
        table = write_stream(tmp_path / f"{name}.arrow", rows)
        if ending == "parquet":
            pq.write_table(table, tmp_path / f"{name}.parquet")
            (tmp_path / f"{name}.arrow").unlink()
    (tmp_path / "t.jsonl").rename(tmp_path / "_SUCCESS")
    found, facts = read(tmp_path)
    assert [row[:5] for row in found if row[5] is None] == expected
    assert (facts.format, facts.records) == (ending, 4)
    (tmp_path / "other.arrow").write_bytes(b"")
    (tmp_path / "other.parquet").write_bytes(b"")
    with pytest.raises(AttnscopeError, match=r"is a folder with \.arrow and \.parquet files"):
        read(tmp_path)


@pytest.mark.parametrize("kind", ["struct", "list", "dictionary"])
def test_a_column_of_texts_holds_texts(tmp_path, kind):
    texts = pa.array([row["body"] for row in ROWS])
    columns = {"struct": pa.StructArray.from_arrays([texts], ["s"]), "list": pa.array([["a"]] * 4)}
    column = columns[kind] if kind in columns else texts.dictionary_encode()
    pq.write_table(pa.table({"body": column, "other": texts}), tmp_path / "t.parquet")
    if kind == "dictionary":
        assert [row[3] for row in read(tmp_path / "t.parquet")[0]] == texts.to_pylist()
        return
    with pytest.raises(
        UsageError,
        match=rf"the column 'body' of .*t\.parquet holds {kind}<.*>, not text; .*: other$",
    ):
        read(tmp_path / "t.parquet")


TEXTS = pa.array(["a", "héé", None, "", "😀x"])
PLAIN = {
    "others": {"n": [1, None, 2, 3, 4], "f": pa.array([0.5] * 5, "float32"), "b": [True] * 5},
    "dictionary": {"body": TEXTS.dictionary_encode()},
    "view": {"body": TEXTS.cast(pa.string_view())},
    "names": {"id": ["a", None, "", "d", "😀"]},
    "dictionary of names": {"id": pa.array(["a", None, "", "d", "e"]).dictionary_encode()},
    "numbers": {"id": pa.array([5, None, 7, 8, 2**63 + 5], "uint64")},
    "none": {"id": pa.nulls(5), "context": pa.nulls(5)},
    "pairs": {"pair": ["a", None, "é", "", "x"], "context": ["", "b", "c", None, "d"]},
}
UNUSUAL = {
    "float": {"id": [5.0, None, 7.0, 8.0, 2.0]},
    "bool": {"id": [True, None, None, None, None]},
    "pairs that are no texts": {"pair": [1, None, 2, 3, 4], "id": [1, 2, 3, 4, 5]},
    "lists": {"l": [[1]] * 5, "s": [{"a": "x"}] * 5},
}


@pytest.mark.parametrize("ending", ["arrow", "parquet"])
@pytest.mark.parametrize("kind", PLAIN | UNUSUAL)
def test_rows_are_measured_as_they_are_read_without_making_records_of_plain_columns(
    tmp_path, kind, ending, monkeypatch
):
    table = pa.table({"body": TEXTS} | (PLAIN | UNUSUAL)[kind])
    path = tmp_path / f"t.{ending}"
    if ending == "parquet":
        pq.write_table(table, path)
    else:
        with ipc.new_file(path, table.schema) as out:
            out.write_table(table, max_chunksize=3)
    made = []

    def counted(*given):
        made.append(given)
        return from_row(*given)

    monkeypatch.setattr(arrow_input, "from_row", counted)
    with InputReader(str(path), None, "body") as reader:
        found = list(arrow_input.row_sizes(ending, reader._files, "t", "body"))
        assert len(made) == (5 if kind in UNUSUAL else 0)
        assert found == [size_of(item) for item in reader.items()]


@pytest.mark.parametrize("column", ["body", "other"])
def test_text_that_is_not_utf8_is_refused_before_anything_is_computed(tmp_path, column):
    wrong = pa.array([b"a", b"\xff"]).view(pa.string())
    table = pa.table(
        {"body": pa.array(["a", "b"]), "other": pa.array(["a", "b"])} | {column: wrong}
    )
    pq.write_table(table, tmp_path / "t.parquet")
    with (
        InputReader(str(tmp_path / "t.parquet"), None, "body") as reader,
        pytest.raises(AttnscopeError, match=r"a value cannot be read \('utf-8' codec"),
    ):
        reader.facts()


def test_every_byte_of_a_folder_counts(tmp_path):
    first, second = (save(tmp_path / name) for name in "ab")
    assert read(first)[1].sha256 == read(second)[1].sha256
    write_stream(second / "data-00001-of-00002.arrow", [{**ROWS[3], "stars": 2.5}])
    assert read(first)[1].sha256 != read(second)[1].sha256


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            lambda path: [child.unlink() for child in path.iterdir()],
            "is a folder without .arrow or .parquet files",
        ),
        (lambda path: (path / "state.json").write_text("{}"), "cannot be read"),
        (lambda path: (path / "data-00001-of-00002.arrow").unlink(), "no such file"),
        (
            lambda path: (path / "data-00001-of-00002.arrow").write_bytes(b"text"),
            "damaged .arrow file",
        ),
        (
            lambda path: (path / "data-00001-of-00002.arrow").write_bytes(b"FEA1 old"),
            "first version of Feather",
        ),
    ],
)
def test_damaged_arrow_and_parquet_files_are_refused(tmp_path, change, message):
    folder = save(tmp_path / "d")
    change(folder)
    with pytest.raises(AttnscopeError, match=message):
        read(folder)


@pytest.mark.parametrize("offset", [-5, 22, 1 << 30])
def test_an_offset_that_is_damaged_reads_no_other_memory(tmp_path, offset):
    path = tmp_path / "t.arrow"
    write_stream(path, ROWS)
    data, good = path.read_bytes(), struct.pack("<3i", 0, 21, 21)  # of the texts of the first part
    assert data.count(good) == 1
    path.write_bytes(data.replace(good, struct.pack("<3i", 0, offset, 21)))
    with pytest.raises(AttnscopeError, match=r"damaged \.arrow file"):
        read(path)


@pytest.mark.parametrize(
    ("more", "message"),
    [
        ({"_indices_data_files": [{"filename": "indices.arrow"}]}, "holds a selection of the rows"),
        ({"names": ["../t.arrow"]}, "names a file that is not in the folder"),
    ],
)
def test_an_unreadable_arrow_folder_is_refused_with_the_reason(tmp_path, more, message):
    with pytest.raises(AttnscopeError, match=message):
        read(save(tmp_path / "d", **more))


def test_other_columns_and_formats(tmp_path, monkeypatch):
    folder = save(tmp_path / "d")
    with pytest.raises(UsageError, match="has no column 'text'"):
        read(folder, "text")
    with pytest.raises(UsageError, match=r"the folder holds \.arrow files"):
        InputReader(str(folder), "txt", "text")
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with pytest.raises(AttnscopeError, match=r"reading \.arrow needs pyarrow"):
        read(folder)


def test_the_command_reads_and_verifies_a_folder(tmp_path, monkeypatch, capsys):
    save(tmp_path / "d")
    monkeypatch.chdir(tmp_path)
    options = ["--column", "body", "--layer", "0", "--head", "0", "--quiet"]
    assert main(["batch", "d", "-o", "dump.jsonl", *options]) == 3
    assert main(["verify", "dump.jsonl"]) == 0
    assert "and the texts are those of d" in capsys.readouterr().err
