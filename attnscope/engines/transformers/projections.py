"""Find the weights that compute values and outputs in a model of `transformers`, by the names of our families."""

from torch import Tensor, nn
from transformers.pytorch_utils import Conv1D

from attnscope.engines.transformers.loading import TransformersModel
from attnscope.errors import AttnscopeError
from attnscope.families import FAMILIES
from attnscope.families.names import Names, find_prefix
from attnscope.model.checkpoint import parameter_slice

_PLAIN = (nn.Linear, Conv1D)  # exactly these: a subclass, such as that of an adapter, may add something to its weight


def value_and_output(loaded: TransformersModel, layer: int) -> tuple[Tensor, Tensor] | str:
    """Return weights of the value projection, (G·Ev, D), and of the output projection, (D, H·Ev), of a layer.

    Args:
        loaded: The model, with its chosen part.
        layer: Number of the layer.

    Returns:
        The weights, laid (out, in); where they are not known, why.
    """
    model, part = loaded.model, loaded.parts[loaded.chosen]
    family = FAMILIES.get(model.config.model_type)
    if family is None:
        return f"which weights compute the values of '{model.config.model_type}' is not known"
    width, first = loaded.d_model, "blocks.0.attention."
    shapes = {
        f"{first}q.weight": (part.n_heads * part.d_head, width),
        f"{first}k.weight": (part.n_kv_heads * part.d_head, width),
        f"{first}v.weight": (part.n_kv_heads * part.d_value, width),
        f"{first}out.weight": (width, part.n_heads * part.d_value),
    }
    held = dict(model.named_parameters(remove_duplicate=False))
    found = []
    for name in (f"{first}v.weight", f"{first}out.weight"):
        ours = name.replace("blocks.0.", f"blocks.{layer}.")
        try:
            place = Names(family, find_prefix(family, held, "model"), held, "model").find(ours)
        except AttnscopeError as e:
            return e.found
        piece = parameter_slice(family, ours, name, shapes, place, part.n_heads)
        path, tensor = place.tensor.rpartition(".")[0], held[place.tensor]
        module, around = model.get_submodule(path), model.get_submodule(path.rpartition(".")[0])
        if type(module) not in _PLAIN or tuple(tensor.shape) != piece.source_shape():
            shape = " × ".join(map(str, tensor.shape))
            return f"'{place.tensor}' ({type(module).__name__}, {shape}) is not what a '{family.name}' has there"
        if not type(around).__module__.startswith("transformers."):  # it may do more with its values
            return f"'{type(around).__name__}' is no module of transformers"
        found.append(piece.extract(tensor.T if piece.transposed else tensor))
    return found[0], found[1]
