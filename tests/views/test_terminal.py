"""What must hold on every screen, whatever the tokens, the numbers and the width."""

import re
from dataclasses import dataclass
from unicodedata import category

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.cells import cell_len

from attnscope.base.system.escape import escape_control
from attnscope.findings.heads import STAGES
from tests.helpers.draws import CHARACTERS
from tests.helpers.sample_explanations import explanation
from tests.helpers.sample_reports import (
    HOSTILE,
    bank,
    causal,
    report,
    sized,
    text_report,
    tokens,
    words,
)
from tests.helpers.sample_surveys import survey
from tests.helpers.screens import draw, read_number, read_tables
from tests.views.test_ablation import ablation as ablated
from tests.views.test_ablation import survey as effects

HIDDEN = {"Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp"}


@dataclass
class Case:
    """A report and what its screen must show."""

    report: object

    @property
    def text(self):
        return self.report.texts[0]

    @property
    def head(self):
        return self.text.heads[0]


def lonely(query, key):
    return query != 3 and key != 1


CASES = {
    "2 tokens": sized(2, stages=STAGES),
    "5 tokens": sized(5, stages=STAGES, d_value=3),
    "12 tokens": sized(12, stages=STAGES),
    "40 tokens": sized(40, queries=[0, 7, 20, 39], stages=("masked",)),
    "64 tokens": sized(64, queries=[0, 9, 10, 31, 63], stages=("weights", "output"), d_value=64),
    "large": sized(6, stages=STAGES, size=3000.0),
    "tiny": sized(6, stages=STAGES, size=1e-4),
    "huge": sized(5, stages=("scores", "masked"), size=1e12),
    "minute": sized(5, stages=("scores", "masked"), size=1e-12),
    "window": sized(
        40,
        queries=[3, 4, 5, 20],
        keys=[0, 1, 2, 7, 8, 30],
        stages=STAGES,
        projected=True,
        by="projected",
    ),
    "fully masked": sized(6, allowed=lonely, stages=STAGES, projected=True),
    "hostile": report(text_report(tokens(HOSTILE), stages=STAGES)),
    "long names": report(
        text_report(tokens(["漢字" * 20, "x" * 150, "a", "漢字" * 20]), stages=STAGES)
    ),
    "context": report(
        text_report(tokens(["Wo", "ist"]), context=tokens("where is the river then".split()))
    ),
}


def each_cell(case, screen):
    """(stage, row, column, text) of every cell of a plain screen, checked to appear exactly once."""
    tables = read_tables(screen, len(case.text.queries))
    assert list(tables) == [stage for stage in STAGES if stage in case.head.stages]
    for stage, blocks in tables.items():
        count = case.head.stages[stage].shape[1]
        columns = list(range(count)) if stage == "output" else case.text.keys
        assert [position for block in blocks for position in block.columns] == columns
        for block in blocks:
            assert list(block.rows) == case.text.queries
            for r, (_, cells) in enumerate(block.rows.values()):
                assert len(cells) == len(block.columns)
                for position, cell in zip(block.columns, cells, strict=True):
                    yield stage, r, columns.index(position), cell


def agrees(case, stage, r, c, cell):
    """A cell says what the report says, to half a unit of its last digit."""
    value = float(case.head.stages[stage][r, c])
    if case.text.queries[r] in case.head.fully_masked and stage in ("weights", "output"):
        return cell == "masked"
    if (stage == "masked" and np.isneginf(value)) or (stage == "weights" and value == 0):
        return cell == "·"
    digits, _, power = cell.partition("e")
    unit = 10.0 ** (int(power or 0) - len(digits.partition(".")[2]))
    return "." in cell and abs(read_number(cell) - value) <= 0.5001 * unit


@pytest.mark.parametrize("name", CASES)
def test_every_cell_of_every_stage_is_there_once_every_token_is_spelled_out_and_no_line_is_wider(
    name,
):
    case = Case(CASES[name])
    for width in (20, 33, 40, 80, 120, 200, 100_000):
        screen = draw(case.report, width)
        assert max(map(cell_len, screen.split("\n"))) <= width, width
        squeezed = "".join(screen.split())
        for position in case.text.queries:
            whole = "".join(escape_control(case.text.tokens[position].text).split())
            beside = (f"{position}{whole}", f"{position}={whole}", "◌")
            assert any(spelled in squeezed for spelled in beside), (width, position)
        for stage, r, c, cell in each_cell(case, screen) if width >= 40 else ():
            assert agrees(case, stage, r, c, cell), (
                width,
                stage,
                r,
                c,
                cell,
                case.head.stages[stage][r, c],
            )


@pytest.mark.parametrize("colour", [None, "truecolor"])
@pytest.mark.parametrize("name", CASES)
def test_no_line_of_a_heat_map_is_wider_than_the_console(name, colour):
    for width in (20, 33, 40, 120, 100_000):
        for line in without_colour(draw(CASES[name], width, colour=colour, format="heat")).split(
            "\n"
        ):
            assert cell_len(line) <= width, (width, line)


def test_no_coloured_cell_touches_the_label_of_its_row():
    shown = draw(CASES["fully masked"], 80, colour="truecolor")
    label = r"^\x1b\[2m\d \x1b\[0mriver"
    coloured = r"\x1b\[[\d;]*48;2;"
    assert len(re.findall(f"{label} {coloured}", shown, re.MULTILINE)) >= 4
    assert not re.search(label + coloured, shown, re.MULTILINE)


def without_colour(screen):
    return re.sub(r"\x1b\[[0-9;]*m", "", screen)


@pytest.mark.parametrize("width", [1, 7, 19])
@pytest.mark.parametrize("format", ["table", "heat"])
def test_a_console_too_narrow_for_tables_folds_lines_and_loses_nothing(width, format):
    screen = draw(CASES["12 tokens"], width, format=format)
    assert max(map(cell_len, screen.split("\n"))) <= width
    assert screen.replace("\n", "") == draw(CASES["12 tokens"], 20, format=format).replace("\n", "")


@pytest.mark.parametrize("name", ["hostile", "long names"])
def test_a_character_wider_than_the_console_stands_alone(name):
    lines = draw(CASES[name], 1).split("\n")
    assert all(cell_len(line) <= 1 or len(line) == 1 for line in lines)


@pytest.mark.parametrize("format", ["table", "heat"])
@pytest.mark.parametrize("width", [1, 20, 80, 200])
def test_hostile_tokens_are_visible_and_harmless(width, format):
    shown = draw(CASES["hostile"], width, format=format)
    assert {c for c in shown if category(c) in HIDDEN} == {"\n"}
    squeezed = "".join(shown.split())
    for token in (
        "[/b]",
        "[red]",
        ":smile:",
        r"\\",
        r"\x1b[2J",
        r"\x9b31m",
        r"\u202eabc",
        r"\x00",
        r"\u200d",
        r"\r\n",
    ):
        assert token in squeezed


def test_hostile_text_model_names_and_notes_are_visible_too():
    text = text_report(
        tokens(["a", "b"]),
        text="x\x1b[2J[red]",
        pair="\u202e",
        notes=["note\x07[/b]"],
        chosen="c\x9b",
    )
    shown = draw(report(text, notes=["p\x00"], own="o\x1b", used="u\x1b", what_if="stack"), 80)
    assert {c for c in shown if category(c) in HIDDEN} == {"\n"}
    for said in (
        r"x\x1b[2J[red]",
        r"\u202e",
        r"note\x07[/b]",
        r"c\x9b",
        r"p\x00",
        r"o\x1b",
        r"u\x1b",
    ):
        assert said in shown


@pytest.mark.parametrize("format", ["table", "heat"])
def test_an_ascii_console_gets_ascii_of_the_same_width(format):
    for name, width in [("hostile", 80), ("fully masked", 40), ("context", 120)]:
        shown = draw(CASES[name], width, encoding="ascii", format=format)
        assert shown.isascii()
        assert max(map(len, shown.split("\n"))) <= width
    assert r"\u6f22\u5b57" in "".join(draw(CASES["hostile"], 80, encoding="ascii").split())


@pytest.mark.parametrize("format", ["table", "heat"])
def test_colour_adds_escapes_and_changes_no_number(format):
    plain, coloured = (
        draw(CASES["fully masked"], 80, colour=colour, format=format)
        for colour in (None, "truecolor")
    )
    assert "\x1b[" not in plain
    assert "\x1b[" in coloured
    if format == "table":
        lines = [line.rstrip() for line in without_colour(coloured).split("\n")]
        keys = [
            line
            for line in lines
            if re.match(r"(scores|scaled|weights|output) +(−\d|0 +\.01)", line)
        ]
        assert keys
        assert [line for line in lines if line not in keys] == plain.split("\n")


@pytest.mark.parametrize("format", ["table", "heat"])
def test_random_weights_are_named_over_everything_and_at_every_head(format):
    text = text_report(tokens(["a", "b"]), heads=[(0, 0), (0, 1), (1, 0)])
    shown = draw(report(text, weights="random"), 80, format=format)
    assert shown.lstrip().startswith("RANDOM WEIGHTS")
    assert shown.count("random weights") == 3
    assert "random weights" not in draw(report(text), 80, format=format).lower()


@pytest.mark.parametrize(
    ("what_if", "said", "explained"),
    [
        ("stack", "in every layer", "stack: the whole model ran"),
        ("same-scores", "in the softmax alone", "only the softmax changes"),
    ],
)
def test_a_what_if_names_both_masks_and_what_it_changed(what_if, said, explained):
    made = report(sized(2).texts[0], own="causal", used="window:3", what_if=what_if)
    shown = draw(made, 120)
    assert f"mask     window:3 {said}; the model's own is causal\n" in shown
    assert explained not in shown
    assert explained in draw(made, 120, verbose=True)


def test_the_masked_title_holds_the_whole_arithmetic_where_scaled_is_not_shown():
    shown = draw(bank(softcap=50.0, bias="alibi", allowed=causal, stages=("masked", "output")), 120)
    assert (
        "masked   scores ÷ √8 (head width), soft-capped at 50, plus ALiBi bias; · is not allowed"
        in shown
    )
    shown = draw(bank(stages=("scaled", "masked")), 80)
    assert "masked   scaled; all allowed" in shown


def test_the_hint_names_only_what_is_not_on_the_screen():
    shown = draw(sized(5), 200)
    assert "--layer all · --head all · --query WORD · --stage scaled,output" in shown
    everything = text_report(tokens(["a"]), heads=[(0, 0), (0, 1)], stages=STAGES)
    shown = draw(report(everything, n_layers=1, n_heads=2), 200)
    assert not any(option in shown for option in ("--layer", "--head", "--query", "--stage"))


@pytest.mark.parametrize(
    ("width", "bands", "beside"), [(119, 1, 3), (99, 1, 3), (80, 2, 2), (60, 3, 1)]
)
def test_matrices_stand_side_by_side_where_they_fit(width, bands, beside):
    shown = draw(bank(), width).split("top contributors")[0]
    assert shown.count("query ↓") == bands
    assert max(line.count("│") + 1 for line in shown.split("\n")) == beside


@given(
    spelled=st.lists(st.text(CHARACTERS, max_size=12), min_size=1, max_size=7),
    width=st.integers(40, 130),
    precision=st.integers(0, 6),
    size=st.sampled_from([1e-6, 0.1, 1.0, 50.0, 1e5]),
    windowed=st.booleans(),
)
def test_whatever_the_tokens_every_cell_can_be_read_back(spelled, width, precision, size, windowed):
    keys = list(range(0, len(spelled), 2)) if windowed else None
    made = report(
        text_report(
            tokens(spelled), keys=keys, allowed=causal, size=size, stages=("masked", "weights")
        )
    )
    case = Case(made)
    screen = draw(made, width, precision=precision)
    assert {c for c in screen if category(c) in HIDDEN} <= {"\n"}
    assert max(map(cell_len, screen.split("\n"))) <= width
    for stage, r, c, cell in each_cell(case, screen):
        value = float(case.head.stages[stage][r, c])
        if cell in ("·", "0"):
            assert (
                value == (-np.inf if stage == "masked" else 0)
                if cell == "·"
                else 0 < abs(value) < 0.5
            )
        else:
            digits, _, power = cell.partition("e")
            assert abs(read_number(cell) - value) <= 0.5001 * 10.0 ** (
                int(power or 0) - len(digits.partition(".")[2])
            )


def test_weights_with_exponents_are_whole_where_columns_are_moved_together():
    made = report(text_report(tokens(words(30))))
    stages = made.texts[0].heads[0].stages
    stages.clear()
    stages["weights"] = np.linspace(1e-7, 9e-7, 900, dtype=np.float32).reshape(30, 30)
    for width in range(200, 300, 10):
        assert re.findall(r"\de-0(?!7)", draw(made, width)) == []


@pytest.mark.parametrize("format", ["table", "heat"])
def test_several_texts_each_say_which_they_are(format):
    texts = [text_report(tokens(["a", "b"]), index=i, text=f"text number {i}") for i in (0, 1)]
    shown = draw(report(*texts), 80, format=format)
    for i in (0, 1):
        assert f"text {i}   text number {i} · 2 tokens" in shown
        assert f"L2H1  text {i}" in shown


def test_the_average_row_leaves_special_tokens_out_as_the_choice_of_a_head_does():
    text = text_report(tokens(["[CLS]", "a", "b", "[SEP]"], special=(0, 3)))
    other = text.heads[0].rows.other
    assert f"special tokens (these overlap), {other[1:3].mean():.2f} on the rest" in draw(
        report(text), 160
    )
    only_special = text_report(tokens(["[CLS]", "[SEP]"], special=(0, 1)))
    shown = " ".join(draw(report(only_special), 160).split())
    assert "special tokens (these overlap), 0.00 on the rest" in shown
    assert "special tokens" not in draw(sized(3), 120)


def test_a_row_that_may_attend_to_nothing_does_not_count_in_the_average():
    text = text_report(tokens(["a", "b"]), allowed=lambda query, key: query == 0)
    assert (
        f"on average, a row has {text.heads[0].rows.self[0]:.2f} of its weight on itself"
        in draw(report(text), 120)
    )
    nothing = text_report(tokens(["a", "b"]), allowed=lambda query, key: False)
    assert "on average" not in draw(report(nothing), 120)


# What may be missed: names of facts above numbers, values below a limit, what is cut off, and words beside a number.
MISSED = re.compile(
    r"|model|mask|text|texts|random|query|key|compare|values|measured|clear|legend|note|more|check:"
    r"|below [\d.]+:|(… )?\d+ more|[\d.]+ in all heads|\(largest of the allowed keys\)"
    r"|\[CLS\]|\[SEP\]|\[MASK\]|[A-Z]"
)


@pytest.mark.parametrize("colour", ["standard", "256", "truecolor"])
def test_what_is_to_be_read_is_not_dim(colour):
    """Headings, meanings of numbers and averages of rows had a contrast of 4.3, or less, in many terminals."""
    cases = [bank(), explanation(), survey(), ablated(), effects("head"), effects("edge")]
    count = 0
    for findings in cases:
        shown = draw(findings, 100, colour=colour)
        for style, letters in re.findall(r"\x1b\[([\d;]*)m([^\x1b]+)", shown):
            if "2" not in style.split(";38")[0].split(";48")[0].split(";"):
                continue
            count += 1
            assert not re.search("[A-Za-z]", letters) or (
                MISSED.fullmatch(letters.strip())
                or re.fullmatch(r"(L\d+H\d+ )?[A-Z\d]? ?[\d.]+( ±[\d.]+)?", letters.strip())
            ), letters
    assert count > 50


def test_rows_without_keys_are_named_and_no_nan_is_said_of_a_head_with_a_sink():
    plain = draw(sized(6, allowed=lonely), 200)
    (line,) = (line for line in plain.splitlines() if line.startswith("masked   row"))
    blind = [n for n in range(6) if not any(lonely(n, key) for key in range(6))]
    assert [int(n) for n in re.findall(r"\d+", line)] == blind != []
    assert line.endswith("no key is allowed, so a plain softmax gives NaN")
    assert "plain softmax" not in draw(sized(6, allowed=lonely, sink=0.5), 200)
    assert "masked   row" not in draw(sized(6), 200)
