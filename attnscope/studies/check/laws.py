"""Laws that attention obeys in any model, checked on every recorded stage, and other implementations of the same.

Every invariant is recomputed in float64 from the stages alone, independently of the code that computed them.
"""

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from attnscope.findings.check import Check
from attnscope.findings.heads import STAGES
from attnscope.studies.check.measures import largest_difference, make_check
from attnscope.studies.check.observe import LayerStages, layer_numbers


def laws(layers: Sequence[LayerStages], limit: float) -> list[Check]:
    """Check the laws of attention on one text."""
    fully_masked = sum(int(layer.fully_masked.sum()) for layer in layers)
    note = f"{fully_masked} rows are fully masked" if fully_masked else None
    numbers = layer_numbers(layers)
    return [
        make_check(
            "every number is finite", [_not_finite(layer) for layer in layers], 0.0, numbers
        ),
        make_check("rows sum to 1", [_row_sums(layer) for layer in layers], limit, numbers, note),
        make_check(
            "nothing on keys that are not allowed",
            [_leaked(layer) for layer in layers],
            0.0,
            numbers,
        ),
        make_check(
            "masked is scaled where allowed", [_masked(layer) for layer in layers], 0.0, numbers
        ),
        make_check(
            "scaled follows from scores", [_scaled(layer) for layer in layers], limit, numbers
        ),
        make_check(
            "weights are the softmax of masked",
            [_softmax(layer) for layer in layers],
            limit,
            numbers,
        ),
        make_check("output is weights·v", [_output(layer) for layer in layers], limit, numbers),
    ]


def _positions(layer: LayerStages) -> tuple[Tensor, Tensor, Tensor]:
    """Return the positions of queries, (Q, 1), and of keys, (1, K), and the heads."""
    _, n_heads, n_queries, n_keys = layer.stages["scores"].shape
    q, k, heads = (
        torch.arange(n, device=layer.stages["scores"].device) for n in (n_queries, n_keys, n_heads)
    )
    return q[:, None], k[None], heads


def _allowed_keys(layer: LayerStages) -> Tensor:
    """Return the keys that the mask allows, (B, H, Q, K), evaluated for the whole matrix at once, unlike in tiles."""
    scores = layer.stages["scores"]
    q, k, _ = _positions(layer)
    allowed = layer.inputs.spec.mask.allowed(q, k)
    return (
        torch.ones_like(scores, dtype=torch.bool) if allowed is None else allowed.expand_as(scores)
    )


def _per_head(values: Tensor) -> Tensor:
    return values.transpose(0, 1).flatten(1).amax(1)  # (H,)


def _not_finite(layer: LayerStages) -> Tensor:
    """Count numbers that are not finite; −inf is allowed in `masked` alone."""
    total = torch.zeros(layer.stages["scores"].shape[1], dtype=torch.float64)
    for stage in STAGES:
        values = layer.stages[stage]
        bad = (
            values.isnan() | (values == torch.inf) | ((values == -torch.inf) & (stage != "masked"))
        )
        total = total.to(bad.device) + bad.transpose(0, 1).flatten(1).sum(1)
    return total


def _row_sums(layer: LayerStages) -> Tensor:
    total = layer.stages["weights"].double().sum(-1) + layer.sink.double()
    return _per_head(
        (total - 1).abs().masked_fill(layer.fully_masked, 0.0).nan_to_num(nan=torch.inf)
    )


def _leaked(layer: LayerStages) -> Tensor:
    leaked = layer.stages["weights"].double().abs().masked_fill(_allowed_keys(layer), 0.0)
    return _per_head(leaked.nan_to_num(nan=torch.inf))


def _masked(layer: LayerStages) -> Tensor:
    expected = layer.stages["scaled"].masked_fill(~_allowed_keys(layer), -torch.inf)
    return largest_difference(layer.stages["masked"], expected)


def _scaled(layer: LayerStages) -> Tensor:
    spec = layer.inputs.spec
    scores = layer.stages["scores"]
    expected = scores.double() * spec.scale
    if spec.softcap is not None:
        expected = spec.softcap * torch.tanh(expected / spec.softcap)
    if spec.bias is not None:
        expected = expected + spec.bias(*_positions(layer))
    return largest_difference(layer.stages["scaled"], expected)


def _softmax(layer: LayerStages) -> Tensor:
    masked = layer.stages["masked"].double()
    sinks = layer.inputs.spec.sink_logits()
    if sinks is not None:
        sink = sinks.double()[..., None].expand(*masked.shape[:3], 1)
        expected = torch.cat((masked, sink), -1).softmax(-1)[..., :-1]
    else:
        expected = masked.softmax(-1)
    expected = expected.masked_fill(layer.fully_masked[..., None], 0.0)
    return largest_difference(layer.stages["weights"], expected, absolute=True)


def _output(layer: LayerStages) -> Tensor:
    v = layer.inputs.v.double().repeat_interleave(
        layer.inputs.q.shape[1] // layer.inputs.v.shape[1], dim=1
    )
    return largest_difference(layer.stages["output"], layer.stages["weights"].double() @ v)


def sdpa_difference(layer: LayerStages) -> Tensor:
    """Return the difference of a layer's output from torch's `scaled_dot_product_attention` in float32, (H,).

    The kernel has no soft-caps. A sink is an additional key, whose score is the sink's logit and whose value is 0.
    """
    spec = layer.inputs.spec
    groups = layer.inputs.q.shape[1] // layer.inputs.k.shape[1]
    q = layer.inputs.q.float()
    k, v = (x.float().repeat_interleave(groups, dim=1) for x in (layer.inputs.k, layer.inputs.v))
    added = torch.zeros_like(layer.stages["scores"])
    if spec.bias is not None:
        added = added + spec.bias(*_positions(layer))
    added = added.masked_fill(~_allowed_keys(layer), -torch.inf)
    sinks = spec.sink_logits()
    if sinks is not None:
        added = torch.cat((added, sinks[..., None].expand(*added.shape[:3], 1)), -1)
        k, v = (F.pad(x, (0, 0, 0, 1)) for x in (k, v))
    reference = F.scaled_dot_product_attention(q, k, v, attn_mask=added, scale=spec.scale)
    return largest_difference(
        layer.stages["output"], reference.masked_fill(layer.fully_masked[..., None], 0.0)
    )


def projection_difference(layer: LayerStages, projection: nn.Module, went_on: Tensor) -> Tensor:
    """Return the difference of the projection's output when the model ran, (B, Q, D), from that of weights·v, (H,).

    Behind a gate, from that of gate ⊙ weights·v. It is equal for all heads.
    """
    output = layer.stages["output"]  # (B, H, Q, Ev)
    if layer.inputs.gate is not None:
        output = output * layer.inputs.gate
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
