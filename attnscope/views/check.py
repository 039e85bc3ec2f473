"""A CheckReport in; a table for a terminal, or JSON, out."""

from attnscope.report.check import Check, CheckReport, Differences
from attnscope.report.codec import to_json
from attnscope.visible import visible

_NAMED = 20  # fully masked queries that are named one by one
_VERDICTS = {"pass": "ok", "fail": "FAIL", "skipped": "skipped"}


def as_json(report: CheckReport) -> bytes:
    """The report as strict JSON on one line."""
    return to_json(report) + b"\n"


def as_text(report: CheckReport) -> str:
    """What was checked, a line per check, and the verdict."""
    made = report.provenance
    part = f" {made.part}" if made.part else ""
    lines = [
        f"model    {visible(made.model)} ({visible(made.family)}){part} · "
        f"{made.n_layers} layers × {made.n_heads} heads · "
        f"engine {made.engine} · {made.device} {made.dtype} · {made.weights} weights",
        f"mask     {visible(report.mask)}",
        f"text     {visible(report.text[:200])} · {len(report.tokens)} tokens",
        *([f"masked   {_dead(report)}"] if report.fully_masked else []),
        *(f"note     {visible(note)}" for note in made.notes),
        "",
        *_table([("check", "measured", "limit", "worst", "verdict"), *(_cells(check) for check in report.checks)]),
        *(f"  {check.name}: {visible(check.note)}" for check in report.checks if check.note),
        *_by_layer(report),
        "",
        _verdict(report),
    ]
    return "\n".join(lines) + "\n"


def _dead(report: CheckReport) -> str:
    """The queries that see nothing, by name."""
    names = ", ".join(f"{query} {visible(report.tokens[query].text)}" for query in report.fully_masked[:_NAMED])
    more = len(report.fully_masked) - _NAMED
    return names + (f" and {more} more" if more > 0 else "") + ": may attend to nothing in some layer"


def _cells(check: Check) -> tuple[str, ...]:
    not_finite = check.verdict == "fail" and check.measured is None and check.limit is not None
    measured = "not finite" if not_finite else "" if check.measured is None else f"{check.measured:.1e}"
    limit = "" if check.limit is None else f"{check.limit:.0e}"
    return check.name, measured, limit, check.where or "", _VERDICTS[check.verdict]


def _table(rows: list[tuple[str, ...]]) -> list[str]:
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    return ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows]


def _by_layer(report: CheckReport) -> list[str]:
    """The largest difference of each layer, a row per layer and a column per stage of a reference."""
    lines = []
    for reference in dict.fromkeys(one.reference for one in report.differences):
        found = [one for one in report.differences if one.reference == reference]
        rows = [(f"{layer}", *(_worst(one, layer) for one in found)) for layer in range(report.provenance.n_layers)]
        lines += [
            "",
            f"largest difference from {reference}",
            *_table([("layer", *(one.stage for one in found)), *rows]),
        ]
    return lines


def _worst(one: Differences, layer: int) -> str:
    values = one.by_head[layer]
    known = [value for value in values if value is not None]
    if len(known) < len(values) or not known:
        return "not finite"
    head = max(range(len(known)), key=known.__getitem__)
    return f"{known[head]:.1e} H{head}"


def _verdict(report: CheckReport) -> str:
    failed = [check.name for check in report.checks if check.verdict == "fail"]
    skipped = sum(check.verdict == "skipped" for check in report.checks)
    done = len(report.checks) - skipped
    left = f", {skipped} skipped" if skipped else ""
    if failed:
        return f"{len(failed)} of {done} checks failed{left}: do not trust what attnscope shows for this checkpoint"
    return f"all {done} checks passed{left}"
