"""A CheckReport as text or JSON."""

from attnscope.base.errors import listed
from attnscope.findings.check import Check, CheckedText, CheckReport, Differences
from attnscope.findings.codec import to_json
from attnscope.findings.run import Provenance
from attnscope.findings.tokens import describe_unknown
from attnscope.studies.screens.header import counted, short_path
from attnscope.views.plain import PAGE, Page

_NAMES = 9  # width of the column of names
_NAMED = 20  # number of fully masked queries, or unknown words, that are named
_VERDICTS = {"pass": "ok", "fail": "FAIL", "skipped": "skipped"}


def as_json(report: CheckReport) -> bytes:
    """Write the report as strict JSON on one line."""
    return to_json(report) + b"\n"


def as_text(
    report: CheckReport, page: Page = PAGE, *, data_only: bool = False, verbose: bool = False, hint: str = ""
) -> str:
    """Return what was checked as text: one line per check, and the verdict.

    Args:
        report: The findings.
        page: Where the text goes.
        data_only: Write the table of checks alone.
        verbose: Write all that is known about the model, and the differences of each layer even if every check passed.
        hint: What shows the differences of each layer, said where they are left out.
    """
    several = len(report.texts) > 1
    names = ("check", "measured", "limit", "worst", *(("#",) if several else ()), "verdict")
    checks = page.table([names, *(_cells(check, several=several) for check in report.checks)])
    if data_only:
        return "\n".join(checks) + "\n"
    made, safe = report.provenance, page.safe
    facts = [("model", _model(made, page, verbose=verbose)), ("mask", safe(report.mask))]
    for number, text in enumerate(report.texts):
        label = f"text #{number}" if several else "text"
        facts.append((label, f"{safe(text.text[:200])} · {len(text.tokens)} tokens"))
        share, words = describe_unknown([(text.text, None, text.tokens)])
        facts += [("unknown", f"{share}: {safe(listed(words, _NAMED))}")] if share else []
        facts += [("masked", _fully_masked(text, page))] if text.fully_masked else []
    facts += [("tokens", f"{safe(made.tokenizer)}, in place of the model's own tokenizer")] if made.tokenizer else []
    facts += [("note", page.note(note)) for note in (*made.notes, *(made.details if verbose else ()))]
    by_layer = _by_layer(report, page) if verbose or _failed(report) else []
    more = hint if report.differences and not by_layer else ""
    notes = [f"{check.name}: {page.note(check.note)}" for check in report.checks if check.note]
    lines = [
        *page.facts(facts, _NAMES),
        "",
        *checks,
        *(line for note in notes for line in page.wrapped(note, "", 2)),
        *by_layer,
        "",
        *page.wrapped(_verdict(report) + more),
    ]
    return "\n".join(lines) + "\n"


def _model(made: Provenance, page: Page, *, verbose: bool) -> str:
    """Describe the model as the header of `run` does: in short, what is not as usual."""
    usual = () if verbose else ("engine native", "cpu", "float32", "trained weights")
    other = [f"engine {made.engine}", made.device, made.dtype, f"{made.weights} weights"]
    name = made.model if verbose else short_path(made.model)
    sizes = f"{counted(made.n_layers, 'layer')} × {counted(made.n_heads, 'head')}"
    items = [f"{name} ({made.family})", *([made.part] if made.part else [])]
    return " · ".join([*map(page.safe, items), sizes, *(page.safe(one) for one in other if one not in usual)])


def _fully_masked(text: CheckedText, page: Page) -> str:
    """Name the queries that see nothing."""
    names = ", ".join(f"{query} {page.safe(text.tokens[query].text)}" for query in text.fully_masked[:_NAMED])
    more = len(text.fully_masked) - _NAMED
    return names + (f" and {more} more" if more > 0 else "") + ": fully masked in some layer"


def _cells(check: Check, *, several: bool) -> tuple[str, ...]:
    not_finite = check.verdict == "fail" and check.measured is None and check.limit is not None
    measured = "not finite" if not_finite else "" if check.measured is None else f"{check.measured:.1e}"
    limit = "" if check.limit is None else f"{check.limit:.0e}"
    text = (f"{check.text}" if check.where else "",) if several else ()
    return check.name, measured, limit, check.where or "", *text, _VERDICTS[check.verdict]


def _by_layer(report: CheckReport, page: Page) -> list[str]:
    """Tabulate the largest difference of each layer, a row per layer and a column per stage of a reference."""
    lines = []
    for reference in dict.fromkeys(one.reference for one in report.differences):
        found = [one for one in report.differences if one.reference == reference]
        rows = [(f"{layer}", *(_worst(one, layer) for one in found)) for layer in range(report.provenance.n_layers)]
        lines += [
            "",
            *page.wrapped(f"largest difference from {page.safe(reference)}"),
            *page.table([("layer", *(one.stage for one in found)), *rows]),
        ]
    return lines


def _worst(one: Differences, layer: int) -> str:
    values = one.by_head[layer]
    known = [value for value in values if value is not None]
    if len(known) < len(values) or not known:
        return "not finite"
    head = max(range(len(known)), key=known.__getitem__)
    return f"{known[head]:.1e} H{head}"


def _failed(report: CheckReport) -> list[str]:
    return [check.name for check in report.checks if check.verdict == "fail"]


def _verdict(report: CheckReport) -> str:
    failed = _failed(report)
    skipped = sum(check.verdict == "skipped" for check in report.checks)
    done = len(report.checks) - skipped
    left = f", {skipped} skipped" if skipped else ""
    if failed:
        return f"{len(failed)} of {done} checks failed{left}: do not trust what attnscope shows for this checkpoint"
    return f"all {done} checks passed{left}"
