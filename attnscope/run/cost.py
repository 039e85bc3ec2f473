"""FLOPs and bytes of attention as the text grows."""

from collections import Counter
from collections.abc import Sequence
from typing import Any

import numpy as np

from attnscope.base.model_config import ModelConfig
from attnscope.findings.info import TOP, CostRow
from attnscope.findings.record_parts import numbers_of_head, reported_parts
from attnscope.findings.row_statistics import STATISTICS
from attnscope.request.masks.expression import parse_mask
from attnscope.request.masks.terms import AnyOf, MaskTerm
from attnscope.request.selection import POOL, PRINTED

Array = np.ndarray[Any, np.dtype[Any]]
LENGTHS = tuple(1 << power for power in range(7, 18))  # 128 … 131072
_NOWHERE = 1 << 62  # behind every text
_FLOAT = 4  # bytes of a float32
_STAGES = 3  # number of stages that are shown: scores, masked and weights


def cost_table(config: ModelConfig, lengths: tuple[int, ...] = LENGTHS) -> list[CostRow]:
    """Return one row for every length of text."""
    windows = config.count_windows(config.n_layers)
    return [_row(config, windows, tokens) for tokens in lengths]


def allowed_pairs(terms: Sequence[MaskTerm], tokens: int) -> int:
    """Count the (query, key) pairs that a mask allows in a text, without padding.

    A mask file counts as if it allowed every key.
    """
    return pairs_by_window(terms, [None], tokens)[0]


def pairs_by_window(
    terms: Sequence[MaskTerm], windows: Sequence[int | None], tokens: int
) -> list[int]:
    """Count the (query, key) pairs that a mask lets through together with each of several windows.

    A window of N excludes keys N or more tokens away on either side. Sorted by how far the runs of keys that queries
    see begin and end, one look-up per window gives the sum over all of them: a config may have as many windows as
    layers.

    Args:
        windows: N of each additional window; None for none.
    """
    reach = np.array([window or tokens for window in windows], dtype=np.int64).clip(max=tokens) - 1
    pairs = np.zeros(len(windows), dtype=np.int64)
    queries = np.arange(tokens)
    for start, end in _runs(terms, tokens):
        # Every window allows a query to see itself.
        pairs += np.count_nonzero((start <= queries) & (queries < end))
        before = queries - np.minimum(end, queries), queries - np.minimum(start, queries)
        after = np.maximum(start - 1, queries) - queries, np.maximum(end - 1, queries) - queries
        for nearer, farther in (before, after):
            pairs += _within(farther, reach) - _within(nearer, reach)
    counted: list[int] = pairs.tolist()
    return counted


def _within(distances: Array, reach: Array) -> Array:
    """Sum min(distance, r) over all distances, for every r of `reach`."""
    far = np.sort(distances)
    near = np.searchsorted(far, reach)
    total: Array = np.concatenate(([0], np.cumsum(far)))[near] + (len(far) - near) * reach
    return total


def _runs(terms: Sequence[MaskTerm], tokens: int) -> list[tuple[Array, Array]]:
    """Return the runs of keys that every query sees, apart from each other: first keys and ends, (queries,) each."""
    queries = np.arange(tokens)
    runs = [(0 * queries, 0 * queries + tokens)]
    for term in terms:
        if isinstance(term, AnyOf):
            visible = [run for branch in term.branches for run in _runs(branch, tokens)]
        else:
            visible = [term.interval(queries, tokens)]
        both = [(np.maximum(a, c), np.minimum(b, d)) for a, b in runs for c, d in visible]
        runs = both if len(both) == 1 else _apart(both)
    return [(start := begin.clip(0, tokens), end.clip(start, tokens)) for begin, end in runs]


def _apart(runs: Sequence[tuple[Array, Array]]) -> list[tuple[Array, Array]]:
    """Join runs that overlap, query by query, and leave out those that are empty for every query."""
    (begin, reached), *later = _sorted(runs)
    apart = []
    for start, end in later:
        behind = start > reached
        apart.append((begin, np.where(behind, reached, begin)))
        begin = np.where(behind, start, begin)
        reached = np.where(behind, end, np.maximum(reached, end))
    return _sorted([*apart, (begin, reached)])


def _sorted(runs: Sequence[tuple[Array, Array]]) -> list[tuple[Array, Array]]:
    """Sort the runs of every query by their start, empty ones last; keep at least one, and drop runs empty for all
    queries."""
    firsts, ends = (np.stack(side) for side in zip(*runs, strict=True))  # (runs, queries)
    firsts = np.where(firsts < ends, firsts, _NOWHERE)
    ends = np.maximum(firsts, ends)
    order = firsts.argsort(0)
    firsts, ends = (np.take_along_axis(side, order, 0) for side in (firsts, ends))
    count = max(1, int((firsts < ends).any(1).sum()))
    return list(zip(firsts[:count], ends[:count], strict=True))


def _row(config: ModelConfig, windows: Counter[int | None], tokens: int) -> CostRow:
    pairs_each = pairs_by_window(parse_mask(config.mask), list(windows), tokens)
    pairs = config.n_heads * sum(
        layers * pairs for layers, pairs in zip(windows.values(), pairs_each, strict=True)
    )
    heads = config.n_layers * config.n_heads
    matrix = heads * tokens * tokens * _FLOAT
    widths = config.n_heads * config.d_head + config.n_kv_heads * (config.d_head + config.d_value)
    widths += config.n_heads * config.d_value * config.out_projection
    parts = (*reported_parts(tokens > PRINTED), *(["stages"] if tokens <= PRINTED else []))
    sizes = {"top": TOP, "measures": 2, "statistics": len(STATISTICS), "pool": POOL}
    kept_values = numbers_of_head(
        parts, rows=tokens, sources=tokens, cells=_STAGES * tokens * tokens, **sizes
    )
    return CostRow(
        tokens=tokens,
        qk_flops=2 * config.d_head * pairs,
        av_flops=2 * config.d_value * pairs,
        projection_flops=tokens * config.n_layers * 2 * config.d_model * widths,
        scores_bytes=matrix,
        weights_bytes=matrix,
        kept_bytes=heads * _FLOAT * kept_values,
        fits=config.max_positions is None or tokens <= config.max_positions,
    )
