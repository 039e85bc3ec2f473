"""What is returned shows, saves and tabulates itself, with the numbers of the command line's files."""

import csv
import html
import io
import json
import re
import sys
import tempfile
import webbrowser

import numpy as np
import pandas as pd
import pytest
from safetensors.numpy import load_file

import attnscope
from attnscope.cli import main

TEXT = "The bank by the river was eroded"


@pytest.fixture(scope="module")
def report():
    return attnscope.inspect(
        TEXT, layer="all", head=[0, 2], mask="causal", stages=("masked", "weights", "output")
    )


@pytest.fixture
def command(tmp_path, monkeypatch):
    """Files that commands write, with the same ending as ours."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("COLUMNS", raising=False)

    def write(name, *args):
        assert main([*args, "--output", name]) == 0
        return (tmp_path / name).read_bytes()

    return write


@pytest.mark.parametrize("ending", ["json", "txt", "svg", "safetensors"])
def test_files_are_those_of_the_command_line(ending, command, tmp_path):
    words = ("--layer", "0", "--head", "2")
    attnscope.inspect(TEXT, layer=0, head=2).save(tmp_path / f"ours.{ending}")
    theirs, ours = (
        command(f"theirs.{ending}", "run", TEXT, *words),
        (tmp_path / f"ours.{ending}").read_bytes(),
    )
    if ending == "safetensors":
        found, expected = (load_file(tmp_path / f"{who}.safetensors") for who in ("ours", "theirs"))
        assert found.keys() == expected.keys()
        assert all(np.array_equal(found[name], expected[name], equal_nan=True) for name in found)
    else:
        clean = re.compile(rb"terminal-\d+|  *more  .*(\n           .*)*|note")
        assert clean.sub(b"", ours) == clean.sub(b"", theirs)


def test_every_kind_of_result_is_saved(command, tmp_path):
    kinds = {
        "compare": (attnscope.compare(TEXT), ["compare", TEXT], ("json", "txt", "svg")),
        "explain": (
            attnscope.explain(TEXT, query="bank"),
            ["explain", TEXT, "--query", "bank"],
            ("json", "txt"),
        ),
        "check": (attnscope.check(), None, ("json", "txt")),
    }
    for name, (result, args, endings) in kinds.items():
        for ending in endings:
            result.save(tmp_path / f"{name}.{ending}")
            ours = (tmp_path / f"{name}.{ending}").read_bytes()
            if ending == "json":
                assert ours == result.to_json() + b"\n"
            if args is not None and ending == "json":
                assert ours == command(f"{name}-theirs.json", *args)
            if ending == "txt":
                # which options show more is the command's affair
                shown = re.sub(r" \(--verbose: .*\)", "", ours.decode())
                assert shown.startswith(result.text(width=120).rstrip("\n")[:500])
    with pytest.raises(attnscope.AttnscopeError, match=r"exists; pass force=True to overwrite it"):
        kinds["check"][0].save(tmp_path / "check.json")
    kinds["check"][0].save(tmp_path / "check.json", force=True)
    for name, ending in (
        ("check", "svg"),
        ("check", "safetensors"),
        ("compare", "safetensors"),
        ("explain", "csv"),
    ):
        with pytest.raises(attnscope.AttnscopeError, match=r"; use .*\.json"):
            kinds[name][0].save(tmp_path / f"new.{ending}")
        assert not (tmp_path / f"new.{ending}").exists()
    with pytest.raises(attnscope.AttnscopeError, match="precision: 12 is out of range"):
        kinds["check"][0].save(tmp_path / "new.txt", precision=12)


def test_a_saved_report_is_loaded_to_the_last_bit(report, tmp_path):
    report.save(tmp_path / "r.json")
    loaded = attnscope.load(tmp_path / "r.json")
    assert loaded.to_json() == report.to_json()
    for stage in ("masked", "weights", "output"):
        np.testing.assert_array_equal(getattr(loaded, stage), getattr(report, stage))
    assert np.isneginf(loaded.masked[:, :, 0, 1:]).all()
    assert loaded[3, 2].top("bank") == report[3, 2].top("bank")
    assert repr(loaded) == repr(report)
    (tmp_path / "x.json").write_text("{}")
    with pytest.raises(
        attnscope.AttnscopeError, match=r"not an attnscope report .*; save one with \.save\('report"
    ):
        attnscope.load(tmp_path / "x.json")


def test_a_repl_shows_the_tables(report, monkeypatch, capsys):
    monkeypatch.setenv("COLUMNS", "80")
    one = attnscope.inspect(TEXT)
    assert main(["run", TEXT, "--color", "never", "--stage", "scores,masked,weights"]) == 0
    screen, shown, shown_all = capsys.readouterr().out, repr(one), repr(report)
    # which options show more is the command's affair
    assert shown == screen[: screen.index("\nmore ")].rstrip("\n")
    assert "--" not in shown + repr(attnscope.compare(TEXT)) + repr(
        attnscope.explain(TEXT, query=1)
    )
    assert str(one) == shown
    assert repr(one[2, 0]) == shown == repr(one.texts[0])
    assert shown_all.count("weights  softmax") == 4
    assert "4 of 8 heads are printed; report[layer, head] is one of them" in shown_all
    assert report.text(width=100).count("weights  softmax") == 8
    assert max(map(len, report.text(width=60).splitlines())) <= 60
    assert "\n\nall 16 checks passed, 1 skipped\n\n" in repr(attnscope.check())


def test_a_repl_shows_the_beginning_of_a_long_text():
    long = attnscope.inspect("the river bank " * 30, layer=0, head=0, stages="weights")
    assert long.weights.shape == (1, 1, 90, 90)
    said, shown = (
        "the first 64 of 90 rows and 90 columns are printed; the arrays have all",
        repr(long),
    )
    assert said in re.sub(r"\s+", " ", shown)
    assert "63 the" in shown and "64 river" not in shown.partition("top contributors")[0]
    assert long.weights.shape == (1, 1, 90, 90)
    assert len(long._repr_html_()) < 5_000_000


def test_a_notebook_shows_a_page_in_a_sandbox(report):
    for result in (
        report,
        report[0, 0],
        report.texts[0],
        attnscope.compare(TEXT),
        attnscope.check(),
    ):
        frame = result._repr_html_()
        assert frame.startswith(
            '<iframe sandbox="allow-scripts allow-downloads"'
        ) and frame.endswith("</iframe>")
        page = html.unescape(frame.partition(' srcdoc="')[2].removesuffix('"></iframe>'))
        assert page.startswith("<!doctype html>")
        assert "default-src 'none'" in page
        assert "<" not in frame.partition(' srcdoc="')[2].removesuffix("</iframe>")


def test_show_opens_a_page_in_the_browser(report, monkeypatch, tmp_path):
    opened = []
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    monkeypatch.setattr(webbrowser, "open", lambda url: opened.append(url) or True)
    report.show()
    (path,) = tmp_path.rglob("page.html")
    assert opened == [path.as_uri()]
    assert path.read_text(encoding="utf-8").startswith("<!doctype html>")
    monkeypatch.setattr(webbrowser, "open", lambda url: False)
    with pytest.raises(attnscope.AttnscopeError, match="no browser was found"):
        report.show()


@pytest.mark.parametrize("table", ["contributors", "rows", "matrices", None])
def test_tables_are_those_of_convert(table, report, tmp_path):
    report.save(tmp_path / "r.json")
    options = [] if table is None else ["--table", table]
    assert main(["convert", str(tmp_path / "r.json"), str(tmp_path / "r.csv"), *options]) == 0
    rows = list(csv.reader(io.StringIO((tmp_path / "r.csv").read_text())))
    frame = report.to_pandas(table)
    assert list(frame.columns) == rows[0]
    assert len(frame) == len(rows) - 1
    for name, cells in zip(rows[0], zip(*rows[1:], strict=True), strict=True):
        for ours, theirs in zip(frame[name], cells, strict=True):
            assert (pd.isna(ours) and theirs == "") or ours == (
                theirs if isinstance(ours, str) else np.float32(theirs)
            )
    assert str(frame["layer"].dtype) == "int64"


def test_tables_of_means_of_single_heads_and_of_several_texts():
    mean = attnscope.inspect([TEXT, "the river"], layer="mean", head=1, pool=2, top=1)
    frame = mean.to_pandas("columns")
    assert frame["layer"].isna().all()
    assert str(frame["layer"].dtype) == "Int64"
    assert frame.groupby("index").size().tolist() == [8, 2]
    expected = [head.columns for text in mean.data.texts for head in text.heads]
    np.testing.assert_array_equal(frame["mass"], np.concatenate(expected))
    one = attnscope.inspect(TEXT, layer=0, head="all")[0, 3].to_pandas("matrices")
    assert one["head"].unique().tolist() == [3]
    assert one[one["stage"] == "weights"]["value"].sum() == pytest.approx(8)


def test_tables_of_comparisons_explanations_and_checks():
    compared = attnscope.compare(TEXT, head=[0, 1, 2], layer=0)
    frame, data = compared.to_pandas(), json.loads(compared.to_json())
    heads = [head for change in data["changes"] for head in change["heads"]]
    assert frame["side"].tolist() == ["1"] * 8 + ["2"] * 8
    for column, values in {
        "total_variation": [x for head in heads for x in head["total_variation"]],
        "entropy_second": [x for head in heads for x in head["entropy"][1]],
        "future_first": [x for head in heads for x in head["future"][0]],
        "gained": [x for head in heads for x in head["gained"]],
        "loss": [x for head in heads for x in head["loss"]],
        "query": [q for head in heads for q, _ in head["queries"]],
    }.items():
        np.testing.assert_array_equal(frame[column], np.array(values, frame[column].dtype))
    first, second = (side.weights[0, 0].astype(np.float64) for side in compared.sides[:2])
    np.testing.assert_allclose(
        frame["total_variation"][:8], np.abs(second - first).sum(1) / 2, atol=1e-6
    )
    explained = attnscope.explain(TEXT, query="river", layer=1, head=1)
    whole = attnscope.inspect(
        TEXT, layer=1, head=1, stages=("scores", "scaled", "masked", "weights", "output")
    )[1, 1]
    frame = explained.to_pandas()
    assert frame["key_token"].tolist() == explained.key_tokens == whole.key_tokens
    for stage in ("scores", "scaled", "masked", "weights", "output"):
        np.testing.assert_allclose(getattr(explained, stage), getattr(whole, stage)[4], rtol=1e-5)
        assert stage == "output" or frame[stage].tolist() == getattr(explained, stage).tolist()
    assert (explained.layer, explained.head, explained.query, explained.keys) == (
        1,
        1,
        4,
        list(range(8)),
    )
    assert explained.holds
    checked = attnscope.check()
    frame = checked.to_pandas()
    assert frame["verdict"].tolist() == [check.verdict for check in checked.checks]
    assert frame["name"].is_unique
    assert checked.provenance.model == compared.provenance.model == "riverbank"
    assert checked.differences[0].stage == "output"


def test_without_pandas_one_line_says_what_to_install(report, monkeypatch):
    monkeypatch.setitem(sys.modules, "pandas", None)
    for call in (report.to_pandas, attnscope.compare(TEXT).to_pandas, attnscope.check().to_pandas):
        with pytest.raises(attnscope.AttnscopeError) as caught:
            call()
        assert str(caught.value) == "a table needs pandas; pip install 'attnscope[pandas]'"


def test_fully_masked_rows_are_not_numbers(tmp_path):
    np.save(tmp_path / "mask.npy", np.tril(np.ones((8, 8), bool), -1))
    report = attnscope.inspect(TEXT, mask=str(tmp_path / "mask.npy"), layer=0, head=0)
    assert np.isnan(report.weights[0, 0, 0]).all()
    assert np.isneginf(report.masked[0, 0, 0]).all()
    assert report[0, 0].top(0) == []
    np.testing.assert_allclose(report.weights[0, 0, 1:].sum(-1), 1, rtol=1e-6)
