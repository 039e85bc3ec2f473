"""Ablations of a layer's attention, as data that `attend` reads.

A head is cut after attention: its input to the output projection is replaced. An edge (a query's access to a key) is
cut inside attention: either its score becomes −inf, so that softmax redistributes its weight over the other keys, or
its weight becomes 0, so that the row sums to less than 1. What the head read in another text may then be added: the
edge is patched. Each text of a batch has its own cuts, so that many variants of one text run as one batch.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class HeadCut:
    """A head whose output is replaced, for every query."""

    head: int
    # replacement for the head's output, (Ev,) for every query, or (Q, Ev); None for 0
    output: Tensor | None = None


@dataclass(frozen=True)
class EdgeCut:
    """Edges from some queries to some keys, in some heads: every pair of them."""

    heads: Sequence[int]
    queries: Sequence[int]
    keys: Sequence[int]
    # the score becomes −inf; otherwise the weight becomes 0 and the others stay as they are
    renormalised: bool = True
    # addition to the output of these heads at these queries, (heads, queries, Ev); None for nothing
    added: Tensor | None = None


@dataclass(frozen=True)
class LayerCut:
    """Cuts of one layer, for one place of a batch."""

    heads: tuple[HeadCut, ...] = ()
    edges: tuple[EdgeCut, ...] = ()


Variant = Mapping[int, LayerCut]  # by layer


class BatchCuts:
    """Cuts of one layer, for every place of a batch that has any."""

    def __init__(self, places: Mapping[int, LayerCut]) -> None:
        self._heads = [(index, head_cut) for index, cut in places.items() for head_cut in cut.heads]
        self._edges = [(index, edge_cut) for index, cut in places.items() for edge_cut in cut.edges]

    @property
    def edge_heads(self) -> set[int]:
        """Heads that have an edge cut somewhere: their attention goes through tiles."""
        return {head for _, edge in self._edges for head in edge.heads}

    def mask_(self, masked: Tensor, heads: list[int] | slice, q0: int, k0: int) -> Tensor | None:
        """Write −inf into the scores (B, h, q, k) of a tile where an edge is cut.

        Returns True where a query has no key left, (B, h, q); None if nothing was cut in this tile.
        """
        cut = self._write_(masked, heads, (q0, k0), -torch.inf, renormalised=True)
        return (masked == -torch.inf).all(-1) if cut else None

    def zero_(self, weights: Tensor, heads: list[int] | slice, q0: int, k0: int) -> None:
        """Write 0 into the weights of a tile where an edge is cut without renormalising; see mask_."""
        self._write_(weights, heads, (q0, k0), 0.0, renormalised=False)

    def _write_(
        self,
        tile: Tensor,
        heads: list[int] | slice,
        start: tuple[int, int],
        value: float,
        *,
        renormalised: bool,
    ) -> bool:
        numbers = range(heads.start, heads.stop) if isinstance(heads, slice) else heads
        q0, k0 = start
        at = {head: n for n, head in enumerate(numbers)}
        # edges of one shape are written together, since every upload waits
        by_shape: dict[tuple[int, int, int, int], list[list[int]]] = {}
        for index, edge in self._edges:
            if edge.renormalised is not renormalised:
                continue
            places = [at[head] for head in edge.heads if head in at]
            rows = [q - q0 for q in edge.queries if q0 <= q < q0 + tile.shape[2]]
            columns = [k - k0 for k in edge.keys if k0 <= k < k0 + tile.shape[3]]
            if places and rows and columns:
                shape = 1, len(places), len(rows), len(columns)
                by_shape.setdefault(shape, []).append([index, *places, *rows, *columns])
        for shape, edges in by_shape.items():
            b, h, q, k = torch.tensor(edges, device=tile.device).split_with_sizes(shape, dim=1)
            tile[b[..., None, None], h[..., None, None], q[:, None, :, None], k[:, None, None]] = (
                value
            )
        return bool(by_shape)

    def add_(self, output: Tensor) -> None:
        """Add the output of patched edges to the output of heads, (B, H, Q, Ev)."""
        for place, edge in self._edges:
            if edge.added is not None:
                heads, queries = (
                    torch.tensor(numbers, device=output.device)
                    for numbers in (edge.heads, edge.queries)
                )
                output[place, heads[:, None], queries] += edge.added.to(output.dtype)

    def replace_heads_(self, output: Tensor) -> None:
        """Replace the output of cut heads, (B, H, Q, Ev), in front of the output projection."""
        for place, head_cut in self._heads:
            if head_cut.output is None:
                output[place, head_cut.head] = 0.0
            else:
                output[place, head_cut.head] = head_cut.output.to(output.dtype)


def cuts_of_layer(variants: Sequence[Variant], layer: int) -> BatchCuts | None:
    """Return the cuts of a layer, if each place of a batch is a variant; None for no cuts."""
    places = {index: variant[layer] for index, variant in enumerate(variants) if layer in variant}
    return BatchCuts(places) if places else None
