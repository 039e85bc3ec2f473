"""What `attnscope ablate` found, as plain data: what a cut changes, or the effect of every head, layer or edge."""

from collections.abc import Sequence

import msgspec
import numpy as np

from attnscope.report.arrays import Floats, Matrix
from attnscope.report.run import TextFindings

ABLATION_SCHEMA = "attnscope.ablation/1"
EFFECTS_SCHEMA = "attnscope.effects/1"


class CutPart(msgspec.Struct, frozen=True):
    """One cut, as it was asked for.

    Attributes:
        written: As it was typed.
        heads: Layer and head of each head that it names.
        queries: Positions of the queries of the edges that are cut; None where whole heads are.
        keys: Positions of their keys; None likewise.
        weight: Without the cut: of edges, the weight that a query gives to the keys together, averaged over heads and
            queries; of heads, the weight off the sink (see WEIGHT_OFF_SINK), averaged over heads.
    """

    written: str
    heads: list[tuple[int, int]]
    queries: list[int] | None
    keys: list[int] | None
    weight: float


class TokenChange(msgspec.Struct, frozen=True):
    """A token of the vocabulary that is predicted, without and with a cut.

    Attributes:
        id: Its vocabulary id.
        piece: The tokenizer's own spelling.
        text: What it spells, with the blank that it may start with.
        before: Its probability without the cut.
        after: With it.
        change: Change in log-probability, log2(after / before), in bits.
    """

    id: int
    piece: str
    text: str
    before: float
    after: float
    change: float


class PredictionChange(msgspec.Struct, frozen=True):
    """What is predicted at one position, without and with a cut.

    Attributes:
        position: The token at which the model predicts: a causal model the next token, a masked one this token.
        kl: Kullback–Leibler divergence KL(before ‖ after) over the whole vocabulary, in bits.
        tokens: The five most probable without the cut, then those of the five most probable under each effect of the
            report that are not among them.
    """

    position: int
    kl: float
    tokens: list[TokenChange]


class CutEffect(msgspec.Struct, frozen=True):
    """What changes under all cuts together.

    Attributes:
        how: `zero` or `mean` (what stands for the output of heads), `renormalised` (scores of edges are −inf) or
            `unnormalised` (weights of edges are 0, and the other weights of the row as they were).
        cosine: Of every token, the cosine between its final hidden state without and with the cuts.
        change: Norm of the change of that state, ‖after − before‖.
        predictions: What changes in predictions; empty where there is no output head, or no position.
    """

    how: str
    cosine: Floats
    change: Floats
    predictions: list[PredictionChange]


class Ablation(TextFindings, frozen=True):
    """What a cut changes.

    Attributes:
        cuts: The cuts, made together.
        norms: Norm of every token's final hidden state without the cuts.
        effects: What changes; of edges both ways to cut them.
        notes: What was left out, and why.
        schema: Name and version of this format.
    """

    cuts: list[CutPart]
    norms: Floats
    effects: list[CutEffect]
    notes: list[str] = msgspec.field(default_factory=list)
    schema: str = ABLATION_SCHEMA


class Effects(msgspec.Struct, frozen=True):
    """The effect of cutting one thing, for every one of them.

    Attributes:
        how: See CutEffect.
        kl: KL(before ‖ after) in bits, averaged over the positions; null without an output head or position.
        hidden: Change of the final hidden state, ‖after − before‖ / ‖before‖, averaged over the positions, or over all
            tokens where no position is named.
        correlation: Spearman's rank correlation between weight and effect (kl where it is there, else hidden); null
            where either is the same for all.
    """

    how: str
    kl: Floats | None
    hidden: Floats
    correlation: float | None

    @property
    def ranked_by(self) -> str:
        """Name of the effect that ranks: `kl` or `hidden`."""
        return "hidden" if self.kl is None else "kl"

    @property
    def effect(self) -> Floats:
        """The effect that ranks."""
        return self.hidden if self.kl is None else self.kl


class EffectSurvey(TextFindings, frozen=True):
    """The effect of every head, layer or edge, each cut alone.

    Attributes:
        unit: `head`, `layer` or `edge`.
        positions: Where predictions and hidden states are compared; empty for all hidden states.
        layers: Layer of each.
        heads: Head of each; −1 for a whole layer.
        queries: Of edges, position of the query; empty elsewhere.
        keys: Of edges, position of the key; empty elsewhere.
        weights: Weight of each without a cut.
        meaning: What that weight is.
        effects: What each changes; of edges both ways to cut them.
        notes: What was left out, and why.
        schema: Name and version of this format.
    """

    unit: str
    positions: list[int]
    layers: list[int]
    heads: list[int]
    queries: list[int]
    keys: list[int]
    weights: Floats
    meaning: str
    effects: list[Effects]
    notes: list[str] = msgspec.field(default_factory=list)
    schema: str = EFFECTS_SCHEMA

    def grid(self, values: Floats) -> Matrix:
        """Return numbers of heads or layers as (layers, heads); NaN for heads that were not cut."""
        columns = 1 if self.unit == "layer" else self.provenance.n_heads
        made = np.full((self.provenance.n_layers, columns), np.nan, np.float32)
        made[self.layers, [max(0, head) for head in self.heads]] = values
        return made

    def order(self) -> list[int]:
        """Return places by effect, the largest first."""
        return [int(n) for n in np.argsort(-self.effects[0].effect, kind="stable")]


def rank_correlation(first: Sequence[float] | Floats, second: Sequence[float] | Floats) -> float | None:
    """Return Spearman's rank correlation, equal values sharing their mean rank; None where one side is constant."""
    ranks = [_ranks(np.asarray(values, dtype=np.float64)) for values in (first, second)]
    centred = [values - values.mean() for values in ranks]
    size = float(np.sqrt((centred[0] ** 2).sum() * (centred[1] ** 2).sum()))
    return float((centred[0] * centred[1]).sum() / size) if size else None


def _ranks(values: "np.ndarray") -> "np.ndarray":
    _, place, counts = np.unique(values, return_inverse=True, return_counts=True)
    last = np.cumsum(counts)
    found: np.ndarray = (last - (counts - 1) / 2)[place]
    return found
