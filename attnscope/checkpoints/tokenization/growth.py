"""Refuse texts of which a normalizer would make so much that memory runs out, before the library tries."""

import json
import unicodedata
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from math import prod
from pathlib import Path
from typing import Any

from attnscope.base.errors import AttnscopeError
from attnscope.checkpoints.tokenization.rust import call_rust

_LARGEST = 1 << 26  # characters; the library needs some 40 bytes for each
_CHUNK = 1 << 16
_FACTORS = {
    "NFKC": 18,
    "NFKD": 18,
    "Precompiled": 18,
    "NFC": 3,
    "NFD": 4,
    "Lowercase": 3,
    "ByteLevel": 4,
}


@dataclass(frozen=True)
class NormalizerGrowth:
    """How much longer a normalizer makes a text."""

    steps: Sequence[Mapping[str, Any]]
    path: Path

    def check(self, text: str) -> None:
        """Refuse a text that would become too long."""
        if len(text) * prod(map(_factor, self.steps)) <= _LARGEST:
            return
        from tokenizers import normalizers

        for step in self.steps:
            if _length(step, text) > _LARGEST:
                message = f"makes more than {_LARGEST:,} characters of the text"
                raise AttnscopeError(
                    message, where=f"{self.path}: normalizer", hint="use another tokenizer"
                )
            normalizer = normalizers.Sequence([])
            state = json.dumps({"type": "Sequence", "normalizers": [step]}).encode()
            call_rust(partial(normalizer.__setstate__, state), self.path, "cannot be used")
            text = call_rust(partial(normalizer.normalize_str, text), self.path, "cannot be used")


def steps_of(normalizer: Any) -> list[Mapping[str, Any]]:
    """Return the steps in their order, those of a Sequence in its place."""
    if not isinstance(normalizer, dict):
        return []
    if normalizer.get("type") != "Sequence":
        return [normalizer]
    inner = normalizer.get("normalizers")
    return [step for part in (inner if isinstance(inner, list) else []) for step in steps_of(part)]


def _factor(step: Mapping[str, Any]) -> int:
    """Return the largest number of characters that a step makes of one."""
    if step.get("type") == "Replace":
        return len(str(step.get("content"))) + 1
    return _FACTORS.get(str(step.get("type")), 1)


def _length(step: Mapping[str, Any], text: str) -> int:
    """Return the approximate length of a text after a step."""
    step_type = step.get("type")
    pattern = step.get("pattern")
    if (
        step_type == "Replace"
        and isinstance(pattern, dict)
        and isinstance(pattern.get("String"), str)
    ):
        return len(text) + text.count(pattern["String"]) * len(str(step.get("content")))
    chunks = (text[start : start + _CHUNK] for start in range(0, len(text), _CHUNK))
    if step_type == "ByteLevel":
        return sum(len(chunk.encode()) for chunk in chunks)
    if step_type in _FACTORS:
        return sum(len(unicodedata.normalize("NFKD", chunk)) for chunk in chunks)
    return (len(text) + 1) * _factor(step)
