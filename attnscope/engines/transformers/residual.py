"""The residual stream of a `transformers` model, for direct logit attribution; see model.logit_parts.

How the output of attention reaches the stream (through a norm, a factor, a sum with another path) is found by running
each layer again with the outputs of its other modules held fixed, and differentiating.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_map

from attnscope.base.errors import AttnscopeError, UsageError, arg
from attnscope.engines.transformers.interface import AttentionCapture, capturing
from attnscope.engines.transformers.loading import TransformersModel
from attnscope.engines.transformers.output_head import apply_head
from attnscope.engines.transformers.taken_outputs import without_caches
from attnscope.model.inputs import AttentionInputs
from attnscope.model.logit_parts import Directions, LayerParts, difference
from attnscope.model.matmul import to_float64
from attnscope.model.module_hooks import first_argument, in_this_thread, listening, replaced_forward

_CLOSE = 1e-3  # share of the largest number that two ways to compute one may differ by


class ResidualStream:
    """The residual stream of one pass at one position of every text; see model.logit_parts.ResidualCapture.

    `projections` are the output projections of all layers, None where there is none.
    """

    def __init__(
        self,
        loaded: TransformersModel,
        projections: Sequence[nn.Module | None],
        positions: Sequence[int],
    ) -> None:
        part = loaded.part
        if not part.listed or part.no_projection:
            reason = part.no_projection or "its layers are no list of modules"
            raise _not_a_sum(loaded.model.config.model_type, reason)
        self._loaded = loaded
        self._positions = list(positions)
        self._blocks = list(loaded.model.get_submodule(part.listed))
        self._projections = {layer: projections[layer] for layer in part.layers}
        self.layers: list[LayerParts] = []
        self.softcap: float | None = None
        self._factor = 1.0  # of the logits
        self._arguments: list[tuple[tuple[Any, ...], dict[str, Any]]] = []
        self._entering: list[Tensor] = []  # (B, T, D) of each layer
        self._projected: dict[int, Tensor] = {}
        self._last = torch.empty(0)  # output of the last layer, (B, T, D)
        self._final_norm: nn.Module | None = None
        self._final = torch.empty(0)  # what the output head takes, (B, D)

    @property
    def embedding(self) -> Tensor:
        """Input of the first layer, (B, D)."""
        return self._rows(self._entering[0])

    def _rows(self, states: Tensor) -> Tensor:
        return states[range(len(self._positions)), self._positions].clone()

    @contextmanager
    def capturing(self) -> Iterator[None]:
        """Capture the input and output of every layer, and what its output projection gives."""
        inside = {module for block in self._blocks for module in block.modules()}
        handles = []
        for block in self._blocks:
            handles.append(
                block.register_forward_pre_hook(in_this_thread(self._enter), with_kwargs=True)
            )
            handles.append(block.register_forward_hook(in_this_thread(self._leave)))
        for layer, projection in self._projections.items():
            assert projection is not None
            handles.append(projection.register_forward_hook(in_this_thread(self._project(layer))))
        for module in self._loaded.model.modules():
            if module not in inside and next(module.children(), None) is None:
                handles.append(module.register_forward_hook(in_this_thread(self._finish)))
        with listening(handles):
            yield
        # The first pass has no listener for the head: its states are those behind the last norm.
        self._final = self._rows(self._last if self._final_norm is None else self._final)

    def _enter(self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        _, states = first_argument(module, args, kwargs)
        self._entering.append(states)
        self._arguments.append((args, without_caches(kwargs)))

    def _project(self, layer: int) -> Callable[..., None]:
        def keep(module: nn.Module, args: Any, output: Tensor) -> None:
            self._projected[layer] = output

        return keep

    def _leave(self, module: nn.Module, args: Any, output: Any) -> None:
        index = len(self.layers)
        self._last = output if isinstance(output, Tensor) else output[0]
        change = to_float64(self._rows(self._last)) - to_float64(self._rows(self._entering[-1]))
        projected = None
        bias = None
        if index in self._projected:
            projected = to_float64(self._rows(self._projected[index].reshape(self._last.shape)))
            held = getattr(self._projections[index], "bias", None)
            bias = None if held is None else to_float64(held.detach()).clone()
        self.layers.append(LayerParts(change, projected, bias))

    def _finish(self, module: nn.Module, args: Any, output: Any) -> None:
        if len(self.layers) == len(self._blocks) and args and args[0] is self._last:
            self._final_norm = module
            self._final = output

    def logits(self) -> Tensor:
        """Return the logits of every text, (B, V), before a soft-cap; refuse a head that is more than a matrix."""
        name = self._loaded.model.config.model_type
        head = self._loaded.predicting.get_output_embeddings()
        actual = apply_head(self._loaded.predicting, self._final)
        if head is None or head.weight.shape[1] != self._final.shape[-1]:
            raise _not_a_sum(name, "its output head is more than a matrix")
        with torch.inference_mode():
            plain: Tensor = head(self._final).float()
        if _close(plain, actual):
            return plain
        config = self._loaded.model.config.get_text_config()
        caps = (
            getattr(config, name, None) for name in ("final_logit_softcapping", "logits_soft_cap")
        )
        cap = next((value for value in caps if value is not None), None)
        if cap is not None and _close(torch.tanh(plain / cap) * cap, actual):
            self.softcap = float(cap)
            return plain
        self._factor = float((plain * actual).sum() / plain.square().sum())
        if not _close(plain * self._factor, actual):
            raise _not_a_sum(name, "its output head is more than a matrix")
        return actual

    def directions(self, targets: Sequence[tuple[int, int | None]]) -> Directions:
        """Return the directions of every text's target."""
        head = self._loaded.predicting.get_output_embeddings()
        # (B, D)
        rows = (
            torch.stack([difference(head.weight.detach(), *pair) for pair in targets])
            * self._factor
        )
        constant = rows.new_zeros(len(rows))
        if getattr(head, "bias", None) is not None:
            constant = (
                torch.stack([difference(head.bias.detach(), *pair) for pair in targets])
                * self._factor
            )
        last = to_float64(self._rows(self._last))
        stream = rows
        if self._final_norm is not None:
            with torch.enable_grad():
                leaf = last.clone().requires_grad_()
                frozen = _frozen(self._final_norm, leaf)
                (stream,) = torch.autograd.grad((frozen * rows).sum(), leaf)
            constant = constant + (frozen.detach() * rows).sum(-1) - (last * stream).sum(-1)
        layers = {layer: self._direction(layer, stream) for layer in self._projected}
        return Directions(stream, constant, layers)

    def _direction(self, layer: int, stream: Tensor) -> tuple[Tensor, Tensor]:
        """Return the direction behind a layer's output projection, (B, D), and the share of a norm's bias there."""
        block = self._blocks[layer]
        projection = self._projections[layer]
        assert projection is not None
        args, kwargs = tree_map(_plain, self._arguments[layer])
        name, _ = first_argument(block, args, kwargs)
        states = _plain(self._entering[layer]).requires_grad_()
        if args:
            args = (states, *args[1:])
        else:
            kwargs[name] = states
        projected = _plain(self._projected[layer]).requires_grad_()

        def hold(module: nn.Module, args: tuple[Any, ...], output: Any) -> Any:
            """Hold what a module gives, except a norm of the output of attention, whose scale alone is held."""
            taken = args[0] if args else None
            if isinstance(taken, Tensor) and taken.requires_grad and _same(taken, projected):
                unchanged = isinstance(output, Tensor) and _same(output, taken)  # such as dropout
                return taken if unchanged else _frozen(module, taken)
            return tree_map(
                lambda value: value.detach() if isinstance(value, Tensor) else value, output
            )

        containing = {module for module in block.modules() if projection in set(module.modules())}
        # A module without parameters may add to the stream itself, as the MLP of BLOOM does.
        others = [
            m for m in block.modules() if m not in containing and (m._parameters or not m._modules)
        ]

        def no_output(part: str, module: nn.Module, inputs: AttentionInputs) -> Tensor:
            return inputs.v.new_zeros((*inputs.q.shape[:3], inputs.v.shape[-1]))

        with ExitStack() as stack:
            stack.enter_context(replaced_forward(projection, lambda *_, **__: projected))
            stack.enter_context(
                listening([m.register_forward_hook(in_this_thread(hold)) for m in others])
            )
            stack.enter_context(capturing(AttentionCapture(self._loaded.model, no_output)))
            stack.enter_context(torch.enable_grad())
            output = block(*args, **kwargs)
            output = output if isinstance(output, Tensor) else output[0]
            at = range(len(self._positions)), self._positions
            product = (to_float64(output[at]) * stream).sum()
            to_input = to_projected = None
            if product.requires_grad:
                to_input, to_projected = torch.autograd.grad(
                    product, (states, projected), allow_unused=True
                )
        if to_projected is None or to_input is None or not _close(to_float64(to_input[at]), stream):
            reason = f"layer {layer} does more than add to its residual stream"
            raise _not_a_sum(self._loaded.model.config.model_type, reason)
        direction = to_float64(to_projected.reshape(output.shape)[at])
        return direction, direction.new_zeros(len(direction))


def _frozen(norm: nn.Module, states: Tensor) -> Tensor:
    """Return a norm of states, (…, D), as a function of them with its scale held fixed; refuse other modules.

    The norm itself says what it multiplies by and adds: an input of ones with changing signs has a mean of 0 and a
    variance of 1.
    """
    eps = next(
        (getattr(norm, name) for name in ("eps", "variance_epsilon") if hasattr(norm, name)), 0.0
    )
    dtype = next(norm.parameters(), states).dtype
    signs = torch.ones_like(states, dtype=dtype)
    signs[..., 1::2] = -1
    with torch.no_grad():
        # without its hooks
        normed = norm.forward(states.to(dtype)).to(states.dtype)
        bias = norm.forward(torch.zeros_like(signs)).to(states.dtype)
        weight = (
            (norm.forward(signs).to(states.dtype) - bias)
            * signs.to(states.dtype)
            * (1.0 + eps) ** 0.5
        )
    for centred in (states, states - states.mean(-1, keepdim=True)):  # RMSNorm, LayerNorm
        spread = torch.rsqrt(centred.detach().square().mean(-1, keepdim=True) + eps)
        frozen: Tensor = centred * spread * weight + bias
        if _close(frozen.detach(), normed):
            return frozen
    raise _not_a_sum(type(norm).__name__, "it is no norm with a scale")


def _plain(value: Any) -> Any:
    """Return a tensor that can be differentiated: one made in inference mode cannot."""
    if isinstance(value, Tensor):
        return value.clone()
    return value


def _same(first: Tensor, second: Tensor) -> bool:
    return first.shape == second.shape and torch.equal(first.detach(), second.detach())


def _close(first: Tensor, second: Tensor) -> bool:
    largest = float(second.detach().abs().max())
    return bool(((first - second).detach().abs() <= _CLOSE * max(largest, 1e-12)).all())


def _not_a_sum(name: str, reason: str) -> AttnscopeError:
    message = f"the logits of {name} are not a sum over its parts: {reason}"
    return UsageError(message, hint=f"leave out {arg('target')} and {arg('by', 'logit')}")
