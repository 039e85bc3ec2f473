"""What `attnscope ablate` found, as plain data: what a cut changes, or the effect of every head, layer or edge."""

from collections.abc import Sequence
from typing import Annotated

import msgspec
import numpy as np

from attnscope.findings.arrays import Floats, Matrix, OfUnits, along
from attnscope.findings.merge_pieces import TextWords
from attnscope.findings.predictions import VocabularyToken
from attnscope.findings.provenance import TextFindings
from attnscope.findings.spans import TextSpans
from attnscope.findings.tables import Table
from attnscope.findings.tokens import Token

ABLATION_SCHEMA = "attnscope.ablation/1"
EFFECTS_SCHEMA = "attnscope.effects/1"
# Change of a final hidden state, relative to its length, that rounding makes: in SmolLM2-135M, up to 3e-6 by another
# order of sums in float32, and in 16 bits, where the last bit of a state flips at any change, 0.014 and 0.0015.
_ROUNDING = {"float32": 3e-5, "bfloat16": 0.02, "float16": 0.002}
_OfTokens = Annotated[Floats, along("token")]


class LogitTarget(VocabularyToken, frozen=True):
    """A token whose logit is compared without and with cuts.

    Attributes:
        logit: Its logit without a cut, averaged over the positions that are compared.
        other: The same in the text that is patched from; null for other replacements.
    """

    logit: float
    other: float | None = None


class Replacing(msgspec.Struct, frozen=True):
    """The texts whose activations replace those of the text: of each as many tokens, position by position.

    Attributes:
        text: The text that is patched from; null for draws from several texts.
        tokens: Tokens of that text, or of each draw.
        seed: Seed of the draws; null for a text that is patched from.
    """

    text: str | None
    tokens: list[list[Token]]
    seed: int | None = None


def logit_of(targets: Sequence[LogitTarget], *, other: bool = False) -> float | None:
    """Return the logit of one target, or of the first minus the second; None without targets.

    `other`: in the text that is patched from.
    """
    logits = [target.other if other else target.logit for target in targets]
    if not logits or logits[0] is None:
        return None
    if len(logits) > 1:
        return logits[0] - (logits[1] or 0.0)
    return logits[0]


class CutPart(msgspec.Struct, frozen=True):
    """One cut that was requested.

    Attributes:
        written: The cut, as typed.
        heads: Layer and head of each head in the cut.
        queries: Positions of the queries whose edges are cut; None if whole heads are cut.
        keys: Positions of the keys of these edges; None if whole heads are cut.
        weight: Weight without the cut. For edges: the weight of a query on the keys together, averaged over heads and
            queries. For heads: the weight that words give to tokens other than the first and special ones, averaged
            over words and heads.
    """

    written: str
    heads: list[tuple[int, int]]
    queries: list[int] | None
    keys: list[int] | None
    weight: float


class TokenChange(VocabularyToken, frozen=True):
    """A predicted token, without and with a cut.

    Attributes:
        before: Probability without the cut.
        after: Probability with the cut.
        change: Change in log-probability, log2(after / before), in bits.
    """

    before: float
    after: float
    change: float


class PredictionChange(msgspec.Struct, frozen=True):
    """The prediction at one position, without and with a cut.

    Attributes:
        position: Position of the prediction: a causal model predicts the next token, a masked language model the token
            here.
        kl: Kullback–Leibler divergence KL(before ‖ after) over the whole vocabulary, in bits.
        tokens: The five most probable tokens without the cut, followed by the five most probable under each effect of
            the report, without repeats.
    """

    position: int
    kl: float
    tokens: list[TokenChange]


class CutEffect(msgspec.Struct, frozen=True):
    """The changes when all cuts are made together.

    Attributes:
        how: `zero` or `mean` (the output of cut heads), `renormalised` (scores of cut edges are −inf), `unnormalised`
            (weights of cut edges are 0, and the other weights of the row do not change), `resample` (outputs of heads,
            and what edges add to them, are those of other texts; every number is a mean over draws) or `patch` (they
            are those of another text).
        cosine: For every token, the cosine between its final hidden state without and with the cuts; null where one of
            them is 0.
        change: Norm of the change of that state, ‖after − before‖.
        predictions: Changes of the predictions; empty without an output head or a position.
        target: Change of the target's logit, or of the difference of two, averaged over the positions; null without a
            target.
    """

    how: str
    cosine: _OfTokens
    change: _OfTokens
    predictions: list[PredictionChange]
    target: float | None = None


class Ablation(TextFindings, frozen=True):
    """The effect of cuts that are made together.

    Attributes:
        cuts: The cuts.
        norms: Norm of every token's final hidden state without the cuts.
        effects: The changes; one entry for heads, two for edges (both ways to cut them).
        notes: Remarks for the reader, such as what was left out, and why.
        targets: The token whose logit is compared, or two whose difference is; empty for none.
        replacing: The texts that replacements come from; null for `zero` and `mean`.
        schema: Name and version of this format.
    """

    cuts: list[CutPart]
    norms: _OfTokens
    effects: list[CutEffect]
    notes: list[str] = []
    targets: list[LogitTarget] = []
    replacing: Replacing | None = None
    schema: str = ABLATION_SCHEMA


class Effects(msgspec.Struct, frozen=True):
    """The effects of all units (heads, layers or edges) under one way to cut them.

    Attributes:
        how: See CutEffect.
        kl: KL(before ‖ after) in bits, averaged over the positions; null without an output head or position.
        hidden: Change of the final hidden state, ‖after − before‖ / ‖before‖, averaged over the positions, or over all
            tokens if there are none; those whose state is 0 before are left out, and it is null if all are.
        correlation: Spearman's rank correlation between weight and effect (the size of `target` if present, else
            `loss`, else `kl`, else `hidden`); null if either is constant, or if all effects are rounding.
        loss: Bits of log-probability that the answer loses by the cut, log2(before / after); null without an answer.
        target: Change of the target's logit, or of the difference of two, averaged over the positions; null without a
            target.
    """

    how: str
    kl: OfUnits | None
    hidden: OfUnits
    correlation: float | None
    loss: OfUnits | None = None
    target: OfUnits | None = None

    @property
    def ranked_by(self) -> str:
        """Name of the effect that ranks: `target` (by size), `loss`, `kl` or `hidden`."""
        known_names = (name for name in ("target", "loss", "kl") if getattr(self, name) is not None)
        return next(known_names, "hidden")

    @property
    def effect(self) -> Floats:
        """The effect by which units are ranked."""
        effect: Floats = getattr(self, self.ranked_by)
        return effect

    @property
    def strength(self) -> Floats:
        """The effect by which units are ranked, or the size of a change that may have either sign."""
        if self.ranked_by == "target":
            return np.abs(self.effect)
        return self.effect

    def are_rounding(self, dtype: str) -> bool:
        """Return whether no unit changes a compared state by more than rounding does in this dtype of the model."""
        known = self.hidden[~np.isnan(self.hidden)]
        if not known.size:
            return not self.strength.any()
        return float(known.max()) <= _ROUNDING.get(dtype, _ROUNDING["float32"])


class EffectSurvey(TextFindings, frozen=True):
    """The effect of every head, layer, edge or span, each cut alone.

    Attributes:
        unit: `head`, `layer`, `edge` or `span`: the edges from `rows` to the tokens of the span.
        positions: Positions at which predictions and hidden states are compared; empty if all hidden states are
            compared.
        layers: Layer of each unit; −1 for a span.
        heads: Head of each unit; −1 for a whole layer, and for a span.
        queries: Position of the query of each edge; empty for heads and layers.
        keys: Position of the key of each edge; empty for heads and layers.
        weights: Weight of each unit without a cut.
        meaning: Definition of that weight.
        effects: The effect of each unit; one entry for heads, two for edges and spans (both ways to cut them).
        notes: Remarks for the reader, such as what was left out, and why.
        spans: The spans of the text; null for other units.
        span_numbers: Number of the span of each unit; empty for other units.
        rows: Positions of the tokens whose reading of spans is cut; empty for other units.
        answer: Positions of the answer's tokens; empty for other units, and without an answer.
        log_probability: Log-probability of the answer without a cut, in bits; null without an answer.
        words: The words that edges are between, of which `queries` and `keys` name the first tokens; null for tokens.
        targets: The token whose logit is compared, or two whose difference is; empty for none.
        replacing: The texts that replacements come from; null for `zero` and `mean`.
        predictions: What is predicted without and with the cut of the unit with the largest effect, as `--cut` reports
            it; empty without predictions, for spans, and for more than three positions.
        schema: Name and version of this format.
    """

    unit: str
    positions: Annotated[list[int], along(positions="token")]
    layers: Annotated[list[int], along("unit")]
    heads: Annotated[list[int], along("unit")]
    queries: list[int]
    keys: list[int]
    weights: OfUnits
    meaning: str
    effects: list[Effects]
    notes: list[str] = []
    spans: TextSpans | None = None
    span_numbers: Annotated[list[int], along(positions="span")] = []
    rows: Annotated[list[int], along("row", positions="token", ascending=True)] = []
    answer: Annotated[list[int], along("answer", positions="token", ascending=True)] = (
        msgspec.field(default_factory=list)
    )
    log_probability: float | None = None
    targets: list[LogitTarget] = []
    replacing: Replacing | None = None
    words: TextWords | None = None
    predictions: list[PredictionChange] = []
    schema: str = EFFECTS_SCHEMA

    def restored(self, effects: Effects) -> Floats | None:
        """Return each patch's change of the target as a share of the difference between the texts.

        0 is the text as it is, 1 the text that is patched from. None without a patch or target, or if the target is the
        same in both texts, up to rounding.
        """
        before = logit_of(self.targets)
        there = logit_of(self.targets, other=True)
        if effects.target is None or before is None or there is None or before == there:
            return None
        if effects.are_rounding(self.provenance.dtype):
            return None
        return (effects.target / (there - before)).astype(np.float32)

    @property
    def span_names(self) -> list[str]:
        """Name of the span of each unit; empty for other units."""
        if self.spans is None:
            return []
        return [self.spans.names[index] for index in self.span_numbers]

    def word_names(self) -> tuple[dict[int, str], dict[int, str]]:
        """Return the words of edges by their first position, for queries and for keys; empty for edges of tokens."""
        if self.words is None:
            return {}, {}
        sides = (
            (self.words.queries, self.words.query_names),
            (self.words.keys, self.words.key_names),
        )
        rows, columns = (
            {word[0]: name for word, name in zip(*side, strict=True)} for side in sides
        )
        return rows, columns

    def grid(self, values: Floats) -> Matrix:
        """Return numbers of heads or layers as (layers, heads); NaN for heads that are not cut."""
        columns = 1 if self.unit == "layer" else self.provenance.n_heads
        grid = np.full((self.provenance.n_layers, columns), np.nan, np.float32)
        grid[self.layers, [max(0, head) for head in self.heads]] = values
        return grid

    def table(self) -> Table:
        """Return what is cut, its weight, and each effect; for edges in both ways."""
        table: Table
        if self.unit == "span":
            table = {}
        else:
            table = {"layer": np.array(self.layers)}
        if self.unit in ("head", "edge"):
            table["head"] = np.array(self.heads)
        if self.unit == "span":
            table["span"] = self.span_names
        if self.unit == "edge":
            sides = ("query", self.queries, self.tokens), ("key", self.keys, self.sources)
            for (name, positions, tokens), words in zip(sides, self.word_names(), strict=True):
                spelled = [words.get(position, tokens[position].text) for position in positions]
                table |= {name: np.array(positions), f"{name}_text": spelled}
        table["weight"] = self.weights
        for effects in self.effects:
            end = f"_{effects.how}" if len(self.effects) > 1 else ""
            for name in ("kl", "hidden", "loss", "target"):
                if (values := getattr(effects, name)) is not None:
                    table[name + end] = values
            if (restored := self.restored(effects)) is not None:
                table["restored"] = restored
        return table

    def order(self) -> list[int]:
        """Return the units by effect, the largest first."""
        return [int(n) for n in np.argsort(-self.effects[0].strength, kind="stable")]


def ranks_of(values: np.ndarray) -> np.ndarray:
    """Return the rank of every value, from 1 for the largest, in its shape; equal values share theirs, NaN is last."""
    falling = -np.nan_to_num(values, nan=-np.inf)
    ranks: np.ndarray = np.searchsorted(np.sort(falling, axis=None), falling) + 1
    return ranks


def rank_correlation(
    first_values: Sequence[float] | Floats, second_values: Sequence[float] | Floats
) -> float | None:
    """Return Spearman's rank correlation; equal values share their mean rank; None if one side is constant."""
    centred = []
    for values in (first_values, second_values):
        _, inverse, counts = np.unique(
            np.asarray(values, dtype=np.float64), return_inverse=True, return_counts=True
        )
        ranks = (np.cumsum(counts) - (counts - 1) / 2)[inverse]
        centred.append(ranks - ranks.mean())
    size = float(np.sqrt((centred[0] ** 2).sum() * (centred[1] ** 2).sum()))
    if size:
        return float((centred[0] * centred[1]).sum() / size)
    return None
