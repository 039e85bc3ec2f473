"""Cut a text's report down to some of its heads, rows and columns."""

from collections.abc import Sequence
from typing import Literal

import msgspec
import numpy as np

from attnscope.base.errors import AttnscopeError, arg
from attnscope.findings.axes import take
from attnscope.findings.run import HeadReport, Report, TextReport


def require_heads(report: Report, what: str) -> None:
    """Refuse a report of a measure over layers, which has no heads."""
    if measures := {rollout.measure for text in report.texts for rollout in text.rollouts}:
        message = f"{what} holds {', '.join(sorted(measures))}, not the weights of heads"
        raise AttnscopeError(message, hint=f"save a report without {arg('measure')}")


def narrow_rows(head: HeadReport, text: TextReport, rows: Sequence[int]) -> HeadReport:
    """Return a head with some of its rows, given by their numbers among the text's queries."""
    if list(rows) == list(range(len(text.queries))):
        return head
    kept = {text.queries[row] for row in rows}
    masked = [query for query in head.fully_masked if query in kept]
    return msgspec.structs.replace(take(head, "query", list(rows)), fully_masked=masked)


def _narrow(text: TextReport, rows: Sequence[int]) -> TextReport:
    heads = [narrow_rows(head, text, rows) for head in text.heads]
    return msgspec.structs.replace(take(msgspec.structs.replace(text, heads=[]), "query", rows), heads=heads)


def narrow_to_weight(text: TextReport, part: Literal["rows", "columns"], count: int) -> TextReport:
    """Return a text with the `count` rows or columns that have most weight in all of its heads."""
    along = 1 if part == "rows" else 0
    total = sum(np.nan_to_num(head.stages["weights"]).sum(along, dtype=np.float64) for head in text.heads)
    most = sorted(int(n) for n in np.argsort(-np.atleast_1d(total), kind="stable")[:count])
    return _narrow(text, most) if part == "rows" else take(text, "key", most)


def narrow(text: TextReport, heads: Sequence[HeadReport], limit: int) -> TextReport:
    """Return a text with some of its heads, and this many of its first rows and columns."""
    narrowed = _narrow(msgspec.structs.replace(text, heads=list(heads)), range(min(limit, len(text.queries))))
    return take(narrowed, "key", slice(limit))
