"""Find the modules of a `transformers` model that make the queries and keys of one layer."""

import json
from collections.abc import Callable

import torch
from torch import Tensor

from attnscope.base.errors import AttnscopeError
from attnscope.checkpoints.families import open_config
from attnscope.engines.transformers.loading import TransformersModel
from attnscope.engines.transformers.projections import FoundParameter, find_parameter, find_projection, names_of
from attnscope.model.head_capture import LayerModules
from attnscope.model.stack import Stack


def layer_modules(loaded: TransformersModel, layer: int) -> LayerModules:
    """Return the modules that make a layer's queries and keys, with their parameters in a native stack."""
    model = loaded.model
    names = names_of(model)
    config = open_config(json.loads(model.config.to_json_string()), "model.config").config
    with torch.device("meta"):
        stack = Stack(config, layer + 1)
    shapes = {name: tuple(parameter.shape) for name, parameter in stack.named_parameters()}
    attention = f"blocks.{layer}.attention."
    projections = {name: f"{attention}{name}.weight" for name in ("q", "k")}
    parameters: dict[str, FoundParameter] = {}
    try:
        for name in shapes:
            if name.startswith(("embed.", f"blocks.{layer}.norm_attention.", f"{attention}q", f"{attention}k")):
                find = find_projection if name in projections.values() else find_parameter
                parameters[name] = find(model, names, shapes, name, config.n_heads)
    except AttnscopeError as e:
        hint = "explain does not follow adapters or code of its own in attention"
        raise AttnscopeError(e.parts.message, where="model", hint=hint) from e
    stack.load_state_dict(
        {name: located.value().detach() for name, located in parameters.items()}, strict=False, assign=True
    )

    listed = (names.prefix + names.any_block()).partition("{l}")[0]
    blocks = [model.get_submodule(f"{listed}{number}") for number in range(layer + 1)]
    norms = [parameters.get(f"{attention}{name}.weight") for name in ("q_norm", "k_norm")]
    q, k = (parameters[name] for name in projections.values())
    q_norm, k_norm = (None if norm is None else norm.module for norm in norms)
    embedded = parameters["embed.norm.weight"].module if config.embedding_norm else blocks[0]
    return LayerModules(stack.eval(), embedded, blocks, q.module, k.module, q_norm, k_norm, _taken(q), _taken(k))


def _taken(projection: FoundParameter) -> Callable[[Tensor], Tensor]:
    """Return a function that extracts the native part of a projection's output, (1, T, rows of its weight)."""
    return lambda projected: projection.piece.extract(projected[0].T).T[None]
