"""Let each text of a padded batch be read as if it were alone, in models whose tokens read their neighbours.

MobileBERT embeds a token with its neighbours, ConvBERT convolves hidden states. Beyond the ends of a batch they read
zeros, beyond the end of a shorter text they would read what padding is embedded as.
"""

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

from torch import Tensor
from torch.overrides import TorchFunctionMode

from attnscope.engines.transformers.interface import through_interface
from attnscope.model.module_hooks import in_this_thread, listening


@contextmanager
def padding_embedded_as_zero(model: Any, real: Tensor) -> Iterator[None]:
    """Let a model that reads neighbours see zeros in place of padding; `real` tokens are not padding, (B, T)."""

    def without_padding(module: Any, args: Any, embedded: Tensor) -> Tensor:
        return embedded * real[..., None]

    with ExitStack() as stack:
        if getattr(model.config, "trigram_input", False):
            hook = model.get_input_embeddings().register_forward_hook(
                in_this_thread(without_padding)
            )
            stack.enter_context(listening([hook]))
        if not through_interface(model) and not bool(real.all()):
            stack.enter_context(_ConvolvingZeros(real))
        yield


class _ConvolvingZeros(TorchFunctionMode):
    """Replaces padding by zeros where hidden states, (B, C, T) or (B, C, T, 1), are convolved."""

    def __init__(self, real: Tensor) -> None:
        super().__init__()
        self._real = real

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        texts, tokens = self._real.shape
        if getattr(func, "__name__", "") in ("conv1d", "conv2d", "unfold"):
            states = args[0]
            if states.ndim >= 3 and states.shape[0] == texts and states.shape[2] == tokens:
                args = (
                    states * self._real.reshape(texts, 1, tokens, *[1] * (states.ndim - 3)),
                    *args[1:],
                )
        return func(*args, **(kwargs or {}))
