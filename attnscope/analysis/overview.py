"""What was kept of a whole text in; its pooled map, its columns and the averages of its rows out."""

from dataclasses import dataclass

import numpy as np
from torch import Tensor

from attnscope.analysis.tensors import row_fact, row_sink, to_numpy
from attnscope.model.recorders import Rows
from attnscope.model.trace import Kept
from attnscope.report import Columns, Means, Pooled


@dataclass(frozen=True)
class Whole:
    """A text as a whole.

    Attributes:
        n_queries: Its tokens.
        n_keys: Tokens that its keys come from.
        counted: Queries that averages count, (Q,), bool.
    """

    n_queries: int
    n_keys: int
    counted: Tensor


def pooled_map(kept: Kept, text: int, whole: Whole) -> Pooled:
    """The map of one text, without the runs that longer texts of its batch have.

    Args:
        kept: Recorders of one unit, `pooled` among them.
        text: Number of the text in the batch.
        whole: The text.
    """
    assert kept.pooled is not None
    found = kept.pooled.result()[text, kept.head]  # (n, n)
    queries, keys = _starts(whole.n_queries, found.shape[0]), _starts(whole.n_keys, found.shape[1])
    return Pooled(queries, keys, to_numpy(found[: len(queries) - 1, : len(keys) - 1]))


def _starts(count: int, size: int) -> list[int]:
    """Where runs start, and the end: token i lies in run i·n // count, as in model.recorders.Pooled."""
    n = min(size, count)
    return [-(-i * count // n) for i in range(n + 1)]


def column_mass(kept: Kept, text: int, whole: Whole) -> Columns:
    """What every source of one text gets; see pooled_map."""
    assert kept.columns is not None
    mass = to_numpy(kept.columns.result()[text, kept.head][: whole.n_keys])
    return Columns(mass, float(mass.astype(np.float64).sum()))


def means(kept: Kept, text: int, whole: Whole) -> Means:
    """Averages over the rows of one text that count; see pooled_map."""
    facts = {name: row_fact(kept, name, text) for name in Rows.NAMES}
    if (sink := row_sink(kept, text)) is not None:
        facts["sink"] = sink
    # of every token where a text is pooled; a shorter text than others of its batch has padding behind
    facts = {name: values[: whole.n_queries][whole.counted] for name, values in facts.items()}
    return Means(**{name: _mean(values) for name, values in facts.items()})


def _mean(values: Tensor) -> float | None:
    known = values[~values.isnan()].double()
    return float(known.mean()) if known.numel() else None
