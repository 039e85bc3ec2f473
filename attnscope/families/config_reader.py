"""Read a config.json into a ModelConfig, as its family describes.

Nothing is guessed: a key that the family does not name is refused, so is a value that it does not support, and a value
of the wrong type is refused under the key's own name.
"""

from collections.abc import Iterable, Mapping
from typing import Any, get_type_hints

import msgspec

from attnscope.config import ModelConfig, check_sizes
from attnscope.errors import AttnscopeError, did_you_mean
from attnscope.families.reader import ConfigReader, format_json
from attnscope.families.spec import Family

_FIELD_TYPES = get_type_hints(ModelConfig, include_extras=True)

# What transformers writes for every model and no attention reads: names, labels, training, generation.
COMMON_INERT = frozenset(
    "_attn_implementation_autoset _commit_hash _name_or_path _num_labels architectures attnscope auto_map "
    "bad_words_ids begin_suppress_tokens bos_token_id cache_implementation chunk_size_feed_forward "
    "cross_attention_hidden_size decoder_start_token_id diversity_penalty do_sample dtype early_stopping "
    "encoder_no_repeat_ngram_size eos_token_id exponential_decay_length_penalty finetuning_task forced_bos_token_id "
    "forced_eos_token_id gradient_checkpointing id2label initializer_range is_decoder label2id length_penalty "
    "max_length min_length model_type no_repeat_ngram_size num_beam_groups num_beams num_labels num_return_sequences "
    "output_attentions output_hidden_states output_past output_scores pad_token_id prefix problem_type "
    "remove_invalid_values repetition_penalty return_dict return_dict_in_generate sep_token_id suppress_tokens "
    "task_specific_params temperature tf_legacy_loss tie_encoder_decoder tie_word_embeddings tokenizer_class top_k "
    "top_p torch_dtype torchscript transformers.js_config transformers_version typical_p unsloth_fixed unsloth_version "
    "use_bfloat16 use_cache".split()
)
_QUANTIZED = "quantization_config"
COMMON_REQUIRES: Mapping[str, Any] = {"add_cross_attention": False, "is_encoder_decoder": False, "pruned_heads": {}}


def read_config(family: Family, raw: Mapping[str, Any], where: str, others: Iterable[Family] = ()) -> ModelConfig:
    """Turn a config.json into a ModelConfig.

    Args:
        family: The family of its `model_type`.
        raw: The parsed file.
        where: The file, for errors.
        others: Families that an unknown key may belong to, for the hint.

    Raises:
        AttnscopeError: A key is missing, unknown, of the wrong type, or holds a value that the family does not support.
    """
    reader = ConfigReader(raw, where)
    _check_quantized(reader)
    _check_unknown(family, reader, others)
    _check_requires(family, reader)
    done: dict[str, Any] = {}
    for name, entry in family.config.items():
        value = entry.read(reader, done) if hasattr(entry, "read") else entry
        done[name] = _checked(name, value, entry, reader)
    config = ModelConfig(**done)
    check_sizes(config, where)
    return config


def _checked(name: str, value: Any, entry: Any, reader: ConfigReader) -> Any:
    try:
        return msgspec.convert(value, _FIELD_TYPES[name])
    except msgspec.ValidationError as e:
        expected = str(e).removeprefix("Expected ").split(" - at")[0].split(", got")[0].replace("`", "")
        raise reader.wrong(reader.given(getattr(entry, "names", ())) or name, value, expected) from e


def _check_quantized(reader: ConfigReader) -> None:
    said = reader.get(_QUANTIZED, default=None)
    if said is not None:
        method = said.get("quant_method") if isinstance(said, dict) else None
        found = "the weights are quantised" + (f" ({format_json(method)[1:-1]})" if isinstance(method, str) else "")
        hint = "use a checkpoint with floating-point weights, such as one converted to bfloat16"
        raise AttnscopeError(found, where=f"{reader.where}: {_QUANTIZED}", hint=hint)


def _check_requires(family: Family, reader: ConfigReader) -> None:
    for name, wanted in {**COMMON_REQUIRES, **family.requires}.items():
        value = reader.raw.get(name)
        if value is not None and (value != wanted or isinstance(value, bool) != isinstance(wanted, bool)):
            raise reader.wrong(
                name, value, f"{format_json(wanted)}, the one value that family '{family.name}' supports here"
            )


def _check_unknown(family: Family, reader: ConfigReader, others: Iterable[Family]) -> None:
    known = family.reads | family.inert | COMMON_INERT | COMMON_REQUIRES.keys() | {_QUANTIZED}
    for name in reader.raw:
        if name not in known:
            found = f"unknown key '{format_json(name)[1:-1]}' for family '{family.name}'"
            raise AttnscopeError(found, where=reader.where, hint=_hint(name, family, others))


def _hint(name: str, family: Family, others: Iterable[Family]) -> str:
    """What an unknown key may be: another family's, or a slip of the pen."""
    owners = [other.name for other in others if name in other.reads]
    if owners:
        return f"this looks like {' or '.join(owners)}"
    near = did_you_mean(name, sorted(family.reads))
    return near if near.startswith("did") else "it may change attention, so attnscope refuses to ignore it"
