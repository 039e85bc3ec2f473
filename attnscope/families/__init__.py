"""HF checkpoints described as data: config.json's `model_type` in, Family out. No torch in here."""

from collections.abc import Mapping
from typing import Any

from attnscope.errors import AttnscopeError
from attnscope.families.bert import BERT
from attnscope.families.gpt2 import GPT2
from attnscope.families.llama import LLAMA
from attnscope.families.own import OWN
from attnscope.families.spec import Family, read_config, shown

__all__ = ["ALL", "FAMILIES", "OWN", "family_for", "read_config"]

ALL: tuple[Family, ...] = (BERT, GPT2, LLAMA)
FAMILIES: Mapping[str, Family] = {model_type: family for family in ALL for model_type in family.model_types}


def family_for(raw: Mapping[str, Any], where: str) -> Family:
    """The family of a config.json, by its `model_type` alone.

    Raises:
        AttnscopeError: There is no `model_type`, or none of the families serves it.
    """
    model_type = raw.get("model_type")
    if not isinstance(model_type, str) or model_type not in FAMILIES:
        found = "the key 'model_type' is missing" if model_type is None else f"model_type is {shown(model_type)}"
        raise AttnscopeError(found, where=where, hint=f"supported: {', '.join(FAMILIES)}")
    return FAMILIES[model_type]
