"""Read a config.json into a ModelConfig, as its family describes.

Nothing is guessed: a key that the family does not name is refused unless it is known that no code reads it, an
unsupported value is refused, and a value of the wrong type is refused with the name of the key. A missing key has the
reference's default.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, get_type_hints

import msgspec

from attnscope.base.errors import AttnscopeError, arg
from attnscope.base.model_config import ModelConfig, check_sizes
from attnscope.checkpoints.families.reader import ConfigReader, format_json
from attnscope.checkpoints.families.spec import Computed, Family
from attnscope.checkpoints.families.transformers_keys import reference_keys
from attnscope.checkpoints.families.unknown_keys import check_unknown

_FIELD_TYPES = get_type_hints(ModelConfig, include_extras=True)

# What transformers and others write for any model and no attention reads: names, labels, training, generation, kernels.
COMMON_INERT = frozenset(
    "_attn_implementation_autoset _commit_hash _flash_attn_2_enabled _name_or_path _num_labels architectures "
    "attnscope auto_map bad_words_ids begin_suppress_tokens bos_token_id cache_implementation chunk_size_feed_forward "
    "cross_attention_hidden_size custom_pipelines decoder_start_token_id diversity_penalty do_sample dtype "
    "early_stopping encoder_no_repeat_ngram_size eos_token_id exponential_decay_length_penalty finetuning_task "
    "forced_bos_token_id forced_eos_token_id gradient_checkpointing id2label initializer_range is_decoder label2id "
    "length_penalty loss_type max_length max_seq_len min_length model_type n_ctx name name_or_path "
    "no_repeat_ngram_size num_beam_groups num_beams num_labels num_return_sequences output_attentions "
    "output_hidden_states output_past output_scores pad_token_id prefix problem_type remove_invalid_values "
    "repetition_penalty return_dict return_dict_in_generate sep_token_id suppress_tokens tags task_specific_params "
    "temperature tf_legacy_loss tie_encoder_decoder tie_word_embeddings tokenizer_class top_k top_p torch_dtype "
    "torchscript transformers.js_config transformers_version trust_remote_code typical_p unsloth_fixed "
    "unsloth_version use_bfloat16 use_cache use_flash_attention use_flash_attention_2 use_flash_attn version "
    "vocab_file xla_device".split()
)
_QUANTIZED = "quantization_config"
_MLX = "quantization"
_NEEDED = ("model_type", "architectures", "auto_map")
COMMON_REQUIRES: Mapping[str, Any] = {
    "add_cross_attention": False,
    "is_encoder_decoder": False,
    "pruned_heads": {},
}


# Which kernel computes attention; the numbers are the same.
IMPLEMENTATIONS = frozenset(
    {None, "eager", "sdpa", "flash_attention_2", "flash_attention_3", "flex_attention"}
)
COMMON_CHOICES: Mapping[str, frozenset[Any]] = {
    "_attn_implementation": IMPLEMENTATIONS,
    "_attn_implementation_internal": IMPLEMENTATIONS,
    "attn_implementation": IMPLEMENTATIONS,
}
_LISTED = 20  # number of names in a note; a report has all of them


@dataclass(frozen=True)
class ConfigReading:
    """A parsed config.json."""

    config: ModelConfig
    ignored: tuple[str, ...] = ()
    dropped: tuple[str, ...] = ()
    # missing keys, with the reference's values
    filled: Mapping[str, Any] = field(default_factory=dict)

    @property
    def notes(self) -> tuple[str, ...]:
        """Notes about the config for the user."""
        notes = []
        if self.filled:
            defaults = _listed(
                [f"{name} = {format_json(value)}" for name, value in self.filled.items()]
            )
            notes.append(
                f"keys missing from config.json have the defaults of transformers: {defaults}"
            )
        if self.ignored:
            notes.append(
                f"ignored config keys, which no code of transformers reads: {_listed(self.ignored)}"
            )
        return tuple(notes)


def ignored_notes(ignore: Collection[str], raw: Mapping[str, Any]) -> tuple[str, ...]:
    """Return notes on keys that the user wanted ignored: those of a config.json, and those that it does not have."""
    notes = []
    if dropped := [name for name in raw if name in ignore]:
        notes.append(
            f"config keys ignored by --ignore-key: {_listed(dropped)}; the real model's numbers may differ"
        )
    if absent := [name for name in ignore if name not in raw]:
        notes.append(f"--ignore-key: config.json has no {_listed(absent)}")
    return tuple(notes)


def _listed(names: Sequence[str]) -> str:
    more = f" and {len(names) - _LISTED} more" if len(names) > _LISTED else ""
    return ", ".join(names[:_LISTED]) + more


def read_config(
    family: Family,
    raw: Mapping[str, Any],
    where: str,
    families: Collection[Family] = (),
    ignore: Collection[str] = (),
) -> ConfigReading:
    """Turn a config.json into a ModelConfig, and report its other keys; keys that any family reads are not ignored."""
    dropped = tuple(name for name in raw if name in ignore)
    reader = ConfigReader(
        drop_keys(raw, ignore, where), where, reference_keys(family.name).defaults
    )
    _check_values(family, reader)
    done: dict[str, Any] = {}
    for name, entry in family.config.items():
        value = entry.rule(reader, done) if isinstance(entry, Computed) else entry
        try:
            done[name] = msgspec.convert(value, _FIELD_TYPES[name])
        except msgspec.ValidationError as e:
            expected = (
                str(e)
                .removeprefix("Expected ")
                .split(" - at")[0]
                .split(", got")[0]
                .replace("`", "")
            )
            raise reader.wrong(
                reader.given(getattr(entry, "names", ())) or name, value, expected
            ) from e
    config = ModelConfig(**done)
    check_sizes(config, where)
    known_keys = (
        family.reads
        | family.inert
        | COMMON_INERT
        | COMMON_REQUIRES.keys()
        | COMMON_CHOICES.keys()
        | {_QUANTIZED, _MLX}
    )
    ignored = check_unknown(family, reader, known_keys, families)
    return ConfigReading(config, ignored, dropped, reader.filled)


def drop_keys(raw: Mapping[str, Any], ignore: Collection[str], where: str) -> dict[str, Any]:
    """Return a config.json without the keys that the user wants ignored."""
    for name in (*_NEEDED, _QUANTIZED, _MLX):
        if name in ignore and name in raw:
            raise AttnscopeError(
                f"'{name}' cannot be ignored",
                where=where,
                hint=f"remove it from {arg('ignore_key')}",
            )
    return {name: value for name, value in raw.items() if name not in ignore}


def _check_values(family: Family, reader: ConfigReader) -> None:
    """Refuse quantised weights, and keys whose values the family does not support."""
    for key in (_QUANTIZED, _MLX):
        quantization = reader.get(key, default=None)
        if quantization is None:
            continue
        method = None
        if key == _MLX:
            method = "MLX"
        elif isinstance(quantization, dict):
            method = quantization.get("quant_method")
        message = "the weights are quantised"
        if isinstance(method, str):
            message += f" ({format_json(method)[1:-1]})"
        hint = "use a checkpoint with floating-point weights, such as one converted to bfloat16"
        raise AttnscopeError(message, where=f"{reader.where}: {key}", hint=hint)
    for name, choices in COMMON_CHOICES.items():
        value = reader.raw.get(name)
        if isinstance(value, dict | list) or value not in choices:
            raise reader.wrong(name, value, "one of " + ", ".join(sorted(filter(None, choices))))
    required = {
        name: wanted for name, wanted in COMMON_REQUIRES.items() if name not in family.inert
    }
    for name, wanted in {**required, **family.requires, **family.only}.items():
        value = reader.raw.get(name)
        if value is not None and (
            value != wanted or isinstance(value, bool) != isinstance(wanted, bool)
        ):
            expected = (
                f"{format_json(wanted)}, the one value that family '{family.name}' supports here"
            )
            if name in family.only:
                expected += "; transformers runs others: pip install 'attnscope[transformers]'"
            raise reader.wrong(name, value, expected)
