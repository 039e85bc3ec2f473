"""Run two tokens through a `transformers` model to find its parts, layers and heads."""

import inspect
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from attnscope.base.errors import AttnscopeError
from attnscope.engines.transformers.interface import RELATIVE, AttentionCapture, capturing
from attnscope.engines.transformers.model_class import first_line
from attnscope.model.attention import attended
from attnscope.model.inputs import AttentionInputs


@dataclass(frozen=True)
class ModelPart:
    """The attention of one part of a model: one stack of layers."""

    n_layers: int
    n_heads: int
    n_kv_heads: int
    d_head: int
    d_value: int
    scale: float
    has_projection: bool
    position_bias: bool  # a layer adds a bias for every pair of positions (T5)


def no_attention_interface(family: str, where: str | Path) -> AttnscopeError:
    """Build the error for an architecture whose attention cannot be observed."""
    message = f"'{family}' does not run through transformers' attention interface"
    return AttnscopeError(message, where=where, hint="attnscope cannot read its scores")


def probe(model: Any, vocab_size: int, where: str | Path) -> dict[str, ModelPart]:
    """Run two tokens, and see which parts, layers and heads there are."""
    seen: dict[str, dict[int, tuple[AttentionInputs, bool]]] = {}

    def on_attention(part: str, module: nn.Module, inputs: AttentionInputs) -> Tensor:
        seen.setdefault(part, {})[inputs.layer] = inputs, inputs.out_weight is not None
        return attended(inputs)

    ids = torch.full((1, 2), min(5, vocab_size - 1), device=model.device)
    more = {"decoder_input_ids": ids} if model.config.is_encoder_decoder else {}
    session = AttentionCapture(model, on_attention)
    try:
        with torch.inference_mode(), capturing(session):
            model(input_ids=ids, attention_mask=torch.ones_like(ids), **more)
    except AttnscopeError:
        raise
    except Exception as e:  # every language model accepts two tokens
        message = f"transformers cannot run it on two tokens ({first_line(e)})"
        raise AttnscopeError(message, where=where, hint="attnscope needs a model that takes text") from e
    if not seen:
        raise no_attention_interface(model.config.model_type, where)
    return {part: _facts(list(layers.values()), 1 + max(layers), where) for part, layers in seen.items()}


def _facts(calls: list[tuple[AttentionInputs, bool]], n_layers: int, where: str | Path) -> ModelPart:
    shapes = {(c.q.shape[1], c.k.shape[1], c.q.shape[-1], c.v.shape[-1]) for c, _ in calls}
    if len({heads for heads, *_ in shapes}) > 1:
        raise AttnscopeError("its layers have different numbers of heads", where=where)
    first = calls[0][0]
    heads, groups, width, value = first.q.shape[1], first.k.shape[1], first.q.shape[-1], first.v.shape[-1]
    projects = all(has_projection for _, has_projection in calls)
    biased = any(c.spec.bias_name == RELATIVE for c, _ in calls)
    return ModelPart(n_layers, heads, groups, width, value, first.spec.scale, projects, biased)


def max_text_length(model: Any, config: Any) -> int | None:
    """Return the longest text that a model takes, in tokens; None if nothing limits it."""
    most = getattr(config, "max_position_embeddings", None)
    if not isinstance(most, int) or most < 1:
        return None
    tables = [table for name, table in model.named_modules() if isinstance(table, nn.Embedding) and "position" in name]
    counted = [table.padding_idx for table in tables if table.padding_idx is not None]
    # Positions that start after the padding index (RoBERTa).
    return most - 1 - counted[0] if counted else most


def count_segments(model: Any, config: Any) -> int:
    """Return rows of the segment embedding; 0 where there is none."""
    takes = "token_type_ids" in inspect.signature(model.forward).parameters
    return int(getattr(config, "type_vocab_size", 0) or 0) if takes else 0
