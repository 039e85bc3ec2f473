"""Run a model of transformers in float64 and keep what it hands to its attention, one text at a time.

Nothing here shares code with attnscope. A model of transformers runs in float64 with an attention function of our own,
which computes in NumPy, and may do so under another mask than the model's.
"""

import re
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
from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES
from transformers.pytorch_utils import Conv1D

Array = np.ndarray[Any, np.dtype[np.float64]]
Allowed = np.ndarray[Any, np.dtype[np.bool_]]


@dataclass
class Layer:
    """One layer's attention over one text."""

    q: Array  # (H, Q, E), after whatever the model does to queries (norms, rotation)
    k: Array  # (H, K, E), repeated where heads share keys
    v: Array  # (H, K, Ev), likewise
    scale: float  # factor on q·k
    softcap: float | None  # c of c·tanh(x/c) on the scaled scores; None for none
    sinks: Array | None  # a logit per head that belongs to no key, (H,); None for none
    own: Allowed  # which keys a query may see by the model's own mask, (Q, K)
    out: Array | None = None  # the output projection by head, (H, Ev, D); None where none was seen


def softmax(masked: Array, sinks: Array | None) -> tuple[Array, Array | None]:
    """Weights of masked scores (H, Q, K), 0 in a fully masked row, and what each head's sink takes, (H, Q)."""
    logits = masked
    if sinks is not None:
        logits = np.concatenate(
            (masked, np.broadcast_to(sinks[:, None, None], (*masked.shape[:2], 1))), -1
        )
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


# what heads give, of the layer, the mask and the weights
Blend = Callable[[int, Layer, Allowed, Array], Array]


def plain_blend(number: int, layer: Layer, used: Allowed, weights: Array) -> Array:
    """Σ weights · values, (H, Q, Ev)."""
    return weights @ layer.v


class _Seen:
    """The layers of the text that runs, the mask that it runs under, and what becomes of its weights."""

    layers: list[Layer]
    weights: list[Array]
    change: Callable[[Allowed], Allowed] | None
    blend: Blend


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
    _Seen.weights.append(weights)
    blended = _Seen.blend(len(_Seen.layers) - 1, layer, used, weights)
    output = torch.from_numpy(blended).to(query.dtype)
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
    return _listened(
        hf.AutoModel.from_pretrained(
            folder, attn_implementation="eager", experts_implementation="eager"
        )
    )


@lru_cache(maxsize=64)
def load_with_head(folder: Path) -> PreTrainedModel:
    """The class that config.json names, likewise; of a base model whose embedding may predict, the one that does."""
    config = hf.AutoConfig.from_pretrained(folder)
    (name,) = config.architectures
    kind = getattr(hf, name)
    if tied_base(kind, config):
        kind = hf.AutoModelForCausalLM
    return _listened(
        kind.from_pretrained(folder, attn_implementation="eager", experts_implementation="eager")
    )


def tied_base(kind: type[PreTrainedModel], config: hf.PreTrainedConfig) -> bool:
    """Whether a class is the base of a causal model whose output head is its embedding."""
    base = re.fullmatch(r".*(?<!LMHead)Model", kind.__name__) is not None
    return (
        base
        and config.tie_word_embeddings
        and config.model_type in MODEL_FOR_CAUSAL_LM_MAPPING_NAMES
        and config.model_type not in ("bert", "roberta")
    )


def _listened(model: PreTrainedModel) -> PreTrainedModel:
    model.double().eval().set_attn_implementation("referee")
    for module in model.modules():
        if isinstance(module, nn.Linear | Conv1D):
            module.register_forward_pre_hook(_projects)
    return model


@torch.no_grad()
def run(
    folder: Path,
    ids: list[int],
    types: list[int] | None,
    change: Callable[[Allowed], Allowed] | None = None,
) -> list[Layer]:
    """Every layer's attention over one text.

    Args:
        folder: The model.
        ids: Its tokens.
        types: Token type ids; None for a model that takes none.
        change: Makes the mask that the whole model runs under from each layer's own; None for the model's own.
    """
    _Seen.layers, _Seen.weights, _Seen.change, _Seen.blend = [], [], change, plain_blend
    load(folder)(**_inputs(ids, types))
    return _Seen.layers


@dataclass
class Pass:
    """One text that went through the whole model."""

    layers: list[Layer]  # every layer's attention
    weights: list[Array]  # its weights under the mask that was used, (H, Q, K)
    streams: list[Array]  # what enters each layer, and what leaves the last, (T, D) each
    # what each layer's attention hands on, with whatever norm lies behind it, (T, D) each
    attended: list[Array]
    # a factor that such a norm put on each number of it, likewise; 1 where there is none
    after_norm: list[Array]
    final: Array  # final hidden states as the base model gives them, (T, D)
    logits: Array | None  # (T, V); None where the checkpoint has no output head


# the norm of what attention gives, in the families that have one
_NORMED_BEHIND = {
    **dict.fromkeys(
        ("gemma2", "gemma3_text", "olmo2", "olmo3"),
        "post_attention_layernorm",
    ),
    "glm4": "post_self_attn_layernorm",
}


@torch.no_grad()
def run_through(
    folder: Path,
    ids: list[int],
    types: list[int] | None,
    change: Callable[[Allowed], Allowed] | None = None,
    blend: Blend = plain_blend,
) -> Pass:
    """Run a whole model, with its output head if it has one, over one text.

    Args:
        folder: The model.
        ids: See run.
        types: Likewise.
        change: Likewise.
        blend: What heads give instead of Σ weights · values.
    """
    _Seen.layers, _Seen.weights, _Seen.change, _Seen.blend = [], [], change, blend
    model = load_with_head(folder)
    made = Pass(_Seen.layers, _Seen.weights, [], [], [], np.empty(0), None)
    handles = []
    for block in blocks(model):
        handles.append(
            block.register_forward_pre_hook(lambda _, given: made.streams.append(_array(given[0])))
        )
        names = [
            name for name, _ in block.named_children() if "attention" in name or "attn" in name
        ]
        # a norm's name
        attention = block.get_submodule(
            next(name for name in names if not name.startswith("post_"))
        )
        handles.append(
            attention.register_forward_hook(lambda _, __, out: made.attended.append(_array(out)))
        )
        if norm_name := _NORMED_BEHIND.get(model.config.model_type):
            handles.append(
                block.get_submodule(norm_name).register_forward_hook(_normed_behind(made))
            )
    handles.append(block.register_forward_hook(lambda _, __, out: made.streams.append(_array(out))))
    handles.append(
        model.base_model.register_forward_hook(
            lambda _, __, out: setattr(made, "final", _array(out))
        )
    )
    try:
        out = model(**_inputs(ids, types))
    finally:
        for handle in handles:
            handle.remove()
    found = out.get("prediction_logits", out.get("logits"))
    made.logits = None if found is None else found[0].numpy()
    made.after_norm = made.after_norm or [np.ones_like(one) for one in made.attended]
    return made


def blocks(model: PreTrainedModel) -> list[nn.Module]:
    """The layers of a model."""
    count = model.config.num_hidden_layers
    return next(
        list(m) for m in model.modules() if isinstance(m, nn.ModuleList) and len(m) == count
    )


def _normed_behind(made: Pass) -> Callable[..., None]:
    def hook(_: nn.Module, given: tuple[Tensor, ...], out: Tensor) -> None:
        made.attended[-1] = _array(out)
        before, after = _array(given[0]), _array(out)
        made.after_norm.append(
            np.divide(after, before, out=np.zeros_like(after), where=before != 0)
        )

    return hook


def _array(out: Any) -> Array:
    """The first tensor of what a module gives, of the only text."""
    one = out if isinstance(out, Tensor) else out[0]
    return one[0].numpy()  # type: ignore[no-any-return]


def _inputs(ids: list[int], types: list[int] | None) -> dict[str, Tensor]:
    given = {
        "input_ids": torch.tensor([ids]),
        "attention_mask": torch.ones(1, len(ids), dtype=torch.int64),
    }
    if types is not None:
        given["token_type_ids"] = torch.tensor([types])
    return given
