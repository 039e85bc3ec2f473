"""Compare a layer with other implementations of the same attention."""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from attnscope.studies.check.laws import allowed_keys
from attnscope.studies.check.measures import largest_difference
from attnscope.studies.check.observe import LayerStages


def sdpa_difference(layer: LayerStages) -> Tensor:
    """Return the difference of a layer's output from torch's `scaled_dot_product_attention` in float32, (H,).

    The kernel has no soft-caps. A sink is an additional key, whose score is the sink's logit and whose value is 0.
    """
    spec, groups = layer.inputs.spec, layer.inputs.q.shape[1] // layer.inputs.k.shape[1]
    q = layer.inputs.q.float()
    k, v = (x.float().repeat_interleave(groups, dim=1) for x in (layer.inputs.k, layer.inputs.v))
    scores = layer.stages["scores"]
    added = torch.zeros_like(scores)
    if spec.bias is not None:
        q_at = torch.arange(scores.shape[2], device=scores.device)[:, None]
        k_at = torch.arange(scores.shape[3], device=scores.device)[None]
        added = added + spec.bias(q_at, k_at, torch.arange(scores.shape[1], device=scores.device))
    added = added.masked_fill(~allowed_keys(layer), -torch.inf)
    if spec.sinks is not None:
        added = torch.cat((added, spec.sinks.float()[None, :, None, None].expand(*added.shape[:3], 1)), -1)
        k, v = (F.pad(x, (0, 0, 0, 1)) for x in (k, v))
    reference = F.scaled_dot_product_attention(q, k, v, attn_mask=added, scale=spec.scale)
    return largest_difference(layer.stages["output"], reference.masked_fill(layer.fully_masked[..., None], 0.0))


def projection_difference(layer: LayerStages, projection: nn.Module, went_on: Tensor) -> Tensor:
    """Return the difference of a layer's passed-on output from its projection of weights·v, equal for all heads, (H,).

    Args:
        went_on: Output of the projection when the model ran, (B, Q, D).
    """
    output = layer.stages["output"]  # (B, H, Q, Ev)
    joined = output.transpose(1, 2).flatten(2).to(layer.inputs.v.dtype)  # (B, Q, H·Ev)
    expected = projection(joined.to(went_on.device))
    gap = largest_difference(went_on.reshape(expected.shape)[:, None], expected[:, None])
    return gap.expand(output.shape[1])


def row_difference(layer: LayerStages, reference: LayerStages, stage: str) -> Tensor:
    """Return the difference of a stage of the first text's first rows from the same text's alone, (H,)."""
    n_queries, n_keys = reference.stages["scores"].shape[2:]
    keys = slice(None) if stage == "output" else slice(n_keys)
    mine = layer.stages[stage][:1, :, :n_queries, keys]
    return largest_difference(mine, reference.stages[stage], absolute=stage == "weights")
