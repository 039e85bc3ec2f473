"""Listen to the modules of a model while it runs, or let them compute something else."""

import inspect
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from threading import get_ident
from typing import Any

from torch import nn
from torch.utils.hooks import RemovableHandle


def in_this_thread(
    function: Callable[..., Any], elsewhere: Callable[..., Any] | None = None
) -> Callable[..., Any]:
    """Return a hook or a `forward` for this thread only: the owner of a live model may run it in other threads.

    These call `elsewhere`, or nothing.
    """
    owner = get_ident()

    def call(*args: Any, **kwargs: Any) -> Any:
        callee = function if get_ident() == owner else elsewhere
        if callee is None:
            return None
        return callee(*args, **kwargs)

    return call


@contextmanager
def listening(handles: Iterable[RemovableHandle]) -> Iterator[None]:
    """Remove hooks at the end, also after an error."""
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


def first_argument(
    module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> tuple[str, Any]:
    """Return the name and value of the first argument of a module, which is its input."""
    name = next(iter(inspect.signature(module.forward).parameters))
    return name, args[0] if args else kwargs.get(name)


@contextmanager
def replaced_forward(module: nn.Module, forward: Callable[..., Any]) -> Iterator[None]:
    """Replace a module's `forward` in this thread, within the block."""
    before = vars(module).get("forward")  # only where its owner gave it one
    module.forward = in_this_thread(forward, module.forward)
    try:
        yield
    finally:
        del module.forward
        if before is not None:
            module.forward = before
