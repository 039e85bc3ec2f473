"""Run a model of transformers in float64 and keep what it hands to its attention, one text at a time.

Nothing here shares code with attnscope. A model of transformers runs in float64 with an attention function of our own,
which computes in NumPy, and may do so under another mask than the model's.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import torch
import transformers as hf
from torch import Tensor, nn
from transformers import AttentionInterface, PreTrainedModel
from transformers.masking_utils import AttentionMaskInterface, eager_mask
from transformers.pytorch_utils import Conv1D

Array = np.ndarray[Any, np.dtype[np.float64]]
Allowed = np.ndarray[Any, np.dtype[np.bool_]]


@dataclass
class Layer:
    """One layer's attention over one text.

    Attributes:
        q: (H, Q, E), after whatever the model does to queries (norms, rotation).
        k: (H, K, E), repeated where heads share keys.
        v: (H, K, Ev), likewise.
        scale: Factor on q·k.
        softcap: c of c·tanh(x/c) on the scaled scores; None for none.
        sinks: A logit per head that belongs to no key, (H,); None for none.
        own: Which keys a query may see by the model's own mask, (Q, K).
        out: The output projection by head, (H, Ev, D); None where none was seen.
    """

    q: Array
    k: Array
    v: Array
    scale: float
    softcap: float | None
    sinks: Array | None
    own: Allowed
    out: Array | None = None


def softmax(masked: Array, sinks: Array | None) -> tuple[Array, Array | None]:
    """Weights of masked scores (H, Q, K), 0 in a fully masked row, and what each head's sink takes, (H, Q)."""
    logits = masked
    if sinks is not None:
        logits = np.concatenate((masked, np.broadcast_to(sinks[:, None, None], (*masked.shape[:2], 1))), -1)
    top = logits.max(-1, keepdims=True)
    powers = np.exp(logits - np.where(np.isfinite(top), top, 0.0))
    total = powers.sum(-1, keepdims=True)
    shares = powers / np.where(total == 0, 1.0, total)
    return (shares, None) if sinks is None else (shares[..., :-1], shares[..., -1])


def raw_and_scaled(layer: Layer) -> tuple[Array, Array]:
    """q·k, and the same scaled and soft-capped, (H, Q, K)."""
    scores = layer.q @ layer.k.transpose(0, 2, 1)
    scaled = scores * layer.scale
    if layer.softcap is not None:
        scaled = layer.softcap * np.tanh(scaled / layer.softcap)
    return scores, scaled


class _Seen:
    """The layers of the text that runs, and the mask that it runs under."""

    layers: list[Layer]
    change: Callable[[Allowed], Allowed] | None


def _attention(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    scaling: float | None = None,
    softcap: float | None = None,
    s_aux: Tensor | None = None,
    **_: object,
) -> tuple[Tensor, None]:
    """Attention of one text in NumPy float64, in the place of transformers' own."""
    assert scaling is not None and len(query) == 1
    share = query.shape[1] // key.shape[1]
    q, k, v = (x[0].numpy().astype(np.float64) for x in (query, key, value))
    k, v = (np.repeat(x, share, axis=0) for x in (k, v))
    own = np.ones((q.shape[1], k.shape[1]), dtype=bool)
    if attention_mask is not None:
        own = (attention_mask[0, 0, :, : k.shape[1]] > -1e30).numpy()
    sinks = None if s_aux is None else s_aux.numpy().astype(np.float64)
    layer = Layer(q, k, v, float(scaling), softcap, sinks, own)
    _Seen.layers.append(layer)
    used = own if _Seen.change is None else _Seen.change(own)
    weights, _none = softmax(np.where(used, raw_and_scaled(layer)[1], -np.inf), sinks)
    output = torch.from_numpy(weights @ v).to(query.dtype)
    return output.transpose(0, 1)[None].contiguous(), None


AttentionInterface.register("referee", _attention)
AttentionMaskInterface.register("referee", eager_mask)


def _projects(module: nn.Module, given: tuple[Tensor, ...]) -> None:
    """The first product after a layer's attention that takes all of its heads is the output projection."""
    if not _Seen.layers or _Seen.layers[-1].out is not None:
        return
    last = _Seen.layers[-1]
    heads, _, width = last.v.shape
    if given[0].shape[-1] == heads * width:
        weight = module.weight if isinstance(module, Conv1D) else module.weight.T  # (H·Ev, D)
        last.out = weight.detach().numpy().astype(np.float64).reshape(heads, width, -1)


@lru_cache(maxsize=64)
def load(folder: Path) -> PreTrainedModel:
    """A model of transformers in float64 whose attention is ours."""
    model = hf.AutoModel.from_pretrained(folder, attn_implementation="eager", experts_implementation="eager")
    model.double().eval().set_attn_implementation("referee")
    for module in model.modules():
        if isinstance(module, nn.Linear | Conv1D):
            module.register_forward_pre_hook(_projects)
    return model


@torch.no_grad()
def run(
    folder: Path, ids: list[int], types: list[int] | None, change: Callable[[Allowed], Allowed] | None = None
) -> list[Layer]:
    """Every layer's attention over one text.

    Args:
        folder: The model.
        ids: Its tokens.
        types: Token type ids; None for a model that takes none.
        change: Makes the mask that the whole model runs under from each layer's own; None for the model's own.
    """
    _Seen.layers, _Seen.change = [], change
    model = load(folder)
    given = {"input_ids": torch.tensor([ids]), "attention_mask": torch.ones(1, len(ids), dtype=torch.int64)}
    if types is not None:
        given["token_type_ids"] = torch.tensor([types])
    model(**given)
    return _Seen.layers
