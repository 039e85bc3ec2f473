"""How the scores of given queries and keys become weights, layer by layer. Never imports torch."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from math import isfinite
from typing import Any

import msgspec
import numpy as np

from attnscope.base.errors import AttnscopeError
from attnscope.base.model_config import Rope

NAMES = ("scale", "softcap", "window", "sinks", "rope")  # settings that may differ between layers


@dataclass(frozen=True)
class GivenRope:
    """A rotation that queries and keys are still to get."""

    rope: Rope
    interleaved: bool = False  # pairs are neighbours (GPT-J, GGML), not half a width apart

    def width(self, d_head: int) -> int:
        """Return the number of rotated dimensions of a head."""
        return int(d_head * self.rope.fraction)


@dataclass(frozen=True)
class LayerSettings:
    """How one layer's scores become weights."""

    scale: float | None = None  # factor on q·k; None for 1/√width
    softcap: float | None = None  # c of c·tanh(x/c) on the scaled scores; None for none
    window: int | None = None  # n of an additional `window:N`; None for none
    # a logit for every head, in the softmax, of no key; None for none
    sinks: tuple[float, ...] | None = None
    # rotation of queries and keys; None if they are as attention takes them
    rope: GivenRope | None = None
    mask: str = "causal"


def layer_settings(
    values: Mapping[str, Any], layers: Sequence[int], heads: int
) -> dict[int, LayerSettings]:
    """Return the settings of every layer; each value is for all, or a list with one for each, or a dict by layer."""
    by_name = {name: _by_layer(name, values.get(name), layers, heads) for name in NAMES}
    return {
        layer: LayerSettings(**{name: by_name[name][layer] for name in NAMES}) for layer in layers
    }


def _by_layer(name: str, value: Any, layers: Sequence[int], heads: int) -> dict[int, Any]:
    read = _READERS.get(name)
    if np.ma.is_masked(value):
        raise AttnscopeError(
            "is a masked array that hides numbers", where=name, hint="pass a plain one"
        )
    plain = value.tolist() if hasattr(value, "tolist") else value
    if isinstance(plain, Mapping) and all(isinstance(key, int | np.integer) for key in plain):
        unknown = sorted(set(map(int, plain)) - set(layers))
        if unknown:
            message = f"is given for layer {unknown[0]}, which is not there"
            raise AttnscopeError(
                message, where=name, hint=f"the layers are {', '.join(map(str, layers[:12]))}"
            )
        values = {layer: plain.get(layer) for layer in layers}
    elif isinstance(plain, list | tuple) and (
        name != "sinks"
        or any(
            x is None or isinstance(x, list | tuple) or getattr(x, "ndim", 0) == 1 for x in plain
        )
    ):
        if len(plain) != len(layers):
            message = f"has {len(plain)} values for {len(layers)} layers"
            raise AttnscopeError(
                message, where=name, hint="give one for all layers, or one for each"
            )
        values = dict(zip(layers, plain, strict=True))
    else:
        values = dict.fromkeys(layers, plain)
    if read is None:
        return {layer: _sinks(item, heads) for layer, item in values.items()}
    return {layer: None if item is None else read(item) for layer, item in values.items()}


def _number(name: str, value: Any) -> float:
    if (
        isinstance(value, bool)
        or not isinstance(value, int | float)
        or not isfinite(value)
        or abs(value) > 1e30
    ):
        raise AttnscopeError(
            f"{value!r:.40} is not a finite number", where=name, hint="pass a number such as 0.125"
        )
    return float(value)


def _softcap(value: Any) -> float:
    cap = _number("softcap", value)
    if cap <= 0:
        raise AttnscopeError(
            f"{value!r} is not above 0", where="softcap", hint="pass a number such as 50, or None"
        )
    return cap


def _window(value: Any) -> int | None:
    if (
        isinstance(value, bool)
        or not isinstance(value, int | float)
        or not isfinite(value)
        or int(value) != value
    ):
        raise AttnscopeError(
            f"{value!r:.40} is not a whole number", where="window", hint="pass a number of tokens"
        )
    if value == -1:
        return None
    if not 1 <= value < 1 << 62:
        hint = (
            "pass the number of keys that a query sees, itself included; -1 or None for no window"
        )
        raise AttnscopeError(f"{value!r:.40} is no window", where="window", hint=hint)
    return int(value)


def _sinks(value: Any, heads: int) -> tuple[float, ...] | None:
    if value is None:
        return None
    listed = value.tolist() if hasattr(value, "tolist") else value
    if not isinstance(listed, list | tuple) or len(listed) != heads:
        count = len(listed) if isinstance(listed, list | tuple) else f"{value!r:.40}"
        raise AttnscopeError(
            f"{count} for {heads} heads", where="sinks", hint="give one logit for every query head"
        )
    return tuple(_number("sinks", item) for item in listed)


def _rope(value: Any) -> GivenRope:
    """Read a base, or an object with the fields of Rope and `interleaved`."""
    if isinstance(value, int | float) and not isinstance(value, bool):
        value = {"theta": float(value)}
    if isinstance(value, Rope):
        return GivenRope(value)
    fields = dict(value) if isinstance(value, Mapping) else None
    hint = (
        "pass the base, such as 10000.0, or an object with theta, fraction, scaling and interleaved"
    )
    if fields is None:
        raise AttnscopeError(f"{value!r:.40} is no rotation", where="rope", hint=hint)
    interleaved = fields.pop("interleaved", False)
    try:
        return GivenRope(msgspec.convert(fields, Rope), msgspec.convert(interleaved, bool))
    except msgspec.ValidationError as e:
        if "$.scaling" in str(e):
            hint = "scaling takes kind (linear, llama3, yarn, longrope), factor, original_max_positions and others"
        raise AttnscopeError(f"{e}", where="rope", hint=hint) from e


_READERS: dict[str, Callable[[Any], Any]] = {
    "scale": partial(_number, "scale"), "softcap": _softcap, "window": _window, "rope": _rope
}  # fmt: skip
