"""Findings as a table: their columns, and the files of these."""

import csv
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Protocol

import numpy as np

from attnscope.base.errors import PARQUET
from attnscope.base.system.csv_lines import CsvLines

Table = dict[str, np.ndarray[Any, np.dtype[Any]] | list[Any]]


class Tabular(Protocol):
    """Findings that are also a table."""

    def table(self) -> Table:
        """Return its columns by name."""


def columns_of(rows: Sequence[Mapping[str, Any]]) -> Table:
    """Return the columns of rows that have the same names."""
    if rows:
        return {name: [row[name] for row in rows] for name in rows[0]}
    return {}


def head_columns(n_layers: int, n_heads: int) -> Table:
    """Return the layer and the head of every row of a table of heads."""
    layers, heads = np.indices((n_layers, n_heads))
    return {"layer": layers.ravel(), "head": heads.ravel()}


def csv_parts(findings: Tabular) -> Iterator[bytes]:
    """Yield a CSV file: numbers in shortest exact digits, an empty cell for null."""
    table = findings.table()
    buffer = CsvLines()
    writer = csv.writer(buffer)
    writer.writerow(table)

    def cell(value: Any) -> str:
        if value is None or (isinstance(value, np.floating) and np.isnan(value)):
            return ""
        return str(value)

    writer.writerows(map(cell, row) for row in zip(*table.values(), strict=True))
    yield buffer.getvalue().encode()


def parquet_parts(findings: Tabular) -> Iterator[bytes]:
    """Yield a Parquet file, with null for missing values."""
    PARQUET.require(".parquet")
    import pyarrow
    from pyarrow import parquet

    arrays = {
        name: pyarrow.array(column, from_pandas=True) for name, column in findings.table().items()
    }
    sink = pyarrow.BufferOutputStream()
    parquet.write_table(pyarrow.table(arrays), sink, compression="zstd")
    yield sink.getvalue().to_pybytes()
