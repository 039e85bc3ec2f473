"""Attention that nobody watches: the output alone, by torch's own scaled_dot_product_attention."""

from collections.abc import Sequence
from functools import partial

import torch
import torch.nn.functional as F
from torch import Tensor

from attnscope.model.call import Call, Rule
from attnscope.model.masks import Bidirectional, Causal


def fused(call: Call, heads: Sequence[int], elements: int) -> Tensor:
    """The output of some heads, in blocks of queries where the rule is more than a plain causal mask.

    Args:
        call: The layer; its rule has no soft-cap, which no kernel knows.
        heads: Query heads, sorted.
        elements: Cells of a block's mask, at most (at least one row).

    Returns:
        (B, heads, Q, Ev), 0 where a query may see nothing.
    """
    chosen = torch.tensor(heads, device=call.q.device)
    q, k, v = _for_kernel(call, chosen)
    rule, n_keys = call.rule, k.shape[2]
    attention = partial(F.scaled_dot_product_attention, scale=rule.scale, enable_gqa=k.shape[1] != q.shape[1])
    lean = q.shape[-1] == v.shape[-1]  # otherwise the kernel makes a whole Q×K matrix for every head
    causal = isinstance(rule.mask, Causal)
    if lean and rule.bias is None and (causal or isinstance(rule.mask, Bidirectional)):
        return attention(q, k, v, is_causal=causal)
    rows = max(1, elements // (n_keys if lean else n_keys * q.shape[0] * q.shape[1]))
    blocks = []
    for q0 in range(0, q.shape[2], rows):
        q1 = min(q0 + rows, q.shape[2])
        k0, k1 = rule.mask.span(q0, q1, n_keys)
        added, dead = _kernel_mask(rule, (q0, q1, k0, k1), chosen, q)
        block = attention(q[:, :, q0:q1], k[:, :, k0:k1], v[:, :, k0:k1], attn_mask=added)
        # what a fully masked row gives differs between torch's kernels
        blocks.append(block if dead is None else block.masked_fill(dead, 0.0))
    return torch.cat(blocks, dim=2)


def _for_kernel(call: Call, heads: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Queries, keys and values of some heads; keys and values stay grouped where the kernel can share them."""
    grouped = call.k.shape[1] != call.q.shape[1]
    shares = not (call.q.is_cuda and call.q.dtype == torch.float32)  # no fused CUDA kernel takes groups in float32
    if len(heads) == call.q.shape[1] and (shares or not grouped):
        return call.q, call.k, call.v
    group = call.group(heads)
    return call.q[:, heads], call.k[:, group], call.v[:, group]


def _kernel_mask(
    rule: Rule, box: tuple[int, int, int, int], heads: Tensor, q: Tensor
) -> tuple[Tensor | None, Tensor | None]:
    """What the kernel takes as attn_mask (where allowed, or the bias with −inf elsewhere), and where nothing is."""
    q_at = torch.arange(box[0], box[1], device=q.device)[:, None]  # (q, 1)
    k_at = torch.arange(box[2], box[3], device=q.device)[None]  # (1, k)
    allowed = rule.mask.allowed(q_at, k_at)
    dead = None if allowed is None else ~allowed.any(-1, keepdim=True)  # (q, 1) or (B, 1, q, 1)
    if rule.bias is None:
        return allowed, dead
    bias = rule.bias(q_at, k_at, heads)
    bias = bias if bias.ndim == 4 else bias[None]  # (1, H, q, k)
    return (bias if allowed is None else bias.masked_fill(~allowed, -torch.inf)).to(q.dtype), dead
