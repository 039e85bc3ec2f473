"""Queries, keys and values in; attention out, and every stage of it to whoever watches. The file to read first.

A layer that nobody watches goes through `scaled_dot_product_attention`. A watched one goes through tiles: a block of
queries against every key that the block may see, small enough to stay in cache, with the stages as separate tensors. A
row of a tile is whole, so its softmax is exact; one token and 100,000 go the same way.

    scores   q·k                                   (B, H, Q, K)
    scaled   scores × scale, soft-cap, + bias      (B, H, Q, K)
    masked   scaled, −inf where not allowed        (B, H, Q, K)
    weights  softmax of masked (and of the sink)   (B, H, Q, K)
    output   weights · v                           (B, H, Q, E)
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from attnscope.errors import AttnscopeError
from attnscope.model.call import Call, Rule
from attnscope.model.kernel import fused
from attnscope.model.masks import Mask

TILE_ELEMENTS = 1 << 20  # 4 MiB a stage: two or three of them fit in a core's share of the last cache
_MIN_ROWS = 32


@dataclass(frozen=True)
class Tile:
    """A block of queries of some heads against a range of keys, with every stage.

    Attributes:
        call: The layer that it belongs to.
        heads: Query heads in the tile, (h,), int64.
        q0: First query.
        q1: End of the queries, exclusive.
        k0: First key.
        k1: End of the keys, exclusive; keys outside the range are not allowed for any of these queries.
        scores: (B, h, q, k), as are scaled, masked and weights; weights of a fully masked row are 0.
        scaled: See scores.
        masked: See scores.
        weights: See scores.
        output: (B, h, q, Ev).
        dead: True where a query may see nothing, broadcastable to (B, h, q); None where nothing is masked.
        sink: What each row gives to no key at all, (B, h, q); None where the layer has no sinks.
    """

    call: Call
    heads: Tensor
    q0: int
    q1: int
    k0: int
    k1: int
    scores: Tensor
    scaled: Tensor
    masked: Tensor
    weights: Tensor
    output: Tensor
    dead: Tensor | None
    sink: Tensor | None = None

    def stage(self, name: str) -> Tensor:
        """A stage, or a contribution (`value`: α_ij·‖v_j‖, `projected`: α_ij·‖v_j W_O^h‖), by name."""
        if name in ("value", "projected"):
            norms = self.call.value_norms if name == "value" else self.call.projected_norms
            return self.weights * norms[:, self.heads, None, self.k0 : self.k1]
        found: Tensor = getattr(self, name)
        return found


class Recorder(Protocol):
    """Something that sees each tile of a layer once and keeps what it was asked for."""

    @property
    def heads(self) -> Sequence[int]:
        """Query heads that it looks at."""

    @property
    def rows(self) -> Sequence[int]:
        """Query positions that it looks at, sorted."""

    def reach(self) -> tuple[int, int] | None:
        """The range of keys whose raw scores must be computed although they are not allowed; None where none are."""

    def see(self, tile: Tile) -> None:
        """Take what is wanted from a tile."""


def attend(
    call: Call,
    recorders: Sequence[Recorder] = (),
    *,
    observed: Mask | None = None,
    need_output: bool = True,
    tile_elements: int = TILE_ELEMENTS,
) -> Tensor | None:
    """Attention of one layer: the one place where it happens.

    Args:
        call: The layer's queries, keys, values and rule.
        recorders: Who watches; without any, nothing but the output is computed.
        observed: A mask that recorders see instead of the layer's own (`same-scores`); the output keeps to the layer's.
        need_output: Whether anyone uses the result; without, only what recorders want is computed.
        tile_elements: Scores in a tile, at most (at least one row).

    Returns:
        (B, H, Q, Ev) in v's dtype, 0 where a query may see nothing; None where it is not needed.

    Raises:
        AttnscopeError: A score, or an output that somebody sees, is not finite.
    """
    watched = sorted({head for recorder in recorders for head in recorder.heads})
    every = range(call.q.shape[1])
    if not watched or not need_output or observed is not None:
        if watched:
            _show(call, watched, observed or call.rule.mask, recorders, tile_elements, None)
        return _plain(call, every, tile_elements) if need_output else None
    output = call.v.new_empty(*call.q.shape[:3], call.v.shape[-1])  # (B, H, Q, Ev)
    if rest := [head for head in every if head not in watched]:
        output[:, rest] = _plain(call, rest, tile_elements)
    _show(call, watched, call.rule.mask, recorders, tile_elements, output)
    return output


def _show(
    call: Call, heads: list[int], mask: Mask, recorders: Sequence[Recorder], elements: int, output: Tensor | None
) -> None:
    """Walk over the tiles of some heads, show each to the recorders, and collect the output where it is wanted."""
    wanted = None if output is not None else sorted({row for recorder in recorders for row in recorder.rows})
    reaches = [r for r in (recorder.reach() for recorder in recorders) if r is not None]
    reach = (min(r[0] for r in reaches), max(r[1] for r in reaches)) if reaches else None
    for tile in tiles(call, heads, mask, elements, wanted=wanted, reach=reach):
        for recorder in recorders:
            recorder.see(tile)
        if output is not None:
            output[:, tile.heads, tile.q0 : tile.q1] = tile.output.to(output.dtype)


def tiles(
    call: Call,
    heads: Sequence[int],
    mask: Mask,
    elements: int = TILE_ELEMENTS,
    *,
    wanted: Sequence[int] | None = None,
    reach: tuple[int, int] | None = None,
) -> Iterator[Tile]:
    """The tiles of some heads, in order.

    Args:
        call: The layer.
        heads: Query heads.
        mask: Which keys a query may see.
        elements: Scores in a tile, at most.
        wanted: Rows that anyone looks at, sorted; blocks without any are passed over. None for all.
        reach: Keys that every tile must hold besides those that its queries may see.
    """
    batch, _, n_queries, _ = call.q.shape
    n_keys = call.k.shape[2]
    at_once = max(1, min(len(heads), elements // max(1, batch * n_keys * min(n_queries, _MIN_ROWS))))
    for first in range(0, len(heads), at_once):
        chosen = torch.tensor(heads[first : first + at_once], device=call.q.device)
        k, v = call.k[:, call.group(chosen)].float(), call.v[:, call.group(chosen)].float()  # (B, h, K, E)
        rows = max(1, elements // (batch * len(chosen) * n_keys))
        for q0, q1 in _blocks(n_queries, rows, wanted):
            k0, k1 = mask.span(q0, q1, n_keys)
            if reach is not None:
                k0, k1 = min(k0, reach[0]), max(k1, reach[1])
            yield _tile(call, mask, chosen, k[:, :, k0:k1], v[:, :, k0:k1], (q0, q1, k0, k1))


def _blocks(n_queries: int, rows: int, wanted: Sequence[int] | None) -> Iterator[tuple[int, int]]:
    """Row ranges of at most `rows`, none of them without a wanted row."""
    if wanted is None:
        yield from ((q0, min(q0 + rows, n_queries)) for q0 in range(0, n_queries, rows))
        return
    i = 0
    while i < len(wanted):
        j = i
        while j + 1 < len(wanted) and wanted[j + 1] == wanted[j] + 1 and wanted[j + 1] < wanted[i] + rows:
            j += 1
        yield wanted[i], wanted[j] + 1
        i = j + 1


def _tile(call: Call, mask: Mask, heads: Tensor, k: Tensor, v: Tensor, box: tuple[int, int, int, int]) -> Tile:
    """The stages, in order, each bound once."""
    q0, q1, k0, k1 = box
    q_at = torch.arange(q0, q1, device=k.device)[:, None]  # (q, 1)
    k_at = torch.arange(k0, k1, device=k.device)[None]  # (1, k)
    allowed = mask.allowed(q_at, k_at)  # (q, k) or (B, 1, q, k)

    scores = call.q[:, heads, q0:q1].float() @ k.mT  # (B, h, q, k)
    _check_finite(scores, "scores", call.layer, heads)
    scaled = _scaled(scores, call.rule, q_at, k_at, heads)
    masked = scaled if allowed is None else scaled.masked_fill(~allowed, -torch.inf)
    dead = None if allowed is None else ~allowed.any(-1)  # (q,) or (B, 1, q)
    weights, sink = _softmax(masked, call.rule.sinks, heads)
    if dead is not None and dead.any():
        weights = weights.masked_fill(dead[..., None], 0.0)
    output = weights @ v  # (B, h, q, Ev)
    _check_finite(output, "outputs", call.layer, heads)
    return Tile(call, heads, *box, scores, scaled, masked, weights, output, dead, sink)


def _softmax(masked: Tensor, sinks: Tensor | None, heads: Tensor) -> tuple[Tensor, Tensor | None]:
    """Weights, and what the sink takes of each row where there is one: a logit more, and no value behind it."""
    if sinks is None:
        return masked.softmax(-1), None
    logit = sinks[heads].float()[None, :, None, None].expand(*masked.shape[:3], 1)  # (B, h, q, 1)
    shares = torch.cat((masked, logit), dim=-1).softmax(-1)
    return shares[..., :-1], shares[..., -1]


def _scaled(scores: Tensor, rule: Rule, q_at: Tensor, k_at: Tensor, heads: Tensor) -> Tensor:
    scaled = scores * rule.scale
    if rule.softcap is not None:
        scaled = rule.softcap * torch.tanh(scaled / rule.softcap)
    return scaled if rule.bias is None else scaled + rule.bias(q_at, k_at, heads)


def _check_finite(numbers: Tensor, what: str, layer: int, heads: Tensor) -> None:
    """Refuse NaN and infinity in (B, h, q, …), naming the first head that has any."""
    if torch.isfinite(numbers.sum()):  # one cheap pass; only a bad sum is worth a closer look
        return
    bad = (~torch.isfinite(numbers)).sum(dim=(0, 2, 3))  # (h,)
    if bad.any():
        i = int(bad.argmax())
        found = f"{int(bad[i])} {what} are not finite"
        hint = "the model overflows in this dtype; try --dtype float32"
        raise AttnscopeError(found, where=f"L{layer}H{int(heads[i])}", hint=hint)


def _plain(call: Call, heads: Sequence[int], elements: int) -> Tensor:
    """The output of some heads alone, (B, heads, Q, Ev); through tiles where a soft-cap or sinks bar kernels."""
    if call.rule.softcap is None and call.rule.sinks is None:
        return fused(call, heads, elements)
    output = call.v.new_empty(call.q.shape[0], len(heads), call.q.shape[2], call.v.shape[-1])
    for tile in tiles(call, heads, call.rule.mask, elements):
        here = [heads.index(head) for head in tile.heads.tolist()]
        output[:, here, tile.q0 : tile.q1] = tile.output.to(output.dtype)
    return output
