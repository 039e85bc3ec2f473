"""Watch the attention calls of a model of `transformers` in any implementation, and exchange the implementation."""

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from threading import get_ident
from typing import Any

import torch
from torch import Tensor, nn

from attnscope.base.errors import AttnscopeError
from attnscope.checkpoints.families import FAMILIES
from attnscope.checkpoints.folder import Folder
from attnscope.engines.transformers.interface import part_of
from attnscope.engines.transformers.live import restored
from attnscope.engines.transformers.loading import load_model
from attnscope.engines.transformers.model_class import first_line, quiet

FLEX = "flex_attention"
# transformers 5 makes the masks of these without position_ids
_NO_PACKS = {"gpt_oss"}


@dataclass(frozen=True)
class BackendCall:
    """One call of an implementation of attention."""

    part: str  # `encoder`, `decoder` or `cross` of a model with two halves; else empty
    layer: int
    module: nn.Module
    function: Callable[..., Any]
    q: Tensor  # (B, H, Q, E)
    k: Tensor  # (B, G, K, E)
    v: Tensor  # (B, G, K, Ev)
    mask: Any
    named: dict[str, Any]
    output: Tensor  # its result, (B, Q, H, Ev)
    weights: Any

    def again(self, q: Tensor, v: Tensor, **arguments: Any) -> Tensor:
        """Run it with other queries or values; returns (B, H, Q, Ev)."""
        output, _ = self.function(
            self.module, q, self.k, v, self.mask, **{**self.named, **arguments}
        )
        return torch.as_tensor(output).transpose(1, 2)


OnCall = Callable[[BackendCall], Tensor | None]  # may return another output, (B, Q, H, Ev)


@contextmanager
def watching(model: nn.Module, on_call: OnCall) -> Iterator[None]:
    """Call a function after each attention call that a model makes in this thread; its result replaces the output."""
    import transformers

    interface: Any = transformers.AttentionInterface
    owner = get_ident()
    original = getattr(interface, "get_interface", None)
    names = {id(module): name for name, module in model.named_modules()}
    two_halves = bool(getattr(getattr(model, "config", None), "is_encoder_decoder", False))
    counted: dict[str, int] = {}

    def get_interface(
        self: Any, implementation: str, default: Callable[..., Any]
    ) -> Callable[..., Any]:
        assert original is not None
        function = original(self, implementation, default)
        if get_ident() != owner:
            return function  # type: ignore[no-any-return]

        def call(
            module: nn.Module,
            q: Tensor,
            k: Tensor,
            v: Tensor,
            mask: Any,
            *more: Any,
            **arguments: Any,
        ) -> Any:
            output, weights = function(module, q, k, v, mask, *more, **arguments)
            if id(module) not in names or more or not isinstance(output, Tensor):
                return output, weights
            part = part_of(names[id(module)]) if two_halves else ""
            layer = counted.get(part, 0)
            counted[part] = layer + 1
            seen = BackendCall(
                part, layer, module, function, q, k, v, mask, arguments, output, weights
            )
            changed = on_call(seen)
            return (output if changed is None else changed), weights

        return call

    if original is None:
        yield
        return
    interface.get_interface = get_interface
    try:
        yield
    finally:
        interface.get_interface = original


def backend_of(model: Any) -> str | None:
    """Return the name of the implementation that a model has; None if it has no attention interface."""
    return getattr(getattr(model, "config", None), "_attn_implementation", None)


@contextmanager
def using_backend(model: Any, name: str) -> Iterator[None]:
    """Let a model use another implementation; afterwards it has its own."""
    with restored(model):
        if name != backend_of(model):
            _set(model, name)
        # Without a compiler or GPU the same function runs uncompiled, with the same masks and the same arithmetic.
        on_cpu = name == FLEX and all(
            parameter.device.type == "cpu" for parameter in model.parameters()
        )
        with torch.compiler.set_stance("force_eager") if on_cpu else nullcontext():
            yield


def implementations() -> list[str]:
    """Return the names of the implementations that transformers knows, installed or not."""
    from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

    return [
        "eager",
        *sorted(name for name in ALL_ATTENTION_FUNCTIONS.valid_keys() if "|" not in name),
    ]


def _set(model: Any, name: str) -> None:
    if "/" in name:
        raise AttnscopeError(
            f"'{name}' would be downloaded", where="attn", hint="register it before"
        )
    try:
        with quiet():
            model.set_attn_implementation(name)
    except (AttributeError, ImportError, ValueError, KeyError, OSError) as e:
        raise AttnscopeError(f"the model cannot use {name} ({first_line(e)})") from e
    if backend_of(model) != name:
        raise AttnscopeError(f"the model keeps {backend_of(model)} where {name} is asked for")


@contextmanager
def with_settings_kept(model: nn.Module) -> Iterator[None]:
    """Put a model into evaluation mode without gradients, and restore it afterwards."""
    devices = sorted({p.device.index or 0 for p in model.parameters() if p.device.type == "cuda"})
    silence = quiet() if "transformers" in sys.modules else nullcontext()
    with restored(model), torch.random.fork_rng(devices), torch.no_grad(), silence:
        model.eval()
        yield


def kind_of(model: Any) -> str | None:
    """Tell which tokens a model of transformers is meant to see: `causal`, `bidirectional` or `encoder-decoder`.

    A class for causal language modelling is meant to be causal, whatever its config says. None if nothing tells.
    """
    import transformers

    config = model.config.get_text_config()
    if model.config.is_encoder_decoder:
        return "encoder-decoder"
    causal: Any = transformers.MODEL_FOR_CAUSAL_LM_MAPPING
    masked: Any = transformers.MODEL_FOR_MASKED_LM_MAPPING
    if getattr(config, "use_bidirectional_attention", None) in (True, "all"):
        return "bidirectional"
    # `causal`: XLM, Flaubert
    if not getattr(config, "is_causal", True) or not getattr(config, "causal", True):
        return "bidirectional"
    names = [base.__name__ for base in type(model).__mro__]
    predicts = type(config) in causal and isinstance(model, causal[type(config)])
    if predicts or any(name.endswith(("ForCausalLM", "LMHeadModel")) for name in names):
        return "causal"
    if type(config) in masked:
        if getattr(config, "is_decoder", False):
            return "causal"
        return "bidirectional"
    if any(parent in causal for parent in type(config).__mro__):
        return "causal"
    flags = {
        flag
        for module in model.modules()
        if isinstance(flag := getattr(module, "is_causal", None), bool)
    }
    # A module that says it is not causal may be handed a causal mask, as CLIP's text model is.
    return "causal" if flags == {True} else None


def separates_packs(model: Any) -> bool:
    """Tell whether a model of transformers is known to keep documents apart by position_ids that restart.

    Decoders that derive masks from position_ids do; encoders that can also decode do not.
    """
    import transformers

    config = model.config.get_text_config()
    masked: Any = transformers.MODEL_FOR_MASKED_LM_MAPPING
    is_known = config.model_type in FAMILIES.keys() - _NO_PACKS
    return is_known and not any(parent in masked for parent in type(config).__mro__)


def load_examined(folder: Folder, dtype: torch.dtype) -> Any:
    """Load a checkpoint with transformers, with its head if it predicts tokens, as `from_pretrained` would."""
    loaded = load_model(folder, dtype)
    if not any(part.layers for part in loaded.parts.values()):
        message = "no layer of this model has attention over tokens"
        raise AttnscopeError(
            message, where=folder.path, hint="attnscope run and attnscope heads show its matrices"
        )
    model = loaded.predicting or loaded.model
    with quiet():
        for name in ("sdpa", "eager"):
            try:
                _set(model, name)
            except AttnscopeError:
                continue
            break
    return model
