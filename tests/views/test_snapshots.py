"""Reviewed screens. `ATTNSCOPE_SNAPSHOTS=write pytest tests/views/test_snapshots.py` rewrites them; read the diff."""

import os
import re
from pathlib import Path

import pytest

from attnscope.findings.compare import Side
from attnscope.findings.heads import STAGES
from attnscope.studies.compare.reports import compare_sides
from attnscope.views.settings import Listing
from tests.helpers.sample_explanations import explanation, residuals
from tests.helpers.sample_overviews import overview
from tests.helpers.sample_reports import (
    HOSTILE,
    bank,
    causal,
    many_heads,
    report,
    sized,
    text_report,
    tokens,
)
from tests.helpers.sample_surveys import measured, survey
from tests.helpers.screens import draw

FOLDER = Path(__file__).parent / "snapshots"
WIDTHS = (40, 60, 80, 120, 200)
SPECIAL = ["[CLS]", "cats", "sat", "[SEP]", "they", "purr", "[SEP]"]


def pair():
    spelled = tokens(SPECIAL, special=(0, 3, 6), second=(4, 5, 6))
    return text_report(
        spelled,
        text="cats sat",
        pair="they purr",
        allowed=lambda query, key: query != 6 and key != 5,
        stages=STAGES,
        projected=True,
        softcap=30.0,
        bias="alibi",
        notes=["special tokens take part in the ranking; --no-special leaves them out"],
    )


SIZES = {
    2: sized(2),
    5: bank(),
    12: sized(12),
    40: sized(40, queries=list(range(30, 36)), stages=("weights",)),
    64: sized(64, queries=[60, 61, 62, 63], stages=("weights",)),
}
SCREENS = {
    f"table-{count}-{width}": (made, width, {})
    for count, made in SIZES.items()
    for width in (WIDTHS[:-1] if count == 2 else WIDTHS)
} | {
    "heat-12-40": (SIZES[12], 40, {"format": "heat"}),
    "heat-12-120": (SIZES[12], 120, {"format": "heat"}),
    "heat-40-80": (sized(40), 80, {"format": "heat"}),
    "heat-64-200": (sized(64), 200, {"format": "heat"}),
    "pair-80": (report(pair(), own="bidirectional", used="bidirectional"), 80, {}),
    "pair-heat-80": (
        report(pair(), own="bidirectional", used="bidirectional"),
        80,
        {"format": "heat"},
    ),
    "random-what-if-80": (
        report(pair(), weights="random", own="bidirectional", used="causal", what_if="same-scores"),
        80,
        {},
    ),
    "hostile-80": (report(text_report(tokens(HOSTILE), stages=("weights",))), 80, {}),
    "hostile-ascii-80": (
        report(text_report(tokens(HOSTILE), stages=("weights",))),
        80,
        {"encoding": "ascii"},
    ),
    "window-80": (
        sized(40, queries=[3, 4, 20], keys=[0, 1, 2, 30], projected=True, by="value"),
        80,
        {},
    ),
    "context-80": (
        report(text_report(tokens(["Wo", "ist"]), context=tokens("where is the river".split()))),
        80,
        {},
    ),
    "sink-80": (bank(allowed=causal, sink=0.5), 80, {}),
    "sink-heat-80": (bank(allowed=causal, sink=0.5), 80, {"format": "heat"}),
    "bank-20": (bank(), 20, {}),
    "bank-colour-80": (bank(), 80, {"colour": "truecolor"}),
    "bank-heat-256-80": (bank(), 80, {"colour": "256", "format": "heat"}),
    "bank-heat-16-80": (bank(), 80, {"colour": "standard", "format": "heat"}),
}

LONG = tokens([f"word{i}" for i in range(40)])
EXPLAINED = {
    "explain-80": (explanation(allowed=lambda query, key: key <= query), 80, {"precision": 4}),
    "explain-120": (explanation(allowed=lambda query, key: key <= query), 120, {"precision": 4}),
    "explain-colour-80": (explanation(weights="random"), 80, {"colour": "truecolor"}),
    "explain-rotated-80": (explanation(rotated=20, width=24, cells=[4], group=0, head=3), 80, {}),
    "explain-capped-80": (
        explanation(softcap=2.0, bias=True, cells=[0, 4], inputs=residuals(7), layer=6),
        80,
        {},
    ),
    "explain-masked-80": (explanation(allowed=lambda query, key: False), 80, {}),
    "explain-broken-80": (explanation(broken="parts", what_if="same-scores"), 80, {}),
    "explain-window-80": (
        explanation(
            spelled=LONG, query=30, keys=[0, 3, 9, 30], allowed=lambda query, key: key <= query
        ),
        80,
        {"precision": 2},
    ),
    "explain-context-80": (
        explanation(
            spelled=tokens(["Wo", "ist"]),
            context=tokens("where is the internationalization".split()),
        ),
        80,
        {},
    ),
    "explain-hostile-80": (explanation(spelled=tokens(HOSTILE), query=4), 80, {}),
    "explain-hostile-ascii-80": (
        explanation(spelled=tokens(HOSTILE), query=4),
        80,
        {"encoding": "ascii"},
    ),
    "explain-sink-80": (explanation(sink=0.7, allowed=causal), 80, {}),
    "explain-sink-window-80": (
        explanation(spelled=LONG, query=30, keys=[0, 3, 9, 30], sink=4.0),
        80,
        {},
    ),
    "explain-40": (explanation(allowed=lambda query, key: key <= query), 40, {}),
}
SCREENS |= EXPLAINED
SCREENS |= {
    "overview-80": (overview(1000, notes=["a map of 64 × 64 cells replaces the matrices"]), 80, {}),
    "overview-140": (overview(1000), 140, {}),
    "overview-40": (overview(200, bidirectional=True, near=0.2), 40, {}),
    "overview-ascii-80": (overview(1000), 80, {"encoding": "ascii"}),
    "overview-colour-80": (overview(200), 80, {"colour": "truecolor"}),
    "overview-hostile-80": (
        overview(90, size=8, spelled=HOSTILE * 5, left_out=["first token"]),
        80,
        {},
    ),
}


def compared(*sides, axis="mask"):
    return compare_sides(axis, [Side(label, made) for label, made in sides])


FORWARD = bank(allowed=lambda query, key: key <= query)
_SPELLED = "She sat by the savings bank"
SAVINGS = report(text_report(tokens(_SPELLED.split()), text=_SPELLED, size=3.0))
RIVER = report(
    text_report(tokens("She sat by the river bank".split()), text="She sat by the river bank")
)
BLIND = bank(allowed=lambda query, key: query != 2)
COMPARED = {
    "compare-80": (compared(("causal", FORWARD), ("bidirectional", bank())), 80, {}),
    "compare-60": (compared(("causal", FORWARD), ("bidirectional", bank())), 60, {}),
    "compare-200": (compared(("causal", FORWARD), ("bidirectional", bank())), 200, {}),
    "compare-40": (compared(("causal", FORWARD), ("bidirectional", bank())), 40, {}),
    "compare-120": (compared(("causal", FORWARD), ("own", bank()), ("blind", BLIND)), 120, {}),
    "compare-heat-80": (
        compared(("causal", FORWARD), ("bidirectional", bank())),
        80,
        {"format": "heat"},
    ),
    "compare-colour-80": (
        compared(("causal", FORWARD), ("bidirectional", bank())),
        80,
        {"colour": "truecolor"},
    ),
    "compare-texts-80": (compared(("river", RIVER), ("savings", SAVINGS), axis="text"), 80, {}),
    "compare-masked-80": (compared(("own", bank()), ("blind", BLIND)), 80, {}),
}
SCREENS |= COMPARED


SHEET = many_heads(3, 4, 12, allowed=causal)
SCREENS |= {
    "heads-80": (survey(), 80, {}),
    "heads-120": (survey(30, 9), 120, {}),
    "heads-40": (survey(), 40, {}),
    "heads-wide-80": (survey(2, 40), 80, {}),
    "heads-colour-80": (survey(2, 4), 80, {"colour": "truecolor"}),
    "heads-16-80": (survey(2, 4), 80, {"colour": "standard"}),
    "heads-ascii-80": (survey(2, 4), 80, {"encoding": "ascii"}),
    "heads-top-80": (survey(), 80, {"listing": Listing(3, "layer")}),
    "heads-missing-80": (survey(missing=("retrieval", "copying"), unknown=12), 80, {}),
    "heads-role-80": (survey(roles=("induction", "copying"), missing=("copying",)), 80, {}),
    "heads-role-colour-80": (survey(2, 4, roles=("induction",)), 80, {"colour": "truecolor"}),
    "measured-signed-colour-80": (measured(signed=True), 80, {"colour": "truecolor"}),
    "measured-wide-80": (measured(2, 32), 80, {}),
    "sheet-80": (SHEET, 80, {"format": "heat"}),
    "sheet-40": (SHEET, 40, {"format": "heat"}),
    "sheet-colour-80": (SHEET, 80, {"colour": "truecolor", "format": "heat"}),
    "compare-many-80": (
        compared(("own", many_heads(3, 4, 3)), ("causal", many_heads(3, 4, 3, allowed=causal))),
        80,
        {},
    ),
}


def long_text(replaced, size):
    spelled = [f"w{i % 13}" for i in range(70)]
    spelled[40] = replaced
    one = text_report(tokens(spelled), text=" ".join(spelled), size=size, stages=("weights",))
    return report(one)


EVERY_WIDTH = {
    "brief": (sized(15), {"brief": True}),
    "brief-long": (sized(50), {"brief": True}),
    "heat-5": (SIZES[5], {"format": "heat"}),
    "explain": (explanation(allowed=lambda query, key: key <= query), {}),
    "heads": (survey(), {}),
    "measured": (measured(), {}),
    "overview": (overview(200), {}),
    "sheet-5": (many_heads(4, 4, 5, allowed=causal), {"format": "heat"}),
    "compare-texts": (compared(("river", RIVER), ("savings", SAVINGS), axis="text"), {}),
    "compare-long": (
        compared(
            ("text 0", long_text("bank", 4.0)), ("text 1", long_text("lake", 3.0)), axis="text"
        ),
        {},
    ),
    "compare-heat": (compared(("causal", FORWARD), ("bidirectional", bank())), {"format": "heat"}),
}
# Last width that shows something new.
WIDEST = {
    "measured": 60,
    "heat-5": 60,
    "sheet-5": 60,
    "compare-heat": 80,
    "brief": 120,
    "brief-long": 120,
}
for kind, (findings, form) in EVERY_WIDTH.items():
    for columns in WIDTHS[1:]:
        if columns <= WIDEST.get(kind, 200):
            SCREENS.setdefault(f"{kind}-{columns}", (findings, columns, form))
    # Elsewhere, colour changes no character, so one width shows it.
    for columns in (80, 200) if kind in ("heads", "overview") else (80,):
        SCREENS.setdefault(
            f"{kind}-colour-{columns}", (findings, columns, {**form, "colour": "truecolor"})
        )


@pytest.mark.parametrize("name", SCREENS)
def test_a_screen_is_as_reviewed(name):
    made, width, how = SCREENS[name]
    # so that a diff shows escapes and no pager obeys them
    shown = draw(made, width, **how).replace("\x1b", "␛")
    path = FOLDER / f"{name}.txt"
    if os.environ.get("ATTNSCOPE_SNAPSHOTS") == "write":
        path.parent.mkdir(exist_ok=True)
        path.write_text(shown, encoding="utf-8")
    assert shown == path.read_text(encoding="utf-8")


def test_negative_numbers_have_a_minus_sign():
    for path in FOLDER.iterdir():
        hyphens = re.findall(r"(?<![\w.])-\d\S*", path.read_text(encoding="utf-8"))
        assert "ascii" in path.stem or not hyphens, path.stem


def test_no_snapshot_is_left_over():
    assert {path.stem for path in FOLDER.iterdir()} == set(SCREENS)
