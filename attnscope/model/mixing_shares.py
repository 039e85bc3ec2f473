"""Show layers without softmax to recorders of attention: tiles whose weights are shares of |M|."""

from collections.abc import Iterator, Sequence

import torch
from torch import Tensor

from attnscope.base.layer_kinds import BY_CHANNEL
from attnscope.model.inputs import AttentionInputs, AttentionSpec
from attnscope.model.masks import build_mask
from attnscope.model.mixing import MixingInputs
from attnscope.model.tile import FiniteChecks, Recorder, Tile, Workspace
from attnscope.request.masks.terms import Causal

_CELLS = 1 << 22  # weights in a tile


def show_shares(
    layer: int, inputs: MixingInputs, lengths: Sequence[int], recorders: Sequence[Recorder]
) -> None:
    """Show |M_ij| / Σ_j |M_ij| of every head of a batch to recorders; of channels, their mean as one head."""
    length = inputs.k.shape[2]
    spec = AttentionSpec(1.0, build_mask((Causal(),)))
    attention = AttentionInputs(layer, inputs.q, inputs.k, inputs.v, spec)
    checks = FiniteChecks(layer, inputs.k.device)
    workspace = Workspace()
    for heads, q0, q1, weights, allowed in _blocks(inputs, lengths):
        masked = torch.where(allowed, 0.0, -torch.inf).expand(weights.shape)
        tile = Tile(
            inputs=attention,
            heads=torch.arange(heads.start, heads.stop, device=weights.device),
            index=slice(heads.start, heads.stop),
            q0=q0,
            q1=q1,
            k0=0,
            k1=length,
            all_visible_range=(0, 0),
            scores=None,
            scaled=None,
            masked=masked,
            weights=weights,
            values=inputs.v[:, heads.start : heads.stop],
            checks=checks,
            fully_masked=~weights.any(-1),
            workspace=workspace,
            scored=False,
        )
        checks.add(weights, "shares of |M|", tile.heads)
        for recorder in recorders:
            deferred = recorder.update(tile)
            if deferred is not None:
                deferred()


def _blocks(
    inputs: MixingInputs, lengths: Sequence[int]
) -> Iterator[tuple[range, int, int, Tensor, Tensor]]:
    """Yield heads, first query and end of a block, its shares, (B, h, Q, T), and the visible keys, (B, 1, Q, T).

    A row without anything has shares of 0.
    """
    texts, _, length, _ = inputs.k.shape
    device = inputs.k.device
    size = max(1, min(length, _CELLS // (texts * length)))
    positions = torch.arange(length, device=device)
    real = positions < torch.tensor(lengths, device=device)[:, None]  # (B, T)
    by_channel = inputs.kind in BY_CHANNEL
    find = _mean_shares if by_channel else _shares
    for heads in _head_groups(inputs, texts * size * length):
        for q0 in range(0, length, size):
            q1 = min(q0 + size, length)
            weights = torch.zeros(texts, len(heads), q1 - q0, length, device=device)
            for text, n in enumerate(lengths):
                if q0 < n:
                    rows = range(q0, min(q1, n))
                    weights[text, :, : len(rows), :n] = find(inputs, text, heads, n, rows)
            allowed = (
                (positions <= positions[q0:q1, None])
                & real[:, None, None]
                & real[:, None, q0:q1, None]
            )
            yield heads, q0, q1, weights, allowed


def _head_groups(inputs: MixingInputs, cells: int) -> Iterator[range]:
    """Yield the heads whose rows are shown at the same time; one for the mean of a layer of channels."""
    n_heads = 1 if inputs.kind in BY_CHANNEL else inputs.n_heads
    size = max(1, _CELLS // cells)
    for start in range(0, n_heads, size):
        yield range(start, min(start + size, n_heads))


def _shares(inputs: MixingInputs, text: int, heads: range, length: int, rows: range) -> Tensor:
    """Return shares of |M|, (h, R, T)."""
    return torch.cat(
        [row_shares(mixing.rows(rows)) for _, mixing in inputs.heads(text, heads, length)]
    )


def _mean_shares(
    inputs: MixingInputs, text: int, _heads: range, length: int, rows: range
) -> Tensor:
    """Return the mean over all channels of their shares of |M|, (1, R, T)."""
    channels = range(inputs.n_heads)
    total = torch.zeros(len(rows), length, device=inputs.k.device)
    for _, mixing in inputs.heads(text, channels, length):
        total += row_shares(mixing.rows(rows)).sum(0)
    return total[None] / len(channels)


def row_shares(matrix: Tensor) -> Tensor:
    """Return |M_ij| / Σ_j |M_ij|; 0 in a row without anything."""
    sizes = matrix.abs()
    return (sizes / sizes.sum(-1, keepdim=True)).nan_to_num_(0.0)
