"""Pooled map, column mass and row averages of a whole text."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from attnscope.findings.axes import declarations
from attnscope.findings.overview import Pooled
from attnscope.findings.row_statistics import LINEAR, STATISTICS, Means
from attnscope.findings.run import HeadReport
from attnscope.findings.tokens import Token
from attnscope.model.precision import to_float64
from attnscope.model.trace import UnitRecorders
from attnscope.run.analysis.tensors import row_sink, row_statistic, to_numpy


@dataclass(frozen=True)
class TextExtent:
    """A text as a whole."""

    n_queries: int
    n_keys: int
    counted: Tensor  # queries that averages count, (Q,), bool

    @classmethod
    def of(cls, tokens: Sequence[Token], n_keys: int, rows: Sequence[int] | None = None) -> "TextExtent":
        """Count words, or special tokens if there are no words, among some rows of a text; None for all rows."""
        words = [not tokens[row].special for row in (range(len(tokens)) if rows is None else rows)]
        return cls(len(tokens), n_keys, torch.tensor([word or not any(words) for word in words]))


def pooled_map(recorded: UnitRecorders, text: int, extent: TextExtent) -> Pooled:
    """Return the map of one text, without the runs that longer texts of its batch have.

    Args:
        recorded: Recorders of one unit, `pooled` among them.
    """
    pooled = recorded.sums["pooled"].compute()[text, recorded.head]  # (n, n)
    queries, keys = _starts(extent.n_queries, pooled.shape[0]), _starts(extent.n_keys, pooled.shape[1])
    return Pooled(queries, keys, to_numpy(pooled[: len(queries) - 1, : len(keys) - 1]))


def _starts(count: int, size: int) -> list[int]:
    """Return the starts of runs, and the end: token i is in run i·n // count, as in PooledRecorder."""
    n = min(size, count)
    return [-(-i * count // n) for i in range(n + 1)]


def whole_text_arrays(recorded: UnitRecorders, text: int, extent: TextExtent) -> dict[str, Any]:
    """Return the fields of a HeadReport that are recorded as sums over a whole text, by name; see pooled_map."""
    lengths = {"token": extent.n_queries, "source": extent.n_keys}
    arrays = {}
    for name, along in declarations(HeadReport).items():
        if name in recorded.sums:
            array = recorded.sums[name].compute()[text, recorded.head]
            arrays[name] = to_numpy(array[tuple(slice(lengths.get(axis)) for axis in along.axes)])
    return arrays


def means(recorded: UnitRecorders, text: int, extent: TextExtent, n_shown: int) -> Means:
    """Return averages over the rows of one text that count; see pooled_map."""
    facts = {name: row_statistic(recorded, name, text) for name in STATISTICS}
    if (sink := row_sink(recorded, text)) is not None:
        facts["sink"] = sink
    # statistics of every token, since the text is pooled; in a batch, padding follows a shorter text
    facts = {name: values[: extent.n_queries][extent.counted] for name, values in facts.items()}
    if recorded.contributions is not None and len(recorded.rows) > 1 and n_shown < extent.n_queries:
        # Over several layers, only rows that are shown are kept, and those that other texts of the batch show.
        facts |= {name: torch.full_like(values, torch.nan) for name, values in facts.items() if not LINEAR.get(name, 1)}
    return Means(**{name: _mean(values) for name, values in facts.items()})


def _mean(values: Tensor) -> float | None:
    known = to_float64(values[~values.isnan()])
    return float(known.mean()) if known.numel() else None
