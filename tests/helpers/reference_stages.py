"""What eager transformers computes, stage by stage: the reference for our own stack."""

from dataclasses import dataclass

import torch
from torch import Tensor
from transformers import AttentionInterface, PreTrainedModel
from transformers.masking_utils import AttentionMaskInterface, eager_mask

STAGES = ("scaled", "masked", "weights", "output")


@dataclass
class Stages:
    """One layer's attention."""

    scaled: Tensor  # after scale and soft-cap, before the mask, (B, H, Q, K)
    masked: Tensor  # −inf where not allowed
    weights: Tensor  # softmax
    output: Tensor  # weights · v, (B, H, Q, Ev)


_seen: list[Stages] = []


def _recorded(
    module: torch.nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    scaling: float | None = None,
    softcap: float | None = None,
    s_aux: Tensor | None = None,
    **_: object,
) -> tuple[Tensor, Tensor]:
    """The same as eager_attention_forward of transformers, with its steps kept."""
    assert scaling is not None
    groups = query.shape[1] // key.shape[1]
    key, value = (x[:, :, None].expand(-1, -1, groups, -1, -1).flatten(1, 2) for x in (key, value))  # repeat_kv
    scaled = torch.matmul(query, key.transpose(2, 3)) * scaling
    if softcap is not None:
        scaled = torch.tanh(scaled / softcap) * softcap
    masked = scaled if attention_mask is None else scaled + attention_mask
    if s_aux is None:
        weights = torch.softmax(masked, dim=-1)
    else:  # a logit more, and no value behind it
        sinks = s_aux[None, :, None, None].expand(*masked.shape[:3], 1)
        weights = torch.softmax(torch.cat((masked, sinks), dim=-1), dim=-1)[..., :-1]
    output = torch.matmul(weights, value)
    barred = torch.zeros_like(scaled, dtype=torch.bool) if attention_mask is None else (attention_mask < -1e30)
    _seen.append(Stages(scaled, scaled.masked_fill(barred, -torch.inf), weights, output))
    return output.transpose(1, 2).contiguous(), weights


AttentionInterface.register("recorded", _recorded)
AttentionMaskInterface.register("recorded", eager_mask)


@torch.no_grad()
def run(model: PreTrainedModel, ids: Tensor, lengths: list[int], segments: Tensor | None = None) -> list[Stages]:
    """Every layer's stages over a batch padded on the right."""
    model.set_attn_implementation("recorded")
    _seen.clear()
    real = torch.arange(ids.shape[1])[None] < torch.tensor(lengths)[:, None]
    extra = {} if segments is None else {"token_type_ids": segments}
    model.base_model(input_ids=ids, attention_mask=real.long(), **extra)
    return list(_seen)
