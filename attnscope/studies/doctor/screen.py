"""A DoctorReport: what was examined, a line for every check, and what is wrong with its repair."""

from collections.abc import Iterator, Sequence

from attnscope.findings.doctor import BatchFacts, DoctorCheck, DoctorReport, Evidence
from attnscope.studies.screens.header import counted
from attnscope.studies.study import Display
from attnscope.views.parts import GAP, Column, Facts, Table, ViewPart, paragraph
from attnscope.views.settings import DisplaySettings
from attnscope.views.spans import Look, Span, Spans, note, ours, untrusted

_VERDICTS = {"ok": ours("ok", "good"), "wrong": ours("WRONG", "bad"), "unknown": ours("cannot tell", "dim")}
_CAPTION = (
    "number: what the check measured, a difference unless its name says otherwise; limit: the largest number that is ok"
)
_LOOKS: dict[str, Look] = {"ok": "good", "wrong": "bad", "unknown": "dim"}


def present_doctor(report: DoctorReport, settings: DisplaySettings, display: Display) -> Iterator[ViewPart]:
    """Turn an examination into parts: a table of checks, then what is wrong, then the others."""
    yield Facts(list(_header(report)))
    yield GAP
    if measured := [check for check in report.checks if check.verdict != "unknown" or check.value is not None]:
        where = Column("where", [note(check.where or "") for check in measured], left=True)
        labels = [ours(check.name) for check in measured]
        yield Table("check", [*_columns(measured), where], labels=labels, indent=0)
        yield paragraph(ours(_CAPTION, "dim"), remark=True)
    for check in report.checks:
        if check.verdict == "wrong":
            yield GAP
            yield from _wrong(check)
    untold = [check for check in report.checks if check.verdict == "unknown"]
    if untold:
        yield GAP
        yield paragraph(ours("cannot tell"), remark=True)
        yield Facts([(check.name, note(check.reason or "")) for check in untold], indent=1)
    if settings.verbose:
        yield from _all_evidence(report)
    yield GAP
    more = " (--verbose: every measurement)" if settings.options and not settings.verbose else ""
    yield paragraph((_verdict(report), Span(more)), remark=True)


def _header(report: DoctorReport) -> Iterator[tuple[str, Spans]]:
    kind = f" · {report.kind}" if report.kind != "unknown" else ""
    made_of = (Span(" ("), *untrusted(report.model_class), Span(")")) if report.model != report.model_class else ()
    yield "model", (*untrusted(report.model), *made_of, Span(kind))
    yield "runs in", ours(f"{report.dtype} on {report.device} · {report.passes} passes")
    for backend in report.backends:
        told = f": {backend.note}" if backend.note else ""
        yield "backend", (*untrusted(backend.name), *note(told, "" if backend.ran else "warning"))
    for batch in report.batches:
        yield batch.name, note(_describe(batch))
    for remark in report.notes:
        yield "note", note(remark)


def _describe(batch: BatchFacts) -> str:
    rows = f"{counted(batch.rows, 'row')} of {counted(batch.length, 'token')}"
    padding = f"{counted(batch.padding, 'padding token')} ({batch.padded})" if batch.padding else "no padding"
    documents = "" if batch.documents is None else f"{counted(batch.documents, 'document')}, by {batch.documents_from}"
    return " · ".join(part for part in (rows, padding, documents, ", ".join(batch.keys), *batch.notes) if part)


def _columns(measured: Sequence[DoctorCheck | Evidence]) -> list[Column]:
    return [
        Column("verdict", [_VERDICTS[item.verdict] for item in measured], left=True),
        Column("number", [_number(item) for item in measured]),
        Column("limit", ["" if item.limit is None else f"{item.limit:.3g}" for item in measured]),
    ]


def _number(check: DoctorCheck | Evidence) -> str:
    if check.value is None:
        return "not finite" if check.verdict == "wrong" and check.limit is not None else ""
    return f"{check.value:.3g}"


def _wrong(check: DoctorCheck) -> Iterator[ViewPart]:
    yield paragraph((Span(check.name, "bad"), Span(f"  does not hold: {check.title}")))
    examined = list(dict.fromkeys(item.examined for item in check.evidence if item.verdict == "wrong"))
    more = f" and {len(examined) - 1} more" if len(examined) > 1 else ""
    told = {"found": check.reason, "in": f"{examined[0]}{more}", "where": check.where}
    lines = [(name, note(text)) for name, text in told.items() if text]
    lines += [("why", ours(check.why)), ("repair", ours(f"{check.repair} See docs/doctor.md#{check.name}."))]
    yield Facts(lines, remark=False, indent=1)


def _all_evidence(report: DoctorReport) -> Iterator[ViewPart]:
    """List every measurement, with why each check matters and how to repair it."""
    for check in report.checks:
        yield GAP
        yield paragraph((Span(check.name, "title"), Span(f"  {check.title}")), remark=True)
        yield Facts([("why", ours(check.why)), ("repair", ours(check.repair))], indent=1)
        places = [note(" ".join(filter(None, (item.where, item.reason)))) for item in check.evidence]
        columns = [*_columns(check.evidence), Column("where, why", places, left=True)]
        yield Table("examined", columns, labels=[note(item.examined) for item in check.evidence], indent=1)


def _verdict(report: DoctorReport) -> Span:
    counts = {verdict: sum(check.verdict == verdict for check in report.checks) for verdict in _LOOKS}
    told = f", {counts['unknown']} cannot tell" if counts["unknown"] else ""
    if counts["wrong"]:
        verb = "is" if counts["wrong"] == 1 else "are"
        return Span(f"{counts['wrong']} of {len(report.checks)} checks {verb} wrong, {counts['ok']} ok{told}", "bad")
    return Span(f"nothing is wrong: {counts['ok']} checks are ok{told}", "good" if counts["ok"] else "warning")
