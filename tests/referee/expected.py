"""Compute every number of a Report in NumPy float64 from what a layer's attention is given, and how exact ours must be.

Ours is float32, the reference float64. A unit of rounding is u = 2⁻²⁴. Rounding errors of all layers before it reach a
layer's queries and keys, so a score may be off by ROUNDINGS·u·‖q‖·‖k‖ (half of that is the most that was seen, in a
gpt_oss: `transformers` in float32 is as far off there).
All else follows by its derivative: where no score is off by more than δ, a sum Σ w c of weights is off by at most
δ Σ w |c − Σ w c|, and a weight is such a sum. (e^{2δ} − 1) / 2 stands for δ, so that it holds for large δ, too.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from tests.helpers.row_statistics import (
    WITHIN,
    entropy,
    group_means,
    information,
    key_factors,
    runs,
)
from tests.referee.reference import Allowed, Array, Layer, raw_and_scaled, softmax

U = 2.0**-24
ROUNDINGS = 210.0
STAGES = ("scores", "scaled", "masked", "weights", "output")
STATISTICS = (
    "entropy", "first", "special", "self", "other", "distance", *(f"within_{n}" for n in WITHIN), "punctuation",
    "max_score",
)  # fmt: skip


@dataclass(frozen=True)
class Number:
    """Numbers, and by how much ours may differ from each."""

    value: Array  # what they are; NaN where there is none
    slack: Array  # by how much ours may differ, of the same shape

    def __getitem__(self, at: object) -> "Number":
        return Number(self.value[at], self.slack[at])


def mean(numbers: Sequence[Number]) -> Number:
    """The mean of several; NaN where any of them is."""
    return Number(
        np.mean([n.value for n in numbers], 0), np.mean([n.slack for n in numbers], 0) + 4 * U
    )


class Attention:
    """One layer's attention over one text.

    Args:
        layer: What the model hands to it.
        used: Which keys a query may see, (Q, K).
        special: Special tokens, (K,), bool.
        punctuation: Tokens that are punctuation marks alone, likewise.
    """

    def __init__(
        self, layer: Layer, used: Allowed, special: Sequence[bool], punctuation: Sequence[bool]
    ) -> None:
        self.layer, self.used, self.special = layer, used, np.array(special, dtype=bool)
        self.punctuation = np.array(punctuation, dtype=bool)
        self.dead = ~used.any(-1)  # (Q,)
        self.raw, self.scaled = raw_and_scaled(layer)  # (H, Q, K)
        self.masked = np.where(used, self.scaled, -np.inf)
        self.weights, self.sink = softmax(self.masked, layer.sinks)
        q, k = (np.linalg.norm(x, axis=-1).max(-1) for x in (layer.q, layer.k))  # (H,)
        self.score_slack = ROUNDINGS * U * np.maximum(q * k, 1.0)  # (H,)
        self.delta = self.score_slack * abs(layer.scale) + 2 * U * np.abs(self.scaled).max((1, 2))
        self.growth = np.expm1(2 * self.delta)[:, None, None] / 2  # (H, 1, 1)
        self._numbers: dict[str, Number] = {}
        self._statistics: dict[str, Number] = {}

    @cached_property
    def norms(self) -> dict[str, Array]:
        """‖v_j‖ and ‖v_j W_O^h‖, (H, K)."""
        assert self.layer.out is not None
        return {
            "value": np.linalg.norm(self.layer.v, axis=-1),
            "projected": np.linalg.norm(self.layer.v @ self.layer.out, axis=-1),
        }

    def number(self, name: str) -> Number:
        """A stage or a contribution, (H, Q, K), or (H, Q, Ev) for `output`."""
        if name not in self._numbers:
            self._numbers[name] = self._number(name)
        return self._numbers[name]

    def _number(self, name: str) -> Number:
        shape, w = self.raw.shape, self.weights
        nothing = self.dead[None, :, None]
        match name:
            case "scores":
                return Number(self.raw, np.broadcast_to(self.score_slack[:, None, None], shape))
            case "scaled" | "masked":
                value = (
                    self.scaled if name == "scaled" else np.where(self.used, self.scaled, np.nan)
                )
                return Number(value, np.broadcast_to(self.delta[:, None, None], shape))
            case "output":
                v, total = self.layer.v, w.sum(-1, keepdims=True)
                value = w @ v
                spread = np.maximum(w @ v**2 - (2 - total) * value**2, 0.0)  # Σ w (v − output)²
                slack = self.growth * np.sqrt(spread) + ROUNDINGS * U * np.abs(v).max(
                    (1, 2), keepdims=True
                )
                return Number(np.where(nothing, np.nan, value), slack)
        rest = w.sum(-1, keepdims=True) - w
        slack = self.growth * w * (1 - w + rest) + 2 * U
        if name == "weights":
            return Number(np.where(nothing, np.nan, w), slack)
        norms = self.norms[name][:, None]  # (H, 1, K)
        off = slack * norms + ROUNDINGS * U * w * norms.max(-1, keepdims=True)
        return Number(np.where(nothing, np.nan, w * norms), off)

    def statistic(self, name: str) -> Number:
        """A statistic of every row, (H, Q), or `sink`."""
        if name not in self._statistics:
            self._statistics[name] = self._statistic(name)
        return self._statistics[name]

    def _statistic(self, name: str) -> Number:
        w = self.weights
        match name:
            case "entropy":
                off = self._sum(information(w) - 1 / np.log(2))
                return Number(np.where(self.dead, np.nan, entropy(w)), off.slack)
            case "max_score":
                value = np.where(self.dead, np.nan, self.masked.max(-1))
                return Number(value, np.broadcast_to(self.delta[:, None], value.shape))
            case "sink":
                assert self.sink is not None
                off = self.growth[..., 0] * self.sink * (1 - self.sink) + 4 * U
                return Number(np.where(self.dead, np.nan, self.sink), off)
        return self._sum(
            key_factors(range(self.raw.shape[1]), self.special, self.punctuation)[name]
        )

    def _sum(self, factors: Array) -> Number:
        """Sum weights times factors c, (K,), (Q, K) or (H, Q, K), over the keys; the slack is δ Σ w |c − Σ w c|."""
        w, factors = self.weights, np.broadcast_to(factors, self.weights.shape).astype(np.float64)
        value = (w * factors).sum(-1)
        slack = self.growth[..., 0] * (w * np.abs(factors - value[..., None])).sum(-1)
        slack += (16 + w.shape[-1] / 4) * U * np.abs(factors).max(-1, initial=1.0)
        return Number(np.where(self.dead, np.nan, value), slack)


@dataclass(frozen=True)
class Unit:
    """What one entry of a Report stands for: a layer and head, or a mean."""

    layers: Sequence[Attention]  # the attention of each of its layers over one text
    heads: Sequence[int]
    # one layer and one head, and no mean: its ranking by weight is that of the masked scores
    single: bool

    @property
    def dead(self) -> Allowed:
        """Fully masked queries, (Q,)."""
        return np.any([one.dead for one in self.layers], axis=0)

    @property
    def used(self) -> Allowed:
        """Keys that any layer lets a query see, (Q, K)."""
        return np.any([one.used for one in self.layers], axis=0)

    @property
    def has_sink(self) -> bool:
        """Its heads have sinks."""
        return self.layers[0].sink is not None

    def number(self, name: str) -> Number:
        """A stage or contribution, (Q, K), or (Q, Ev)."""
        return mean([one.number(name)[head] for one in self.layers for head in self.heads])

    def statistic(self, name: str) -> Number:
        """A statistic of every row, (Q,); of a mean that of its rows, where that is no mean of the heads'."""
        if (
            name in ("entropy", "max_score")
            and not self.single
            and len(self.layers) * len(self.heads) > 1
        ):
            return self._of_mean_rows(name)
        return mean([one.statistic(name)[head] for one in self.layers for head in self.heads])

    def _of_mean_rows(self, name: str) -> Number:
        if name == "max_score":
            scores = self.number("masked")
            visible = np.all([one.used for one in self.layers], axis=0)
            value = np.where(visible, scores.value, -np.inf).max(-1)
            return Number(np.where(value == -np.inf, np.nan, value), scores.slack.max(-1))
        weights = self.number("weights")
        slack = (weights.slack * (information(weights.value) + 2)).sum(-1) + 32 * U
        return Number(entropy(weights.value), slack)

    def columns(self, rows: Sequence[int]) -> Number:
        """The weight that every key gets from these rows, (K,)."""
        live = [[row for row in rows if not one.dead[row]] for one in self.layers]
        parts = [one.number("weights")[head] for one in self.layers for head in self.heads]
        rows_of = [rows for rows in live for _ in self.heads]
        sums = [
            Number(p.value[r].sum(0), p.slack[r].sum(0))
            for p, r in zip(parts, rows_of, strict=True)
        ]
        return mean(sums)

    def pooled(self, size: int, rows: Sequence[int] | None = None) -> tuple[list[int], Number]:
        """Where runs start and the end, and the map of all weights, (runs, runs); NaN where a run has no live row.

        Args:
            size: Runs each way, at most.
            rows: The queries that count; None for all.
        """
        n = len(self.layers[0].dead)
        weights = [one.number("weights")[head] for one in self.layers for head in self.heads]
        counted = np.isin(np.arange(n), range(n) if rows is None else rows)
        live = np.concatenate([counted & ~one.dead for one in self.layers for _ in self.heads])
        groups = runs(n, size)
        # the rows of all heads, one head below the other
        of_rows = np.tile(groups, len(weights))
        value, slack = (
            group_means(np.concatenate(matrices), of_rows, groups, live)
            for matrices in ([w.value for w in weights], [w.slack for w in weights])
        )
        starts = [*np.flatnonzero(np.diff(groups, prepend=-1)), n]
        return starts, Number(value, np.nan_to_num(slack) + 8 * U)
