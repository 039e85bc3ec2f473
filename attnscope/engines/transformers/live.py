"""Borrow a model of `transformers` that is in memory, and restore it afterwards."""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from hashlib import sha256
from typing import Any

import torch

from attnscope.base.errors import UsageError
from attnscope.engines.transformers.interface import FOLLOWED, NAME, OWN_ATTENTION, register
from attnscope.request.memory import DTYPE_BYTES

_SAMPLE = 256  # how many values of a tensor enter its fingerprint
_CAPTURES = "_output_capturing_hooks_installed"  # transformers' own mark on a model with such hooks
# behind `_attn_implementation`, which sets those of sub-configs, too
IMPLEMENTATION = "_attn_implementation_internal"


def check_live(model: Any) -> tuple[str, str]:
    """Return the type that a model of transformers runs in and its device, as a RunConfig has them."""
    if getattr(model, "is_quantized", False) or any(map(_is_quantised, model.modules())):
        raise UsageError(
            "the model is quantised", where="model", hint="use one with floating-point weights"
        )
    devices = {parameter.device for parameter in model.parameters()}
    if len(devices) != 1:
        names = ", ".join(sorted(map(str, devices))) or "no device"
        raise UsageError(
            f"the model is spread over {names}", where="model", hint="put it on one device"
        )
    dtype = str(model.dtype).removeprefix("torch.")
    device = devices.pop()
    if dtype not in DTYPE_BYTES:
        raise UsageError(
            f"the model runs in {dtype}",
            where="model",
            hint=f"convert it to {', '.join(DTYPE_BYTES)}",
        )
    if device.type == "meta":
        raise UsageError(
            "the model has no weights: it is on the device 'meta'",
            where="model",
            hint="load them first",
        )
    return dtype, str(device)


def _is_quantised(module: torch.nn.Module) -> bool:
    """Tell whether a module is one of torch's own with integer weights (torch.ao), which are no parameters."""
    return type(module).__module__.startswith(
        ("torch.ao.nn.quantized", "torch.ao.nn.intrinsic.quantized")
    )


@contextmanager
def restored(model: Any) -> Iterator[None]:
    """Restore modes, hooks and attention implementations of a model after the block."""
    modes = [(module, module.training) for module in model.modules()]
    hooks = [
        (module, set(module._forward_hooks), _CAPTURES in vars(module))
        for module in model.modules()
    ]
    configs = [(config, getattr(config, IMPLEMENTATION)) for config in configs_of(model)]
    try:
        yield
    finally:
        for config, implementation in configs:
            setattr(config, IMPLEMENTATION, implementation)
        for module, training in modes:
            module.training = training
        for module, before, captures in hooks:
            # for `output_attentions`, transformers leaves some in a model
            for hook_id in set(module._forward_hooks) - before:
                for name in (
                    "_forward_hooks",
                    "_forward_hooks_with_kwargs",
                    "_forward_hooks_always_called",
                ):
                    getattr(module, name).pop(hook_id, None)
            if not captures:
                vars(module).pop(_CAPTURES, None)


@contextmanager
def borrowed(model: Any) -> Iterator[None]:
    """Run a model's attention through attnscope meanwhile, without dropout; afterwards the model is as it was.

    In other threads the model computes its own attention meanwhile, also without dropout.
    """
    register()
    for module in model.modules():
        own = getattr(getattr(module, "config", None), IMPLEMENTATION, NAME)
        if own != NAME:
            OWN_ATTENTION[module] = own
    with restored(model):
        model.eval()
        set_implementation(model, "eager" if model in FOLLOWED else NAME)
        yield


def set_implementation(model: Any, name: str) -> None:
    """Let every part of a model run this implementation of attention."""
    for config in configs_of(model):
        setattr(config, IMPLEMENTATION, name)


def configs_of(model: Any) -> list[Any]:
    """Return every config that one of its modules may ask which attention it has."""
    waiting: list[Any] = [getattr(module, "config", None) for module in model.modules()]
    configs: dict[int, Any] = {}
    while waiting:
        config = waiting.pop()
        if id(config) in configs or not hasattr(config, IMPLEMENTATION):
            continue
        configs[id(config)] = config
        waiting += [getattr(config, name, None) for name in config.sub_configs]
    return list(configs.values())


def fingerprint_live(model: Any, tokenizer: bytes) -> str:
    """Return the SHA-256 (16 hex digits) of config, tokenizer digest, and names, shapes and samples of the tensors."""
    digest = sha256(json.dumps(model.config.to_dict(), sort_keys=True, default=str).encode())
    digest.update(tokenizer)
    for name, tensor in model.state_dict().items():
        step = max(1, tensor.numel() // _SAMPLE)
        sample = tensor.detach().flatten()[::step].float().cpu().numpy()
        digest.update(f"{name} {tensor.dtype} {list(tensor.shape)} ".encode() + sample.tobytes())
    return digest.hexdigest()[:16]


def tokenizer_json_of(tokenizer: Any) -> bytes:
    """Return the tokenizer.json of a tokenizer of transformers or of the library `tokenizers`."""
    backend = getattr(tokenizer, "backend_tokenizer", tokenizer)
    json_text = backend.to_str() if hasattr(backend, "to_str") else None
    if not isinstance(json_text, str):
        hint = "pass a fast tokenizer of transformers, a tokenizers.Tokenizer, or the path of a tokenizer.json"
        raise UsageError(
            f"{type(tokenizer).__name__} has no tokenizer.json", where="tokenizer", hint=hint
        )
    return json_text.encode()
