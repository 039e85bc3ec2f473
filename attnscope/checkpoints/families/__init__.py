"""Hugging Face checkpoints described as data, found by `model_type`. Never imports torch."""

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any

from msgspec.structs import replace

from attnscope.base.errors import AttnscopeError
from attnscope.base.model_config import ModelConfig
from attnscope.checkpoints.families import config_reader
from attnscope.checkpoints.families.bert import BERT
from attnscope.checkpoints.families.bloom import BLOOM
from attnscope.checkpoints.families.cohere import COHERE, COHERE2
from attnscope.checkpoints.families.deberta_v2 import DEBERTA_V2
from attnscope.checkpoints.families.distilbert import DISTILBERT
from attnscope.checkpoints.families.falcon import FALCON
from attnscope.checkpoints.families.gemma2 import GEMMA2
from attnscope.checkpoints.families.gemma3 import GEMMA3
from attnscope.checkpoints.families.glm4 import GLM, GLM4
from attnscope.checkpoints.families.gpt2 import GPT2
from attnscope.checkpoints.families.gpt_neo import GPT_NEO
from attnscope.checkpoints.families.gpt_neox import GPT_NEOX
from attnscope.checkpoints.families.gpt_oss import GPT_OSS
from attnscope.checkpoints.families.granite import GRANITE, GRANITE_MOE
from attnscope.checkpoints.families.inference import fitting_families
from attnscope.checkpoints.families.llama import LLAMA
from attnscope.checkpoints.families.lm_head import find_head
from attnscope.checkpoints.families.mistral import MISTRAL
from attnscope.checkpoints.families.mixtral import MIXTRAL
from attnscope.checkpoints.families.modernbert import MODERNBERT
from attnscope.checkpoints.families.mpnet import MPNET
from attnscope.checkpoints.families.mpt import MPT
from attnscope.checkpoints.families.names import NATIVE_LAYOUT, check_counts
from attnscope.checkpoints.families.olmo2 import OLMO2
from attnscope.checkpoints.families.olmo3 import OLMO3
from attnscope.checkpoints.families.olmoe import OLMOE
from attnscope.checkpoints.families.phi3 import PHI3
from attnscope.checkpoints.families.qwen2 import QWEN2
from attnscope.checkpoints.families.qwen3 import QWEN3
from attnscope.checkpoints.families.qwen3_moe import QWEN3_MOE
from attnscope.checkpoints.families.reader import format_json
from attnscope.checkpoints.families.roberta import ROBERTA
from attnscope.checkpoints.families.smollm3 import SMOLLM3
from attnscope.checkpoints.families.spec import Family
from attnscope.checkpoints.families.t5 import T5
from attnscope.checkpoints.families.transformers_keys import reference_keys
from attnscope.checkpoints.families.trust import check_trust

__all__ = [
    "ALL",
    "FAMILIES",
    "NATIVE_LAYOUT",
    "check_counts",
    "family_for",
    "native_family",
    "open_config",
    "read_config",
]

ALL: tuple[Family, ...] = (
    *(BERT, ROBERTA, DISTILBERT, GPT2, GPT_NEOX, LLAMA, MISTRAL, MIXTRAL, QWEN2, QWEN3, GEMMA2, GEMMA3, PHI3, OLMO2),
    *(SMOLLM3, GPT_OSS, MPNET, BLOOM, MPT, FALCON, GPT_NEO, DEBERTA_V2),
    *(QWEN3_MOE, OLMOE, OLMO3, MODERNBERT, GLM, GLM4, GRANITE, GRANITE_MOE, COHERE, COHERE2, T5),
)
FAMILIES: Mapping[str, Family] = {model_type: family for family in ALL for model_type in family.model_types}


@dataclass(frozen=True)
class DescribedModel:
    """A model that a config.json describes."""

    family: Family
    config: ModelConfig
    raw: dict[str, Any]  # the file, with its `model_type` and without keys that the user wanted ignored
    notes: tuple[str, ...]
    ignored_keys: tuple[str, ...]


def open_config(
    raw: Mapping[str, Any],
    where: str,
    shapes: Mapping[str, tuple[int, ...]] | None = None,
    *,
    ignore: Collection[str] = (),
    trusted: bool = False,
) -> DescribedModel:
    """Find out which model a config.json describes."""
    family = family_for(raw, where, shapes)
    notes = []
    if raw.get("model_type") is None:
        raw = {**raw, "model_type": family.model_types[0]}
        notes.append(f"config.json has no model_type: read as '{family.name}', the only family that fits")
    classes = reference_keys(family.name).classes
    notes += check_trust(raw, where, classes, upstreamed=family.upstreamed, trusted=trusted)
    reading = config_reader.read_config(family, raw, where, ALL, ignore)
    config = reading.config
    if shapes is not None:
        config = replace(config, head=find_head(family, config, raw, where, shapes))
    kept_keys = {name: value for name, value in raw.items() if name not in reading.dropped}
    ignored = (*reading.ignored, *reading.dropped)
    return DescribedModel(family, config, kept_keys, (*notes, *reading.notes), ignored)


def family_for(raw: Mapping[str, Any], where: str, shapes: Mapping[str, tuple[int, ...]] | None = None) -> Family:
    """Return the family of a config.json by its `model_type`, or the only family that fits."""
    model_type = raw.get("model_type")
    if model_type is None:
        fitting = fitting_families(ALL, raw, where, shapes)
        if len(fitting) == 1:
            return fitting[0]
        names = ", ".join(family.name for family in fitting)
        message = "the key 'model_type' is missing" + (f", and {names} fit" if fitting else "")
        raise AttnscopeError(message, where=where, hint=f"supported: {', '.join(FAMILIES)}")
    if not isinstance(model_type, str) or model_type not in FAMILIES:
        hint = "pip install 'attnscope[transformers]', which has nearly every architecture; supported without it: "
        hint += ", ".join(FAMILIES)
        raise AttnscopeError(f"model_type is {format_json(model_type)}", where=where, hint=hint)
    return FAMILIES[model_type]


def native_family(raw: Mapping[str, Any]) -> Family | None:
    """Return the family of a config.json by its `model_type` alone; None if transformers has to run the model."""
    family = FAMILIES.get(str(raw.get("model_type")))
    return family if family is not None and family.describes(raw) else None


def read_config(family: Family, raw: Mapping[str, Any], where: str) -> ModelConfig:
    """Turn a config.json of a known family into a ModelConfig; see `config_reader.read_config`."""
    return config_reader.read_config(family, raw, where, families=ALL).config
