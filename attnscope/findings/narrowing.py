"""Cut a text's report down to some of its heads, rows and columns."""

from collections.abc import Sequence
from typing import Literal

import msgspec
import numpy as np

from attnscope.base.errors import AttnscopeError, arg
from attnscope.base.layer_kinds import MIXING
from attnscope.findings.axes import take
from attnscope.findings.run import Report, TextReport


def require_heads(report: Report, what: str) -> None:
    """Refuse a report of a measure over layers, or of layers without softmax, which has no weights of heads."""
    measures = {rollout.measure for text in report.texts for rollout in text.rollouts}
    measures |= {MIXING for text in report.texts if text.mixing is not None}
    if measures:
        message = f"{what} holds {', '.join(sorted(measures))}, not the weights of heads"
        hint = f"save a report without {arg('measure')}, of layers with attention over tokens"
        raise AttnscopeError(message, hint=hint)


def narrow_rows(text: TextReport, rows: Sequence[int]) -> TextReport:
    """Return a text with some of its rows, given by their numbers among its queries."""
    if list(rows) == list(range(len(text.queries))):
        return text
    queries = {text.queries[row] for row in rows}
    narrowed = take(text, "query", list(rows))
    masked = [
        [query for query in of_head if query in queries] for of_head in text.heads.fully_masked
    ]
    return msgspec.structs.replace(
        narrowed, heads=msgspec.structs.replace(narrowed.heads, fully_masked=masked)
    )


def narrow_to_weight(text: TextReport, part: Literal["rows", "columns"], count: int) -> TextReport:
    """Return a text with the `count` rows or columns that have most weight in all of its heads."""
    along = 1 if part == "rows" else 0
    total = sum(
        np.nan_to_num(head.stages["weights"]).sum(along, dtype=np.float64) for head in text.heads
    )
    strongest = sorted(int(n) for n in np.argsort(-np.atleast_1d(total), kind="stable")[:count])
    if part == "rows":
        return narrow_rows(text, strongest)
    return take(text, "key", strongest)


def narrow(text: TextReport, heads: int, limit: int) -> TextReport:
    """Return a text with this many of its first heads, rows and columns."""
    of_heads = take(text, "unit", slice(heads))
    return take(narrow_rows(of_heads, range(min(limit, len(text.queries)))), "key", slice(limit))
