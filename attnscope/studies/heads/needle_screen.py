"""What heads read of a needle, by length and depth: a picture, and a table."""

from collections.abc import Iterator, Sequence

import numpy as np

from attnscope.findings.head_findings import NeedleSurvey
from attnscope.studies.screens.header import more_options, notes, report_header
from attnscope.views.numbers import formatted
from attnscope.views.parts import GAP, Column, Facts, Table, ViewPart, paragraph
from attnscope.views.settings import DisplaySettings
from attnscope.views.spans import Span, Spans, headed, ours, untrusted

_NAMED = 5  # retrieval heads that are named
_SHADES = " ░▒▓█"


def present_needle(survey: NeedleSurvey, settings: DisplaySettings) -> Iterator[ViewPart]:
    """Turn the reading of a needle into parts."""
    yield from report_header(survey.provenance, survey.mask, settings)
    head_names = "  ".join(
        f"L{layer}H{head} {formatted(value, 'z.2f')}"
        for (layer, head), value in zip(survey.heads[:_NAMED], survey.retrieval, strict=False)
    )
    more = " …" if len(survey.heads) > _NAMED else ""
    facts: list[tuple[str, Spans]] = [
        ("needle", untrusted(survey.needle)),
        ("asked", (*untrusted(survey.cue), Span(" …"))),
        ("answer", untrusted(survey.answer.strip(), "bold")),
        ("filler", ours(survey.filler)),
        (
            "heads",
            ours(f"the {len(survey.heads)} strongest in the role retrieval: {head_names}{more}"),
        ),
    ]
    yield Facts(facts, remark=False)
    yield GAP
    caption = "  weight of the tokens that predict the answer on the needle, mean of these heads, by length in tokens "
    caption += "and depth of the needle (0: the start of the text, 1: its end); shades up to "
    full = float(survey.weight.max()) or 1.0
    caption += formatted(full, f"z.{max(2, settings.precision)}f")
    yield paragraph(headed("depth × length", caption, "title"))
    yield _picture(survey, full, settings)
    yield GAP
    caption = "  its probability p as log₂ p; weight on the needle of the retrieval heads and of all heads; averaged "
    yield paragraph(headed("answer", f"{caption}over depths, and over lengths", "title"))
    yield _table("length", [f"{length:,}" for length in survey.lengths], survey, axis=1)
    yield GAP
    yield _table("depth", [f"{depth:g}" for depth in survey.depths], survey, axis=0)
    yield GAP
    worst = np.unravel_index(int(np.argmin(survey.log_probability)), survey.log_probability.shape)
    at = f"{survey.lengths[worst[0]]:,} tokens, depth {survey.depths[worst[1]]:g}"
    bits = formatted(float(survey.log_probability[worst]), "z.2f")
    yield notes([f"the answer is least probable at {at}: log₂ p = {bits}", *survey.notes])
    options = ["--lengths N,N", "--depths 0,0.1,…,1", "--json, -o needle.csv (every cell)"]
    yield from more_options(options, settings)


def _picture(survey: NeedleSurvey, full: float, settings: DisplaySettings) -> Table:
    """Return the weight of every depth and length, each with a shade."""
    digits = max(2, settings.precision)
    columns = []
    for length, row in zip(survey.lengths, survey.weight, strict=True):
        columns.append(
            Column(
                f"{length:,}",
                [
                    f"{formatted(float(value), f'z.{digits}f')} {_shade(value / full)}"
                    for value in row
                ],
            )
        )
    return Table(
        "depth", [], labels=[ours(f"{depth:g}") for depth in survey.depths], further=columns
    )


def _shade(share: float) -> str:
    return _SHADES[min(len(_SHADES) - 1, int(share * len(_SHADES)))] * 2


def _table(name: str, labels: Sequence[str], survey: NeedleSurvey, axis: int) -> Table:
    """Return means over the other axis."""
    cells = (
        ("log₂ p", survey.log_probability, 2),
        ("retrieval", survey.weight, 3),
        ("all heads", survey.all_heads, 3),
    )
    columns = [
        Column(heading, [formatted(float(value), f"z.{digits}f") for value in values.mean(axis)])
        for heading, values, digits in cells
    ]
    return Table(name, columns, labels=[ours(label) for label in labels])
