"""How the output of attention that another program gave differs from the one that is computed of its inputs."""

from typing import Annotated

import msgspec

from attnscope.findings.arrays import Matrix, along


class TriedRule(msgspec.Struct, frozen=True):
    """Another rule, under which the output was computed once more in the first layer that differs.

    Attributes:
        rule: What was changed, such as `no window` or `mask bidirectional`.
        difference: Largest difference from the given output under this rule.
    """

    rule: str
    difference: float


class GivenOutput(msgspec.Struct, frozen=True):
    """The given output of a text's attention against the computed one, in every layer and head.

    Attributes:
        layers: Layers that have a given output.
        differences: Largest |given − computed| of every head, over rows and dimensions, (layers, heads).
        layer: Layer of the largest difference.
        head: Its head.
        query: Its row.
        dimension: Its dimension.
        given: The given number there.
        computed: The computed number there.
        limit: Largest difference that rounding explains: a share of the largest computed number.
        agrees: Whether no difference is beyond the limit.
        first_layer: First layer with a difference beyond the limit; null if there is none.
        tried: Other rules in that layer, the best first; empty if the outputs agree.
        explained_by: The first of these, if the outputs agree under it.
    """

    layers: Annotated[list[int], along("given layer")]
    differences: Annotated[Matrix, along("given layer", "given head")]
    layer: int
    head: int
    query: int
    dimension: int
    given: float
    computed: float
    limit: float
    agrees: bool
    first_layer: int | None = None
    tried: list[TriedRule] = []
    explained_by: str | None = None

    @property
    def largest(self) -> float:
        """The largest difference."""
        return abs(self.given - self.computed)
