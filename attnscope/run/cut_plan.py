"""Resolve cuts, heads and edges that are taken out of attention, against a model and a text."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Protocol

from attnscope.base.errors import arg
from attnscope.checkpoints.source import ModelSource
from attnscope.request.run_config import RunConfig
from attnscope.request.selection import CutExpression
from attnscope.run.plan import RunPlan, present_layers
from attnscope.run.text_plan import SearchedText, TextPlan

if TYPE_CHECKING:
    from torch import Tensor

    from attnscope.model.cuts import EdgeCut, Variant


@dataclass(frozen=True)
class Cut:
    """Heads that are cut, or edges of them."""

    written: str  # as it was typed; empty if it was not
    heads: tuple[tuple[int, int], ...]
    # positions of the queries of edges; None for whole heads
    queries: tuple[int, ...] | None = None
    # positions of the keys of these edges; None if whole heads are cut
    keys: tuple[int, ...] | None = None

    @property
    def layers(self) -> list[int]:
        """Layers that it touches, sorted."""
        return sorted({layer for layer, _ in self.heads})


def resolve_cuts(
    cuts: Sequence[CutExpression], run: RunConfig, source: ModelSource, text: TextPlan
) -> list[Cut]:
    """Resolve cut expressions to layers, heads and positions of the model and the text."""
    c = source.config
    resolved = list[Cut]()
    for expression in cuts:
        where = arg("cut", expression.written)
        places: dict[tuple[int, int], None] = {}
        for layers, heads in expression.heads:
            for layer in present_layers(layers, source).numbers(c.n_layers, "layer", where):
                places |= {(layer, head): None for head in heads.numbers(c.n_heads, "head", where)}
        if expression.edge is None:
            resolved.append(Cut(expression.written, tuple(places)))
            continue
        text_input = run.texts[text.number]
        own = text_input.text, text_input.pair
        sources = (
            (text.tokens, own) if text.context is None else (text.context, (text_input.context,))
        )
        sides = []
        for side, (tokens, texts) in zip(
            expression.edge, ((text.tokens, own), sources), strict=True
        ):
            positions = SearchedText(tokens, texts, text.spans, run.words).find(where, side)
            sides.append(tuple(range(len(tokens)) if positions is None else positions))
        resolved.append(Cut(expression.written, tuple(places), *sides))
    return resolved


class Replacement(Protocol):
    """Replacement of heads and edges."""

    def head(self, layer: int, head: int) -> "Tensor | None":
        """Return the replacement of a head's output, (Ev,) or (Q, Ev); None for 0."""

    def edges(
        self, layer: int, heads: Sequence[int], queries: Sequence[int], keys: Sequence[int]
    ) -> "Tensor | None":
        """Return the sum that queries read instead from these keys, (heads, queries, Ev); None for nothing."""


def make_variant(
    cuts: Sequence[Cut], *, renormalised: bool, replacement: Replacement | None = None
) -> "Variant":
    """Combine several cuts into cuts of each layer.

    Args:
        replacement: Replacement of heads and edges; None for 0.
    """
    from attnscope.model.cuts import HeadCut, LayerCut

    by_layer: dict[int, LayerCut] = {}
    for cut in cuts:
        for layer in cut.layers:
            heads = [head for at, head in cut.heads if at == layer]
            before = by_layer.get(layer, LayerCut())
            if cut.queries is None or cut.keys is None:
                outputs = (
                    None if replacement is None else replacement.head(layer, head) for head in heads
                )
                replaced = (
                    HeadCut(head, output) for head, output in zip(heads, outputs, strict=True)
                )
                by_layer[layer] = LayerCut((*before.heads, *replaced), before.edges)
                continue
            for edge in _edges(heads, (cut.queries, cut.keys), before.edges):
                sides = edge.heads, edge.queries, edge.keys
                read = None
                if replacement is not None:
                    read = replacement.edges(layer, *sides)
                added = replace(edge, renormalised=renormalised, added=read)
                before = LayerCut(before.heads, (*before.edges, added))
            by_layer[layer] = before
    return by_layer


def _edges(
    heads: Sequence[int], sides: tuple[Sequence[int], Sequence[int]], before: "Sequence[EdgeCut]"
) -> "list[EdgeCut]":
    """Return the edges between queries and keys, without edges that are already cut: nothing is added twice."""
    from attnscope.model.cuts import EdgeCut

    queries, keys = sides
    taken = {
        (head, query, key)
        for edge in before
        for head in edge.heads
        for query in edge.queries
        for key in edge.keys
        if head in heads
    }
    if not taken:
        return [EdgeCut(heads, queries, keys)]
    left = (
        (head, query, [key for key in keys if (head, query, key) not in taken])
        for head in heads
        for query in queries
    )
    return [EdgeCut([head], [query], uncut_keys) for head, query, uncut_keys in left if uncut_keys]


def cut_variants(plan: RunPlan) -> "list[Variant]":
    """Return the variants of each text under `RunConfig.cuts`.

    The score of a cut edge becomes −inf, and the output of a cut head 0.
    """
    run = plan.run
    plan.source.require_model("cutting")
    return [
        make_variant(resolve_cuts(run.cuts, run, plan.source, text_plan), renormalised=True)
        for text_plan in plan.text_plans
    ]
