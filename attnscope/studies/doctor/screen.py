"""A DoctorReport: what was examined, a line for every check, and what is wrong with its repair."""

from collections.abc import Iterator, Sequence

from attnscope.findings.doctor import (
    OF_OUTPUT,
    OF_ROW,
    VERDICTS,
    BatchFacts,
    DoctorCheck,
    DoctorReport,
    Evidence,
    Soundness,
)
from attnscope.studies.screens.header import counted, short_path
from attnscope.views.parts import GAP, Column, Facts, Table, ViewPart, paragraph
from attnscope.views.settings import DisplaySettings
from attnscope.views.spans import Look, Span, Spans, note, ours, untrusted

_LOOKS: dict[Soundness, Look] = {
    "ok": "good",
    "wrong": "bad",
    "depends": "warning",
    "unknown": "dim",
    "inapplicable": "dim",
}
_VERDICTS = {
    verdict: ours(word.upper() if verdict == "wrong" else word, _LOOKS[verdict])
    for verdict, word in VERDICTS.items()
}
# Names of checks that are no words without their underscores.
_WORDS = {"mask_4d": "4-D mask", "padding_is_eos": "padding is the end token"}
_CAPTION = "number: what the check measured; limit: the largest number that is ok"
_UNITS = {
    OF_OUTPUT: "a difference, as a share of the largest output",
    OF_ROW: "a share of the weight of a row, which sums to 1",
}
_TEXTS = {
    "batch": "batch: what you gave",
    "collated": "collated: what your collator made",
    "given": "given: your texts, in batches of attnscope's",
    "own": "own: attnscope's own texts, so that the verdict says nothing about your batches",
    "random": "random: random tokens, so that the verdict says nothing about your batches",
}


_CALLERS = {"batch", "collated", "given"}


def present_doctor(report: DoctorReport, settings: DisplaySettings) -> Iterator[ViewPart]:
    """Turn an examination into parts: the verdict, what is wrong, then every check."""
    yield Facts(list(_header(report, settings)))
    yield GAP
    more = ""
    if settings.options and not settings.verbose:
        more = " (--verbose: every measurement)"
    yield paragraph((_verdict(report), Span(more)), remark=True)
    for verdict in ("wrong", "depends"):
        for check in report.checks:
            if check.verdict == verdict:
                yield GAP
                yield from _finding(check)
    unknown = [check for check in report.checks if check.verdict == "unknown"]
    own_batches = [check for check in unknown if not _CALLERS.isdisjoint(check.texts)]
    yield from _untold("cannot tell about what you gave", own_batches)
    yield GAP
    if measured := [
        check for check in report.checks if check.verdict in ("ok", "wrong", "depends")
    ]:
        labels = [ours(_words(check.name)) for check in measured]
        yield Table("check", _columns(measured), labels=labels, indent=0)
        units = {check.unit for check in measured}
        meanings = [f"{unit}: {meaning}" for unit, meaning in _UNITS.items() if unit in units]
        yield paragraph(ours("; ".join([_CAPTION, *meanings]), "caption"), remark=True)
        sources = {source for check in measured for source in check.texts}
        explained = "; ".join(text for name, text in _TEXTS.items() if name in sources)
        if explained:
            yield paragraph(
                ours(f"texts: whose texts were used ({explained})", "caption"), remark=True
            )
    others = [check for check in unknown if check not in own_batches]
    yield from _untold("cannot tell", others)
    if without := [
        _words(check.name) for check in report.checks if check.verdict == "inapplicable"
    ]:
        yield GAP
        counts = f"{counted(len(without), 'check')} {_verb(len(without), 'does', 'do')}"
        yield paragraph(ours(f"{counts} not apply: {', '.join(without)}"), remark=True)
    if settings.verbose:
        yield from _all_evidence(report)


def _header(report: DoctorReport, settings: DisplaySettings) -> Iterator[tuple[str, Spans]]:
    kind_text = f" · {report.kind}" if report.kind != "unknown" else ""
    if report.model != report.model_class:
        made_of = Span(" ("), *untrusted(report.model_class), Span(")")
    else:
        made_of = ()
    name = report.model if settings.verbose else short_path(report.model)
    yield "model", (*untrusted(name), *made_of, Span(kind_text))
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
    padding = "no padding"
    if batch.padding:
        padding = f"{counted(batch.padding, 'padding token')} ({batch.padded})"
    documents = ""
    if batch.documents is not None:
        documents = f"{counted(batch.documents, 'document')}, by {batch.documents_from}"
    return " · ".join(
        part for part in (rows, padding, documents, ", ".join(batch.keys), *batch.notes) if part
    )


def _columns(measured: Sequence[DoctorCheck | Evidence]) -> list[Column]:
    return [
        Column("verdict", [_VERDICTS[item.verdict] for item in measured], left=True),
        Column("number", [_number(item) for item in measured]),
        Column("limit", ["" if item.limit is None else _plain(item.limit) for item in measured]),
        Column("unit", [item.unit for item in measured], left=True),
        Column("texts", [_texts(item) or "–" for item in measured], left=True),
    ]


def _texts(item: DoctorCheck | Evidence) -> str:
    if isinstance(item, DoctorCheck):
        return ", ".join(item.texts)
    return item.texts or ""


def _number(check: DoctorCheck | Evidence) -> str:
    if check.value is None:
        if check.verdict == "wrong" and check.limit is not None:
            return "not finite"
        return ""
    return _plain(check.value)


def _plain(value: float) -> str:
    """Write three digits of a number, and one that is large as a count is: 6.55e+04 beside 118 is not read."""
    return f"{value:,.0f}" if 1000 <= abs(value) < 1e15 else f"{value:.3g}"


def _finding(check: DoctorCheck) -> Iterator[ViewPart]:
    holds = "depends on how the model is called"
    if check.verdict == "wrong":
        holds = "does not hold"
    yield paragraph(
        (Span(_words(check.name), _LOOKS[check.verdict]), Span(f"  {holds}: {check.title}"))
    )
    examined = list(
        dict.fromkeys(item.examined for item in check.evidence if item.verdict == check.verdict)
    )
    more = f" and {len(examined) - 1} more" if len(examined) > 1 else ""
    told = {"found": check.reason, "in": f"{examined[0]}{more}", "where": check.where}
    lines = [(name, note(text)) for name, text in told.items() if text]
    lines += [
        ("why", ours(check.why)),
        ("repair", ours(f"{check.repair} See docs/doctor.md#{check.name}.")),
    ]
    yield Facts(lines, remark=False, indent=1)


def _untold(title: str, checks: Sequence[DoctorCheck]) -> Iterator[ViewPart]:
    """List why checks cannot tell, each reason once."""
    if not checks:
        return
    names: dict[str, list[str]] = {}
    for check in checks:
        names.setdefault(check.reason or "", []).append(_words(check.name))
    yield GAP
    yield paragraph(ours(title), remark=True)
    for reason, of_reason in names.items():
        yield paragraph((Span(f"{', '.join(of_reason)}  "), *note(reason, "")), remark=True)


def _all_evidence(report: DoctorReport) -> Iterator[ViewPart]:
    """List every measurement, with why each check matters and how to repair it."""
    for check in report.checks:
        yield GAP
        yield paragraph((Span(_words(check.name), "title"), Span(f"  {check.title}")), remark=True)
        yield Facts([("why", ours(check.why)), ("repair", ours(check.repair))], indent=1)
        places = [
            note(" ".join(filter(None, (item.where, item.reason)))) for item in check.evidence
        ]
        columns = [*_columns(check.evidence), Column("where, why", places, left=True)]
        yield Table(
            "examined", columns, labels=[note(item.examined) for item in check.evidence], indent=1
        )


def _words(name: str) -> str:
    """Return the name of a check as a screen writes it."""
    return _WORDS.get(name, name.replace("_", " "))


def _verb(count: int, singular: str, plural: str) -> str:
    return singular if count == 1 else plural


def _verdict(report: DoctorReport) -> Span:
    counts = {
        verdict: sum(check.verdict == verdict for check in report.checks) for verdict in _LOOKS
    }
    others: dict[Soundness, str] = {
        "depends": f"{_verb(counts['depends'], 'depends', 'depend')} on how the model is called",
        "unknown": "cannot tell",
        "inapplicable": f"{_verb(counts['inapplicable'], 'does', 'do')} not apply",
    }
    told = "".join(
        f", {counts[verdict]} {words}" for verdict, words in others.items() if counts[verdict]
    )
    if counts["wrong"]:
        verb = _verb(counts["wrong"], "is", "are")
        return Span(
            f"{counts['wrong']} of {len(report.checks)} checks {verb} wrong, {counts['ok']} ok{told}",
            "bad",
        )
    if any(check.verdict == "unknown" and _CALLERS & set(check.texts) for check in report.checks):
        return Span(f"nothing was found wrong: {counts['ok']} checks are ok{told}", "warning")
    return Span(
        f"nothing is wrong: {counts['ok']} checks are ok{told}",
        "good" if counts["ok"] else "warning",
    )
