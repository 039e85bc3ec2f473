"""Show given weights to recorders: no score is known, so that a tile has weights alone."""

from collections.abc import Sequence

import torch

from attnscope.base.errors import AttnscopeError
from attnscope.model.inputs import AttentionInputs
from attnscope.model.tile import FiniteChecks, Recorder, Tile, Workspace

_CELLS = 1 << 20  # weights of a tile
ROUNDING = 0.01  # by which a row of 16-bit weights may miss 1


def record_weights(
    inputs: AttentionInputs, recorders: Sequence[Recorder], lengths: Sequence[int], where: str
) -> None:
    """Show the weights of a layer, (B, H, Q, K) in place of queries, to its recorders, some rows at a time.

    Keys are ranked by the logarithm of their weights, which orders them as masked scores do; a key without weight
    counts as masked, a row without weight in every head as fully masked. What a row lacks to 1 beyond rounding is what
    a sink takes.
    """
    weights = inputs.q.float()
    _check(weights, lengths, where)
    totals = weights.sum(-1)  # (B, H, Q)
    lacking = (1 - totals).clamp_min(0)
    has_sink = bool((lacking[totals > 0] > ROUNDING).any())
    heads = torch.arange(weights.shape[1], device=weights.device)
    rows = max(1, _CELLS // max(1, weights[:, :, 0].numel()))
    workspace = Workspace()
    n_keys = weights.shape[-1]
    for q0 in range(0, weights.shape[2], rows):
        part = weights[:, :, q0 : q0 + rows].clone()
        empty = part.sum(-1) == 0  # (B, H, q)
        fully_masked = empty.all(1, keepdim=True)
        masked = part.log().masked_fill_((empty & ~fully_masked)[..., None], 0.0)
        sink = None
        if has_sink:
            sink = lacking[:, :, q0 : q0 + rows]
        tile = Tile(
            inputs=inputs,
            heads=heads,
            index=slice(0, len(heads)),
            q0=q0,
            q1=q0 + part.shape[2],
            k0=0,
            k1=n_keys,
            all_visible_range=(0, 0),
            scores=None,
            scaled=None,
            masked=masked,
            weights=part,
            values=inputs.v,
            checks=FiniteChecks(inputs.layer),
            fully_masked=fully_masked if bool(fully_masked.any()) else None,
            workspace=workspace,
            sink=sink,
            scored=False,
        )
        for recorder in recorders:
            deferred = recorder.update(tile)
            if deferred is not None:
                deferred()


def _check(weights: torch.Tensor, lengths: Sequence[int], where: str) -> None:
    total = weights.sum(-1)
    too_much = (total > 1 + ROUNDING)[..., None].expand_as(weights)
    for bad, problem in (
        (weights < 0, "is below 0"),
        (too_much, "is in a row that sums to more than 1"),
    ):
        if bool(bad.any()):
            text, head, query, key = bad.nonzero()[0].tolist()
            value = float(weights[text, head, query, key])
            hint = "pass the softmax's result, (heads, queries, keys)"
            message = f"{value:.6g} {problem} (head {head}, query {query}, key {key})"
            raise AttnscopeError(message, where=where, hint=hint)
    for text, length in enumerate(lengths):
        if bool(weights[text, :, :length, length:].any()):
            hint = "give the number of tokens of every text, without padding"
            raise AttnscopeError(
                f"text {text} has weight on padding behind token {length - 1}",
                where=where,
                hint=hint,
            )
