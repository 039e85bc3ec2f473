"""The one-liners of docs/dumps.md over a dump, run as they stand there, each with the tool that it is for."""

import contextlib
import importlib.util
import io
import json
import re
import shutil
import subprocess
import sys
import textwrap
from pathlib import Path

import numpy as np
import pytest

from attnscope.batch.convert import convert
from attnscope.batch.header import Settings
from tests.batch.test_dump import dump, found
from tests.helpers.row_statistics import entropy

PAGE = (Path(__file__).parents[2] / "docs" / "dumps.md").read_text()
SECTION = PAGE.partition("\n## Scripting\n")[2].partition("\n## ")[0]
SNIPPETS = [
    textwrap.dedent(code) for _, code in re.findall(r"```(\w+)\n(.*?)```", SECTION, re.DOTALL)
]
TEXTS = ("The bank by the river", "", "bank money")


def snippet(tool, about=""):
    """The one that is for a tool, by the name in its first line, and that speaks of something."""
    (one,) = (code for code in SNIPPETS if tool in code.splitlines()[0] and about in code)
    return one


# rows of different length, so that repeated ones would show in a mean
CAUSAL = {"model": None, "mask": "causal"}


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    dump(tmp_path, TEXTS, **CAUSAL)
    dump(
        tmp_path,
        TEXTS,
        name="matrices",
        settings=Settings(keep=("stages",), stages=("weights",)),
        **CAUSAL,
    )
    convert(tmp_path / "dump.jsonl", tmp_path / "rows.csv", "rows", force=False)
    return tmp_path


@pytest.fixture
def tables(folder):
    pytest.importorskip("pyarrow", reason="the extra parquet is not installed")
    convert(folder / "dump.jsonl", folder / "contributors.parquet", force=False)
    convert(folder / "dump.jsonl", folder / "rows.parquet", "rows", force=False)
    convert(folder / "matrices", folder / "cells.parquet", "matrices", force=False)
    return folder


def weights(folder):
    """Layer and head to the weights of every text, float64."""
    records = [record for record in found(folder, "matrices") if record.status == "ok"]
    units = enumerate(records[0].units)
    return {
        unit: [record.stages["weights"][n].astype(float) for record in records] for n, unit in units
    }


def means(folder, of_matrix):
    """Layer and head to the mean over every query of every text."""
    return {
        unit: np.concatenate([of_matrix(w) for w in all_]).mean()
        for unit, all_ in weights(folder).items()
    }


def printed(code):
    """What a piece of Python prints."""
    with contextlib.redirect_stdout(io.StringIO()) as out:
        exec(code, {})
    return out.getvalue()


def test_scripting_page_has_a_snippet_for_every_tool():
    assert len(SNIPPETS) == 6
    for tool in ("jq", "pandas", "polars", "NumPy"):
        assert snippet(tool)
    assert snippet("DuckDB", "weight DESC")
    assert snippet("DuckDB", "cells.parquet")


@pytest.mark.skipif(shutil.which("jq") is None, reason="jq is not installed")
def test_jq(folder):
    ran = subprocess.run(["sh", "-c", snippet("jq")], capture_output=True, text=True, check=True)
    first = found(folder)[0]
    links = [
        f"{token.text} ← {first.tokens[first.top.keys[0, i, 0]].text}"
        for i, token in enumerate(first.tokens)
    ]
    assert ran.stdout.splitlines()[: len(links)] == links


def test_pandas(folder):
    pandas = pytest.importorskip("pandas", reason="pandas is not installed")
    with pandas.option_context("display.multi_sparse", False):
        out = printed(snippet("pandas"))
    selves = means(folder, np.diag)
    least = sorted(selves, key=selves.get)[:3]
    for (layer, head), line in zip(least, out.splitlines()[1:4], strict=True):
        (cell,) = re.findall(rf"^{layer} +{head} +(\S+)$", line)
        assert float(cell) == pytest.approx(selves[layer, head], abs=2e-6)


def test_polars(tables):
    polars = pytest.importorskip("polars", reason="polars is not installed")
    with polars.Config(tbl_rows=-1):
        out = printed(snippet("polars"))
    of_layer_3 = {
        head: mean for (layer, head), mean in means(tables, entropy).items() if layer == 3
    }
    cells = {int(head): float(mean) for head, mean in re.findall(r"│ (\d+) +┆ (\S+) +│", out)}
    assert cells == pytest.approx(of_layer_3, abs=2e-6)


def test_layers_and_heads_are_numbers_everywhere(tables):
    """And one row a query: the mean over `layer == 3` is the mean over the queries of layer 3."""
    pandas = pytest.importorskip("pandas", reason="pandas is not installed")
    polars = pytest.importorskip("polars", reason="polars is not installed")
    expected = np.mean([mean for (layer, _), mean in means(tables, np.diag).items() if layer == 3])
    for frame in (pandas.read_csv("rows.csv"), pandas.read_parquet("rows.parquet")):
        assert frame[frame.layer == 3]["self"].mean() == pytest.approx(expected, abs=1e-6)
        assert frame["layer"].dtype == frame["head"].dtype == "int64"
        assert len(frame) == sum(
            len(matrix) for all_ in weights(tables).values() for matrix in all_
        )
    for frame in (polars.read_csv("rows.csv"), polars.read_parquet("rows.parquet")):
        assert frame.filter(polars.col("layer") == 3)["self"].mean() == pytest.approx(
            expected, abs=1e-6
        )
    for file in ("rows.csv", "rows.parquet"):
        ((mean,),) = asked(f"SELECT avg(self) FROM '{file}' WHERE layer = 3")
        assert mean == pytest.approx(expected, abs=1e-6)


ASK = "import duckdb, json, sys; print(json.dumps(duckdb.sql(sys.stdin.read()).fetchall()))"


def asked(query):
    """What DuckDB answers, in a process of its own: what it leaves behind at its end it reports on standard error."""
    if importlib.util.find_spec("duckdb") is None:
        pytest.skip("duckdb is not installed")
    ran = subprocess.run(
        [sys.executable, "-c", ASK], input=query, capture_output=True, text=True, check=True
    )
    return json.loads(ran.stdout)


def test_duckdb(tables):
    rows = asked(snippet("DuckDB", "weight DESC"))
    assert len(rows) == 10
    best = max(
        (r.top.weight[u, q, k], r.tokens[q].text, r.tokens[r.top.keys[u, q, k]].text)
        for r in found(tables)
        if r.status == "ok"
        for u, q, k in np.ndindex(r.top.keys.shape)
        if r.top.keys[u, q, k] not in (q, -1)
    )
    assert (np.float32(rows[0][3]), rows[0][1], rows[0][2]) == best


def test_duckdb_over_matrices(folder):
    pytest.importorskip("pyarrow", reason="the extra parquet is not installed")
    dump(
        folder,
        TEXTS,
        name="both",
        settings=Settings(keep=("stages",), stages=("weights",)),
        model=None,
    )
    (folder / "matrices").rename(folder / "causal")
    (folder / "both").rename(folder / "matrices")
    convert(folder / "matrices", folder / "cells.parquet", "matrices", force=False)
    later = {unit: sum(np.triu(w, 1).sum() for w in all_) for unit, all_ in weights(folder).items()}
    rows = asked(snippet("DuckDB", "cells.parquet"))
    assert [(layer, head) for layer, head, _ in rows] == sorted(later)
    assert [value for _, _, value in rows] == pytest.approx(
        [later[unit] for unit in sorted(later)], abs=1e-5
    )


def test_numpy(folder):
    assert printed(snippet("NumPy")).strip() == str(
        found(folder, "matrices")[0].stages["weights"].shape
    )
