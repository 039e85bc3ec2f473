"""A CheckReport: what was checked, a line for every check, and the verdict."""

from collections.abc import Iterator

from attnscope.findings.check import Check, CheckReport
from attnscope.studies.screens.header import (
    report_header,
    text_headers,
    unknown_words,
    without_keys,
)
from attnscope.views.parts import GAP, Column, Facts, Table, ViewPart, paragraph
from attnscope.views.settings import DisplaySettings
from attnscope.views.spans import Span, Spans, note, ours, untrusted

_HEADINGS = ("off by", "limit", "worst", "text", "verdict")
_LEGEND = {
    "off by": "largest difference; of scores and outputs, divided by the largest of their layer",
    "limit": "up to here it is ok",
    "worst": "the head with the largest difference",
}
_EXACT = "; 0: equal to the last bit"
_VERDICTS = {
    "pass": ours("ok", "good"),
    "fail": ours("FAIL", "bad"),
    "skipped": ours("skipped", "dim"),
}


def present_check(report: CheckReport, settings: DisplaySettings) -> Iterator[ViewPart]:
    """Turn checks into parts, the verdict first, with the differences of each layer if a check failed or `verbose` is set."""
    # Of the first text: built-in ones after it have words that few tokenizers know, which is no fault of the model.
    yield from unknown_words(report.texts[:1])
    yield from report_header(report.provenance, report.mask, settings, labelled=True)
    for header, checked in zip(text_headers(report.texts, settings), report.texts, strict=True):
        yield header
        if checked.fully_masked:
            masked = without_keys(checked.tokens, checked.fully_masked, " in some layer")
            yield Facts([("masked", masked)])
    yield GAP
    by_layer = (settings.verbose or not report.passed) and not settings.data_only
    hint = " (--verbose: the differences of each layer)"
    more = ""
    if settings.options and report.differences and not by_layer:
        more = hint
    yield paragraph((_verdict(report), Span(more)), remark=True)
    yield GAP
    yield _table(report)
    # beside a limit of 0, it is no surprise
    is_exact = any(check.measured == 0 and check.limit for check in report.checks)
    legend = _LEGEND | {"off by": _LEGEND["off by"] + _EXACT * is_exact}
    yield Facts([(name, ours(meaning)) for name, meaning in legend.items()])
    for check in report.checks:
        if check.note:
            yield paragraph((Span(f"{check.name}: "), *note(check.note)), 1, remark=True)
    if by_layer:
        yield from _by_layer(report)


def _table(report: CheckReport) -> Table:
    cells = zip(*(_cells(check) for check in report.checks), strict=True)
    columns = [
        Column(heading, column, left=True) for heading, column in zip(_HEADINGS, cells, strict=True)
    ]
    if len(report.texts) == 1:
        del columns[_HEADINGS.index("text")]
    return Table("check", columns, labels=[ours(check.name) for check in report.checks], indent=0)


def _cells(check: Check) -> tuple[str | Spans, ...]:
    not_finite = check.verdict == "fail" and check.measured is None and check.limit is not None
    if not_finite:
        measured = "not finite"
    elif check.measured is None:
        measured = ""
    else:
        measured = _size(check.measured, 1)
    limit = "" if check.limit is None else _size(check.limit, 0)
    return (
        measured,
        limit,
        check.where or "",
        f"{check.text}" if check.where else "",
        _VERDICTS[check.verdict],
    )


def _by_layer(report: CheckReport) -> Iterator[ViewPart]:
    """Tabulate the largest difference of each layer, a row per layer and a column per stage of a reference."""
    for reference in dict.fromkeys(difference.reference for difference in report.differences):
        stages = [
            difference for difference in report.differences if difference.reference == reference
        ]
        yield GAP
        yield paragraph((Span("largest difference from "), *untrusted(reference)))
        columns = [
            Column(stage.stage, [_worst(of_heads) for of_heads in stage.by_head])
            for stage in stages
        ]
        yield Table(
            "layer", columns, labels=[ours(f"{layer}") for layer in stages[0].layers], indent=0
        )


def _worst(values: list[float | None]) -> str:
    known_values = [value for value in values if value is not None]
    if len(known_values) < len(values) or not known_values:
        return "not finite"
    head = max(range(len(known_values)), key=known_values.__getitem__)
    size = _size(known_values[head], 1)
    return f"{size} H{head}" if known_values[head] else size


def _size(value: float, digits: int) -> str:
    """Write a difference; 0 is exact."""
    return f"{value:.{digits}e}" if value else "0"


def _verdict(report: CheckReport) -> Span:
    failed, skipped = (
        sum(check.verdict == verdict for check in report.checks) for verdict in ("fail", "skipped")
    )
    done = len(report.checks) - skipped
    left = f", {skipped} skipped" if skipped else ""
    if failed:
        text = f"{failed} of {done} checks failed{left}: do not trust what attnscope shows for this checkpoint"
        return Span(text, "bad")
    return Span(f"all {done} checks passed{left}", "good")
