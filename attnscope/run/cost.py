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
from attnscope.request.masks.terms import MaskTerm
from attnscope.request.selection import POOL, PRINTED

LENGTHS = tuple(1 << power for power in range(7, 18))  # 128 … 131072
_FLOAT = 4  # bytes of a float32
_STAGES = 3  # number of stages that are shown: scores, masked and weights


def cost_table(config: ModelConfig, lengths: tuple[int, ...] = LENGTHS) -> list[CostRow]:
    """Return one row for every length of text."""
    windows = config.count_windows(config.n_layers)
    return [_row(config, windows, tokens) for tokens in lengths]


def allowed_pairs(terms: Sequence[MaskTerm], tokens: int) -> int:
    """Count the (query, key) pairs that a mask lets through in a text of so many tokens, without padding.

    A mask file counts as if it allowed every key.
    """
    return pairs_by_window(terms, [None], tokens)[0]


def pairs_by_window(terms: Sequence[MaskTerm], windows: Sequence[int | None], tokens: int) -> list[int]:
    """Count the (query, key) pairs that a mask lets through together with each of several windows.

    Every term allows a query an interval of keys around itself, so that a window of N excludes keys N or more
    tokens away on either side. Sorted by how far queries see, one look-up per window gives the sum over all of them:
    a config may have as many windows as layers.

    Args:
        terms: The mask of every layer.
        windows: N of each additional window; None for none.
        tokens: Length of the text, which has no padding.
    """
    reach = np.array([window or tokens for window in windows], dtype=np.int64).clip(max=tokens) - 1
    pairs = np.full(len(windows), tokens)  # every query sees itself
    for side in _sides(terms, tokens):
        far = np.sort(side)
        near = np.searchsorted(far, reach)  # queries whose keys the window does not restrict
        pairs += np.concatenate(([0], np.cumsum(far)))[near] + (tokens - near) * reach
    counted: list[int] = pairs.tolist()
    return counted


def _sides(terms: Sequence[MaskTerm], tokens: int) -> tuple["np.ndarray[Any, Any]", "np.ndarray[Any, Any]"]:
    """Count the keys that every query sees before and after itself, (queries,) each."""
    queries = np.arange(tokens)
    before, after = queries, tokens - 1 - queries
    for term in terms:
        before, after = term.count_visible(queries, before, after)
    return before, after


def _row(config: ModelConfig, windows: Counter[int | None], tokens: int) -> CostRow:
    pairs_each = pairs_by_window(parse_mask(config.mask), list(windows), tokens)
    pairs = config.n_heads * sum(layers * pairs for layers, pairs in zip(windows.values(), pairs_each, strict=True))
    heads = config.n_layers * config.n_heads
    matrix = heads * tokens * tokens * _FLOAT
    return CostRow(
        tokens=tokens,
        qk_flops=2 * config.d_head * pairs,
        av_flops=2 * config.d_value * pairs,
        projection_flops=tokens * config.n_layers * _projection_flops(config),
        scores_bytes=matrix,
        weights_bytes=matrix,
        kept_bytes=heads * _recorded_bytes(tokens),
        fits=config.max_positions is None or tokens <= config.max_positions,
    )


def _projection_flops(config: ModelConfig) -> int:
    """Return FLOPs of the four projections of one token in one layer."""
    widths = config.n_heads * config.d_head + config.n_kv_heads * (config.d_head + config.d_value)
    out = config.n_heads * config.d_value if config.out_projection else 0
    return 2 * config.d_model * (widths + out)


def _recorded_bytes(tokens: int) -> int:
    """Return bytes that the recorders keep of one head."""
    parts = (*reported_parts(tokens > PRINTED), *(["stages"] if tokens <= PRINTED else []))
    sizes = {"top": TOP, "measures": 2, "statistics": len(STATISTICS), "pool": POOL}
    return _FLOAT * numbers_of_head(parts, rows=tokens, sources=tokens, cells=_STAGES * tokens * tokens, **sizes)
