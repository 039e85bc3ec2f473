"""Compute one tile: the stages of a block of queries of some heads, in order, with a mask applied to its scores."""

from collections.abc import Callable
from dataclasses import dataclass
from math import frexp
from typing import Self

import torch
from torch import Tensor

from attnscope.model.cuts import BatchCuts
from attnscope.model.inputs import AttentionInputs, AttentionSpec
from attnscope.model.matmul import matmul_grouped
from attnscope.model.row_summary import RowSummary
from attnscope.model.tile import FiniteChecks, Tile, Workspace
from attnscope.model.tiling import TileBlock
from attnscope.request.masks.terms import Mask


@dataclass(frozen=True)
class BlockMask:
    """The keys that a block of queries may not see."""

    # range of keys, counted from the block's first, and the addition to the scores there: 0 where allowed and −inf
    # elsewhere, broadcastable to (B, h, q, k)
    parts: list[tuple[slice, Tensor]]
    # True where a query may see nothing, broadcastable to (B, h, q); None if every query is known to see something
    fully_masked: Tensor | None

    @classmethod
    def of(
        cls,
        mask: Mask,
        block: TileBlock,
        all_visible_range: tuple[int, int],
        device: torch.device,
        heads: Tensor | None = None,
    ) -> Self:
        """Evaluate a mask, for these heads if they differ, on the keys that only some queries of the block may see."""
        k0 = block.k0
        k1 = block.k1
        a, b = all_visible_range
        q_at = torch.arange(block.q0, block.q1, device=device)[:, None]  # (q, 1)
        # (q,), or with B and h below
        parts = []
        alive = torch.full((len(q_at),), a < b, device=device)
        for left, right in ((k0, a), (b, k1)):
            if left < right:
                allowed = mask.allowed(q_at, torch.arange(left, right, device=device)[None], heads)
                if allowed is None:
                    alive = torch.ones_like(alive)
                    continue
                parts.append((slice(left - k0, right - k0), torch.where(allowed, 0.0, -torch.inf)))
                alive = alive if a < b else alive | allowed.any(-1)
        # asking a GPU would wait for it
        every_row_sees = a < b or (device.type == "cpu" and bool(alive.all()))
        return cls(parts, None if every_row_sees else ~alive)

    def apply_(self, scaled: Tensor) -> None:
        """Write −inf into scores (B, h, q, k) where a key is not allowed."""
        for keys, added in self.parts:
            scaled[..., keys] += added  # faster than a masked_fill_ of every head


@dataclass(frozen=True)
class TileInputs:
    """Some heads of a block of queries, with the keys and values of that block."""

    inputs: AttentionInputs
    block_mask: BlockMask  # keys that queries may not see
    heads: Tensor  # query heads, (h,), int64
    index: list[int] | slice  # the same, as an index of a tensor of all heads
    k: Tensor  # (B, h, k, E), or (B, g, k, E), each of g groups for as many of the heads
    v: Tensor
    block: TileBlock
    # the keys, from and to, that every query of the block may see
    all_visible_range: tuple[int, int]
    bounded: bool  # no score of the layer can overflow
    changes_scores: Callable[[Tensor, Tensor, Tensor, Tensor], Tensor] | None = None


def compute_tile(
    part: TileInputs,
    workspace: Workspace,
    cuts: BatchCuts | None,
    summarize: Callable[[Tensor, Tensor], RowSummary] | None,
    checks: FiniteChecks,
    *,
    in_place: bool,
) -> Tile:
    """Compute the stages, each in place of the one before if no recorder reads that; `summarize` is a softmax."""
    heads = part.heads
    block = part.block
    scores, scaled = _scores(part, workspace, checks)
    masked = scaled.clone() if block.needs_scores else scaled
    unselected = None
    if part.inputs.unselective is not None:
        unselected = _unselected(part, part.inputs.unselective, scaled)
    part.block_mask.apply_(masked)
    fully_masked = part.block_mask.fully_masked
    if part.changes_scores is not None:  # which may be −inf
        fully_masked = (masked == -torch.inf).all(-1)
    cut_rows = None
    if cuts is not None:
        cut_rows = cuts.mask_(masked, part.index, block.q0, block.k0)
    in_place = in_place and block.k0 < block.k1
    if in_place:
        weights = masked
    else:
        weights = workspace.buffer("weights", masked.shape, masked.device)
    sink = None
    summary = None
    if summarize is not None and block.k0 < block.k1:
        summary = summarize(masked, weights)
    else:
        logits = part.inputs.spec.sink_logits(heads, slice(block.q0, block.q1))
        weights, sink = _softmax(masked, logits, weights)
    for rows in (fully_masked, cut_rows):
        if rows is not None:
            weights.masked_fill_(rows[..., None], 0.0)
    if cuts is not None:
        cuts.zero_(weights, part.index, block.q0, block.k0)
    range_holds = cut_rows is None and part.changes_scores is None
    if range_holds:
        all_visible_range = part.all_visible_range
    else:
        all_visible_range = (block.k0, block.k0)
    return Tile(
        inputs=part.inputs,
        heads=heads,
        index=part.index,
        q0=block.q0,
        q1=block.q1,
        k0=block.k0,
        k1=block.k1,
        all_visible_range=all_visible_range,
        scores=scores,
        scaled=scaled if block.needs_scores else None,
        masked=masked.to("meta") if in_place else masked,
        weights=weights,
        values=part.v,
        checks=checks,
        fully_masked=fully_masked,
        workspace=workspace,
        sink=sink,
        unselected=unselected,
        summary=summary,
    )


def _scores(
    part: TileInputs, workspace: Workspace, checks: FiniteChecks
) -> tuple[Tensor | None, Tensor]:
    """Return q·k if a recorder reads it, and the scaled scores before the mask, (B, h, q, k) each."""
    spec = part.inputs.spec
    block = part.block
    needs_scores = part.block.needs_scores
    q = part.inputs.q[:, part.index, block.q0 : block.q1].to(part.k.dtype)
    # small numbers of float16 would lose bits
    before, after = _factors(spec, needs_scores or q.dtype == torch.float16)
    if before != 1:
        q = q * before
    shape = (*q.shape[:3], part.k.shape[2])
    scores = matmul_grouped(q, part.k, workspace.buffer("scores", shape, q.device))  # (B, h, q, k)
    scaled = scores.clone() if needs_scores else scores
    if after != 1:
        scaled *= after
    if not part.bounded:
        checks.add(scaled, "scores", part.heads)
    if spec.softcap is not None:
        scaled.div_(spec.softcap).tanh_().mul_(spec.softcap)
    if spec.bias is not None:
        scaled += spec.bias(*_positions(block, q.device), part.heads)
    if part.changes_scores is not None:
        scaled.copy_(part.changes_scores(scaled, *_positions(block, q.device), part.heads))
    return (scores if needs_scores else None), scaled


def _softmax(masked: Tensor, sinks: Tensor | None, buffer: Tensor) -> tuple[Tensor, Tensor | None]:
    """Return weights, and the weight on the sink, if there is one: an extra logit without a value."""
    if sinks is None:
        return torch.softmax(masked, -1, out=buffer), None
    logit = sinks[..., None].expand(*masked.shape[:3], 1)  # (B, h, q, 1)
    shares = torch.cat((masked, logit), dim=-1).softmax(-1)
    return shares[..., :-1], shares[..., -1]


def _unselected(part: TileInputs, unselective: Mask, scaled: Tensor) -> Tensor:
    """Return the weight that keys which an indexer left out would have had, (B, h, q); 0 in a row without keys."""
    inputs = part.inputs
    queries, keys = _positions(part.block, scaled.device)
    visible = unselective.allowed(queries, keys, part.heads)
    selected = inputs.spec.mask.allowed(queries, keys, part.heads)
    every = scaled if visible is None else scaled.masked_fill(~visible, -torch.inf)
    if selected is None:
        missed = torch.full_like(scaled, -torch.inf)
    else:
        missed = every.masked_fill(selected, -torch.inf)
    total = every.logsumexp(-1)
    sinks = inputs.spec.sink_logits(part.heads, slice(part.block.q0, part.block.q1))
    if sinks is not None:
        total = total.logaddexp(sinks)
    return (missed.logsumexp(-1) - total).exp().nan_to_num(0.0)


def _factors(spec: AttentionSpec, needs_scores: bool) -> tuple[float, float]:
    """Return the factors on queries and on scores: a power of two on queries gives the same numbers, a pass earlier."""
    if frexp(spec.scale)[0] == 0.5 and not needs_scores:
        return (spec.scale, 1.0)
    return (1.0, spec.scale)


def _positions(block: TileBlock, device: torch.device) -> tuple[Tensor, Tensor]:
    """Return the queries, (q, 1), and keys, (1, k), of a block."""
    queries, keys = (
        torch.arange(*ends, device=device) for ends in ((block.q0, block.q1), (block.k0, block.k1))
    )
    return queries[:, None], keys[None]
