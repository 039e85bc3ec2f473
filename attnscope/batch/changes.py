"""Describe how the header of a dump differs from that of a command that would resume it."""

from typing import Any

import msgspec

from attnscope.base.errors import Value, arg
from attnscope.batch.header import Header

_OPTIONS = (
    "settings.layer", "settings.head", "settings.query", "settings.key", "settings.top", "settings.by", "settings.pool",
    "settings.column", "settings.skip", "settings.limit", "provenance.engine", "provenance.dtype", "provenance.device",
    "provenance.part", "provenance.tokenizer",
)  # fmt: skip
_FREE = ("provenance.model", "provenance.adapter", "provenance.values", "input.name")  # names, and what follows others
_WORDS = {
    "provenance.fingerprint": "was started with another model, adapter, tokenizer or file of arrays",
    "provenance.weights_hash": "was started with other weights of the model",
    "mask_cells": f"was started with another matrix in the file of {arg('mask')}",
    "input.sha256": "was started with another input, or the input has changed since",
}


def find_change(old: Header, new: Header) -> str | None:
    """Return the first thing that differs and changes what the dump holds, as a phrase; None if nothing does.

    Options come first, since another `--tokenizer` also changes the fingerprint.
    """
    was, now = (_flat(msgspec.to_builtins(header)) for header in (old, new))
    before, after = _typed(old, was), _typed(new, now)
    for name in before:
        if before[name] != after[name]:
            old_value, new_value = before[name], after[name]
            start = f"without {arg(name)}" if old_value is None else f"with {arg(name, old_value)}"
            end = f"without {arg(name)}" if new_value is None else arg(name, new_value)
            return f"was started {start}, now it is {end}"
    for name in (*_WORDS, *(was | now)):
        if name not in _FREE and was.get(name) != now.get(name):
            label = name.rpartition(".")[2].replace("_", " ")
            return _WORDS.get(
                name, f"was started with {label} {_shown(was.get(name))}, now it is {_shown(now.get(name))}"
            )
    return None


def _typed(header: Header, flat: dict[str, Any]) -> dict[str, Value]:
    """Return the value of every option by its name; None if it is left out."""
    settings, mask = header.settings, header.mask
    parts = tuple(part for part in settings.keep if part != "stages")
    return {
        **{name.partition(".")[2]: flat.get(name) for name in _OPTIONS},
        "keep": "brief" if settings.digits is not None else parts or None,
        "stages": settings.stages or None,
        "shard": None if settings.shard == (1, 1) else "{}/{}".format(*settings.shard),
        "from": header.input.format,
        "hide": mask.hidden,
        "mask": None if mask.used == mask.own and (mask.what_if is None or mask.hidden) else mask.used,
        "what_if": mask.what_if,
        "special": None if settings.special else False,
        "truncate": settings.truncate or None,
        "hash_weights": True if header.provenance.weights_hash is not None else None,
    }


def _shown(value: Any) -> str:
    if isinstance(value, list):
        return ", ".join(map(str, value)) or "none"
    return "none" if value is None else str(value)


def _flat(nested: dict[str, Any], prefix: str = "") -> dict[str, Any]:
    flattened: dict[str, Any] = {}
    for name, value in nested.items():
        flattened |= _flat(value, f"{prefix}{name}.") if isinstance(value, dict) else {prefix + name: value}
    return flattened
