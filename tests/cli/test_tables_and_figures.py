"""Files that `run` writes for papers and tables, and what it prints while it generates."""

import csv
import io
import re
import sys
import xml.etree.ElementTree as ET

import numpy as np
import pytest

import attnscope
from attnscope.cli import main
from tests.views.test_figure import BLUES, grids, places

TEXT = "The bank by the river"


def rows(path):
    with open(path, newline="") as file:
        return list(csv.DictReader(file))


def test_a_csv_has_every_weight(tmp_path):
    path = tmp_path / "weights.csv"
    assert (
        main(
            [
                "run",
                TEXT,
                "--layer",
                "1",
                "--head",
                "0,2",
                "--mask",
                "causal",
                "-o",
                str(path),
                "--quiet",
            ]
        )
        == 0
    )
    weights = attnscope.inspect(TEXT, layer=1, head=[0, 2], mask="causal").weights
    found = rows(path)
    assert len(found) == weights.size
    assert {row["stage"] for row in found} == {"weights"}
    for row in found:
        value = weights[0, [0, 2].index(int(row["head"])), int(row["query"]), int(row["key"])]
        assert (
            np.float32(row["value"]) == value and row["key_token"] == TEXT.split()[int(row["key"])]
        )


@pytest.mark.parametrize("table", ["contributors", "rows"])
def test_tables_of_run_are_those_of_convert(table, tmp_path):
    direct, saved, converted = (tmp_path / name for name in ("a.csv", "a.json", "b.csv"))
    assert main(["run", TEXT, "-o", str(direct), "--table", table, "--quiet"]) == 0
    assert main(["run", TEXT, "-o", str(saved), "--quiet"]) == 0
    assert main(["convert", str(saved), str(converted), "--table", table, "--quiet"]) == 0
    assert direct.read_bytes() == converted.read_bytes()


def test_a_table_without_a_file_is_refused(capsys):
    assert main(["run", TEXT, "--table", "rows"]) == 2
    assert (
        "--table rows: applies only to --output FILE.csv or .parquet; add --output FILE.csv"
        in capsys.readouterr().err
    )


def test_heads_are_side_by_side_on_one_scale_and_their_columns_line_up(tmp_path):
    path = tmp_path / "a.svg"
    assert (
        main(
            [
                "run",
                TEXT,
                "--layer",
                "0-2",
                "--head",
                "0-2",
                "--no-header",
                "-o",
                str(path),
                "--quiet",
            ]
        )
        == 0
    )
    root = ET.fromstring(path.read_text())
    weights = attnscope.inspect(TEXT, layer=range(3), head=range(3)).weights
    drawn = grids(root)
    assert len(drawn) == 9
    for matrix, cells in zip(weights.reshape(9, 5, 5), drawn, strict=True):
        for r, c in np.ndindex(5, 5):
            assert places(cells[r][c], BLUES) == pytest.approx(
                float(matrix[r, c]) ** 0.5, abs=0.016
            )  # 1 is the darkest
    moved = [
        re.search(r"translate\(([\d.]+) ([\d.]+)\)", g.get("transform", ""))
        for g in root.iter()
        if "crisp" in g.get("shape-rendering", "")
    ]
    spots = [(float(found[1]), float(found[2])) for found in moved]
    assert [len({x for x, _ in spots}), len({y for _, y in spots})] == [3, 3]
    width, height = float(root.get("width")), float(root.get("height"))
    assert width < 720 and height < 720
    texts = "".join(root.itertext())
    assert "riverbank" not in texts and "L2H1" in texts


def test_a_pdf_has_letters_and_no_pixels(tmp_path):
    pytest.importorskip("typst")
    path = tmp_path / "a.pdf"
    assert main(["run", TEXT, "-o", str(path), "--quiet"]) == 0
    data = path.read_bytes()
    assert data.startswith(b"%PDF") and b"/FontFile" in data and b"/Subtype/Image" not in data


def test_percentages_are_the_weights(capsys):
    assert (
        main(
            [
                "run",
                TEXT,
                "--layer",
                "2",
                "--head",
                "0",
                "--stage",
                "weights",
                "--percent",
                "--quiet",
            ]
        )
        == 0
    )
    shown = capsys.readouterr().out
    weights = attnscope.inspect(TEXT, layer=2, head=0).weights[0, 0]
    matrix, ranking = shown.split("top contributors")
    for r, line in enumerate(matrix.splitlines()[-6:-1]):
        for cell, weight in zip(line.split()[2:], weights[r], strict=True):
            assert weight == 0 if cell == "·" else abs(float(cell) - 100 * weight) <= 0.501
    best = [
        float(found[1])
        for found in re.finditer(r"^\d \w+ +← \d \w+ +\S+ +([\d.]+)", ranking, re.MULTILINE)
    ]
    assert best == pytest.approx(100 * weights.max(1), abs=0.051)


def test_tokens_are_printed_while_they_are_generated(monkeypatch):
    """Before, the first line came after the last token."""
    from attnscope.run.analysis import predictions

    printed, written = [], io.StringIO()
    real = predictions.most_probable

    def watched(*args):
        printed.append(written.getvalue().count("\n"))
        return real(*args)

    monkeypatch.setattr(predictions, "most_probable", watched)
    monkeypatch.setattr(sys, "stdout", written)
    asked = ["run", "She sat by the bank of the", "--mask", "causal", "--generate", "4"]
    assert main(asked) == 0
    # a title, a heading, and a line for each token before; last, the prediction
    assert printed == [0, 3, 4, 5, 6]
    report = attnscope.inspect(asked[1], mask="causal", generate=4).data.texts[0]
    lines = written.getvalue().split("model ")[0].splitlines()[2:6]
    for line, one in zip(lines, report.generated, strict=True):
        position, share, _, following, _, token = line.split()
        assert (int(position), token) == (one.position + 1, one.tokens[0].text.strip())
        assert float(share) == pytest.approx(100 * one.tokens[0].probability, abs=0.051)
        assert float(following) == pytest.approx(100 * one.tokens[1].probability, abs=0.051)
    shown = written.getvalue()
    assert shown.count("generated  each token") == 1 and "top contributors" not in shown


def test_shares_of_spans_and_measures_are_percentages_too(capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")  # where the rankings of a measure just fit side by side
    spans = attnscope.inspect(TEXT, spans="words").data.texts[0].spans.weights.mean((0, 1))
    (rollout,) = attnscope.inspect(TEXT, measure="rollout").data.texts[0].rollouts
    for options, matrix in (
        (["--spans", "words"], spans),
        (["--measure", "rollout"], rollout.matrix),
    ):
        assert main(["run", TEXT, "--percent", *options]) == 0
        out = capsys.readouterr().out
        rows = out[out.index("query ↓") :].splitlines()[1:6]
        shown = [[float(cell) for cell in line.split()[2:]] for line in rows]
        assert shown == [[pytest.approx(100 * value, abs=0.51) for value in row] for row in matrix]
        after = out[out.index(rows[-1]) + len(rows[-1]) : out.index("more  ")]
        assert "%" in after and "…" not in after and not re.search(r"\b0\.\d", after)


def test_a_table_that_a_report_lacks_is_refused_with_those_that_it_has(tmp_path, capsys):
    assert main(["run", TEXT, "-o", str(tmp_path / "a.csv"), "--table", "spans"]) == 2
    line = "--table spans: the report has contributors, rows, matrices; use --table contributors\n"
    assert capsys.readouterr().err == f"attnscope: error: {line}"
