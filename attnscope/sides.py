"""Runs that differ in one thing in; their Comparison out."""

from collections.abc import Sequence
from pathlib import Path

import msgspec

from attnscope.comparison import compare
from attnscope.config import RunConfig
from attnscope.errors import AttnscopeError
from attnscope.folder import read_file
from attnscope.loading import Progress
from attnscope.pipeline import Session
from attnscope.report import Report, from_json
from attnscope.report.compare import Comparison, Side
from attnscope.selection import positions

_CAP = 4 << 30


def compare_runs(
    axis: str,
    runs: Sequence[tuple[str, RunConfig]],
    key: str | None,
    window: int | None,
    progress: Progress | None = None,
) -> Comparison:
    """Run every side and hold it against the first.

    A layer or head that is left to us is chosen on the side with the model's own mask, else on the first, and the
    others take the same.

    Args:
        axis: What differs between the runs.
        runs: Label and run of every side; each keeps whole rows of weights.
        key: Columns of the difference that are shown, as typed; None for all, or the first `window`.
        window: See config.RunConfig.
        progress: See pipeline.inspect.

    Raises:
        AttnscopeError: A side cannot be run, or the sides do not go together.
        UsageError: A selection does not fit.
    """
    session = Session([text for _, run in runs for text in run.texts], progress)
    leader = _leader(axis, runs, session)
    reports = {leader: session.inspect(runs[leader][1])}
    chosen = _chosen(reports[leader])
    for number, (_, run) in enumerate(runs):
        if number != leader:
            kept = {name: numbers for name, numbers in chosen.items() if getattr(run, name) == "auto"}
            reports[number] = session.inspect(msgspec.structs.replace(run, **kept))
    sides = [Side(label, reports[number]) for number, (label, _) in enumerate(runs)]
    sources = sides[0].report.texts[0].sources
    shown = None if window is None or len(sources) <= window else list(range(window))
    if key is not None:
        shown = positions(key, [token.text for token in sources], "--key")
    return compare(axis, sides, shown)


def _leader(axis: str, runs: Sequence[tuple[str, RunConfig]], session: Session) -> int:
    """The side on which `auto` chooses."""
    own = [run.mask in ("own", session.source(run).config.mask_in_words()) for _, run in runs]
    return own.index(True) if axis == "mask" and True in own else 0


def _chosen(report: Report) -> dict[str, str]:
    """The layers and heads of a report, as one would type them; only `auto` is replaced by them."""
    heads = report.texts[0].heads
    found = {
        "layer": dict.fromkeys(str(head.layer) for head in heads),
        "head": dict.fromkeys(str(h.head) for h in heads),
    }
    return {name: ",".join(numbers) for name, numbers in found.items()}


def compare_files(paths: Sequence[Path]) -> Comparison:
    """Hold saved Reports against the first of them; no model is needed.

    Raises:
        AttnscopeError: A file is no Report, or the Reports do not go together.
    """
    return compare("report", [Side(str(path), _saved(path)) for path in paths])


def _saved(path: Path) -> Report:
    try:
        return from_json(read_file(path, cap=_CAP))
    except AttnscopeError as e:
        raise e if e.where else AttnscopeError(e.found, where=path, hint=e.hint) from e


def beyond(comparison: Comparison, tolerance: float) -> AttnscopeError | None:
    """The error that names the worst cell, where one differs by more than the tolerance; else None."""
    worst: tuple[float, str] | None = None
    for change in comparison.changes:
        for head in change.heads:
            for cell in head.worst:
                size = float("inf") if cell.difference is None else cell.difference
                if size > tolerance and (worst is None or size > worst[0]):
                    tokens = comparison.sides[0].report.texts[head.text]
                    query = tokens.tokens[cell.query].text
                    key = (
                        f"dimension {cell.key}"
                        if cell.stage == "output"
                        else f"key {cell.key} '{tokens.sources[cell.key].text}'"
                    )
                    values = f"{cell.first} against {cell.second}"
                    found = (
                        f"text {head.text}, {head.first}, {cell.stage}, query {cell.query} '{query}', {key}: {values}"
                    )
                    worst = size, f"{found}, a difference of {size:.6g}, the tolerance is {tolerance:g}"
    return None if worst is None else AttnscopeError(worst[1], hint="raise --tolerance if that is small enough")
