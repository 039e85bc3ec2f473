"""Find the weights of attention in a model of `transformers`, by the names of our families."""

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from transformers.pytorch_utils import Conv1D

from attnscope.base.errors import AttnscopeError
from attnscope.checkpoints.families import FAMILIES, native_family, open_config
from attnscope.checkpoints.families.names import Names, find_prefix
from attnscope.engines.transformers.loading import TransformersModel
from attnscope.model.checkpoint import ParameterSlice, parameter_slice, shapes_of
from attnscope.model.head_capture import LayerModules
from attnscope.model.stack import Stack

# exactly these: a subclass, such as that of an adapter, may add something to its weight
_PLAIN = (nn.Linear, Conv1D)


@dataclass(frozen=True)
class FoundParameter:
    """One of our parameters in a model of transformers."""

    tensor: Tensor
    module: nn.Module
    piece: ParameterSlice

    def value(self) -> Tensor:
        """Return our parameter, laid (out, in)."""
        return self.piece.extract(self.tensor.T if self.piece.transposed else self.tensor)


def names_of(model: Any) -> Names:
    """Return the names that a model has for our parameters."""
    family = native_family(model.config.to_dict())
    if family is None:
        message = f"which weights compute attention in '{model.config.model_type}' is not known"
        raise AttnscopeError(message, where="model", hint=f"known: {', '.join(FAMILIES)}")
    held = dict(model.named_parameters(remove_duplicate=False))
    return Names(family, find_prefix(family, held, "model"), held, "model")


def find_parameter(
    model: nn.Module, names: Names, shapes: Mapping[str, tuple[int, ...]], name: str, n_heads: int
) -> FoundParameter:
    """Find one of our parameters; `shapes` are those outside of blocks, and of block 0, that may share its tensor."""
    piece = parameter_slice(names, name, shapes, n_heads)
    path, _, suffix = piece.tensor.rpartition(".")
    module = model.get_submodule(path)
    parameter = FoundParameter(module.get_parameter(suffix), module, piece)
    if tuple(parameter.tensor.shape) != piece.source_shape():
        raise _unexpected(parameter, names)
    return parameter


def find_projection(
    model: nn.Module, names: Names, shapes: Mapping[str, tuple[int, ...]], name: str, n_heads: int
) -> FoundParameter:
    """Find the weight of a projection that only multiplies by it; see `find_parameter`."""
    parameter = find_parameter(model, names, shapes, name, n_heads)
    if type(parameter.module) not in _PLAIN:
        raise _unexpected(parameter, names)
    around = model.get_submodule(parameter.piece.tensor.rsplit(".", 2)[0])
    if not type(around).__module__.startswith("transformers."):  # it may do more with its values
        raise AttnscopeError(
            f"'{type(around).__name__}' is no module of transformers", where="model"
        )
    return parameter


def _unexpected(parameter: FoundParameter, names: Names) -> AttnscopeError:
    what = f"{type(parameter.module).__name__}, {' × '.join(map(str, parameter.tensor.shape))}"
    message = f"'{parameter.piece.tensor}' ({what}) is not what a '{names.family.name}' has there"
    return AttnscopeError(message, where="model")


def value_and_output(loaded: TransformersModel, layer: int) -> tuple[Tensor, Tensor] | str:
    """Return a layer's value projection, (G·Ev, D), and output projection, (D, H·Ev), or why they are unknown."""
    model = loaded.model
    part = loaded.part
    width = loaded.d_model
    prefix = "blocks.0.attention."
    shapes = {
        f"{prefix}q.weight": (part.n_heads * part.d_head, width),
        f"{prefix}k.weight": (part.n_kv_heads * part.d_head, width),
        f"{prefix}v.weight": (part.n_kv_heads * part.d_value, width),
        f"{prefix}out.weight": (width, part.n_heads * part.d_value),
    }
    try:
        names = names_of(model)
        value, output = (
            find_projection(
                model, names, shapes, f"blocks.{layer}.attention.{name}.weight", part.n_heads
            ).value()
            for name in ("v", "out")
        )
    except AttnscopeError as e:
        return e.message
    return value, output


def layer_modules(loaded: TransformersModel, layer: int) -> LayerModules:
    """Return the modules that make a layer's queries and keys, with their parameters in a native stack."""
    model = loaded.model
    names = names_of(model)
    config = open_config(json.loads(model.config.to_json_string()), "model.config").config
    with torch.device("meta"):
        stack = Stack(config, layer + 1)
    shapes = shapes_of(stack)
    attention = f"blocks.{layer}.attention."
    projections = {name: f"{attention}{name}.weight" for name in ("q", "k")}
    parameters: dict[str, FoundParameter] = {}
    try:
        for name, _ in stack.named_parameters():
            if name.startswith(
                ("embed.", f"blocks.{layer}.norm_attention.", f"{attention}q", f"{attention}k")
            ):
                find = find_parameter
                if name in projections.values():
                    find = find_projection
                parameters[name] = find(model, names, shapes, name, config.n_heads)
    except AttnscopeError as e:
        hint = "explain does not follow adapters or code of its own in attention"
        raise AttnscopeError(e.parts.message, where="model", hint=hint) from e
    stack.load_state_dict(
        {name: located.value().detach() for name, located in parameters.items()},
        strict=False,
        assign=True,
    )

    listed = (names.prefix + names.any_block()).partition("{l}")[0]
    blocks = [model.get_submodule(f"{listed}{index}") for index in range(layer + 1)]
    norms = [parameters.get(f"{attention}{name}.weight") for name in ("q_norm", "k_norm")]
    q, k = (parameters[name] for name in projections.values())
    q_norm, k_norm = (None if norm is None else norm.module for norm in norms)
    if config.embedding_norm:
        embedded = parameters["embed.norm.weight"].module
    else:
        embedded = blocks[0]
    return LayerModules(
        stack.eval(), embedded, blocks, q.module, k.module, q_norm, k_norm, _taken(q), _taken(k)
    )


def _taken(projection: FoundParameter) -> Callable[[Tensor], Tensor]:
    """Return a function that extracts the native part of a projection's output, (1, T, rows of its weight)."""
    return lambda projected: projection.piece.extract(projected[0].T).T[None]
