"""A ModelConfig in; FLOPs and bytes of its attention as the text grows out. No torch in here."""

from collections import Counter
from collections.abc import Iterator, Sequence

import msgspec

from attnscope.config import ModelConfig
from attnscope.selection import POOL, PRINTED, MaskTerm, parse_mask

LENGTHS = tuple(1 << power for power in range(7, 18))  # 128 … 131072
TOP = 3
_FLOAT, _POSITION = 4, 8  # bytes of a float32 and of a token position
_STATISTICS = 10  # entropy, first, special, self, other, distance, and how much lies within 16, 64, 256, 1,024
_STAGES = 3  # scores, masked and weights are shown


class CostRow(msgspec.Struct, frozen=True):
    """What one text of T tokens takes, over all layers and heads.

    A multiply and an add are two FLOPs, as usual (Kaplan et al., 2020, section 2.1).

    Attributes:
        tokens: T.
        qk_flops: q·k for the pairs that the mask allows: 2 · head width each.
        av_flops: weights·v for the same pairs: 2 · value width each.
        projection_flops: Query, key, value and output projections of every token.
        scores_bytes: T×T scores as float32.
        weights_bytes: T×T weights as float32.
        kept_bytes: What attnscope keeps in their place: the top 3 sources (position, weight, α·‖v‖) and ten statistics
            of every row, and a 64×64 map with the mass of every column; of up to 64 tokens, the matrices themselves.
        fits: T is not longer than the model's positions.
    """

    tokens: int
    qk_flops: int
    av_flops: int
    projection_flops: int
    scores_bytes: int
    weights_bytes: int
    kept_bytes: int
    fits: bool


def table(config: ModelConfig, lengths: tuple[int, ...] = LENGTHS) -> list[CostRow]:
    """One row for every length of text."""
    masks = Counter(parse_mask(config.mask_of(layer)) for layer in range(config.n_layers))
    return [_row(config, masks, tokens) for tokens in lengths]


def allowed_pairs(terms: Sequence[MaskTerm], tokens: int) -> int:
    """How many (query, key) pairs a mask lets through, in a text of so many tokens without padding."""
    return sum(_visible(query, terms, tokens) for query in range(tokens))


def about_pairs(terms: Sequence[MaskTerm], tokens: int, samples: int = 256) -> float:
    """As allowed_pairs, from some of the queries; a mask's file counts as if it let everything through."""
    queries = range(0, tokens, max(1, tokens // samples))
    return sum(_visible(query, terms, tokens) for query in queries) * tokens / len(queries)


def _row(config: ModelConfig, masks: Counter[tuple[MaskTerm, ...]], tokens: int) -> CostRow:
    pairs = config.n_heads * sum(layers * allowed_pairs(mask, tokens) for mask, layers in masks.items())
    heads = config.n_layers * config.n_heads
    matrix = heads * tokens * tokens * _FLOAT
    return CostRow(
        tokens=tokens,
        qk_flops=2 * config.d_head * pairs,
        av_flops=2 * config.d_value * pairs,
        projection_flops=tokens * config.n_layers * _projection_flops(config),
        scores_bytes=matrix,
        weights_bytes=matrix,
        kept_bytes=heads * _kept(tokens),
        fits=config.max_positions is None or tokens <= config.max_positions,
    )


def _projection_flops(config: ModelConfig) -> int:
    """FLOPs of the four projections of one token in one layer."""
    widths = config.n_heads * config.d_head + config.n_kv_heads * (config.d_head + config.d_value)
    out = config.n_heads * config.d_value if config.out_projection else 0
    return 2 * config.d_model * (widths + out)


def _kept(tokens: int) -> int:
    """Bytes that the recorders keep of one head."""
    row = TOP * (_POSITION + 2 * _FLOAT) + _STATISTICS * _FLOAT
    if tokens <= PRINTED:
        return tokens * row + _STAGES * tokens * tokens * _FLOAT
    return tokens * (row + _FLOAT) + POOL * POOL * _FLOAT  # a number more for the mass of a column


def _visible(query: int, terms: Sequence[MaskTerm], tokens: int) -> int:
    """Keys that a query sees: every term allows an interval of them, and so does their intersection."""
    low, high = 0, tokens
    for first, end in _intervals(query, terms):
        low, high = max(low, first), min(high, end)
    return max(0, high - low)


def _intervals(query: int, terms: Sequence[MaskTerm]) -> Iterator[tuple[int, int]]:
    for term in terms:
        if term.kind == "causal":
            yield 0, query + 1
        elif term.kind == "prefix":
            yield 0, max(query + 1, term.size)
        elif term.kind == "block":
            yield query - query % term.size, query - query % term.size + term.size
        elif term.kind == "window":
            yield query - term.size + 1, query + term.size
