"""See attention in models that compute it by operators of their own: softmax(q·kᵀ·scale + …)·v.

Models outside of transformers' attention interface are followed operator by operator within each module. What was
found is checked against the model's own weights, so that an operator with another meaning is refused.
"""

import re
from collections.abc import Callable, Iterator, Mapping, MutableMapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from string import ascii_lowercase
from typing import Any
from weakref import WeakSet

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode
from torch.utils.weak import WeakTensorKeyDictionary

from attnscope.base.errors import AttnscopeError, arg
from attnscope.engines.transformers.near_keys import (
    from_band,
    from_blocks,
    middle,
    of_blocks,
    of_tokens,
    watching_bands,
)
from attnscope.model.module_hooks import first_argument, in_this_thread, listening

OTHERWISE = f"{arg('qkv', placeholder='FILE')} opens q, k and v that another program computes"
REFUSED = f"attnscope refuses attention with parts it does not know; {OTHERWISE}"
# Modules that apply the same weights to two sets of values, as a first run has shown; the last is shown (LiLT).
WEIGHS_TWICE: WeakSet[nn.Module] = WeakSet()
# Added to a score, numbers at or below this leave no weight in any floating-point type.
_NEVER = -5000.0
_CLOSE = 1e-3  # how far a weight may be off, in the widest of types
_PRODUCTS = frozenset({"matmul", "bmm", "__matmul__"})
_SAME = frozenset(
    {"dropout", "to", "float", "type_as", "type", "contiguous", "clone", "max", "maximum"}
)
_RESHAPED = frozenset({"view", "reshape"})
_MOVED = frozenset(
    {"view", "reshape", "transpose", "permute", "contiguous", "unflatten", "flatten"}
)
_MULTIPLIED = frozenset({"mul", "__mul__", "__rmul__", "__imul__", "mul_", "multiply"})
_DIVIDED = frozenset({"div", "__truediv__", "true_divide", "div_", "__itruediv__"})
_ADDED = frozenset({"add", "__add__", "__radd__", "add_", "__iadd__"})
_SUBTRACTED = frozenset({"sub", "__sub__"})
_FILLED = frozenset({"masked_fill", "masked_fill_"})


@dataclass(frozen=True)
class _Scores:
    """Scores, or weights, of which it is known how they were made."""

    q: Tensor  # (…, Q, E)
    k: Tensor  # (…, K, E)
    # the latest with four dimensions, (B, H, Q, K); else with three, or five, (B, blocks, H, Q, 3 Q)
    shape: torch.Size
    scale: float = 1.0
    bias: Tensor | None = None  # broadcast to `shape`; −inf where a cell is not allowed
    weighted: bool = False  # after the softmax

    def plus(self, term: Tensor, into: torch.Size) -> "_Scores":
        """Add a term to scores of the shape `into`."""
        if term.dtype == torch.bool or term.ndim > len(into):
            raise _NotAttention
        wide = term.expand(into)
        bias = wide if self.bias is None else self.bias.reshape(into) + wide
        return replace(self, bias=bias)


class _NotAttention(Exception):
    """Raised where an operator makes something other than scores out of scores."""


OnFollowed = Callable[[nn.Module, Tensor, Tensor, Tensor, Tensor | None, dict[str, Any]], Tensor]


@dataclass(frozen=True)
class _Product:
    """A batch of products of matrices."""

    first: Tensor  # the operands
    second: Tensor
    rows: Tensor  # the first, (…, rows, inner)
    columns: Tensor  # the second, (…, columns, inner)
    factor: float = 1.0
    term: Tensor | None = None  # that is added to it
    # dimensions of the result in those of (…, rows, columns); empty if they are the same
    order: tuple[int, ...] = ()

    @property
    def in_order(self) -> bool:
        return not self.order


def _product(name: str, args: Sequence[Any], kwargs: Mapping[str, Any]) -> _Product | None:
    """Return the product that an operator computes; None for another operator."""
    if name in _PRODUCTS and args[0].ndim >= 3 and args[0].ndim == args[1].ndim:
        return _Product(args[0], args[1], args[0], args[1].mT)
    if name == "baddbmm":
        # beta · term + alpha · first @ second
        if len(args) > 2:
            first, second = args[1:3]
        else:
            first = kwargs["batch1"]
            second = kwargs["batch2"]
        term = args[0] * kwargs.get("beta", 1.0)
        return _Product(first, second, first, second.mT, float(kwargs.get("alpha", 1.0)), term)
    if name == "einsum" and len(operands := _operands(args)) == 2:
        return _einsum(args[0], *operands)
    return None


def _operands(args: Sequence[Any]) -> Sequence[Tensor]:
    if isinstance(args[1], list | tuple):
        return args[1]
    return args[1:]


def _einsum(equation: str, first: Tensor, second: Tensor) -> _Product | None:
    """Return a sum over one letter that is a product of matrices, such as ibnd,jbnd->bnij; None for another."""
    left, *_ = equation.partition(",")
    spare = [letter for letter in ascii_lowercase if letter not in equation]
    more = "".join(spare[: first.ndim - len(left.strip().removeprefix("..."))])
    matched = re.fullmatch(
        r"([a-z]+),([a-z]+)->([a-z]+)", equation.replace(" ", "").replace("...", more)
    )
    if matched is None:
        return None
    left, right, out = matched.groups()
    batch = [letter for letter in left if letter in right and letter in out]
    rows = [letter for letter in left if letter not in right]
    columns = [letter for letter in right if letter not in left]
    inner = [letter for letter in left if letter in right and letter not in out]
    if len(rows) != 1 or len(columns) != 1 or len(inner) != 1:
        return None
    batch.sort(key=out.index)
    standard = [*batch, *rows, *columns]
    if sorted(standard) != sorted(out):
        return None
    order = tuple(standard.index(letter) for letter in out)
    return _Product(
        first,
        second,
        first.permute([left.index(letter) for letter in (*batch, *rows, *inner)]),
        second.permute([right.index(letter) for letter in (*batch, *columns, *inner)]),
        order=() if order == tuple(range(len(out))) else order,
    )


def _by_head(tensor: Tensor, texts: int, heads: int) -> Tensor:
    """Return keys or values of every head, (B, H, K, E); a dimension of 1 stands for all texts, or all heads."""
    if tensor.ndim == 4:
        return tensor.expand(texts, heads, *tensor.shape[-2:])
    return tensor.reshape(texts, heads, *tensor.shape[-2:])


def _divided(tensor: Tensor, factor: float) -> Tensor:
    return tensor if factor == 1.0 else tensor / factor


class _Operators(TorchFunctionMode):
    """Watches the operators of one run of a model."""

    def __init__(self, on_attention: OnFollowed) -> None:
        super().__init__()
        self._on_attention = on_attention
        self.running: list[nn.Module] = []
        self._paused = False
        self.length = 0  # tokens of a text, in the input of the outermost module
        self.texts = 1  # of the batch
        # the last row of weights of each module that attended
        self._rows: dict[nn.Module, Tensor] = {}
        self._scores: MutableMapping[Tensor, _Scores] = WeakTensorKeyDictionary()
        # that tensors were multiplied by
        self._factors: MutableMapping[Tensor, float] = WeakTensorKeyDictionary()

    def enter(self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """Listen to a module that begins to run."""
        if not self.running:
            _, tokens = first_argument(module, args, kwargs)
            is_text = isinstance(tokens, Tensor) and tokens.ndim > 1
            self.texts, self.length = tokens.shape[:2] if is_text else (1, 0)
        self.running.append(module)

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if self._paused:
            return func(*args, **kwargs)
        name = getattr(func, "__name__", "")
        index = next((index for index, value in enumerate(args[:3]) if self._knows(value)), None)
        scores = None if index is None else self._scores[args[index]]
        product = _product(name, args, kwargs)
        if (
            product is not None
            and scores is not None
            and scores.weighted
            and self._knows(product.first)
        ):
            return self._attend(scores, product, func(*args, **kwargs))
        result = func(*args, **kwargs)
        if not isinstance(result, Tensor) or not result.is_floating_point():
            return result
        if scores is not None and index is not None:
            others = (*args[:index], *args[index + 1 :])
            try:
                self._scores[result] = _next(scores, name, others, kwargs, result)
            except _NotAttention:
                self._scores.pop(result, None)
        elif (
            product is not None
            and product.in_order
            and (result.ndim in (3, 4) or _is_blocks(result))
        ):
            first_factor = self._factors.get(product.first, 1.0)
            second_factor = self._factors.get(product.second, 1.0)
            found = _Scores(
                q=_divided(product.rows, first_factor),
                k=_divided(product.columns, second_factor),
                shape=result.shape,
                scale=first_factor * second_factor * product.factor,
            )
            if product.term is None:
                self._scores[result] = found
            else:
                self._scores[result] = found.plus(product.term, result.shape)
        elif args and isinstance(args[0], Tensor):
            self._follow_factor(name, args[0], args[1:], result)
        return result

    def _knows(self, value: Any) -> bool:
        return isinstance(value, Tensor) and value in self._scores

    def _follow_factor(
        self, name: str, operand: Tensor, more: Sequence[Any], result: Tensor
    ) -> None:
        scalar = _as_float(more[0]) if more else None
        if scalar and name in _MULTIPLIED:
            self._factors[result] = scalar
        elif scalar and name in _DIVIDED:
            self._factors[result] = 1 / scalar
        elif name in _MOVED and operand in self._factors:
            self._factors[result] = self._factors[operand]

    def _attend(self, scores: _Scores, product: "_Product", result: Tensor) -> Tensor:
        """Return the product of weights and values as the session computes it, in the shape of the model's own."""
        if len(scores.shape) == 5:
            bias = scores.bias
            output = self._attend_laid_out(
                of_tokens(scores.q),
                middle(scores.k),
                middle(product.columns.mT),
                scores.scale,
                None if bias is None else from_blocks(bias.expand(scores.shape), -torch.inf),
                from_blocks(product.rows, 0.0),
            )
            output = of_blocks(output, scores.shape[3])
        else:
            *_, queries, keys = scores.shape
            if len(scores.shape) == 4:
                texts, heads = scores.shape[:2]
            else:  # the heads of each text, one text after the other
                texts = self.texts if scores.shape[0] % self.texts == 0 else 1
                heads = scores.shape[0] // texts
            sizes = (texts, heads, queries, keys)
            output = self._attend_all(
                scores.q.reshape(texts, heads, queries, -1),
                _by_head(scores.k, texts, heads),
                _by_head(product.columns.mT, texts, heads),
                scores.scale,
                None if scores.bias is None else scores.bias.reshape(sizes),
                product.rows.reshape(sizes),
            )
        standard = output.reshape(*product.rows.shape[:-1], -1)
        if product.order:
            return standard.permute(product.order).to(result.dtype)
        return standard.to(result.dtype)

    def attend_band(
        self, module: nn.Module, q: Tensor, k: Tensor, mask: Tensor, weights: Tensor, v: Tensor
    ) -> Tensor:
        """Return the output of attention to a band of keys, (B, N, H, Ev); see near_keys.OnBand."""
        scale = self._factors.get(q, 1.0)
        q, k, v = (tensor.transpose(1, 2) for tensor in (_divided(q, scale), k, v))
        dense = from_band(weights, 0.0)
        # rows of padding have no weights
        bias = from_band(mask, -torch.inf).masked_fill(~dense.any(-1, keepdim=True), -torch.inf)
        before = self._paused
        self._paused = True  # operators of the session are not the model's
        try:
            return self._attend_laid_out(q, k, v, scale, bias, dense).transpose(1, 2)
        finally:
            self._paused = before

    def _attend_laid_out(
        self, q: Tensor, k: Tensor, v: Tensor, scale: float, bias: Tensor | None, weights: Tensor
    ) -> Tensor:
        """Return the output for tokens of a text that the model has padded to full chunks, (B, H, N, Ev)."""
        n = self.length
        bias = None if bias is None else bias[:, :, :n, :n]
        q = q[:, :, :n]
        k = k[:, :, :n]
        output = self._attend_all(q, k, v[:, :, :n], scale, bias, weights[:, :, :n, :n])
        return nn.functional.pad(output, (0, 0, 0, v.shape[2] - n))

    def _attend_all(
        self, q: Tensor, k: Tensor, v: Tensor, scale: float, bias: Tensor | None, weights: Tensor
    ) -> Tensor:
        """Return the output as the session computes it, (B, H, Q, Ev); a bias of −inf hides a key."""
        mask = None
        more: dict[str, Any] = {"scaling": scale}
        if bias is not None:
            mask = bias > _NEVER
            bias = bias.masked_fill(~mask, 0.0)
            if bool(bias.any()):
                more["position_bias"] = bias
        module = self.running[-1]
        row = weights[:, :, -1:]
        before = self._rows.get(module)
        if before is not None:
            if before.shape != row.shape or not torch.allclose(before, row, atol=_CLOSE):
                message = f"{type(module).__name__} attends more than once in a pass, with other weights each time"
                raise AttnscopeError(message, where=arg("model"), hint=REFUSED)
            WEIGHS_TWICE.add(module)
        elif module in WEIGHS_TWICE:
            self._rows[module] = row
            return weights @ v
        self._check(q, k, mask, more, weights)
        output = self._on_attention(module, q, k, v, mask, more)
        self._rows[module] = row  # only now: the session may run the module again to find a gate
        return output

    def _check(
        self, q: Tensor, k: Tensor, mask: Tensor | None, more: dict[str, Any], weights: Tensor
    ) -> None:
        """Compare the last row of weights with the model's own."""
        row = q[:, :, -1:].float() @ k.float().mT * more["scaling"]
        if (bias := more.get("position_bias")) is not None:
            row = row + bias[:, :, -1:]
        if mask is not None:
            row = row.masked_fill(~mask[:, :, -1:], torch.finfo(row.dtype).min)
        expected = row.softmax(-1)
        allowed = None if mask is None else mask[:, :, -1:].any(-1, keepdim=True)
        difference = (expected - weights[:, :, -1:].float()).abs()
        if allowed is not None:
            difference = difference * allowed  # rows of padding may have any weights
        largest = float(difference.max())
        if largest > max(_CLOSE, 4 * torch.finfo(weights.dtype).eps):
            name = type(self.running[-1]).__name__
            message = f"the attention of {name} is not the softmax of its scores alone"
            raise AttnscopeError(
                f"{message}: its weights differ by {largest:.2g}", where=arg("model"), hint=REFUSED
            )


def _is_blocks(scores: Tensor) -> bool:
    """Tell whether these may be scores of blocks of queries for their keys and both neighbours'."""
    return scores.ndim == 5 and scores.shape[4] == 3 * scores.shape[3]


def _next(
    scores: _Scores, name: str, others: Sequence[Any], kwargs: Mapping[str, Any], result: Tensor
) -> _Scores:
    """Return how the result of an operator on scores, or on weights, was made; `others` are its other arguments."""
    if name in _RESHAPED and result.shape[-2:] == scores.shape[-2:]:
        if result.ndim == 4:
            return replace(scores, shape=result.shape)
        return scores
    if name in _SAME or (scores.weighted and name in _FILLED):
        return scores
    if scores.weighted:
        raise _NotAttention
    other = others[0] if others else None
    number = _as_float(other)
    if name == "softmax" and kwargs.get("dim", other) in (-1, result.ndim - 1):
        return replace(scores, weighted=True)
    if name in _FILLED and isinstance(other, Tensor) and _hides(others[1]):
        return scores.plus(
            torch.zeros_like(other, dtype=result.dtype).masked_fill(other, -torch.inf), result.shape
        )
    if name == "where" and isinstance(other, Tensor) and _hides(others[1]):
        return scores.plus(
            torch.zeros_like(other, dtype=result.dtype).masked_fill(~other, -torch.inf),
            result.shape,
        )
    if number and name in _MULTIPLIED | _DIVIDED:
        factor = number if name in _MULTIPLIED else 1 / number
        bias = None if scores.bias is None else scores.bias * factor
        return replace(scores, scale=scores.scale * factor, bias=bias)
    if (
        name in _MULTIPLIED
        and isinstance(other, Tensor)
        and bool(((other == 0) | (other == 1)).all())
    ):
        return scores  # of cells that are hidden next by adding −10,000
    if name in _ADDED and number == 0:
        return scores
    if name in _ADDED and isinstance(other, Tensor):
        return scores.plus(other, result.shape)
    if name in _SUBTRACTED and isinstance(other, Tensor):
        return scores.plus(-other, result.shape)
    raise _NotAttention


def _as_float(value: Any) -> float | None:
    """Return a number, also one in a tensor of no dimensions; None for anything else."""
    if isinstance(value, int | float):
        return float(value)
    if isinstance(value, Tensor) and value.ndim == 0:
        return float(value)
    return None


def _hides(value: Any) -> bool:
    """Tell whether a score of this value gets no weight."""
    scalar = _as_float(value)
    return scalar is not None and scalar <= _NEVER


@contextmanager
def following(model: nn.Module, on_attention: OnFollowed) -> Iterator[None]:
    """Call a function for every attention that a model computes within the block; it gives the output, (B, H, Q, Ev).

    It receives the module that is running, q, k and v, the cells that are allowed, (B, H, Q, K), and `scaling` and
    `position_bias`, as functions of transformers' attention interface do.
    """
    operators = _Operators(on_attention)
    enter = in_this_thread(operators.enter)
    leave = in_this_thread(lambda *_: operators.running.pop() and None)
    handles = [
        module.register_forward_pre_hook(enter, with_kwargs=True) for module in model.modules()
    ]
    handles += [module.register_forward_hook(leave) for module in model.modules()]
    with listening(handles), watching_bands(model, operators.attend_band), operators:
        yield
