"""Folders of .parquet tables: the rows that `convert` writes, one table for every reader, resumable after any kill."""

import random
import shutil

import duckdb
import pandas as pd
import polars as pl
import pyarrow.parquet as pq
import pytest
from pyarrow import dataset

from attnscope.cli import main
from tests.helpers.faulty_files import Faulty
from tests.scale.test_merge import SHORT_BLOCKS, flipped, lines


@pytest.fixture(scope="module")
def ready(tmp_path_factory):
    folder = tmp_path_factory.mktemp("tables")
    (folder / "texts.txt").write_text("".join(f"{line}\n" for line in lines(120)))
    return folder


@pytest.fixture
def folder(ready, tmp_path, monkeypatch):
    shutil.copytree(ready, tmp_path, dirs_exist_ok=True)
    monkeypatch.setattr(*SHORT_BLOCKS)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def files(folder):
    return {
        str(path.relative_to(folder)): path.read_bytes()
        for path in folder.rglob("*")
        if path.is_file()
    }


def write(name, *options):
    return main(
        ["batch", "texts.txt", "-o", name, "--layer", "0,2", "--head", "1", "--quiet", *options]
    )


def converted(folder, table, *options):
    """The same table by way of a dump."""
    assert write("dump.jsonl", *options) == 0
    assert (
        main(["convert", "dump.jsonl", f"{table}.parquet", "--table", table, "--quiet", "--force"])
        == 0
    )
    return pd.read_parquet(folder / f"{table}.parquet")


def test_a_folder_is_one_table_for_every_reader(folder):
    assert write("d.parquet/", "--keep", "top,rows") == 0
    expected = converted(folder, "contributors", "--keep", "top,rows")
    parts = sorted((folder / "d.parquet").glob("[0-9]*.parquet"))
    assert len(parts) > 3
    assert {path.name for path in (folder / "d.parquet").iterdir()} - {
        path.name for path in parts
    } == {"_SUCCESS.parquet"}
    pd.testing.assert_frame_equal(pd.read_parquet("d.parquet"), expected)
    assert (
        pl.read_parquet("d.parquet")
        .sort("index", "layer", "head", "query", "rank")
        .to_pandas()
        .equals(
            expected.sort_values(["index", "layer", "head", "query", "rank"], ignore_index=True)
        )
    )
    count = duckdb.sql("SELECT count(*), sum(weight) FROM 'd.parquet/*.parquet'").fetchall()[0]
    assert count == (len(expected), pytest.approx(expected["weight"].astype(float).sum()))
    assert dataset.dataset("d.parquet").count_rows() == len(expected)
    column = pq.ParquetFile(parts[-1]).metadata.row_group(0).column(5)
    assert (column.path_in_schema, column.compression, column.is_stats_set) == (
        "query_token",
        "ZSTD",
        True,
    )
    assert "RLE_DICTIONARY" in column.encodings


def test_datasets_opens_a_folder(folder):
    """It takes every file in it for a part, `_SUCCESS.parquet`, too."""
    datasets = pytest.importorskip("datasets", reason="datasets is not installed")
    datasets.disable_progress_bars()
    assert write("d.parquet/") == 0
    made = datasets.load_dataset("d.parquet", split="train", cache_dir=str(folder / "cache"))
    pd.testing.assert_frame_equal(made.to_pandas(), pd.read_parquet("d.parquet"), check_dtype=False)


def test_several_tables_are_subfolders(folder):
    names = ("contributors", "rows", "columns", "effects", "matrices")
    keep = ["--keep", "top,rows,columns,effects", "--stage", "weights", "--limit", "12"]
    assert write("d.parquet/", *keep, "--table", ",".join(names)) == 0
    assert {path.name for path in (folder / "d.parquet").iterdir()} == {*names, "_SUCCESS.parquet"}
    assert write("dump.jsonl", *keep) == 0
    for name in names:
        assert main(["convert", "dump.jsonl", f"{name}.parquet", "--table", name, "--quiet"]) == 0
        found = pd.read_parquet(folder / "d.parquet" / name)
        pd.testing.assert_frame_equal(found, pd.read_parquet(f"{name}.parquet"))


def test_any_number_of_workers_writes_the_same_files(folder):
    options = ["--table", "contributors,rows", "--threads", "1"]
    (folder / "a").mkdir()
    (folder / "b").mkdir()
    assert write("a/d.parquet/", *options) == 0
    assert write("b/d.parquet/", *options, "--workers", "3") == 0
    assert files(folder / "a") == files(folder / "b")


def test_a_killed_run_is_resumed_to_the_same_files(folder, monkeypatch):
    """After a crash at any step of the file system."""
    from attnscope.batch import dump as batch_dump

    (folder / "one").mkdir()
    options = ["--table", "contributors,rows", "--threads", "1"]
    assert write("one/d.parquet/", *options) == 0
    expected = files(folder / "one")
    luck, crashes = random.Random(4), 0
    original = batch_dump.FileSystem
    for _ in range(2):
        target = folder / "two"
        shutil.rmtree(target, ignore_errors=True)
        target.mkdir()
        for _ in range(5):
            system = Faulty(luck.randrange(8, 70), "crash")
            monkeypatch.setattr(batch_dump, "FileSystem", lambda system=system: system)
            code = write("two/d.parquet/", *options)
            monkeypatch.setattr(batch_dump, "FileSystem", original)
            if code == 0:
                break
            assert system.dead
            crashes += 1
        assert write("two/d.parquet/", *options) == 0
        assert files(target) == expected
    assert crashes > 1


def test_starting_over_keeps_the_old_tables_until_new_ones_are_safe(folder, capsys):
    assert write("d.parquet/") == 0
    old = files(folder / "d.parquet")
    assert write("d.parquet/", "--top", "5") == 1
    assert "was started with --top 3, now it is --top 5" in capsys.readouterr().err
    assert files(folder / "d.parquet") == old
    assert write("d.parquet/", "--top", "5", "--force") == 0
    (folder / "two").mkdir()
    assert write("two/d.parquet/", "--top", "5") == 0
    assert files(folder / "d.parquet") == files(folder / "two" / "d.parquet")


def test_verify_and_status(folder, capsys):
    assert write("d.parquet/") == 0
    assert main(["batch", "-o", "d.parquet", "--status"]) == 0
    assert capsys.readouterr().out == "120 of 120 texts (100 %) · finished\n"
    assert main(["verify", "d.parquet"]) == 0
    assert (
        "every checksum and count is right, and the texts are those of texts.txt"
        in capsys.readouterr().err
    )
    complete, stray = (
        folder / "d.parquet" / "_SUCCESS.parquet",
        folder / "d.parquet" / "more.parquet",
    )
    data = complete.read_bytes()
    place = data.index(b"arrow version ") + len("arrow version ")
    newer = data[:place] + b"9" + data[place + 1 :]  # that of another pyarrow is right as well
    for changed, code in (
        (flipped(data, data.index(b"weight")), 1),
        (data[:-9], 1),
        (newer, 0),
        (data, 0),
    ):
        complete.write_bytes(changed)
        assert main(["verify", "d.parquet", "--quiet"]) == code
    assert capsys.readouterr().err.count("d.parquet: _SUCCESS.parquet is damaged") == 2
    stray.write_bytes(data)
    assert main(["verify", "d.parquet"]) == 1
    assert "more.parquet: is no part of the dump" in capsys.readouterr().err
    stray.unlink()
    part = sorted((folder / "d.parquet").glob("[0-9]*.parquet"))[1]
    part.write_bytes(flipped(part.read_bytes(), 200))
    assert main(["verify", "d.parquet"]) == 1
    assert f"d.parquet: the part {part.name} is damaged" in capsys.readouterr().err
    part.unlink()
    assert main(["verify", "d.parquet"]) == 1
    assert f"the part {part.name} is missing" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (["-o", "d.jsonl", "--table", "rows"], 2, "--table: applies only to a .parquet folder"),
        (["-o", "d.parquet/", "--table", "rows,cells"], 2, "unknown table 'cells'"),
        (
            ["-o", "d.parquet/", "--table", "effects"],
            1,
            "the dump has no effects; run batch with --keep effects",
        ),
        (["-o", "d.parquet"], 2, "or d.parquet/ for a folder of tables"),
        (["-o", "other.parquet/"], 1, "is a folder with other files"),
    ],
)
def test_tables_that_a_dump_cannot_have_are_refused(folder, capsys, arguments, code, message):
    (folder / "other.parquet").mkdir()
    (folder / "other.parquet" / "a.txt").touch()
    assert main(["batch", "texts.txt", *arguments]) == code
    assert message in capsys.readouterr().err
