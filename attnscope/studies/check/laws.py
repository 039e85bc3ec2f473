"""Laws that attention obeys in any model, checked on every recorded stage.

Every invariant is recomputed in float64 from the stages alone, independently of the code that computed them.
"""

from collections.abc import Sequence

import torch
from torch import Tensor

from attnscope.findings.check import Check
from attnscope.findings.run import STAGES
from attnscope.studies.check.measures import largest_difference, make_check
from attnscope.studies.check.observe import LayerStages


def laws(layers: Sequence[LayerStages], limit: float) -> list[Check]:
    """Check the laws of attention on one text."""
    fully_masked = sum(int(layer.fully_masked.sum()) for layer in layers)
    note = f"{fully_masked} rows are fully masked" if fully_masked else None
    return [
        make_check("every number is finite", [_not_finite(layer) for layer in layers], 0.0),
        make_check("rows sum to 1", [_row_sums(layer) for layer in layers], limit, note),
        make_check("nothing on keys that are not allowed", [_leaked(layer) for layer in layers], 0.0),
        make_check("masked is scaled where allowed", [_masked(layer) for layer in layers], 0.0),
        make_check("scaled follows from scores", [_scaled(layer) for layer in layers], limit),
        make_check("weights are the softmax of masked", [_softmax(layer) for layer in layers], limit),
        make_check("output is weights·v", [_output(layer) for layer in layers], limit),
    ]


def allowed_keys(layer: LayerStages) -> Tensor:
    """Return the keys that the mask allows, (B, H, Q, K), evaluated for the whole matrix at once, unlike in tiles."""
    scores = layer.stages["scores"]
    q = torch.arange(scores.shape[2], device=scores.device)[:, None]
    k = torch.arange(scores.shape[3], device=scores.device)[None]
    allowed = layer.inputs.spec.mask.allowed(q, k)
    return torch.ones_like(scores, dtype=torch.bool) if allowed is None else allowed.expand_as(scores)


def _per_head(values: Tensor) -> Tensor:
    return values.transpose(0, 1).flatten(1).amax(1)  # (H,)


def _not_finite(layer: LayerStages) -> Tensor:
    """Count numbers that are not finite; −inf is allowed in `masked` alone."""
    total = torch.zeros(layer.stages["scores"].shape[1], dtype=torch.float64)
    for stage in STAGES:
        values = layer.stages[stage]
        bad = values.isnan() | (values == torch.inf) | ((values == -torch.inf) & (stage != "masked"))
        total = total.to(bad.device) + bad.transpose(0, 1).flatten(1).sum(1)
    return total


def _row_sums(layer: LayerStages) -> Tensor:
    total = layer.stages["weights"].double().sum(-1) + layer.sink.double()
    return _per_head((total - 1).abs().masked_fill(layer.fully_masked, 0.0).nan_to_num(nan=torch.inf))


def _leaked(layer: LayerStages) -> Tensor:
    return _per_head(
        layer.stages["weights"].double().abs().masked_fill(allowed_keys(layer), 0.0).nan_to_num(nan=torch.inf)
    )


def _masked(layer: LayerStages) -> Tensor:
    expected = layer.stages["scaled"].masked_fill(~allowed_keys(layer), -torch.inf)
    return largest_difference(layer.stages["masked"], expected)


def _scaled(layer: LayerStages) -> Tensor:
    spec, scores = layer.inputs.spec, layer.stages["scores"]
    expected = scores.double() * spec.scale
    if spec.softcap is not None:
        expected = spec.softcap * torch.tanh(expected / spec.softcap)
    if spec.bias is not None:
        q = torch.arange(scores.shape[2], device=scores.device)[:, None]
        k = torch.arange(scores.shape[3], device=scores.device)[None]
        expected = expected + spec.bias(q, k, torch.arange(scores.shape[1], device=scores.device))
    return largest_difference(layer.stages["scaled"], expected)


def _softmax(layer: LayerStages) -> Tensor:
    masked = layer.stages["masked"].double()
    if layer.inputs.spec.sinks is not None:
        sink = layer.inputs.spec.sinks.double()[None, :, None, None].expand(*masked.shape[:3], 1)
        expected = torch.cat((masked, sink), -1).softmax(-1)[..., :-1]
    else:
        expected = masked.softmax(-1)
    return largest_difference(
        layer.stages["weights"], expected.masked_fill(layer.fully_masked[..., None], 0.0), absolute=True
    )


def _output(layer: LayerStages) -> Tensor:
    v = layer.inputs.v.double().repeat_interleave(layer.inputs.q.shape[1] // layer.inputs.v.shape[1], dim=1)
    return largest_difference(layer.stages["output"], layer.stages["weights"].double() @ v)
