"""Cut a text's report down to some of its heads, rows and columns."""

from collections.abc import Sequence
from typing import Literal

import msgspec
import numpy as np

from attnscope.base.errors import AttnscopeError, arg
from attnscope.findings.run import HeadReport, Report, TextReport


def require_heads(report: Report, what: str) -> None:
    """Refuse a report of a measure over layers, which holds no heads.

    Args:
        report: The report.
        what: Its name, for the error.

    Raises:
        AttnscopeError: It holds such a measure.
    """
    if measures := {flow.measure for text in report.texts for flow in text.flows}:
        found = f"{what} holds {', '.join(sorted(measures))}, not the weights of heads"
        raise AttnscopeError(found, hint=f"save a report without {arg('measure')}")


def narrow_rows(head: HeadReport, text: TextReport, rows: Sequence[int]) -> HeadReport:
    """Return a head with some of its rows.

    Args:
        head: A head of the text.
        text: The text.
        rows: Which of the text's queries, counted from 0.
    """
    if list(rows) == list(range(len(text.queries))):
        return head
    kept = {text.queries[row] for row in rows}
    top = {name: getattr(head.top, name) for name in ("keys", "weight", "value", "projected")}
    statistics = msgspec.structs.asdict(head.rows).items()
    return msgspec.structs.replace(
        head,
        stages={stage: matrix[rows] for stage, matrix in head.stages.items()},
        fully_masked=[query for query in head.fully_masked if query in kept],
        top=msgspec.structs.replace(head.top, **{n: each[rows] for n, each in top.items() if each is not None}),
        rows=msgspec.structs.replace(
            head.rows, **{name: None if values is None else values[rows] for name, values in statistics}
        ),
        sink=None if head.sink is None else head.sink[rows],
    )


def narrow_to_weight(text: TextReport, part: Literal["rows", "columns"], count: int) -> TextReport:
    """Return a text with the rows, or the columns, that have most weight in all of its heads.

    Args:
        text: The text; its heads have weights.
        part: Which of them are narrowed.
        count: How many are left.
    """
    along = 1 if part == "rows" else 0
    total = sum(np.nan_to_num(head.stages["weights"]).sum(along, dtype=np.float64) for head in text.heads)
    most = sorted(int(n) for n in np.argsort(-np.atleast_1d(total), kind="stable")[:count])
    if part == "rows":
        heads = [narrow_rows(head, text, most) for head in text.heads]
        return msgspec.structs.replace(text, queries=[text.queries[n] for n in most], heads=heads)
    heads = []
    for head in text.heads:
        stages = {name: m if name == "output" else m[:, most] for name, m in head.stages.items()}
        heads.append(msgspec.structs.replace(head, stages=stages))
    return msgspec.structs.replace(text, keys=[text.keys[n] for n in most], heads=heads)


def narrow(text: TextReport, heads: Sequence[HeadReport], limit: int) -> TextReport:
    """Return a text with some of its heads, and so many of its first rows and columns."""
    rows, n_keys = range(min(limit, len(text.queries))), min(limit, len(text.keys))
    cut = []
    for head in (narrow_rows(head, text, rows) for head in heads):
        stages = {name: m if name == "output" else m[:, :n_keys] for name, m in head.stages.items()}
        cut.append(msgspec.structs.replace(head, stages=stages))
    flows = [
        msgspec.structs.replace(flow, matrix=flow.matrix[rows, :n_keys], keys=flow.keys[rows], values=flow.values[rows])
        for flow in text.flows
    ]
    return msgspec.structs.replace(
        text, queries=text.queries[: len(rows)], keys=text.keys[:n_keys], heads=cut, flows=flows
    )
