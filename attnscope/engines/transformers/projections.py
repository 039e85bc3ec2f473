"""Find the weights of attention in a model of `transformers`, by the names of our families."""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from torch import Tensor, nn
from transformers.pytorch_utils import Conv1D

from attnscope.base.errors import AttnscopeError
from attnscope.checkpoints.families import FAMILIES
from attnscope.checkpoints.families.names import Names, find_prefix
from attnscope.engines.transformers.loading import TransformersModel
from attnscope.model.checkpoint import ParameterSlice, parameter_slice

_PLAIN = (nn.Linear, Conv1D)  # exactly these: a subclass, such as that of an adapter, may add something to its weight


@dataclass(frozen=True)
class FoundParameter:
    """One of our parameters in a model of transformers."""

    name: str
    tensor: Tensor
    module: nn.Module
    piece: ParameterSlice

    def value(self) -> Tensor:
        """Return our parameter, laid (out, in)."""
        return self.piece.extract(self.tensor.T if self.piece.transposed else self.tensor)


def names_of(model: Any) -> Names:
    """Return the names that a model has for our parameters."""
    family = FAMILIES.get(model.config.model_type)
    if family is None:
        message = f"which weights compute attention in '{model.config.model_type}' is not known"
        raise AttnscopeError(message, where="model", hint=f"known: {', '.join(FAMILIES)}")
    held = dict(model.named_parameters(remove_duplicate=False))
    return Names(family, find_prefix(family, held, "model"), held, "model")


def find_parameter(
    model: nn.Module, names: Names, shapes: Mapping[str, tuple[int, ...]], name: str, n_heads: int
) -> FoundParameter:
    """Find one of our parameters; `shapes` are those outside of blocks, and of block 0, that may share its tensor."""
    place, first = names.find(name), re.sub(r"^blocks\.\d+\.", "blocks.0.", name)
    path, _, kind = place.tensor.rpartition(".")
    module = model.get_submodule(path)
    piece = parameter_slice(names.family, name, first, shapes, place, n_heads)
    parameter = FoundParameter(place.tensor, module.get_parameter(kind), module, piece)
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
    around = model.get_submodule(parameter.name.rsplit(".", 2)[0])
    if not type(around).__module__.startswith("transformers."):  # it may do more with its values
        raise AttnscopeError(f"'{type(around).__name__}' is no module of transformers", where="model")
    return parameter


def _unexpected(parameter: FoundParameter, names: Names) -> AttnscopeError:
    what = f"{type(parameter.module).__name__}, {' × '.join(map(str, parameter.tensor.shape))}"
    message = f"'{parameter.name}' ({what}) is not what a '{names.family.name}' has there"
    return AttnscopeError(message, where="model")


def value_and_output(loaded: TransformersModel, layer: int) -> tuple[Tensor, Tensor] | str:
    """Return a layer's value projection, (G·Ev, D), and output projection, (D, H·Ev), or why they are unknown."""
    model, part = loaded.model, loaded.parts[loaded.chosen]
    width, first = loaded.d_model, "blocks.0.attention."
    shapes = {
        f"{first}q.weight": (part.n_heads * part.d_head, width),
        f"{first}k.weight": (part.n_kv_heads * part.d_head, width),
        f"{first}v.weight": (part.n_kv_heads * part.d_value, width),
        f"{first}out.weight": (width, part.n_heads * part.d_value),
    }
    try:
        names = names_of(model)
        value, output = (
            find_projection(model, names, shapes, f"blocks.{layer}.attention.{name}.weight", part.n_heads).value()
            for name in ("v", "out")
        )
    except AttnscopeError as e:
        return e.message
    return value, output
