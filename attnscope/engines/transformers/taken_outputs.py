"""Find out by running what stands between the output of attention and the output projection.

A module runs again, from the arguments that it got, with other outputs of attention: what its projection would take of
ones is the gate, if it takes the product of the gate and any other output.
"""

from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle

from attnscope.model.module_hooks import in_this_thread, listening

# Arguments that hold keys and values of earlier tokens; `cache` from transformers 5.24 on.
CACHES = ("cache", "past_key_values", "past_key_value", "layer_past")
_ROUNDINGS = 16  # how many roundings of its type a product may differ by


def without_caches(kwargs: Mapping[str, Any]) -> dict[str, Any]:
    """Return the arguments of a module that runs again, which must not add to caches."""
    return {name: None if name in CACHES else value for name, value in kwargs.items()}


class _Taken(Exception):
    """Ends the second run of a module with what its output projection takes."""

    def __init__(self, given: Any) -> None:
        self.given = given


class TakenOutputs:
    """What the output projections of some modules take in place of weights·v."""

    def __init__(self, modules: Collection[nn.Module]) -> None:
        self._modules = set(modules)
        self._arguments: dict[nn.Module, tuple[tuple[Any, ...], dict[str, Any]]] = {}
        self._with_cache: set[nn.Module] = set()
        self._handles: list[RemovableHandle] = []
        # the output of attention while a module runs again; None in the model's own pass
        self.instead: Tensor | None = None
        self.values: list[Tensor] = []  # of the calls of attention of a module that ran again

    @contextmanager
    def listening(self) -> Iterator[None]:
        """Remember the arguments of these modules within the block."""
        enter = in_this_thread(self._enter)
        self._handles = [
            module.register_forward_pre_hook(enter, with_kwargs=True) for module in self._modules
        ]
        with listening(self._handles):
            yield

    def _enter(self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        # a module that runs again must not add to caches
        if any(kwargs.get(name) is not None for name in CACHES):
            self._with_cache.add(module)
        self._arguments[module] = args, without_caches(kwargs)

    def has_cache(self, module: nn.Module) -> bool:
        """Tell whether a module got keys and values of earlier tokens, without which it would run otherwise."""
        return module in self._with_cache

    def argument(self, module: nn.Module, name: str) -> Any:
        """Return an argument that a module got by name; None if it got none."""
        return self._arguments.get(module, ((), {}))[1].get(name)

    def gate(self, module: nn.Module, projection: nn.Module, like: Tensor) -> Tensor | None:
        """Return the gate of a module, (B, H, Q, Ev), or (B, H, Q, 1) if it has one factor per head.

        `like` is an output, (B, H, Q, Ev). None if the projection takes something of another form.
        """
        gate = self.taken(module, projection, torch.ones_like(like))
        if gate is None:
            return None
        of_head = gate[..., :1]
        if bool((gate == of_head).all()):
            return of_head
        return gate

    def explains(
        self, gate: Tensor, module: nn.Module, projection: nn.Module, like: Tensor
    ) -> bool:
        """Tell whether the projection takes the product of the gate and any other output of attention."""
        other = torch.randn(like.shape, generator=torch.Generator().manual_seed(0)).to(like)
        taken = self.taken(module, projection, other)
        return taken is not None and close(taken, other * gate)

    def taken(self, module: nn.Module, projection: nn.Module, output: Tensor) -> Tensor | None:
        """Return what the projection would take if attention gave `output`, both (B, H, Q, Ev); None for no such thing.

        The module is running, and waits for the output of its attention.
        """
        args, kwargs = self._arguments[module]
        handle = projection.register_forward_pre_hook(in_this_thread(_stop))
        self.instead = output
        try:
            module.forward(*args, **kwargs)
        except _Taken as taken:
            return by_head(taken.given, output)
        finally:
            self.instead = None
            handle.remove()
        return None

    def values_of(self, module: nn.Module, output: Tensor) -> list[Tensor]:
        """Return the values of every call of attention of a module, which is running; see `taken`."""
        args, kwargs = self._arguments[module]
        self.values = []
        self.instead = torch.zeros_like(output)
        try:
            module.forward(*args, **kwargs)
        finally:
            self.instead = None
        return self.values

    def change_next(
        self, projection: nn.Module, output: Tensor, change: Callable[[Tensor], None]
    ) -> None:
        """Let a function change what a projection takes next, in the form of `output`, (B, H, Q, Ev)."""

        def call(module: nn.Module, args: tuple[Any, ...]) -> tuple[Any, ...]:
            handle.remove()
            taken = by_head(args[0].clone(), output)
            assert taken is not None
            change(taken)
            return taken.transpose(1, 2).reshape(args[0].shape), *args[1:]

        handle = projection.register_forward_pre_hook(in_this_thread(call))
        self._handles.append(handle)


def _stop(module: nn.Module, args: tuple[Any, ...]) -> None:
    raise _Taken(args[0] if args else None)


def by_head(given: Any, output: Tensor) -> Tensor | None:
    """Return what a projection takes in the form of the output of attention, (B, H, Q, Ev); None if it has another."""
    batch, heads, queries, width = output.shape
    if (
        not isinstance(given, Tensor)
        or given.numel() != output.numel()
        or given.shape[-1] != heads * width
    ):
        return None
    return given.reshape(batch, queries, heads, width).transpose(1, 2)


def close(taken: Tensor, expected: Tensor) -> bool:
    """Tell whether two outputs are equal up to a few roundings of their type."""
    eps = torch.finfo(taken.dtype).eps
    return torch.allclose(
        taken.float(), expected.float(), rtol=_ROUNDINGS * eps, atol=_ROUNDINGS * eps
    )
