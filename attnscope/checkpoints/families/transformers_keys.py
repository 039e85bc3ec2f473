"""The keys of a config.json that `transformers` reads, its classes, and its defaults.

`transformers_keys.json` is written from the sources of its releases by `python -m tests.families.read_keys`.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

DATA = Path(__file__).with_name("transformers_keys.json")
_KEYS = json.loads(DATA.read_text())


@dataclass(frozen=True)
class ReferenceKeys:
    """Keys and classes of one family in the releases of transformers."""

    # names in its own files or shared ones: a key of another name is read by none of them
    names: frozenset[str]
    classes: frozenset[str]
    elsewhere: frozenset[str]  # fields of the configs of all models that are no native family
    defaults: Mapping[str, Any]  # values of missing keys, if all supported releases agree
    releases: tuple[str, ...]


@cache
def reference_keys(family: str) -> ReferenceKeys:
    """Return the keys of a family, by its name."""
    own = _KEYS["families"][family]
    return ReferenceKeys(
        frozenset(f"{_KEYS['shared']} {own['names']}".split()),
        frozenset(own["classes"].split()),
        frozenset(_KEYS["elsewhere"].split()),
        own["defaults"],
        tuple(_KEYS["releases"].split()),
    )
