"""Find the output head of a checkpoint: config.json describes it, the tensors tell whether it exists."""

import re
from collections.abc import Container, Mapping
from typing import Any

from msgspec.structs import replace

from attnscope.base.model_config import ModelConfig, OutputHead
from attnscope.checkpoints.families.names import Names, find_prefix
from attnscope.checkpoints.families.reader import ConfigReader
from attnscope.checkpoints.families.spec import Computed, Family
from attnscope.checkpoints.families.transformers_keys import reference_keys

_TIED = "tie_word_embeddings"
# Classes that predict tokens, or base models whose embedding may be tied. Others were trained for another task.
_LANGUAGE = re.compile(
    r".*(ForCausalLM|ForMaskedLM|ForPreTraining|LMHeadModel|DoubleHeadsModel|Model)"
)


def find_head(
    family: Family, config: ModelConfig, raw: Mapping[str, Any], where: str, names: Container[str]
) -> OutputHead | None:
    """Return a checkpoint's output head, its final norm alone if it has no more, or None.

    A separate output matrix is used if there is one. Otherwise it is the token embedding, if config.json ties them and
    names no class for another task.
    """
    if family.head is None:
        return None
    reader = ConfigReader(raw, where, reference_keys(family.name).defaults)
    done: dict[str, Any] = {"activation": config.activation}
    for field, entry in family.head.config.items():
        done[field] = entry.rule(reader, done) if isinstance(entry, Computed) else entry
    tied = reader.flag(_TIED, default=bool(reader.defaults.get(_TIED)))
    tensors = Names(family, find_prefix(family, names, where), names, where)
    modules = [name for name in family.head.modules if name not in ("head", "head.decoder")]
    needed_names = [f"{name}.weight" for name in modules] + ["head.bias"] * (
        "head" in family.head.modules
    )
    norm = "head.norm" in modules
    decodes = "head.decoder" in family.head.modules  # T5's encoder has a final norm alone
    own = decodes and tensors.holds("head.decoder.weight")
    classes = raw.get("architectures")
    classes = classes if isinstance(classes, list) else []
    language = not classes or any(_LANGUAGE.fullmatch(str(name)) for name in classes)
    if not all(map(tensors.holds, needed_names)) or not (own or (decodes and tied and language)):
        if norm and tensors.holds("head.norm.weight"):
            return OutputHead(predicts=False)
        return None
    fields = {name: value for name, value in done.items() if name in OutputHead.__struct_fields__}
    return OutputHead(norm=norm, tied=not own, bias="head" in family.head.modules, **fields)


def separate_head(
    family: Family, config: ModelConfig, names: Container[str], replaced: Container[str], where: str
) -> tuple[ModelConfig, dict[str, str]]:
    """Separate a tied output matrix from the embedding if an adapter replaces that: peft's copy is not tied.

    Returns the model, and the name of its output matrix mapped to the base tensor that it copies, if it is separate.
    """
    if config.head is None or not (config.head.predicts and config.head.tied):
        return config, {}
    tensors = Names(family, find_prefix(family, names, where), names, where)
    embedding = tensors.find("embed.tokens.weight").tensor
    if embedding not in replaced:
        return config, {}
    return replace(config, head=replace(config.head, tied=False)), {
        tensors.first("head.decoder.weight"): embedding
    }
