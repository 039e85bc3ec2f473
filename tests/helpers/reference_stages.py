"""What eager transformers computes, stage by stage: the reference for our own stack."""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode
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
    # scores of a row are known up to a constant, as where ALiBi is written as slope · key instead of −slope · distance
    shifted: bool = False


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
    # repeat_kv
    key, value = (x[:, :, None].expand(-1, -1, groups, -1, -1).flatten(1, 2) for x in (key, value))
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
    barred = (
        torch.zeros_like(scaled, dtype=torch.bool)
        if attention_mask is None
        else (attention_mask < -1e30)
    )
    _seen.append(Stages(scaled, scaled.masked_fill(barred, -torch.inf), weights, output))
    return output.transpose(1, 2).contiguous(), weights


AttentionInterface.register("recorded", _recorded)
AttentionMaskInterface.register("recorded", eager_mask)


class SoftmaxStages(TorchFunctionMode):
    """The stages of a model that computes attention by operators of its own: each softmax over keys is a layer.

    What was added to scores that are not allowed hides them: they are NaN in `scaled`.
    """

    _SOFTMAX = (torch.softmax, torch.nn.functional.softmax, Tensor.softmax)
    _PRODUCT = (torch.matmul, torch.bmm, Tensor.matmul, Tensor.bmm, Tensor.__matmul__)

    def __init__(self, *, shifted: bool) -> None:
        super().__init__()
        self.layers: list[Stages] = []
        self._shifted = shifted
        self._waits = False

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        if func in self._SOFTMAX and result.ndim == 4:
            barred = args[0] < -1e30
            masked = args[0].float().masked_fill(barred, -torch.inf)
            scaled = args[0].float().masked_fill(barred, torch.nan)
            self.layers.append(Stages(scaled, masked, result, result, self._shifted))
            self._waits = True
        elif self._waits and func in self._PRODUCT:
            last = self.layers[-1]
            assert args[0].numel() == last.weights.numel()
            last.output = result.reshape(*last.weights.shape[:3], -1)
            self._waits = False
        return result


@torch.no_grad()
def run(
    model: PreTrainedModel, ids: Tensor, lengths: list[int], segments: Tensor | None = None
) -> list[Stages]:
    """Every layer's stages over a batch padded on the right."""
    real = torch.arange(ids.shape[1])[None] < torch.tensor(lengths)[:, None]
    extra = {} if segments is None else {"token_type_ids": segments}
    if not uses_interface(model):
        with SoftmaxStages(shifted=model.config.model_type in ("bloom", "mpt")) as mode:
            model.base_model(input_ids=ids, attention_mask=real.long(), **extra)
        return mode.layers
    model.set_attn_implementation("recorded")
    _seen.clear()
    model.base_model(input_ids=ids, attention_mask=real.long(), **extra)
    return list(_seen)


def uses_interface(model: type[PreTrainedModel] | PreTrainedModel) -> bool:
    """Whether transformers lets another function compute the model's attention."""
    return bool(model._supports_attention_backend)
