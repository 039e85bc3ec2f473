"""See the attention weights of eager transformers as its own functions compute them, and cut a head among them."""

from typing import Any, Self

from torch import Tensor
from transformers import AttentionInterface


def _applied(weights: Any, v: Tensor, output: Tensor) -> Any:
    """Return the weights of the values in an output, (B, Q, H, Ev): a sink may scale it after the softmax."""
    if not isinstance(weights, Tensor) or weights.shape[-1] != v.shape[2]:
        return weights
    plain = weights @ v.repeat_interleave(weights.shape[1] // v.shape[1], dim=1)
    factor = (output.transpose(1, 2) * plain).sum(-1, keepdim=True) / plain.square().sum(
        -1, keepdim=True
    )
    same = (factor - 1).abs() < 1e-6
    return weights * factor.masked_fill(same, 1.0).nan_to_num(1.0)


class WatchedAttention:
    """While it is entered, keeps the weights of every call of an attention function, in order.

    Args:
        cut: A call, and the head whose output is set to 0 in it; None for no cut.
    """

    def __init__(self, cut: tuple[int, int] | None = None) -> None:
        self.weights: list[Tensor] = []  # (B, H, Q, K) of each call
        self.logits: Any = None  # of the model, once it has run
        self.cuts = True  # a head can be cut, since a function computes attention
        self._cut = cut
        self._query: Any = None  # of the call before

    def __enter__(self) -> Self:
        self._plain = AttentionInterface.get_interface

        def get_interface(interface: AttentionInterface, name: str, default: Any) -> Any:
            function = self._plain(interface, name, default)

            def watched(*args: Any, **kwargs: Any) -> Any:
                output, weights = function(*args, **kwargs)[:2]
                again = args[1] is self._query  # with other values (Diff Llama)
                self._query = args[1]
                if self._cut is not None and self._cut[0] == len(self.weights) - again:
                    output = output.clone()
                    output[:, :, self._cut[1]] = 0  # (B, Q, H, Ev)
                if not again:
                    self.weights.append(_applied(weights, args[3], output))
                return output, weights

            return watched

        AttentionInterface.get_interface = get_interface  # type: ignore[method-assign, assignment]
        return self

    def __exit__(self, *_: object) -> None:
        AttentionInterface.get_interface = self._plain  # type: ignore[method-assign]
