"""Run the layers of a `transformers` model again on other inputs, each from within the model's own forward pass.

The other inputs of a layer (masks, rotary tables, a position bias) are those that the model itself passed to it,
repeated for every text of a batch.
"""

from collections.abc import Callable, Iterable
from dataclasses import replace
from inspect import signature
from typing import Any

from torch import Tensor, nn

from attnscope.base.errors import AttnscopeError, arg
from attnscope.engines.transformers.interface import AttentionCapture, StopForward, capturing
from attnscope.engines.transformers.taken_outputs import CACHES, without_caches
from attnscope.model.hooks import AttentionHooks
from attnscope.model.inputs import AttentionInputs
from attnscope.model.module_hooks import first_argument
from attnscope.model.stack import BlockObserver
from attnscope.request.masks.terms import Mask

Attend = Callable[[str, AttentionInputs, AttentionHooks], tuple[Tensor, Mask | None]]


def cache_argument(model: nn.Module) -> str | None:
    """Return the name under which a model takes and returns its cache; None if it takes none."""
    return next((name for name in CACHES if name in signature(model.forward).parameters), None)


def find_blocks(model: nn.Module, attention: Iterable[nn.Module]) -> list[nn.Module]:
    """Return the layers: the largest list items that hold one module of `attention` (of one part, each once)."""
    holding = {id(module) for module in attention}
    blocks: list[nn.Module] = []

    def search(module: nn.Module, listed: bool) -> None:
        inside = {id(child) for child in module.modules()} & holding
        if listed and len(inside) == 1:
            blocks.append(module)
        elif inside:
            for child in module.children():
                search(child, isinstance(module, nn.ModuleList))

    search(model, listed=False)
    return blocks


class BlockRerunner:
    """Hooks on the layers of a model that hand each layer of one text to an observer.

    `attend` computes one call of attention for its hooks; it gives the output, and the mask of a layer of the part that
    is looked at, None for another part.
    """

    def __init__(self, model: nn.Module, attend: Attend, last: int, observe: BlockObserver) -> None:
        self._model = model
        self._attend = attend
        self._last = last
        self._observe = observe
        # Layers whose attention has run, with their masks.
        self._seen: list[tuple[int, Mask]] = []
        self._again = False
        self.handed = set[int]()

    def on_attention(self, part: str, _: nn.Module, inputs: AttentionInputs) -> Tensor:
        """Compute the attention of the model's own pass."""
        output, mask = self._attend(part, inputs, AttentionHooks({}, all_outputs=True))
        if mask is not None:
            self._seen.append((inputs.layer, mask))
        return output

    def after_block(
        self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], output: Any
    ) -> None:
        """Hand a layer to the observer; a forward hook with keyword arguments."""
        if self._again:
            return
        seen = self._seen
        self._seen = []
        if not seen:
            return
        layer, mask = seen[0]
        name, x = first_argument(module, args, kwargs)
        y = output if isinstance(output, Tensor) else next(iter(output), None)
        if (
            len(seen) > 1
            or not isinstance(x, Tensor)
            or not isinstance(y, Tensor)
            or x.shape != y.shape
            or x.ndim != 3
        ):
            raise cannot_rerun(layer)

        def run_block(x: Tensor, hooks: AttentionHooks) -> Tensor:
            arguments = {
                key: _repeated(value, len(x)) for key, value in without_caches(kwargs).items()
            }
            more = [_repeated(value, len(x)) for value in args]
            if args:
                more[0] = x.contiguous()
            else:
                arguments[name] = x.contiguous()

            def on_attention(part: str, _: nn.Module, inputs: AttentionInputs) -> Tensor:
                return self._attend(part, replace(inputs, layer=layer), hooks)[0]

            self._again = True
            try:
                with capturing(AttentionCapture(self._model, on_attention)):
                    changed = module(*more, **arguments)
            finally:
                self._again = False
            return changed if isinstance(changed, Tensor) else changed[0]

        self.handed.add(layer)
        self._observe(layer, run_block, x, y, mask)
        if layer >= self._last:
            raise StopForward


def cannot_rerun(layer: int) -> AttnscopeError:
    """Return the refusal of a model whose layers are not modules that take and give hidden states."""
    message = f"layer {layer} is no module of the model that can be run by itself"
    return AttnscopeError(message, where=arg("measure"), hint=f"use {arg('measure', 'rollout')}")


def _repeated(value: Any, count: int) -> Any:
    """Return an argument for `count` copies of one text: values with an axis for texts are repeated along it."""
    if isinstance(value, Tensor) and value.ndim > 1 and value.shape[0] == 1:
        return value.expand(count, *value.shape[1:])
    if isinstance(value, tuple | list):
        return type(value)(_repeated(item, count) for item in value)
    return value
