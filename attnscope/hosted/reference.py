"""A checkpoint and token ids in; what `transformers` itself computes with its eager attention, stage by stage, out."""

from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn

from attnscope.errors import AttnscopeError
from attnscope.folder import Folder
from attnscope.hosted.engine import Hosted
from attnscope.hosted.interface import Session, running
from attnscope.hosted.loading import load_guest
from attnscope.model.attention import attend
from attnscope.model.call import Call
from attnscope.model.native import Batch, Texts

_ATTENTIONS = {"": "attentions", "encoder": "attentions", "decoder": "decoder_attentions", "cross": "cross_attentions"}


@dataclass(frozen=True)
class Work:
    """What a reference is computed of.

    Attributes:
        folder: The checkpoint.
        dtype: Type that the model runs in.
        device: Where.
        part: Which part's attention; None where there is only one.
        batch: One text.
        given: What an encoder reads where the decoder's own attention is looked at.
    """

    folder: Folder
    dtype: torch.dtype
    device: torch.device
    part: str | None
    batch: Batch
    given: Texts | None


def eager(work: Work) -> list[dict[str, Tensor]]:
    """Every layer's stages, (1, H, Q, K) each, by the textbook's formulas; weights are those of transformers.

    Raises:
        AttnscopeError: transformers is not installed, does not know the model, or gives no weights.
    """
    guest = load_guest(work.folder, work.dtype)
    guest.model.to(work.device)
    hosted = Hosted(replace(guest, chosen=guest.part(work.part)), (), False, {}, work.given)
    layers: list[dict[str, Tensor]] = []

    def watch(part: str, _: nn.Module, call: Call) -> Tensor:
        if part == hosted.guest.chosen:
            layers.append(_stages(call))
        output = attend(call)
        assert output is not None
        return output

    with torch.inference_mode(), running(Session(guest.model, watch)):
        hosted.run(work.batch)
    for stages, weights in zip(layers, _weights(hosted, work.batch, len(layers)), strict=True):
        stages["weights"] = weights.float()
        stages["output"] = stages["weights"] @ stages.pop("values")
    return layers


def _stages(call: Call) -> dict[str, Tensor]:
    groups, rule = call.q.shape[1] // call.k.shape[1], call.rule
    k, v = (x.repeat_interleave(groups, dim=1) for x in (call.k, call.v))
    scores = (call.q @ k.mT).float()
    scaled = scores * rule.scale
    if rule.softcap is not None:
        scaled = torch.tanh(scaled / rule.softcap) * rule.softcap
    q_at = torch.arange(scores.shape[2], device=scores.device)[:, None]
    k_at = torch.arange(scores.shape[3], device=scores.device)[None]
    if rule.bias is not None:
        scaled = scaled + rule.bias(q_at, k_at, torch.arange(scores.shape[1], device=scores.device))
    allowed = rule.mask.allowed(q_at, k_at)
    masked = scaled if allowed is None else scaled.masked_fill(~allowed, -torch.inf)
    return {"scores": scores, "scaled": scaled, "masked": masked, "values": v.float()}


def _weights(hosted: Hosted, batch: Batch, n_layers: int) -> list[Tensor]:
    """What transformers' own eager attention gives for `output_attentions`."""
    model = hosted.guest.model
    model.set_attn_implementation("eager")
    with torch.inference_mode():
        found = getattr(hosted.run(batch, output_attentions=True), _ATTENTIONS[hosted.guest.chosen], None)
    if found is None or len(found) != n_layers or any(one is None for one in found):
        raise AttnscopeError("transformers gives no weights for this model")
    return list(found)
