"""Declare the roles that an attention head can play, each once.

Everything else is derived from these declarations: what `attnscope heads` measures, its grid and lists, the entries of
its report, the columns of its tables and the list in its help. To add a role, add its declaration, and code in
`studies/heads/measure.py` if it needs a sum that is not recorded yet.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from attnscope.findings.arrays import Array

Sums = Mapping[str, Array]
# Roles of texts that are divided are shown unasked only if the texts are.
OF_PARTS = "spans", "segments", "images", "sound"
SOUND = "align"  # the role that is measured on speech
# Number of sentences between one that is read and the first whose reading counts for `receiver`.
APART = 4
# Number of sentences that a text needs for `receiver`.
FEWEST_SPANS = 8
# Extent of the local window in tokens.
NEAR = 4
# Largest distance of a patch that is near another, in rows and in columns.
NEAR_PATCHES = 1
# Precedence of roles in the choice of a main role.
_TARGETS = 0
_RESTS = 2
_SHAPES = 3
_CAUSES = 4


@dataclass(frozen=True)
class HeadRole:
    """A role of a head."""

    name: str  # name in options, JSON, tables and Python
    letter: str  # letter in the grid of heads
    colour: str  # colour in the grid, as #rrggbb
    title: str  # title on screens
    meaning: str  # definition of its value
    source: str  # publication that describes it
    # on `texts`, on random tokens that are `repeated` once or `tripled`, on a `needle` among random tokens, or from
    # `weights` alone; on `spans` of texts, on two `segments` or on `images`, if texts have these, or on `sound`
    measured: str
    needs: tuple[str, ...]  # sums that it is computed from; see studies.heads.measure
    compute: Callable[[Sums], Array]  # computes its value from these sums, (…, layers, heads)
    clear: float = 0.4  # smallest value at which it can be the main role of a head
    # rank among clear roles: the lowest rank is the main role, ties go to the larger value; None for no main role
    rank: int | None = _TARGETS
    # whether a layer without softmax has it, of shares of |M| in place of weights
    of_shares: bool = True
    number: str = "share of weight"  # what its value is, in a few words


def _mean(
    name: str,
    letter: str,
    colour: str,
    title: str,
    meaning: str,
    source: str,
    measured: str,
    of: str,
    sum: str | None = None,
    **more: Any,
) -> HeadRole:
    """Declare a role whose value is a sum, by default of its name, divided by the number of its rows, called `of`."""
    sum_name = sum or name

    def compute(sums: Sums) -> Array:
        with np.errstate(invalid="ignore"):
            share: Array = sums[sum_name] / sums[of]
        return share

    return HeadRole(
        name, letter, colour, title, meaning, source, measured, (sum_name, of), compute, **more
    )


def _on_text(
    name: str, letter: str, colour: str, title: str, meaning: str, source: str, **more: Any
) -> HeadRole:
    """Declare the share of the average word's weight on some keys."""
    return _mean(
        name,
        letter,
        colour,
        title,
        f"Mean weight of a word on {meaning}.",
        source,
        "texts",
        "rows",
        **more,
    )


def _positional(sums: Sums) -> Array:
    """Return the share of the weights' variance that the mean weight of their offset explains (R²)."""
    # (…, 1, 1, offsets), (…, layers, heads, offsets)
    n = sums["offset_cells"]
    total = sums["offset_sums"]
    squares = sums["squares"]
    with np.errstate(invalid="ignore", divide="ignore"):
        explained = np.where(n > 0, total**2 / n, 0.0).sum(-1)
        mean = total.sum(-1) ** 2 / n.sum(-1)
        explained_share: Array = (explained - mean) / (squares - mean)
    # A head with equal weights on all words has no variance; rounding must not count as explained.
    return np.where(squares - mean > 1e-6 * squares, np.clip(explained_share, 0.0, 1.0), 0.0 * mean)


_OFFSETS = ("offset_sums", "squares", "offset_cells")
HEAD_ROLES = (
    _on_text("previous", "P", "#519ee3", "previous token", "the token before it", "Clark et al., 2019"),
    _on_text("next", "N", "#6ccdef", "next token", "the token after it", "Clark et al., 2019",
             of_shares=False),
    _on_text("self", "S", "#027e1e", "its own token", "itself", "Clark et al., 2019"),
    _mean(
        "duplicate", "D", "#7f8912", "same token earlier",
        "Random tokens, repeated once: mean weight of a token in the second copy on the same token in the first.",
        "Wang et al., 2023", "repeated", "copies",
    ),
    _mean(
        "induction", "I", "#a41967", "induction",
        "Random tokens, repeated once: mean weight of a token in the second copy on the token that followed it in the "
        "first (prefix matching).",
        "Olsson et al., 2022", "repeated", "copies",
    ),
    _mean(
        "second-order", "2", "#882255", "induction, order 2",
        "Random tokens, repeated twice: mean weight of a token in the third copy on the token that followed it in the "
        "first.",
        "docs/heads.md", "tripled", "thirds", rank=None,
    ),
    _mean(
        "retrieval", "R", "#d11ba1", "retrieval",
        "A needle of random tokens placed among others and repeated at the end: share of the needle's tokens for which "
        "the largest weight is on the token to be copied next, with teacher forcing.",
        "Wu et al., 2024", "needle", "copied", rank=1, number="share of tokens found",
    ),
    _on_text(
        "first", "F", "#878b8c", "first token (sink)", "the first token, or on a sink that the head has learned",
        "Xiao et al., 2024", rank=_RESTS,
    ),
    _on_text(
        "special", "X", "#f1b467", "special tokens", "special tokens other than the first", "Clark et al., 2019",
        rank=_RESTS,
    ),
    _on_text(
        "punctuation", "M", "#ca970b", "punctuation marks", "punctuation marks", "Clark et al., 2019", rank=_RESTS,
    ),
    _on_text(
        "local", "L", "#1f6c42", "local window", f"tokens 2 to {NEAR} positions away", "Kovaleva et al., 2019",
        rank=_SHAPES,
    ),
    _mean(
        "uniform", "U", "#c8d99b", "uniform",
        "Overlap of a word's weights with uniform attention to the n tokens it sees: Σ min(α, 1/n).",
        "Clark et al., 2019", "texts", "rows", clear=0.6, rank=_SHAPES, number="overlap with equal weights",
    ),
    HeadRole(
        "positional", "O", "#6d59d9", "positional",
        "Share of the variance of the weights on words that the offset of the key from the query explains (R²).",
        "Voita et al., 2019", "texts", _OFFSETS, _positional, clear=0.5, rank=_CAUSES,
        number="share of variance that distance explains",
    ),
    _mean(
        "content", "C", "#d97957", "content weight",
        "Mean weight of a word on other words, beyond the mean of their offset and the mean of all words on them.",
        "docs/heads.md", "texts", "rows", clear=0.25, rank=_CAUSES, number="weight beyond what distance and word explain",
    ),
    _mean(
        "row", "r", "#020aff", "row of the picture", "Mean weight of a patch on the other patches of its row.",
        "docs/images.md", "images", "patches", sum="grid row", rank=_SHAPES, of_shares=False,
    ),
    _mean(
        "column", "c", "#f7fd01", "column of the picture", "Mean weight of a patch on the other patches of its column.",
        "docs/images.md", "images", "patches", sum="grid column", rank=_SHAPES, of_shares=False,
    ),
    _mean(
        "near", "n", "#150bb0", "near patches",
        "Mean weight of a patch on the eight patches around it.",
        "docs/images.md", "images", "patches", rank=_SHAPES, of_shares=False,
    ),
    HeadRole(
        "copying", "V", "#cc3311", "copying",
        "Σ λ / Σ |λ| over the eigenvalues λ of W_V W_O, which maps what a head reads to what it writes; −1 to 1. The "
        "copying score of Elhage et al. also has W_E and W_U at its ends, and its sign can differ.",
        "after Elhage et al., 2021", "weights", ("copying",), lambda sums: sums["copying"], clear=0.5, rank=None,
        of_shares=False, number="Σ λ / Σ |λ| of W_V W_O, −1 to 1",
    ),
    _mean(
        "receiver", "E", "#225555", "receiver of sentences",
        f"Excess kurtosis over sentences of the weight that each receives from sentences {APART} or more behind it.",
        "Bogdan et al., 2025", "spans", "receivers", clear=5.0, rank=None, of_shares=False, number="excess kurtosis",
    ),
    _mean(
        "alignment", "A", "#555522", "alignment of segments",
        "The second of two segments on the first: share of its weight × sharpness × monotonicity.",
        "docs/heads.md", "segments", "alignments", rank=None, of_shares=False,
        number="share of weight × sharpness × monotonicity",
    ),
    _mean(
        "alignment-share", "w", "#555577", "share of alignment",
        "Mean weight of a token of the second segment on the first.",
        "docs/heads.md", "segments", "alignments", rank=None, of_shares=False,
    ),
    _mean(
        "alignment-sharpness", "h", "#775555", "sharpness of alignment",
        "1 − entropy of that weight within the first segment, divided by the largest possible; averaged by share.",
        "docs/heads.md", "segments", "alignments", rank=None, of_shares=False, number="1 − entropy of the largest",
    ),
    _mean(
        "alignment-monotonicity", "m", "#557755", "monotonicity of alignment",
        "Correlation between the place of a token and the mean place that it reads, weighted by share; −1 to 1.",
        "docs/heads.md", "segments", "alignments", rank=None, of_shares=False, number="correlation, −1 to 1",
    ),
    _mean(
        "align", "G", "#117733", "alignment with sound",
        "Standardised weight of a row on the sound of the token that it predicts, less that on the sound of the token "
        "before.",
        "docs/sound.md", "sound", "aligned", rank=None, of_shares=False, number="standardised weight",
    ),
)  # fmt: skip
ROLES = {role.name: role for role in HEAD_ROLES}


def main_roles(values: Mapping[str, Array]) -> Array:
    """Return the place in HEAD_ROLES of the main role of every head, (layers, heads); −1 if no role is clear.

    The values of roles are (layers, heads) each; NaN if not measured.
    """
    first_values = next(iter(values.values()))
    best = np.full(first_values.shape, -np.inf)
    rank = np.full(first_values.shape, np.inf)
    main = np.full(first_values.shape, -1)
    for index, role in enumerate(HEAD_ROLES):
        if role.rank is None or role.name not in values:
            continue
        value = np.nan_to_num(values[role.name], nan=-np.inf)
        better = (value >= role.clear) & (
            (role.rank < rank) | ((role.rank == rank) & (value > best))
        )
        main[better] = index
        best[better] = value[better]
        rank[better] = role.rank
    return main


def jackknife(sums: Sums, role: HeadRole) -> tuple[Array, Array]:
    """Return a role's value over all blocks of sequences, and its standard error, (layers, heads) each.

    The error is that of the delete-one jackknife (Efron and Tibshirani, 1993, chapter 11), which for a mean is the
    usual one and also holds for ratios and for variances; NaN for a single block. A block without a row that
    counts (texts of two words) is none: leaving it out changes nothing, and would make the error too large.
    The sums are (blocks, layers, heads, …) each.
    """
    needed_sums = {name: sums[name] for name in role.needs}
    totals = {name: array.sum(0) for name, array in needed_sums.items()}
    value = role.compute(totals)
    blocks = [
        n
        for n in range(len(sums[role.needs[0]]))
        if any(array[n].any() for array in needed_sums.values())
    ]
    count = len(blocks)
    if role.measured == "weights" or count < 2:
        return value, np.full_like(value, np.nan)
    left_out_values = np.stack(
        [
            role.compute(
                {name: totals[name] - block_sums[n] for name, block_sums in needed_sums.items()}
            )
            for n in blocks
        ]
    )
    spread: Array = np.sqrt(
        (count - 1) / count * ((left_out_values - left_out_values.mean(0)) ** 2).sum(0)
    )
    return value, spread
