"""Parts hold what the JSON of the same findings holds, and need nothing that draws."""

import json
import re
import subprocess
import sys
from typing import get_args

import numpy as np
import pytest

from attnscope.findings.codec import to_json
from attnscope.findings.compare import Side
from attnscope.findings.head_roles import ROLES
from attnscope.findings.heads import STAGES
from attnscope.studies.compare.reports import compare_sides
from attnscope.studies.registry import present
from attnscope.views import figure, parts, terminal
from attnscope.views.page import rendering
from attnscope.views.spans import TIE
from tests.helpers.heads import heads_of, unstacked
from tests.helpers.sample_explanations import explanation
from tests.helpers.sample_overviews import overview
from tests.helpers.sample_reports import HOSTILE, bank, causal, report, text_report, tokens, words
from tests.helpers.sample_surveys import measured, survey
from tests.helpers.screens import read_number


def of_kind(kind, found):
    return [part for part in found if isinstance(part, kind)]


def named(axis):
    assert all(span.origin == "token" for span in axis.names)
    return [span.text for span in axis.names]


def spans_text(spans):
    return "".join(span.text for span in spans)


def near(text, value):
    """Whether a text is the number, rounded to the digits that it has."""
    digits = len(text.partition(".")[2].partition("e")[0])
    power = int(text.partition("e")[2] or 0)
    return abs(read_number(text) - value) <= 0.5001 * 10.0 ** (power - digits)


@pytest.mark.parametrize("heat", [False, True])
@pytest.mark.parametrize(
    "text",
    [
        text_report(tokens(HOSTILE), stages=STAGES, projected=True, allowed=causal),
        text_report(
            tokens(words(5)), stages=STAGES, queries=[1, 3], keys=[0, 2], heads=[(0, 1), (3, 2)]
        ),
        text_report(
            tokens(["a", "b"]),
            context=tokens(["x", "y", "z"]),
            allowed=lambda query, key: query == 0,
        ),
    ],
    ids=["every stage", "a window", "cross-attention"],
)
def test_every_number_of_the_shown_stages_is_in_the_parts(text, heat):
    made = report(text)
    found = list(present(made, format="heat" if heat else "table", precision=3))
    groups = of_kind(parts.Matrices, found)
    assert all(group.heat == heat for group in groups)
    stages = [stage for group in groups for stage in group.panels]
    (facts,) = unstacked(json.loads(to_json(made)))["texts"]
    rankings = of_kind(parts.Bars, found)
    sources = facts["tokens"] if facts["context"] is None else facts["context"]
    for head, ranking in zip(facts["heads"], rankings, strict=True):
        for name, rows in head["stages"].items():
            stage = stages.pop(0)
            assert stage.name == name
            assert list(stage.rows.positions) == facts["queries"]
            assert named(stage.rows) == [facts["tokens"][q]["text"] for q in facts["queries"]]
            if name != "output":
                assert list(stage.columns.positions) == facts["keys"]
                assert named(stage.columns) == [sources[k]["text"] for k in facts["keys"]]
            assert stage.matrix.shape == np.shape(rows)
            for r, row in enumerate(rows):
                for c, value in enumerate(row):
                    cell = stage.texts[r][c].strip()
                    if name == "weights" and value == 0:
                        assert cell == "·" and parts.joined(stage.arithmetic)[-1].text.endswith(
                            f"·{TIE}is exactly zero"
                        )
                    elif value is None:
                        assert cell in ("masked", "·") and not np.isfinite(stage.matrix[r, c])
                    else:
                        assert near(cell, value) and stage.matrix[r, c] == np.float32(value)
                        assert stage.scale.low <= stage.matrix[r, c] <= stage.scale.high
        top = head["top"]
        measures = [top[name] for name in ("weight", "value", "projected") if top[name] is not None]
        for r, (query, row) in enumerate(zip(facts["queries"], ranking.rows, strict=True)):
            assert (row is None) == (query in head["fully_masked"])
            shown = [(bar.index, bar.numbers) for bar in row or []]
            keys = (
                []
                if row is None
                else [(k, key) for k, key in enumerate(top["keys"][r]) if key >= 0]
            )
            assert [key for _, key in keys] == [index for index, _ in shown]
            for (k, _), (_, numbers) in zip(keys, shown, strict=True):
                assert all(
                    near(number, m[r][k]) for number, m in zip(numbers, measures, strict=True)
                )
    assert not stages


def test_a_map_and_the_most_attended_sources_are_in_the_parts():
    made = overview(200)
    found = list(present(made))
    (head,) = heads_of(json.loads(to_json(made))["texts"][0])
    (drawn,), (attended,) = of_kind(parts.WeightMap, found), of_kind(parts.Bars, found)
    assert (drawn.queries, drawn.keys) == (head["pooled"]["queries"], head["pooled"]["keys"])
    assert drawn.weights.tolist() == np.array(head["pooled"]["weights"], dtype=np.float32).tolist()
    mass = head["columns"]
    (bars,) = attended.rows
    order = sorted(range(200), key=lambda key: -mass[key])[: len(bars)]
    assert list(attended.sources.positions) == order
    for n, (key, bar) in enumerate(zip(order, bars, strict=True)):
        assert bar.index == n
        weight, share = bar.numbers
        assert near(weight.replace(",", ""), mass[key])
        assert near(share.removesuffix(" %"), 100 * mass[key] / sum(mass))
        assert bar.length == pytest.approx(mass[key] / mass[order[0]])
        texts = [token.text for token in made.texts[0].tokens]
        assert [span.text for span in bar.before[::-1]] == texts[max(0, key - 8) : key]
        assert [span.text for span in bar.after] == texts[key + 1 : key + 9]


def test_the_arithmetic_of_an_explanation_is_in_the_parts():
    made = explanation(sink=0.7, softcap=2.0, bias=True, allowed=lambda query, key: key <= query)
    tables = of_kind(parts.Table, present(made, precision=4))
    facts = json.loads(to_json(made))
    columns = {}
    for table in tables:
        if table.keys is not None:
            assert list(table.keys.positions) == facts["keys"]
            columns |= {column.heading: column.cells for column in table.columns}
    row = facts["row"]
    expected = {
        "‖k‖": row["key_norms"],
        "q·k": row["scores"],
        "÷ √8": row["times_scale"],
        "cap 2": row["capped"],
        "scaled": row["scaled"],
        "masked": row["masked"],
        "exp": row["exponentials"],
        "weight": row["weights"],
        "‖v‖": row["value_norms"],
    }
    for heading, values in expected.items():
        for cell, value in zip(columns[heading], values, strict=False):
            no_weight = value is None or (value == 0 and heading in ("exp", "weight"))
            assert cell.strip() == "·" if no_weight else near(cell.strip(), value), (
                heading,
                cell,
                value,
            )
    (vectors,) = (
        table.further for table in tables if table.further_name.startswith("dimensions of k;")
    )
    for column, values in zip(vectors, zip(*facts["key_vectors"], strict=True), strict=True):
        assert all(near(cell, value) for cell, value in zip(column.cells, values, strict=True))
    (weights,) = (table.bars for table in tables if table.bars is not None)
    assert weights[: len(row["weights"])] == [np.float32(weight) for weight in row["weights"]]


def test_both_sides_and_their_difference_are_in_the_parts():
    made = compare_sides("mask", [Side("own", bank()), Side("causal", bank(allowed=causal))])
    found = list(present(made))
    (group,) = of_kind(parts.Matrices, found)
    first, second, difference = group.panels
    facts = json.loads(to_json(made))
    for n, stage in enumerate((first, second)):
        weights = facts["sides"][n]["report"]["texts"][0]["heads"]["stages"]["weights"][0]
        assert stage.matrix.tolist() == np.array(weights, dtype=np.float32).tolist()
    (head,) = facts["changes"][0]["heads"]
    assert difference.matrix.tolist() == np.array(head["difference"], dtype=np.float32).tolist()
    moves, _ = of_kind(parts.Table, found)
    for n in range(len(moves.labels)):
        cells = {column.heading: spans_text(column.cells[n]) for column in moves.columns}
        assert near(cells["moved"], head["total_variation"][n])
        assert near(cells["JS"], head["jensen_shannon"][n])
        before, after = cells["entropy"].split("→")
        assert near(before, head["entropy"][0][n]) and near(after, head["entropy"][1][n])


@pytest.mark.parametrize("heat", [False, True])
def test_the_difference_of_two_texts_has_every_column_in_which_weight_moves(heat):
    """So half the sum of its row is what moved; columns of one side alone have that side's weight."""
    one, other = (
        report(text_report(tokens(spelled.split()), index=n))
        for n, spelled in enumerate(("she saw the old grey cat run", "she saw a cat run very fast"))
    )
    made = compare_sides("text", [Side("old", one), Side("new", other)])
    (group,) = of_kind(parts.Matrices, present(made, format="heat" if heat else "table"))
    first, second, difference = group.panels
    assert [spans_text(stage.title) for stage in group.panels] == ["old", "new", "new − old"]
    assert named(difference.columns) == [
        "she",
        "saw",
        "the/–",
        "old/–",
        "grey/–",
        "–/a",
        "cat",
        "run",
        "–/very",
        "–/fast",
    ]
    assert difference.columns.numbers == [
        "0",
        "1",
        "2/–",
        "3/–",
        "4/–",
        "–/2",
        "5/3",
        "6/4",
        "–/5",
        "–/6",
    ]
    assert named(first.columns) == "she saw the old grey cat run".split()
    assert named(second.columns) == "she saw a cat run very fast".split()
    (head,) = json.loads(to_json(made))["changes"][0]["heads"]
    np.testing.assert_allclose(
        np.abs(difference.matrix).sum(1) / 2, head["total_variation"], atol=1e-6
    )
    weights = [side.report.texts[0].heads[0].stages["weights"] for side in made.sides]
    np.testing.assert_array_equal(difference.matrix[:, 3], -weights[0][[0, 1, 5, 6], 3])
    np.testing.assert_array_equal(difference.matrix[:, 8], weights[1][[0, 1, 3, 4], 5])


def test_every_weight_that_changes_is_in_a_table():
    spelled = ["she saw the tired cat .", "she saw the wide cat ."]
    one, other = (
        report(text_report(tokens(some.split()), index=n)) for n, some in enumerate(spelled)
    )
    made = compare_sides("text", [Side("tired", one), Side("wide", other)])
    (head,) = made.changes[0].heads
    _, changed = of_kind(parts.Table, present(made))
    columns = [changed.labels, *(column.cells for column in changed.columns)]
    rows = [
        [spans_text(cell).replace(TIE, " ") for cell in row] for row in zip(*columns, strict=True)
    ]
    words = [some.split() for some in spelled]
    weights = [side.report.texts[0].heads[0].stages["weights"] for side in made.sides]

    def name(key):
        return (
            words[0][key] if words[0][key] == words[1][key] else f"{words[0][key]}/{words[1][key]}"
        )

    def said(i, j, keys):
        return ", ".join(
            f"{key} {name(key)} {weights[0][i][key]:.2f}→{weights[1][j][key]:.2f}" for key in keys
        )

    expected = []
    for i, j in head.queries:
        before, after = weights[0][i], weights[1][j]
        top = [
            [key for key in np.argsort(-side, kind="stable")[:3].tolist() if side[key] >= 0.005]
            for side in (before, after)
        ]
        # a contributor that enters grows, and one that leaves shrinks
        new = [key for key in top[1] if key not in top[0] and after[key] - before[key] >= 0.005]
        gone = [key for key in top[0] if key not in top[1] and before[key] - after[key] >= 0.005]
        others = [
            key
            for key in dict.fromkeys([*top[0], *top[1], *range(len(before))])
            if key not in new + gone
        ]
        changed = [key for key in others if abs(after[key] - before[key]) >= 0.1]
        expected.append([f"{i} {name(i)}", said(i, j, new), said(i, j, gone), said(i, j, changed)])
    assert rows == [row for row in expected if any(row[1:])]
    assert "3 tired/wide" in [row[0] for row in rows]


def test_a_number_or_role_of_every_head_is_in_the_parts():
    asked = measured()
    ((numbers,),) = (heat.panels for heat in of_kind(parts.Matrices, present(asked)))
    for texts, values in zip(numbers.texts, json.loads(to_json(asked))["values"], strict=True):
        for text, value in zip(texts, values, strict=True):
            assert text == "–" if value is None else near(text, value)
    made = survey()
    ((picture,),) = (heat.panels for heat in of_kind(parts.Matrices, present(made)))
    facts = json.loads(to_json(made))
    for layer, (letters, names) in enumerate(zip(picture.texts, facts["main"], strict=True)):
        for head, (letter, name) in enumerate(zip(letters, names, strict=True)):
            strength = picture.matrix[layer, head]
            if name is None:
                assert np.isnan(strength)
            else:
                (role,) = (role for role in facts["roles"] if role["name"] == name)
                assert letter == role["letter"]
                assert strength == np.float32(role["values"][layer][head])
                assert picture.colours[layer][head] == ROLES[name].colour


def test_untrusted_text_keeps_its_origin():
    hostile = "\x1b[2J<script>"
    made = report(text_report(tokens([hostile, "b"]), text=hostile), notes=[hostile])
    found = list(present(made))
    values = [
        *of_kind(parts.Text, found),
        *(value for part in of_kind(parts.Facts, found) for _, value in part.lines),
    ]
    spans = [span for value in values for span in parts.joined(value)]
    carrying = [span for span in spans if hostile in span.text]
    assert len(carrying) == 2
    assert all(span.origin != "ours" for span in carrying)


def test_every_kind_of_part_is_drawn():
    every = set(get_args(parts.ViewPart))
    assert set(terminal.DRAWN) == every
    assert set(figure.DRAWN) == {*every, parts.Scatter}
    assert every <= set(rendering.DRAWN)


PROGRAM = """
import sys
from attnscope.studies.registry import present
from tests.helpers.sample_explanations import explanation
from tests.helpers.sample_overviews import overview
from tests.helpers.sample_reports import bank
from tests.helpers.sample_surveys import measured, survey
for findings in (bank(), overview(90), explanation(), survey(), measured()):
    assert list(present(findings))
print(*sorted({"rich", "torch", "attnscope.views.terminal"} & set(sys.modules)))
"""


def test_presentation_needs_neither_rich_nor_torch():
    found = subprocess.run(
        [sys.executable, "-c", PROGRAM], capture_output=True, text=True, check=True
    ).stdout
    assert not re.findall(r"\S+", found)
