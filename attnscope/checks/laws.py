"""Stages of every layer in; what must hold of attention whatever the model is, checked, out.

Every law is computed here anew, in float64 and from the stages alone: nothing is asked of the code that made them.
"""

from collections.abc import Sequence

import torch
from torch import Tensor

from attnscope.checks.measures import apart, judge
from attnscope.checks.observe import Seen
from attnscope.report import STAGES
from attnscope.report.check import Check


def laws(layers: Sequence[Seen], limit: float) -> list[Check]:
    """The laws of one text."""
    dead = sum(int(one.dead.sum()) for one in layers)
    note = f"{dead} rows may attend to nothing: they are shown as masked" if dead else None
    return [
        judge("every number is finite", [_not_finite(one) for one in layers], 0.0),
        judge("rows sum to 1", [_row_sums(one) for one in layers], limit, note),
        judge("nothing on keys that are not allowed", [_leaked(one) for one in layers], 0.0),
        judge("masked is scaled where allowed", [_masked(one) for one in layers], 0.0),
        judge("scaled follows from scores", [_scaled(one) for one in layers], limit),
        judge("weights are the softmax of masked", [_softmax(one) for one in layers], limit),
        judge("output is weights·v", [_output(one) for one in layers], limit),
    ]


def allowed_keys(one: Seen) -> Tensor:
    """Which keys the rule allows, (B, H, Q, K): asked for the whole matrix at once, which no tile does."""
    scores = one.stages["scores"]
    q = torch.arange(scores.shape[2], device=scores.device)[:, None]
    k = torch.arange(scores.shape[3], device=scores.device)[None]
    found = one.call.rule.mask.allowed(q, k)
    return torch.ones_like(scores, dtype=torch.bool) if found is None else found.expand_as(scores)


def _per_head(values: Tensor) -> Tensor:
    return values.transpose(0, 1).flatten(1).amax(1)  # (H,)


def _not_finite(one: Seen) -> Tensor:
    """How many numbers are not: −inf counts nowhere but in masked."""
    total = torch.zeros(one.stages["scores"].shape[1], dtype=torch.float64)
    for stage in STAGES:
        values = one.stages[stage]
        bad = values.isnan() | (values == torch.inf) | ((values == -torch.inf) & (stage != "masked"))
        total = total.to(bad.device) + bad.transpose(0, 1).flatten(1).sum(1)
    return total


def _row_sums(one: Seen) -> Tensor:
    total = one.stages["weights"].double().sum(-1) + one.sink.double()
    return _per_head((total - 1).abs().masked_fill(one.dead, 0.0).nan_to_num(nan=torch.inf))


def _leaked(one: Seen) -> Tensor:
    return _per_head(one.stages["weights"].double().abs().masked_fill(allowed_keys(one), 0.0).nan_to_num(nan=torch.inf))


def _masked(one: Seen) -> Tensor:
    expected = one.stages["scaled"].masked_fill(~allowed_keys(one), -torch.inf)
    return apart(one.stages["masked"], expected)


def _scaled(one: Seen) -> Tensor:
    rule, scores = one.call.rule, one.stages["scores"]
    expected = scores.double() * rule.scale
    if rule.softcap is not None:
        expected = rule.softcap * torch.tanh(expected / rule.softcap)
    if rule.bias is not None:
        q = torch.arange(scores.shape[2], device=scores.device)[:, None]
        k = torch.arange(scores.shape[3], device=scores.device)[None]
        expected = expected + rule.bias(q, k, torch.arange(scores.shape[1], device=scores.device))
    return apart(one.stages["scaled"], expected)


def _softmax(one: Seen) -> Tensor:
    masked = one.stages["masked"].double()
    if one.call.rule.sinks is not None:
        sink = one.call.rule.sinks.double()[None, :, None, None].expand(*masked.shape[:3], 1)
        expected = torch.cat((masked, sink), -1).softmax(-1)[..., :-1]
    else:
        expected = masked.softmax(-1)
    return apart(one.stages["weights"], expected.masked_fill(one.dead[..., None], 0.0), absolute=True)


def _output(one: Seen) -> Tensor:
    v = one.call.v.double().repeat_interleave(one.call.q.shape[1] // one.call.v.shape[1], dim=1)
    return apart(one.stages["output"], one.stages["weights"].double() @ v)
