"""Measures of how much of a token's output stems from each token, over layers: each declared once."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Annotated

import msgspec

from attnscope.findings.arrays import Matrix, Places, along
from attnscope.findings.tokens import LeftOut

# Value of --measure for the weights of heads.
ATTENTION = "weights"
# Share of every token that stems from one and the same token, from which on a product of layers has collapsed.
COLLAPSED = 0.9


@dataclass(frozen=True)
class RolloutMeasure:
    """A measure of contributions between tokens over layers."""

    name: str  # name in options and reports
    meaning: str  # definition of a cell
    source: str  # publication that defines it
    # whether it is computed by running layers again without the value of a token, instead of from weights
    zeroing: bool
    residual: bool  # whether the layer's input is added to the weights
    # whether the matrices of all layers are multiplied into one; otherwise each layer has a matrix
    cumulative: bool


_ROLLOUT = "weights A averaged over heads, multiplied over layers"
_ZEROING = "1 − cosine of a token's output with and without the value vectors of another, rows normalised to sum to 1"
ROLLOUT_MEASURES = {
    rollout_measure.name: rollout_measure
    for rollout_measure in (
        RolloutMeasure(
            "rollout", f"{_ROLLOUT} as 0.5 A + 0.5 I", "Abnar and Zuidema, 2020",
            zeroing=False, residual=True, cumulative=True,
        ),
        RolloutMeasure(
            "rollout-no-residual", _ROLLOUT, "Abnar and Zuidema, 2020",
            zeroing=False, residual=False, cumulative=True,
        ),
        RolloutMeasure(
            "value-zeroing", _ZEROING, "Mohebbi et al., 2023",
            zeroing=True, residual=False, cumulative=False,
        ),
        RolloutMeasure(
            "value-zeroing-rollout", f"{_ZEROING}, multiplied over layers", "Mohebbi et al., 2023",
            zeroing=True, residual=False, cumulative=True,
        ),
    )
}  # fmt: skip


class Collapse(msgspec.Struct, frozen=True):
    """A product of layers that hardly tells tokens apart, because all of them stem from one.

    Attributes:
        source: Position of the token that 90 % or more of every token stem from.
        layer: The first layer after which this is so; it is so after all later ones.
        share: How much of the last token stems from it after the last layer.
    """

    source: Annotated[int, along(positions="source")]
    layer: int
    share: float


class TokenRollout(msgspec.Struct, frozen=True):
    """How much each token's output of some layers depends on each token of their input.

    Attributes:
        measure: Name of the measure, such as `rollout`.
        layers: The layers, ascending.
        matrix: Shares, (queries, keys); null in rows that no token contributes to.
        nothing: Positions of the queries that no token contributes to.
        keys: Positions of the strongest sources of every query, (queries, rank); −1 if there are fewer.
        values: Their shares, (queries, rank).
        left_out: Tokens that are excluded from the ranking.
        collapse: The token that nearly all of every token stems from; None if there is none, and for a single layer.
    """

    measure: str
    layers: Annotated[list[int], along("layer", filled=True)]
    matrix: Annotated[Matrix, along("query", "key")]
    nothing: Annotated[list[int], along(positions="token")]
    keys: Annotated[Places, along("query", "rank", positions="source", or_none=True)]
    values: Annotated[Matrix, along("query", "rank")]
    left_out: list[LeftOut] = []
    collapse: Collapse | None = None

    def contradictions(self, _lengths: Mapping[str, int]) -> Iterator[tuple[str, str]]:
        """Yield contradictions that axes cannot express; see `axes`."""
        if self.collapse is not None and self.collapse.layer not in self.layers:
            yield "collapse.layer", f"is {self.collapse.layer}, not one of the layers"

    @property
    def before_collapse(self) -> str:
        """The layers before the one after which the product has collapsed, as `--layer` takes them; empty for none."""
        if self.collapse is None or self.collapse.layer == self.layers[0]:
            return ""
        *_, last = (layer for layer in self.layers if layer < self.collapse.layer)
        return f"{self.layers[0]}-{last}" if last != self.layers[0] else str(last)

    @property
    def name(self) -> str:
        """`L3`, or `L0–5` for layers that follow one another."""
        if len(self.layers) == 1:
            return f"L{self.layers[0]}"
        return f"L{self.layers[0]}–{self.layers[-1]}"
