"""What is shown of spans: numbers that are recomputed from the whole matrices, and what is left out."""

import re
from typing import Any

import numpy as np
import pytest

import attnscope
from attnscope.studies.screens.spans import joined_spans
from tests.helpers.row_statistics import group_means
from tests.helpers.screens import draw
from tests.referee.models import ROWS, Models

TEXT = "Doc 1: the harbour was built by Odra Kint. Doc 2: the keeper paints the tower. Question: who built the harbour?"
MARKS = "Doc 1:,Doc 2:,Question:"


def rows_of(screen: str, heading: str) -> dict[str, list[float]]:
    """The numbers of the lines of a matrix or table, by the name in front."""
    lines = screen[screen.index(heading) :].partition("\n\n")[0].splitlines()[1:]
    found = {}
    for line in lines:
        match = re.fullmatch(r" *(?:\d+ )?(\(\w+\)|\w+(?: \w+)*?)((?:  +[\d.·]+)+)(?:  .*)?", line)
        if match:
            # a weight of exactly zero is a dot
            found[match[1]] = [float(number.replace("·", "0")) for number in match[2].split()]
    return found


def means(report: Any, heads: tuple[Any, ...] = (slice(None), slice(None))) -> Any:
    """Mean weights between spans, from whole matrices."""
    weights = (
        report.weights.astype(np.float64)[heads]
        .reshape(-1, len(report.tokens), len(report.tokens))
        .mean(0)
    )
    return group_means(weights, report.span_of_token, report.span_of_token)


@pytest.mark.parametrize(
    "heads",
    [
        {},
        {"layer": 2, "head": 1},
        {"layer": 2, "head": "all"},
        {"layer": 2},
        {"head": 1},
        {"head": "L2H1"},
    ],
)
def test_numbers_of_the_screen_are_means_of_matrices(heads: dict[str, Any]) -> None:
    whole = attnscope.inspect(TEXT, spans=MARKS, layer="all", head="all")
    pair = {"layer": 2, "head": 1} if heads.get("head") == "L2H1" else heads
    of_head = pair.get("layer", slice(None)), 1 if pair.get("head") == 1 else slice(None)
    expected = means(whole, of_head)
    screen = attnscope.inspect(TEXT, spans=MARKS, top=0, **heads).text(width=120)
    matrix = rows_of(screen, "spans    ")
    assert list(matrix) == whole.spans == ["(first)", "Doc 1", "Doc 2", "Question"]
    np.testing.assert_allclose(list(matrix.values()), expected, atol=0.00501)
    reads = rows_of(screen, "Question reads")
    counts = np.bincount(whole.span_of_token).tolist()
    assert [row[0] for row in reads.values()] == counts
    np.testing.assert_allclose([row[1] for row in reads.values()], expected[-1], atol=0.00501)


def test_a_named_query_is_what_reads() -> None:
    screen = attnscope.inspect(TEXT, spans=MARKS, query="doc 2").text(width=120)
    assert "Doc 2 reads" in screen
    assert "[Doc 1 " in screen


def test_a_span_is_explained_by_its_last_token() -> None:
    found = attnscope.explain(TEXT, spans=MARKS, query="doc 2", key="doc 1", layer=2, head=1).data
    report = attnscope.inspect(TEXT, spans=MARKS, layer=2, head=1)
    last = max(n for n, span in enumerate(report.span_of_token) if report.spans[span] == "Doc 2")
    alone = attnscope.explain(TEXT, query=last, layer=2, head=1).data
    assert found.query == last
    np.testing.assert_array_equal(found.row.weights, alone.row.weights)
    assert [cell.key for cell in found.cells] == report.data.texts[0].spans.text.tokens(1)
    assert [
        note
        for note in found.provenance.notes
        if f"the last of them, {last} '.', is explained" in note
    ]
    with pytest.raises(attnscope.AttnscopeError, match="selects 4 tokens"):
        attnscope.explain(TEXT, spans=MARKS, query="the")


def test_most_attended_tokens() -> None:
    report = attnscope.inspect(TEXT, spans=MARKS, layer="all", head="all")
    of_token = np.array(report.span_of_token)
    received = report.weights.astype(np.float64).mean((0, 1))[of_token == 3].mean(0)
    screen = report.text(width=160)
    for number, name in enumerate(report.spans):
        inside = np.flatnonzero(of_token == number)
        best = inside[received[inside].argmax()]
        line = next(
            one
            for one in screen[screen.index("most attended") :].splitlines()
            if one.startswith(name)
        )
        assert f" {received[best]:.3f}" in line.partition("·")[0], line


def test_what_each_token_reads_is_the_mean_of_its_rows() -> None:
    report = attnscope.inspect(TEXT, spans=MARKS, layer="all", head="all")
    rows = (
        report.weights.astype(np.float64).mean((0, 1))
        @ np.eye(len(report.spans))[report.span_of_token]
    )
    screen = draw(report.data, 120, verbose=True)
    lines = screen[screen.index("spans that the token reads most") :].splitlines()[1:]
    question = [
        position
        for position, span in enumerate(report.span_of_token)
        if report.spans[span] == "Question"
    ]
    for position, line in zip(question, lines, strict=False):
        best = np.argsort(-rows[position])[:3]
        said = " · ".join(f"{report.spans[n]} {rows[position, n]:.2f}" for n in best)
        assert line.split("  ", 1)[0].split()[0] == str(position)
        assert line.endswith(said), (line, said)


def test_at_most_twenty_rows_and_columns() -> None:
    text = " ".join(f"{'A' if n % 3 else 'The'} bank." for n in range(36))
    report = attnscope.inspect(text, spans="sentences", layer="all", head="all")
    found = report.data.texts[0].spans
    assert found is not None
    assert len(report.spans) == 37
    shown = joined_spans(found)
    assert len(shown.names) == 20
    assert shown.names[0] == "(first)"
    assert shown.names[-1] == "sentence 36"
    assert sorted(n for some in shown.members for n in some) == list(range(37))
    members = np.zeros((len(report.tokens), 20))
    for number, some in enumerate(shown.members):
        members[np.isin(report.span_of_token, some), number] = 1
    expected = (
        (members / members.sum(0)).T @ report.weights.astype(np.float64).mean((0, 1)) @ members
    )
    sizes = np.bincount(report.span_of_token).tolist()
    np.testing.assert_allclose(shown.join(found.weights.mean((0, 1)), sizes), expected, atol=1e-6)
    # 50,000 lines fewer
    screen = attnscope.inspect(text, spans="sentences", layer="0", head="0").text(width=80)
    assert max(map(len, screen.splitlines())) <= 80
    assert "37 spans, neighbours joined" in " ".join(screen.split())


def test_sinks_have_a_column(models: Models) -> None:
    model = models[next(name for name in ROWS if name.startswith("gpt_oss"))]
    report = attnscope.inspect(
        "the bank by river was old and we sat", model=model.path, spans="words", max_memory="4G"
    )
    found = report.data.texts[0].spans
    assert found is not None
    assert found.sink is not None
    np.testing.assert_allclose(found.sink + found.weights.sum(-1), 1, atol=1e-6)
    assert "(sink)" in report.text(width=160)


@pytest.mark.parametrize("colour", ["truecolor", "256", "standard"])
def test_text_has_the_colours_of_the_matrix(colour: str) -> None:
    """A span's words are in the style of its cell in the reading row, which the key explains; none without colours."""
    report = attnscope.inspect(TEXT, spans=MARKS).data
    coloured = draw(report, 80, colour=colour)
    row = next(line for line in coloured.splitlines() if "\x1b[0mQuestion " in line)
    cells = re.findall(r"\x1b\[([\d;]*)m *(\d\.\d\d)", row)
    _, _, text = coloured.partition("each span with its share")
    spans = re.findall(r"\[[^\]\[]+ (\d\.\d\d)\] \x1b\[0m\x1b\[([\d;]*)m", text)
    assert len(cells) == len(spans) == 4
    assert [(style, share) for share, style in spans] == cells
    # of 16 colours, two steps on each side are told apart in every theme
    assert len({style for style, _ in cells}) >= (2 if colour == "standard" else 3)
    assert "\x1b" not in draw(report, 80)
