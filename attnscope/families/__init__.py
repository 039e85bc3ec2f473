"""Hugging Face checkpoints described as data, found by `model_type`. Never imports torch."""

from collections.abc import Mapping
from typing import Any

from attnscope.config import ModelConfig
from attnscope.errors import AttnscopeError
from attnscope.families import config_reader
from attnscope.families.bert import BERT
from attnscope.families.counts import check_counts
from attnscope.families.distilbert import DISTILBERT
from attnscope.families.gemma2 import GEMMA2
from attnscope.families.gemma3 import GEMMA3
from attnscope.families.gpt2 import GPT2
from attnscope.families.gpt_neox import GPT_NEOX
from attnscope.families.gpt_oss import GPT_OSS
from attnscope.families.llama import LLAMA
from attnscope.families.mistral import MISTRAL
from attnscope.families.mixtral import MIXTRAL
from attnscope.families.olmo2 import OLMO2
from attnscope.families.own import OWN
from attnscope.families.phi3 import PHI3
from attnscope.families.qwen2 import QWEN2
from attnscope.families.qwen3 import QWEN3
from attnscope.families.reader import format_json
from attnscope.families.roberta import ROBERTA
from attnscope.families.smollm3 import SMOLLM3
from attnscope.families.spec import Family

__all__ = ["ALL", "FAMILIES", "OWN", "check_counts", "family_for", "read_config"]

ALL: tuple[Family, ...] = (
    BERT,
    ROBERTA,
    DISTILBERT,
    GPT2,
    GPT_NEOX,
    LLAMA,
    MISTRAL,
    MIXTRAL,
    QWEN2,
    QWEN3,
    GEMMA2,
    GEMMA3,
    PHI3,
    OLMO2,
    SMOLLM3,
    GPT_OSS,
)
FAMILIES: Mapping[str, Family] = {model_type: family for family in ALL for model_type in family.model_types}


def family_for(raw: Mapping[str, Any], where: str) -> Family:
    """The family of a config.json, by its `model_type` alone.

    Raises:
        AttnscopeError: There is no `model_type`, or none of the families serves it.
    """
    model_type = raw.get("model_type")
    if not isinstance(model_type, str) or model_type not in FAMILIES:
        missing = model_type is None
        found = "the key 'model_type' is missing" if missing else f"model_type is {format_json(model_type)}"
        hint = f"supported: {', '.join(FAMILIES)}"
        if not missing:
            extra = "pip install 'attnscope[transformers]' and add --engine transformers"
            hint = f"{extra} to run, compare, batch or check; without it, {hint}"
        raise AttnscopeError(found, where=where, hint=hint)
    return FAMILIES[model_type]


def read_config(family: Family, raw: Mapping[str, Any], where: str) -> ModelConfig:
    """Turn a config.json into a ModelConfig; see `config_reader.read_config`.

    Raises:
        AttnscopeError: A key is missing, unknown, of the wrong type, or holds a value that the family does not support.
    """
    return config_reader.read_config(family, raw, where, others=ALL)
