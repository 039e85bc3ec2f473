"""Hugging Face checkpoints described as data, found by `model_type`. Never imports torch."""

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from importlib import import_module
from typing import Any

from msgspec.structs import replace

from attnscope.base.errors import AttnscopeError
from attnscope.base.model_config import ModelConfig
from attnscope.checkpoints.families import config_reader
from attnscope.checkpoints.families.inference import fitting_families
from attnscope.checkpoints.families.lm_head import find_head
from attnscope.checkpoints.families.names import NATIVE_LAYOUT, check_counts
from attnscope.checkpoints.families.reader import format_json
from attnscope.checkpoints.families.spec import Family
from attnscope.checkpoints.families.transformers_keys import reference_keys
from attnscope.checkpoints.families.trust import check_trust

__all__ = [
    "FAMILIES",
    "NATIVE_LAYOUT",
    "check_counts",
    "family_for",
    "native_family",
    "open_config",
    "read_config",
]

# `model_type` → the module and name of its family, which is imported when a checkpoint asks for it
_DECLARED = {
    "bert": "bert:BERT",
    "roberta": "roberta:ROBERTA",
    "distilbert": "distilbert:DISTILBERT",
    "gpt2": "gpt2:GPT2",
    "gpt_neox": "gpt_neox:GPT_NEOX",
    "llama": "llama:LLAMA",
    "mistral": "mistral:MISTRAL",
    "mixtral": "mixtral:MIXTRAL",
    "qwen2": "qwen2:QWEN2",
    "qwen3": "qwen3:QWEN3",
    "gemma2": "gemma2:GEMMA2",
    "gemma3_text": "gemma3:GEMMA3",
    "phi3": "phi3:PHI3",
    "olmo2": "olmo2:OLMO2",
    "smollm3": "smollm3:SMOLLM3",
    "gpt_oss": "gpt_oss:GPT_OSS",
    "mpnet": "mpnet:MPNET",
    "bloom": "bloom:BLOOM",
    "mpt": "mpt:MPT",
    "falcon": "falcon:FALCON",
    "gpt_neo": "gpt_neo:GPT_NEO",
    "deberta-v2": "deberta_v2:DEBERTA_V2",
    "qwen3_moe": "qwen3_moe:QWEN3_MOE",
    "olmoe": "olmoe:OLMOE",
    "olmo3": "olmo3:OLMO3",
    "modernbert": "modernbert:MODERNBERT",
    "glm": "glm4:GLM",
    "glm4": "glm4:GLM4",
    "granite": "granite:GRANITE",
    "granitemoe": "granite:GRANITE_MOE",
    "cohere": "cohere:COHERE",
    "cohere2": "cohere:COHERE2",
    "t5": "t5:T5",
}


class _Families(Mapping[str, Family]):
    """All families by `model_type`."""

    def __getitem__(self, model_type: str) -> Family:
        module, name = _DECLARED[model_type].split(":")
        family: Family = getattr(import_module(f"{__name__}.{module}"), name)
        return family

    def __iter__(self) -> Iterator[str]:
        return iter(_DECLARED)

    def __len__(self) -> int:
        return len(_DECLARED)


FAMILIES: Mapping[str, Family] = _Families()


@dataclass(frozen=True)
class DescribedModel:
    """A model that a config.json describes."""

    family: Family
    config: ModelConfig
    # the file, with its `model_type` and without keys that the user wanted ignored
    raw: dict[str, Any]
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
        raw = {**raw, "model_type": family.model_type or family.name}
        notes.append(
            f"config.json has no model_type: read as '{family.name}', the only family that fits"
        )
    classes = reference_keys(family.name).classes
    notes += check_trust(raw, where, classes, upstreamed=family.upstreamed, trusted=trusted)
    reading = config_reader.read_config(family, raw, where, FAMILIES.values(), ignore)
    config = reading.config
    if shapes is not None:
        config = replace(config, head=find_head(family, config, raw, where, shapes))
    kept_keys = {name: value for name, value in raw.items() if name not in reading.dropped}
    ignored = (*reading.ignored, *reading.dropped)
    notes += [*reading.notes, *config_reader.ignored_notes(ignore, raw)]
    return DescribedModel(family, config, kept_keys, tuple(notes), ignored)


def family_for(
    raw: Mapping[str, Any], where: str, shapes: Mapping[str, tuple[int, ...]] | None = None
) -> Family:
    """Return the family of a config.json by its `model_type`, or the only family that fits."""
    model_type = raw.get("model_type")
    if model_type is None:
        fitting = fitting_families(FAMILIES.values(), raw, where, shapes)
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
    if family is None or any(
        raw.get(name) not in (None, value) for name, value in family.only.items()
    ):
        return None
    return family


def read_config(family: Family, raw: Mapping[str, Any], where: str) -> ModelConfig:
    """Turn a config.json of a known family into a ModelConfig; see `config_reader.read_config`."""
    return config_reader.read_config(family, raw, where, families=FAMILIES.values()).config
