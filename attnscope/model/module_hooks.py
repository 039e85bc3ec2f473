"""Listen to the modules of a model while it runs."""

import inspect
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any

from torch import nn
from torch.utils.hooks import RemovableHandle


@contextmanager
def listening(handles: Iterable[RemovableHandle]) -> Iterator[None]:
    """Remove hooks at the end, also after an error."""
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


def first_argument(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[str, Any]:
    """Return the name and value of the first argument of a module, which is its input."""
    name = next(iter(inspect.signature(module.forward).parameters))
    return name, args[0] if args else kwargs.get(name)
