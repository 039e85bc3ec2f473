"""The README's one-liners over a dump, run as they stand there, each with the tool that it is for."""

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

README = (Path(__file__).parents[2] / "README.md").read_text()
SECTION = README.partition("\n## Scripting\n")[2].partition("\n## ")[0]
SNIPPETS = [textwrap.dedent(code) for _, code in re.findall(r"```(\w+)\n(.*?)```", SECTION, re.DOTALL)]
TEXTS = ("The bank by the river", "", "bank money")


def snippet(tool):
    """The one that is for a tool, by the name in its first line."""
    (one,) = (code for code in SNIPPETS if tool in code.splitlines()[0])
    return one


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    dump(tmp_path, TEXTS)
    dump(tmp_path, TEXTS, name="matrices", settings=Settings(keep=("stages",), stages=("weights",)))
    convert(tmp_path / "dump.jsonl", tmp_path / "dump.csv", force=False)
    return tmp_path


@pytest.fixture
def table(folder):
    pytest.importorskip("pyarrow", reason="the extra parquet is not installed")
    convert(folder / "dump.jsonl", folder / "dump.parquet", force=False)
    return folder


def printed(code):
    """What a piece of Python prints."""
    with contextlib.redirect_stdout(io.StringIO()) as out:
        exec(code, {})
    return out.getvalue()


def test_there_is_one_for_every_tool():
    assert len(SNIPPETS) == 5
    for tool in ("jq", "pandas", "polars", "DuckDB", "NumPy"):
        assert snippet(tool)


@pytest.mark.skipif(shutil.which("jq") is None, reason="jq is not installed")
def test_jq(folder):
    ran = subprocess.run(["sh", "-c", snippet("jq")], capture_output=True, text=True, check=True)
    first = found(folder)[0]
    links = [f"{token.text} ← {first.tokens[first.top.keys[0, i, 0]].text}" for i, token in enumerate(first.tokens)]
    assert ran.stdout.splitlines()[: len(links)] == links


def test_pandas(folder):
    pytest.importorskip("pandas", reason="pandas is not installed")
    records = [record for record in found(folder) if record.status == "ok"]
    out = printed(snippet("pandas"))
    ranks = [(r.top.keys >= 0).sum(2) for r in records]
    total = sum((np.nan_to_num(r.rows.self) * n).sum(1) for r, n in zip(records, ranks, strict=True))
    means = total / sum(n.sum(1) for n in ranks)
    layer, head = records[0].units[int(means.argmin())]
    assert re.search(rf"^{layer} +{head} +{means.min():.5f}", out, re.MULTILINE), out


def test_polars(table):
    polars = pytest.importorskip("polars", reason="polars is not installed")
    with polars.Config(tbl_rows=-1):
        out = printed(snippet("polars"))
    records = [record for record in found(table) if record.status == "ok"]
    ranks = [(r.top.keys >= 0).sum(2) for r in records]
    total = sum((r.rows.entropy * n).sum(1) for r, n in zip(records, ranks, strict=True))
    for (layer, head), mean in zip(records[0].units, total / sum(n.sum(1) for n in ranks), strict=True):
        (cell,) = re.findall(rf"│ {layer} +┆ {head} +┆ (\S+) +│", out)
        assert float(cell) == pytest.approx(mean, abs=1e-6)


ASK = "import duckdb, json, sys; print(json.dumps(duckdb.sql(sys.stdin.read()).fetchall()))"


@pytest.mark.skipif(importlib.util.find_spec("duckdb") is None, reason="duckdb is not installed")
def test_duckdb(table):
    ran = subprocess.run(
        [sys.executable, "-c", ASK], input=snippet("DuckDB"), capture_output=True, text=True, check=True
    )  # a process of its own: what it leaves behind at its end it reports on standard error
    rows = json.loads(ran.stdout)
    assert len(rows) == 10
    best = max(
        (r.top.weight[u, q, k], r.tokens[q].text, r.tokens[r.top.keys[u, q, k]].text)
        for r in found(table)
        if r.status == "ok"
        for u, q, k in np.ndindex(r.top.keys.shape)
        if r.top.keys[u, q, k] not in (q, -1)
    )
    assert (np.float32(rows[0][3]), rows[0][1], rows[0][2]) == best


def test_numpy(folder):
    assert printed(snippet("NumPy")).strip() == str(found(folder, "matrices")[0].stages["weights"].shape)
