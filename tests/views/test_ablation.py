"""What is shown of cuts is what was found, at every width; texts of a model are escaped."""

import re

import numpy as np
import pytest
from msgspec import structs

from attnscope.findings.ablation import (
    Ablation,
    CutEffect,
    CutPart,
    Effects,
    EffectSurvey,
    LogitTarget,
    PredictionChange,
    TokenChange,
)
from attnscope.findings.provenance import MaskUse
from attnscope.studies.ablate.target_screen import correlation_text
from attnscope.studies.registry import present
from attnscope.views import parts
from attnscope.views.terminal import as_text
from tests.helpers.sample_reports import HOSTILE, tokens
from tests.helpers.sample_surveys import made
from tests.helpers.screens import draw

MASK = MaskUse("causal", "causal")


def floats(*values):
    return np.array(values, np.float32)


def ablation(n=4, hostile="bank"):
    spelled = tokens([*(f"w{i}" for i in range(n - 1)), hostile])
    change = np.linspace(1, n, n, dtype=np.float32)[::-1]
    effects = []
    for how, kl, after, bits in (
        ("renormalised", 0.125, 0.5, 1.0),
        ("unnormalised", 2.0, 0.0625, -2.0),
    ):
        predicted = PredictionChange(n - 1, kl, [TokenChange(7, "x", hostile, 0.25, after, bits)])
        effects.append(CutEffect(how, floats(*[0.5] * n), change, [predicted]))
    cuts = [
        CutPart("L0H1: w0←" + hostile, [(0, 1)], [n - 1], [0], 0.75),
        CutPart("L2", [(2, 0), (2, 1)], None, None, 0.5),
    ]
    return Ablation(
        "a text",
        None,
        spelled,
        None,
        made(3, 2),
        MASK,
        cuts,
        floats(*[2 * n] * n),
        effects,
        ["a note"],
    )


def survey(unit="head", hostile="bank"):
    spelled = tokens(["a", "b", hostile])
    edges = unit == "edge"
    layers, heads = [0, 0, 1, 1], [-1] * 4 if unit == "layer" else [0, 1, 0, 1]
    effects = [Effects("zero", floats(0.1, 0.4, 0.3, 0.2), floats(1, 2, 3, 4), -0.5)]
    if edges:
        effects = [
            Effects(how, None, floats(0.1, 0.4, 0.3, 0.2) * k, 0.5 * k)
            for k, how in ((1, "renormalised"), (2, "unnormalised"))
        ]
    at = [2, 2, 2, 2] if edges else []
    keys = [0, 1, 2, 0] if edges else []
    weights = floats(0.4, 0.3, 0.2, 0.1)
    return EffectSurvey(
        "a",
        None,
        spelled,
        None,
        made(2, 2),
        MASK,
        unit,
        [2],
        layers,
        heads,
        at,
        keys,
        weights,
        "Weight.",
        effects,
    )


@pytest.mark.parametrize("width", [40, 80, 120])
def test_the_screen_of_a_cut_names_edges_and_weights(width):
    shown = draw(ablation(), width, precision=3)
    assert max(map(len, shown.splitlines())) <= width
    words = re.sub(r"\s+", " ", shown)
    said = [
        "3 bank ← 0 w0 in 1 head; weight 0.750",
        "2 heads; mean weight 0.500 on tokens that are not first or special",
    ]
    said += [
        "renormalised 0.125",
        "unnormalised 2.000",
        "25.0 %",
        "6.2 %",
        "+1.00",
        "−2.00",
        "0.500",
        "50.0 %",
    ]
    said += ["12.5 %", "note a note"]
    assert [one for one in said if one not in words] == []


@pytest.mark.parametrize(
    ("kl", "said"),
    [
        (0.1, "0.100 bits (much);"),
        (0.0999, "0.100 bits (somewhat);"),
        (0.02, "0.020 bits (somewhat);"),
        (0.0199, "0.020 bits (little);"),
        (0.0019, "0.002 bits (hardly);"),
        (0.0, "0 bits (not at all);"),
    ],
)
def test_the_heading_says_how_much_a_divergence_is_as_the_table_of_the_document_does(kl, said):
    cut = ablation()
    prediction = structs.replace(cut.effects[0].predictions[0], kl=kl)
    effects = [structs.replace(cut.effects[0], predictions=[prediction])]
    assert said in draw(structs.replace(cut, effects=effects), 120, precision=3)


def test_of_a_long_text_the_tokens_that_change_most_are_shown():
    shown = draw(ablation(40), 100)
    assert "of the 16 tokens of 40 that change most" in shown
    assert re.search(r"^ +15 w15 ", shown, re.MULTILINE) and not re.search(
        r"^ +16 w16 ", shown, re.MULTILINE
    )


def test_equal_weights_share_a_rank():
    """Four weights of 1/4 were number 13, 14, 16 and 20 of 20."""
    equal = structs.replace(survey(), weights=floats(0.4, 0.25, 0.25, 0.1))
    ranks = re.findall(r"^ +(L\dH\d) .* (\d\.\d+) \((\d)\)$", draw(equal, 100), re.MULTILINE)
    assert sorted(ranks) == [
        ("L0H0", "0.40", "1"),
        ("L0H1", "0.25", "2"),
        ("L1H0", "0.25", "2"),
        ("L1H1", "0.10", "4"),
    ]


def test_no_head_has_the_largest_effect_if_none_changes_the_target():
    target = LogitTarget(1, "a", "a", 0.5)
    effects = [structs.replace(survey().effects[0], target=floats(0, 0, 0, 0))]
    shown = draw(structs.replace(survey(), effects=effects, targets=[target]), 100)
    assert "no head has an effect here." in shown
    assert "largest effect" not in shown


@pytest.mark.parametrize("width", [40, 80, 120])
@pytest.mark.parametrize("unit", ["head", "edge"])
def test_the_screen_of_effects_ranks_heads_or_layers(unit, width):
    shown = draw(survey(unit), width, precision=3)
    assert max(map(len, shown.splitlines())) <= width
    ranked = re.findall(r"^ +L(\d)H(\d)", shown, re.MULTILINE)
    assert ranked[:4] == [("0", "1"), ("1", "0"), ("1", "1"), ("0", "0")]
    words = re.sub(r"\s+", " ", shown)
    if unit == "head":
        rows = re.findall(r" L(\d)  +(\S+ \S+)$", shown, re.MULTILINE)
        assert rows == [("0", "0.100 0.400"), ("1", "0.300 0.200")]
        # the bar stands behind the effect that it draws
        assert re.search(r"L0H1 0\.400 (█+ )?2\.000 0\.300 \(2\)", words)
        assert "at 2 bank" in words
    else:
        assert "L0H1 2 bank ← 1 b" in words
        # what is the same of both ways is said once
        assert "note edge A ← B: what query A reads from key B; weight: " in words
        assert words.count("effect of cutting each edge") == words.count("at 2 bank") == 1


def test_a_screen_says_whether_weights_tell_effects_of_eight_units_or_more():
    names = {"renormalised": "renormalised", "unnormalised": "unnormalised", "zero": "zero"}
    seven, eight = (
        {
            unit: structs.replace(survey(unit), weights=np.linspace(0, 1, count, dtype=np.float32))
            for unit in ("head", "edge")
        }
        for count in (7, 8)
    )
    assert not any(correlation_text(found, names) for found in seven.values())
    said = correlation_text(eight["head"], names)
    assert said.startswith(
        "in this text, heads with more weight tend to have less effect: ρ −0.50 over 8 heads"
    )
    said = correlation_text(eight["edge"], names)
    assert "edges with more weight tend to have more effect: ρ 0.50 (renormalised); " in said
    assert "edges with more weight mostly have more effect: ρ 1.00 (unnormalised) over" in said
    alike = [structs.replace(effects, correlation=0.9) for effects in eight["edge"].effects]
    said = correlation_text(structs.replace(eight["edge"], effects=alike), names)
    assert said.count("with more weight") == 1
    assert "ρ 0.90 (renormalised) and 0.90 (unnormalised) over 8 edges" in said


def test_a_title_of_effects_is_one_line():
    for unit in ("head", "layer", "edge"):
        lines = draw(survey(unit), 80, precision=3).splitlines()
        (title,) = [n for n, line in enumerate(lines) if line.startswith("effect of cutting each")]
        assert lines[title + 1].startswith("at 2 bank")


def test_effects_that_round_to_zero_are_short():
    found = survey("head")
    small = structs.replace(found.effects[0], kl=floats(0.0004, 0.4, 0.0006, 0.0))
    shown = draw(structs.replace(found, effects=[small]), 80, precision=3)
    rows = re.findall(r"^ +L\d  (.*)$", shown, re.MULTILINE)
    assert [row.split() for row in rows] == [["~0", "0.400"], ["0.001", "0"]]
    assert "\n~0 is not zero, but rounds to it\n" in shown
    assert "~0" not in draw(found, 80, precision=3)


def test_colours_of_effects_follow_their_root_so_that_small_ones_are_seen():
    for ramp in ("sqrt", "linear"):
        (shown,) = [
            part
            for part in present(survey("head"), precision=3, ramp=ramp)
            if isinstance(part, parts.Matrices)
        ]
        (panel,) = shown.panels
        largest = float(np.nanmax(panel.matrix))
        place = panel.scale.place(largest / 100)
        assert place == pytest.approx({"sqrt": 0.1, "linear": 0.01}[ramp])


def test_bars_stand_beside_the_numbers_that_they_draw():
    (table,) = [
        part for part in present(survey("head"), precision=3) if isinstance(part, parts.Table)
    ]
    measured = table.columns[table.measured]
    assert measured.heading == "KL"
    largest = max(abs(float(str(cell).replace("−", "-"))) for cell in measured.cells)
    for cell, share in zip(measured.cells, table.bars, strict=True):
        assert float(str(cell).replace("−", "-")) / largest == pytest.approx(share, abs=2e-3)
    lines = draw(survey("head"), 80, precision=3).splitlines()
    heading = next(line for line in lines if "KL" in line and "hidden" in line and "weight" in line)
    strongest = next(line for line in lines if "█" in line)
    assert heading.index("KL") < strongest.index("█") < heading.index("hidden")


@pytest.mark.parametrize("text", HOSTILE)
def test_nothing_of_a_text_reaches_the_terminal_as_it_is(text):
    for found in (
        ablation(hostile=text),
        survey("edge", hostile=text),
        survey("head", hostile=text),
    ):
        shown = draw(found, 80)
        assert not re.search(r"[\x00-\x09\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]", shown)


EACH = "--each head (instead of --cut)"


@pytest.mark.parametrize(
    ("hows", "edges", "expected"),
    [
        (["zero"], False, ["--cut 'L0H0: QUERY←KEY' (an edge)", "--replacement mean", EACH]),
        (["mean"], False, ["--cut 'L0H0: QUERY←KEY' (an edge)", EACH]),
        (["renormalised", "unnormalised"], True, ["--cut L0H0 (a head)", EACH]),
    ],
)
def test_options_that_change_nothing_are_not_recommended(hows, edges, expected):
    """As --with mean where it is used already, or where only edges are cut."""
    found = ablation()
    effects = [structs.replace(found.effects[0], how=how) for how in hows]
    cuts = [cut for cut in found.cuts if (cut.queries is not None) == edges]
    shown = draw(structs.replace(found, cuts=cuts, effects=effects), 200)
    (line,) = [line for line in shown.splitlines() if line.startswith("more")]
    assert line.removeprefix("more     ").split(" · ")[: len(expected)] == expected
    assert line.removeprefix("more     ").split(" · ")[len(expected)] == "--at TOKEN"


@pytest.mark.parametrize("unit", ["head", "layer", "edge"])
def test_effects_are_ranked_bars_as_long_as_they_are_large(unit):
    """In every view, as a part of the table: the largest effect is a full bar."""
    found = survey(unit)
    tables = [
        part for part in present(found) if isinstance(part, parts.Table) and part.bars is not None
    ]
    effects = np.sort(found.effects[0].effect.astype(np.float64))[::-1]
    assert [table.heading for table in tables] == [unit]
    assert tables[0].bars == pytest.approx((effects / effects[0]).tolist())
    lengths = [
        line.count("█") for line in draw(found, 120).splitlines() if re.search(r"L\d.*█", line)
    ]
    assert lengths[0] == max(lengths) and lengths == sorted(lengths, reverse=True)


@pytest.mark.parametrize("width", [60, 80, 98, 99, 101, 140, 200])
@pytest.mark.parametrize("colours", [0, 16, 1 << 24])
def test_the_map_stands_beside_the_ranked_heads_if_both_fit(width, colours):
    found = survey()
    shown = as_text(present(found, precision=3), width, colours=colours)
    lines = re.sub(r"\x1b\[[\d;]*m", "", shown).splitlines()
    assert max(map(len, lines)) <= width
    (title,) = [n for n, line in enumerate(lines) if line.startswith("effect of cutting")]
    (grid,) = [n for n, line in enumerate(lines) if " head " in line and line.endswith(" 1")]
    # the list keeps 76 columns, and 4 are between; the map takes 19, its key of colours up to 49
    if not colours or not 99 <= width < 129:
        assert (grid == title) is (width >= 99)
    rows = lines[grid + 1 : grid + 3]
    assert [line.split()[-3:] for line in rows] == [
        ["L0", "0.100", "0.400"],
        ["L1", "0.300", "0.200"],
    ]
    assert len({line.rindex("0.") for line in rows}) == 1
    (bar,) = {line.index("█") for line in lines if "█" in line}
    assert bar == len("   L0H1  0.400  ")


def test_a_screen_ranks_heads_before_it_draws_all():
    """As of thirty layers, whose map would fill the screen before the answer."""
    screen = draw(survey(), 80, precision=3)
    assert (
        screen.index("largest effect") < screen.index("weight (rank)") < screen.index("\n head  ")
    )
    assert "\n\n\n" not in draw(survey("edge"), 80, precision=3)


@pytest.mark.parametrize(
    ("after", "said"),
    [
        (
            (0.25, 0.05),
            'Without it, "far" falls from 60.4 % to 25.0 % and is still the most probable token.',
        ),
        ((0.604, 0.05), 'Without it, "far" stays at 60.4 % and is still the most probable token.'),
        (
            (0.7, 0.05),
            'Without it, "far" rises from 60.4 % to 70.0 % and is still the most probable token.',
        ),
        (
            (0.2, 0.5),
            'Without it, "far" falls from 60.4 % to 20.0 %, and "bank" is the most probable token, with 50.0 % '
            "(before: 10.0 %).",
        ),
    ],
)
def test_the_answer_is_what_is_predicted_without_the_strongest_head(after, said):
    rows = [
        TokenChange(n, name, name, before, share, 0.0)
        for n, (name, before, share) in enumerate(
            zip(("far", "bank"), (0.604, 0.1), after, strict=True)
        )
    ]
    predicted = [PredictionChange(2, 0.4, rows)]
    found = structs.replace(survey(), predictions=predicted)
    words = re.sub(r"\s+", " ", draw(found, 80))
    assert f"L0H1 has the largest effect: much, 0.40 bits. {said} head KL" in words
    both = re.sub(r"\s+", " ", draw(structs.replace(found, predictions=predicted * 2), 80))
    assert both.count('at 2 bank: "far" ') == 2


def test_the_answer_of_a_target_is_how_its_logit_moves():
    found = survey()
    targets = [LogitTarget(0, "far", "far", 2.0), LogitTarget(1, "old", "old", 0.5)]
    change = floats(0.1, -0.25, 0.0, 0.2)
    effects = [structs.replace(found.effects[0], target=change)]
    rows = [TokenChange(0, "far", "far", 0.6, 0.5, 0.0)]
    for count, said in (
        (1, "far falls from 2.000 to 1.750."),
        (2, "old falls from 1.500 to 1.250."),
    ):
        shown = structs.replace(
            found,
            effects=effects,
            targets=targets[:count],
            predictions=[PredictionChange(2, 0.4, rows)],
        )
        words = re.sub(r"\s+", " ", draw(shown, 80, precision=3))
        assert "L0H1 has the largest effect: somewhat, −0.25. Without it, the logit of far" in words
        assert said in words and "most probable" not in words


def test_the_answer_says_how_a_head_is_replaced_and_nothing_of_an_unknown_effect():
    found = survey()
    rows = [TokenChange(0, "far", "far", 0.6, 0.5, 0.0)]
    for how, said in (
        ("mean", 'With its mean in its place, "far" falls'),
        ("patch", 'With what it gives in the other text, "far" falls'),
        ("resample", 'With what it gives in other texts, "far" falls'),
    ):
        effects = structs.replace(found.effects[0], how=how)
        predicted = [PredictionChange(2, 0.4, rows)]
        assert said in draw(structs.replace(found, effects=[effects], predictions=predicted), 200)
    unknown = structs.replace(found.effects[0], kl=floats(*[np.nan] * 4))
    assert "has the largest effect" not in draw(structs.replace(found, effects=[unknown]), 80)


@pytest.mark.parametrize("how", ["zero", "mean", "patch", "resample"])
def test_effects_offer_to_show_all_that_changes_without_the_strongest_head(how):
    found = survey()
    found = structs.replace(found, effects=[structs.replace(found.effects[0], how=how)])
    offered = "--cut L0H1 instead of --each (all that changes without it)"
    assert (offered in draw(found, 200)) is (how in ("zero", "mean"))
    hidden = structs.replace(found.effects[0], kl=None)
    assert "--cut" not in draw(structs.replace(found, effects=[hidden]), 200)
    assert "--cut" not in draw(survey("layer"), 200)
