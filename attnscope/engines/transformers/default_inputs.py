"""Inputs without which some models do not run on a text, which has none: places on a page, a language."""

from collections.abc import Callable, Sequence
from inspect import signature
from typing import Any

import torch
from torch import Tensor

# Zeros for token ids, (B, N), in place of an argument of `forward`, by its name; the type is that of the model.
_ZEROS: dict[str, Callable[[Tensor, torch.dtype], Tensor]] = {
    # left, top, right and bottom of every token on a page (BROS, UDOP)
    "bbox": lambda ids, dtype: ids.new_zeros((*ids.shape, 4), dtype=dtype),
    # the first language of the model (XMOD)
    "lang_ids": lambda ids, _: ids.new_zeros(len(ids)),
}


def defaults_of(model: Any) -> tuple[str, ...]:
    """Return the names of the arguments that a model takes and that a text does not have."""
    takes = signature(model.forward).parameters
    return tuple(name for name in _ZEROS if name in takes)


def default_inputs(model: Any, names: Sequence[str], ids: Tensor) -> dict[str, Tensor]:
    """Return these arguments for token ids, (B, N)."""
    return {name: _ZEROS[name](ids, model.dtype) for name in names}


def default_notes(names: Sequence[str]) -> tuple[str, ...]:
    """Return notes on these arguments."""
    return tuple(f"{name}: zeros, since the model needs it and a text has none" for name in names)
