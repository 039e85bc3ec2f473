"""Groups of rows of a .parquet file: encoded apart, by any number of threads, and joined to one file."""

from concurrent.futures import ThreadPoolExecutor
from io import BytesIO

import numpy as np
import pytest

pytest.importorskip("pyarrow", reason="the extra parquet is not installed")

import duckdb
import polars as pl
from pyarrow import parquet

from attnscope.batch import parquet_sink, tables
from attnscope.batch.header import Settings
from attnscope.batch.records import Record
from attnscope.findings.axes import gathered
from attnscope.findings.tokens import Token

RNG = np.random.default_rng(0)
STAGES = ("weights", "masked")
SETTINGS = Settings(
    top=2, statistics=("entropy",), stages=STAGES, keep=("top", "rows", "columns", "stages")
)
KINDS = ("contributors", "rows", "columns", "matrices")
HEADS = 6


def record(index, tokens, *, mean=False):
    """A text whose words repeat; its first rows have fewer sources than ranks."""
    shape = (HEADS, tokens)
    keys = RNG.integers(0, tokens, (*shape, 2), dtype=np.int32)
    keys[:, 0, 1] = -1
    arrays = {
        "top.keys": keys,
        "top.weight": RNG.random(keys.shape, dtype=np.float32),
        "rows.entropy": RNG.random(shape, dtype=np.float32),
        "columns": RNG.random(shape, dtype=np.float32),
        **{f"stages.{stage}": RNG.random((*shape, tokens), dtype=np.float32) for stage in STAGES},
    }
    return Record(
        index,
        f"text {index}",
        index + 1,
        "0" * 16,
        "ok",
        tokens=[Token(n, "", "ab"[n % 2]) for n in range(tokens)],
        queries=list(range(tokens)),
        keys=list(range(tokens)),
        units=[(unit // 3, "mean" if mean else unit % 3) for unit in range(HEADS)],
        **gathered(Record, arrays),
    )


@pytest.mark.parametrize("kind", KINDS)
def test_groups_are_joined_to_one_file(kind, monkeypatch):
    """The rows are those of one group, in order, for every reader, whoever encodes the groups."""
    records = [record(index, tokens) for index, tokens in enumerate((3, 40, 2, 1, 200, 5))]
    whole = parquet_sink._table(kind, SETTINGS, records)
    monkeypatch.setattr(parquet_sink, "_ROWS", 40)
    joined = parquet_sink._table(kind, SETTINGS, records)
    with ThreadPoolExecutor(3) as threads:
        assert parquet_sink._table(kind, SETTINGS, records, threads.map) == joined
    expected = parquet.read_table(BytesIO(whole))
    file = parquet.ParquetFile(BytesIO(joined))
    assert file.read().equals(expected)
    rows = [file.metadata.row_group(n).num_rows for n in range(file.num_row_groups)]
    assert max(rows) <= 200 * (200 if kind == "matrices" else 2)  # no head is cut
    assert len(rows) >= 15  # a list of Thrift has another form from 15 entries on
    assert parquet.ParquetFile(BytesIO(whole)).num_row_groups == 1
    index = [file.metadata.row_group(n).column(0).statistics for n in range(len(rows))]
    assert [index[0].min, index[-1].max] == [0, 5]
    assert pl.read_parquet(BytesIO(joined)).to_arrow().to_pylist() == expected.to_pylist()
    assert pl.read_parquet(BytesIO(joined)).schema["id"] == pl.String


@pytest.mark.parametrize("kind", KINDS)
def test_joined_groups_are_found_in_a_file(kind, monkeypatch, tmp_path):
    monkeypatch.setattr(parquet_sink, "_ROWS", 400)
    path = tmp_path / "a.parquet"
    records = [record(n, 30) for n in range(3)]
    path.write_bytes(parquet_sink._table(kind, SETTINGS, records))
    found = duckdb.sql(f"SELECT count(*) FROM '{path}' WHERE index = 2").fetchall()[0][0]
    (*_, last) = tables.rows_of(kind, records)
    per_text = sum(len(part["index"]) for part in tables.rows_of(kind, records[2:]))
    assert found == per_text >= len(last["index"])


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("mean", [False, True])
def test_no_cell_is_an_object(kind, mean):
    """Columns are arrays of numbers, or words by their numbers, which Arrow takes as they are; a mean has no number."""
    text = record(0, 9, mean=mean)
    schema = tables.arrow_schema(tables.columns(kind, SETTINGS))
    for part in tables.tables(kind, text):
        in_arrow = tables.arrow_table(part, schema)
        for name in schema.names:
            if (kind, name) == ("matrices", "dimension"):
                continue  # none of these stages has it
            if mean and name == "head":
                assert set(part[name]) == {None}
                continue
            assert isinstance(part[name], np.ndarray | tables.Words)
            if name in tables.WORDS:
                (chunk,) = in_arrow[name].chunks
                assert len(chunk.dictionary) <= 2
        assert in_arrow["head"].null_count == (len(in_arrow) if mean else 0)


def test_numbers_that_repeat_are_stored_once():
    data = parquet_sink._table("contributors", SETTINGS, [record(0, 300)])
    group = parquet.ParquetFile(BytesIO(data)).metadata.row_group(0)
    sizes = {
        group.column(n).path_in_schema: group.column(n).total_compressed_size
        for n in range(group.num_columns)
    }
    assert group.num_rows > 3000
    for name in ("index", "id", "layer", "head", "query_token", "rank"):
        assert sizes[name] < 300
