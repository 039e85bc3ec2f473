"""Findings as a sequence of parts: plain data that a view draws on a terminal or in a page.

This package does not know rich, HTML, the width of a screen or the number of colours. A new view draws the
parts (`views/parts.py`), and is not another reading of findings.
"""

from collections.abc import Iterable, Iterator
from dataclasses import replace
from typing import TYPE_CHECKING, Literal, Union, Unpack

import msgspec

from attnscope.findings.check import CheckReport
from attnscope.findings.explain import Explanation
from attnscope.findings.run import Report
from attnscope.views.parts import GAP, Facts, FirstFitting, Text, ViewPart
from attnscope.views.settings import Detail, DisplaySettings

if TYPE_CHECKING:
    from attnscope.findings.ablation import Ablation, EffectSurvey
    from attnscope.findings.compare import Comparison
    from attnscope.findings.heads import HeadSurvey, MeasuredHeads
    from attnscope.studies.heads.screen import Listing

Findings = Union[
    Report, "Comparison", Explanation, CheckReport, "HeadSurvey", "MeasuredHeads", "Ablation", "EffectSurvey"
]
Format = Literal["table", "heat", "verdict"]


def present(
    findings: Findings,
    *,
    format: Format = "table",
    precision: int = 2,
    options: bool = True,
    listing: "Listing | None" = None,
    data_only: bool = False,
    **detail: Unpack[Detail],
) -> Iterator[ViewPart]:
    """Turn findings of any kind into parts.

    Args:
        findings: What to show.
        format: `table` has every number; `heat` is a picture of the same; `verdict` only what a tolerance says of a
            comparison.
        precision: Digits after the point in matrices; weights of contributors have one more.
        options: Name the options of the command line that show more.
        listing: Of a survey of heads, or of effects: which of them are listed.
        data_only: Leave out the header, remarks, notes and options, but not the label of random weights, nor a mask
            that is not the model's own.
        **detail: How much is shown.
    """
    settings = DisplaySettings(precision, options, data_only=data_only, **detail)
    parts = _present(findings, format, settings, listing)
    return _only_data(parts) if data_only else parts


def _only_data(parts: Iterable[ViewPart]) -> Iterator[ViewPart]:
    """Leave out remarks, and the gaps around them."""
    gap, begun = False, False
    for part in _without_remarks(parts):
        if isinstance(part, Text) and not part.items:
            gap = begun
            continue
        if gap:
            yield GAP
        gap, begun = False, True
        yield part


def _without_remarks(parts: Iterable[ViewPart]) -> Iterator[ViewPart]:
    for part in parts:
        if isinstance(part, FirstFitting):
            forms = [list(_without_remarks(form)) for form in part.forms]
            picture = None if part.picture is None else list(_without_remarks(part.picture))
            yield msgspec.structs.replace(part, forms=forms, picture=picture)
        elif isinstance(part, Facts) and part.remark:
            if kept := [(name, value) for name, value in part.lines if _warns(value)]:
                yield Facts(kept)
        elif not (isinstance(part, Text) and part.remark):
            yield part


def _warns(value: object) -> bool:
    return isinstance(value, tuple) and any(span.look in ("warning", "alarm") for span in value)


def _present(
    findings: Findings, format: Format, settings: DisplaySettings, listing: "Listing | None"
) -> Iterator[ViewPart]:
    if isinstance(findings, Report):  # imported here, so that a run imports only what it shows
        from attnscope.studies.run.screen import present_report

        return present_report(findings, settings, heat=format == "heat")
    if isinstance(findings, CheckReport):
        from attnscope.studies.check.screen import present_check

        return present_check(findings, settings)
    if isinstance(findings, Explanation):
        from attnscope.studies.explain.screen import present_explanation

        return present_explanation(findings, settings)
    from attnscope.findings.ablation import Ablation, EffectSurvey
    from attnscope.findings.compare import Comparison
    from attnscope.findings.heads import HeadSurvey

    if isinstance(findings, Comparison):
        from attnscope.studies.compare.screen import present_comparison

        return present_comparison(findings, settings, heat=format == "heat", verdict=format == "verdict")
    from attnscope.studies.heads.screen import Listing, present_measured, present_survey

    if isinstance(findings, Ablation | EffectSurvey):
        from attnscope.studies.ablate.screen import present_ablation, present_effects

        if isinstance(findings, Ablation):
            return present_ablation(findings, settings)
        return present_effects(findings, settings, listing or Listing())

    if isinstance(findings, HeadSurvey):
        # Values of roles, which have standard errors, are shown with two digits whatever was asked.
        return present_survey(findings, replace(settings, precision=2), listing or Listing())
    return present_measured(findings, settings, listing or Listing())
