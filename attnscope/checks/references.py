"""A layer, and what somebody else makes of the same queries, keys and values, in; how far apart they are, out."""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from attnscope.checks.laws import allowed_keys
from attnscope.checks.measures import apart
from attnscope.checks.observe import Seen


def from_kernel(one: Seen) -> Tensor:
    """How far a layer's output is from torch's `scaled_dot_product_attention` in float32, (H,).

    Soft-caps are beyond the kernel. A sink is a key more, whose score is the sink's logit and whose value is 0.
    """
    rule, groups = one.call.rule, one.call.q.shape[1] // one.call.k.shape[1]
    q = one.call.q.float()
    k, v = (x.float().repeat_interleave(groups, dim=1) for x in (one.call.k, one.call.v))
    scores = one.stages["scores"]
    added = torch.zeros_like(scores)
    if rule.bias is not None:
        q_at = torch.arange(scores.shape[2], device=scores.device)[:, None]
        k_at = torch.arange(scores.shape[3], device=scores.device)[None]
        added = added + rule.bias(q_at, k_at, torch.arange(scores.shape[1], device=scores.device))
    added = added.masked_fill(~allowed_keys(one), -torch.inf)
    if rule.sinks is not None:
        added = torch.cat((added, rule.sinks.float()[None, :, None, None].expand(*added.shape[:3], 1)), -1)
        k, v = (F.pad(x, (0, 0, 0, 1)) for x in (k, v))
    theirs = F.scaled_dot_product_attention(q, k, v, attn_mask=added, scale=rule.scale)
    return apart(one.stages["output"], theirs.masked_fill(one.dead[..., None], 0.0))


def passed_on(one: Seen, projection: nn.Module, went_on: Tensor) -> Tensor:
    """How far what left a layer is from its output projection of weights·v; the same for every head, (H,).

    Args:
        one: The layer.
        projection: Its output projection.
        went_on: What the projection gave when the model ran, (B, Q, D).
    """
    output = one.stages["output"]  # (B, H, Q, Ev)
    joined = output.transpose(1, 2).flatten(2).to(one.call.v.dtype)  # (B, Q, H·Ev)
    expected = projection(joined)
    gap = apart(went_on.reshape(expected.shape)[:, None], expected[:, None])
    return gap.expand(output.shape[1])


def same_rows(ours: Seen, theirs: Seen, stage: str, text: int = 0) -> Tensor:
    """How far a stage of the first rows of a text is from the same text's alone, (H,)."""
    n_queries, n_keys = theirs.stages["scores"].shape[2:]
    keys = slice(None) if stage == "output" else slice(n_keys)
    mine = ours.stages[stage][text : text + 1, :, :n_queries, keys]
    return apart(mine, theirs.stages[stage], absolute=stage == "weights")
