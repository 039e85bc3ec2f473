"""What cuts change, from Python."""

from dataclasses import dataclass

from attnscope.api.results import Float1, Float2, Result, TableResult
from attnscope.base.errors import UsageError
from attnscope.findings.ablation import Ablation, CutEffect, EffectSurvey, LogitTarget


class AblationResult(Result[Ablation]):
    """The result of `ablate` with `cut`: what the cuts change.

    Attributes:
        effects: The changes; for edges, one entry for each of both ways to cut them.
        targets: The tokens of `target`, with their logits without cuts; empty without any.
    """

    effects: list[CutEffect]
    targets: list[LogitTarget]
    _digits = 3

    @property
    def kl(self) -> list[float]:
        """KL(before ‖ after) in bits at each position, under the first effect; empty without an output head."""
        return [change.kl for change in self.data.effects[0].predictions]

    @property
    def target_change(self) -> float | None:
        """Change of the target's logit, or of the difference of two, under the first effect; None without a target."""
        return self.data.effects[0].target


@dataclass(frozen=True)
class UnitEffect:
    """The effect of one head, layer, edge or span.

    Attributes:
        layer: Number of the layer; −1 for a span.
        head: Number of the head; None for a whole layer or a span.
        query: Position of the query of an edge; otherwise None.
        key: Position of the key of an edge; otherwise None.
        weight: Weight without the cut.
        effect: The effect that ranks (see EffectsResult.ranked_by).
        span: Name of the span; otherwise None.
    """

    layer: int
    head: int | None
    query: int | None
    key: int | None
    weight: float
    effect: float
    span: str | None = None


class EffectsResult(TableResult[EffectSurvey]):
    """The result of `ablate` with `each`: the effect of every head, layer or edge, each cut alone.

    Attributes:
        unit: `head`, `layer`, `edge` or `span`.
        targets: The tokens of `target`, with their logits without cuts; empty without any.
        weights: Weight of each unit, in the order of `effect`.
    """

    unit: str
    targets: list[LogitTarget]
    weights: Float1
    _digits = 3

    @property
    def ranked_by(self) -> str:
        """Name of the effect that ranks: `target`, `loss` of an answer, else `kl`, or `hidden` without predictions."""
        return self.data.effects[0].ranked_by

    @property
    def correlation(self) -> float | None:
        """Spearman's rank correlation between weight and effect; None if either is constant, or effects are rounding."""
        return self.data.effects[0].correlation

    @property
    def restored(self) -> Float1 | Float2 | None:
        """Change of the target by each patch, as a share of the way from the text (0) to that of `patch_from` (1).

        Its shape is that of `values`; of edges, that of `effect`. None without a target and another text, or if the
        target is the same in both texts.
        """
        shares = self.data.restored(self.data.effects[0])
        if shares is None or self.unit in ("edge", "span"):
            return shares
        return self.data.grid(shares)

    @property
    def spans(self) -> list[str]:
        """Name of each span, in the order of `effect`; empty for other units."""
        return self.data.span_names

    @property
    def effect(self) -> Float1:
        """Effect of each unit, that of `ranked_by`; for edges and spans that are cut, the renormalised one."""
        return self.data.effects[0].effect

    @property
    def values(self) -> Float2:
        """Effect of heads as (layers, heads), or of layers as (layers, 1); NaN for those that were not cut."""
        if self.unit in ("edge", "span"):
            message = f"effects of {self.unit}s are not a matrix of layers × heads"
            raise UsageError(message, hint="use .effect, or .to_pandas()")
        return self.data.grid(self.effect)

    def strongest(self, k: int = 10) -> list[UnitEffect]:
        """Return the units with the largest effects, largest first."""
        data = self.data
        effect = self.effect
        return [
            UnitEffect(
                data.layers[n],
                None if data.unit in ("layer", "span") else data.heads[n],
                data.queries[n] if data.queries else None,
                data.keys[n] if data.keys else None,
                float(data.weights[n]),
                float(effect[n]),
                data.span_names[n] if data.span_numbers else None,
            )
            for n in data.order()[:k]
        ]
