"""Read what layers without softmax mix tokens by, where transformers computes it.

The functions that do so have the same names and arguments in every file of models, so that each kind has one reader.
"""

import inspect
import re
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from attnscope.model.mixing import MixingInputs
from attnscope.model.module_hooks import in_this_thread, listening

OnMixing = Callable[[MixingInputs], None]
_LIGHTNING = re.compile(r"\w+LightningAttention")
_EPSILON = 1e-6  # of the L2 norm of queries and keys


def _by_head(tensor: Tensor) -> Tensor:
    """Return (B, T, H, …) as (B, H, T, …)."""
    return tensor.transpose(1, 2)


def _delta_rule(arguments: Mapping[str, Any], output: Any) -> MixingInputs:
    """Read a call of the gated delta rule, or of Kimi's, whose decay has a number for each channel."""
    q, k, g = (_by_head(arguments[name].float()) for name in ("query", "key", "g"))
    if arguments.get("use_qk_l2norm_in_kernel"):
        q, k = (x * torch.rsqrt((x * x).sum(-1, keepdim=True) + _EPSILON) for x in (q, k))
    by_channel = g.ndim == 4
    return MixingInputs(
        kind="kimi delta" if by_channel else "gated delta",
        q=q * q.shape[-1] ** -0.5,
        k=k,
        v=_by_head(arguments["value"]),
        log_decay=g if by_channel else g[..., None],
        write=_by_head(arguments["beta"]),
        delta=True,
        output=_by_head(output[0]),
    )


def _state_space(arguments: Mapping[str, Any], output: Any) -> MixingInputs:
    """Read a scan of Mamba-2."""
    step = arguments["dt"]
    if arguments.get("dt_bias") is not None:
        step = step + arguments["dt_bias"].to(step.dtype)
    if arguments.get("dt_softplus"):
        step = F.softplus(step)
    step = _by_head(step.clamp(*arguments.get("dt_limit", (0.0, float("inf")))).float())  # (B, H, T)
    return MixingInputs(
        kind="mamba",
        q=_by_head(arguments["C"]),
        k=_by_head(arguments["B"]),
        v=_by_head(arguments["hidden_states"]),
        log_decay=step[..., None],
        rates=arguments["A"].float()[:, None],
        write=step,
        delta=False,
        skip=None if arguments.get("D") is None else arguments["D"].detach(),
        output=_by_head(output[0] if isinstance(output, tuple) else output),
    )


_READERS: dict[str, Callable[[Mapping[str, Any], Any], MixingInputs]] = {
    "torch_chunk_gated_delta_rule": _delta_rule,
    "torch_recurrent_gated_delta_rule": _delta_rule,
    "chunk_kimi_delta_attention": _delta_rule,
    "recurrent_kimi_delta_attention": _delta_rule,
    "mamba2_chunk_scan": _state_space,
}


@contextmanager
def watching_mixing(model: nn.Module, on_mixing: OnMixing) -> Iterator[None]:
    """Hand what every layer without softmax mixes tokens by to a function, while the model runs in this thread."""
    with ExitStack() as stack:
        for file in {type(module).__module__ for module in model.modules()}:
            names = vars(sys.modules[file])
            for name, read in _READERS.items():
                if name in names:
                    stack.enter_context(_replaced(names, name, partial(_observed, names[name], read, on_mixing)))
        handles = [
            handle
            for module in model.modules()
            if _LIGHTNING.fullmatch(type(module).__name__)
            for handle in _lightning_hooks(module, on_mixing)
        ]
        stack.enter_context(listening(handles))
        yield


@contextmanager
def _replaced(names: dict[str, Any], name: str, function: Callable[..., Any]) -> Iterator[None]:
    original = names[name]
    names[name] = in_this_thread(function, original)
    try:
        yield
    finally:
        names[name] = original


def _observed(
    original: Callable[..., Any],
    read: Callable[[Mapping[str, Any], Any], MixingInputs],
    on_mixing: OnMixing,
    *args: Any,
    **kwargs: Any,
) -> Any:
    """Call a function of transformers, and read what it was given and what it gives."""
    output = original(*args, **kwargs)
    bound = inspect.signature(original).bind(*args, **kwargs).arguments
    on_mixing(read(bound, output))
    return output


def _lightning_hooks(module: Any, on_mixing: OnMixing) -> Iterator[Any]:
    """Listen to lightning attention, which is no function: its projection, then its norm."""
    projected: list[Tensor] = []

    def keep(_module: nn.Module, _args: Any, output: Tensor) -> None:
        projected.append(output)

    def read(_module: nn.Module, args: tuple[Tensor, ...]) -> None:
        on_mixing(_lightning(module, projected.pop(), args[0]))

    yield module.qkv_proj.register_forward_hook(in_this_thread(keep))
    yield module.norm.register_forward_pre_hook(in_this_thread(read))


def _lightning(module: Any, projected: Tensor, output: Tensor) -> MixingInputs:
    texts, length, _ = projected.shape
    heads = module.num_attention_heads
    q, k, v = torch.split(_by_head(module.act_fn(projected).view(texts, length, heads, -1)), module.head_dim, -1)
    return MixingInputs(
        kind="lightning",
        q=q,
        k=k,
        v=v,
        log_decay=-module.slope_rate.expand(texts, heads, length, 1),
        delta=False,
        output=_by_head(output.view(texts, length, heads, -1)),
    )
