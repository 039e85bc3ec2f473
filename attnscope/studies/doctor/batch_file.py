"""A batch that a program saved as JSON, as tensors."""

from typing import Any

import torch

from attnscope.base.errors import UsageError
from attnscope.base.files.reading import as_object

_TOLD = ("documents", "prefix")  # what is known of a batch, which is no input of the model


def batch_of(value: Any, where: str) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the inputs of a model, and what the file says of them: `documents` and `prefix`.

    Args:
        value: input_ids, or an object with what the model is called with, each as one list or a list for each row.
    """
    if isinstance(value, list):
        members = {"input_ids": value}
    else:
        members = as_object(value, where)
    if "input_ids" not in members:
        raise UsageError(
            "has no input_ids", where=where, hint="give them, such as [[101, 2023, 102]]"
        )
    ids = _tensor(members["input_ids"], f"{where}: input_ids")
    single = ids.ndim == 1
    told = {name: members[name] for name in _TOLD if name in members}
    batch = {}
    for name, member in members.items():
        if name not in _TOLD:
            if isinstance(member, list):
                tensor = _tensor(member, f"{where}: {name}")
            else:
                tensor = member
            flat = single and isinstance(tensor, torch.Tensor) and tensor.shape == ids.shape
            batch[name] = tensor[None] if flat else tensor
    return batch, told


def _tensor(value: Any, where: str) -> torch.Tensor:
    """Return lists of numbers as a tensor."""
    try:
        return torch.tensor(value)
    except (TypeError, ValueError, RuntimeError, OverflowError) as e:
        hint = "give lists of numbers, padded to one length, and an attention_mask"
        raise UsageError(
            "has no numbers, or rows of different lengths", where=where, hint=hint
        ) from e
