"""The vocabulary in which a family is described, and the engine that reads config.json by it.

A Family says, as data, where each of our config fields and modules comes from. Nothing is guessed: a key that the
family does not name is refused, a value that it does not support is refused, and a value of the wrong type is refused
with the key's own name.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, get_type_hints

import msgspec

from attnscope.config import ModelConfig, check_sizes
from attnscope.errors import AttnscopeError, did_you_mean

REQUIRED: Any = object()
_FIELD_TYPES = get_type_hints(ModelConfig, include_extras=True)

COMMON_INERT = frozenset(
    "_name_or_path add_cross_attention architectures attnscope auto_map bad_words_ids begin_suppress_tokens "
    "bos_token_id chunk_size_feed_forward cross_attention_hidden_size decoder_start_token_id "
    "diversity_penalty do_sample dtype early_stopping encoder_no_repeat_ngram_size eos_token_id "
    "exponential_decay_length_penalty finetuning_task forced_bos_token_id forced_eos_token_id "
    "gradient_checkpointing id2label initializer_range is_encoder_decoder label2id length_penalty max_length "
    "min_length model_type no_repeat_ngram_size num_beam_groups num_beams num_return_sequences "
    "output_attentions output_hidden_states output_scores pad_token_id prefix problem_type pruned_heads "
    "remove_invalid_values repetition_penalty return_dict return_dict_in_generate sep_token_id "
    "suppress_tokens task_specific_params temperature tf_legacy_loss tie_encoder_decoder tie_word_embeddings "
    "tokenizer_class top_k top_p torch_dtype torchscript transformers_version typical_p use_bfloat16 "
    "use_cache".split()
)
COMMON_REQUIRES: Mapping[str, Any] = {"add_cross_attention": False, "is_encoder_decoder": False, "pruned_heads": {}}

ACTIVATIONS = {
    "gelu": "gelu",
    "gelu_new": "gelu_tanh",
    "gelu_pytorch_tanh": "gelu_tanh",
    "relu": "relu",
    "silu": "silu",
    "swish": "silu",
    "quick_gelu": "quick_gelu",
}


class Reader:
    """A config.json that remembers which of its keys were read."""

    def __init__(self, raw: Mapping[str, Any], where: str) -> None:
        self.raw, self.where, self.seen = raw, where, set[str]()

    def get(self, *names: str, default: Any = REQUIRED) -> Any:
        """The value of the first name that is there and not null.

        Raises:
            AttnscopeError: None is there, and there is no default.
        """
        self.seen.update(names)
        for name in names:
            if self.raw.get(name) is not None:
                return self.raw[name]
        if default is REQUIRED:
            raise AttnscopeError(f"the key '{names[0]}' is missing", where=self.where, hint="the family needs it")
        return default

    def number(self, *names: str, default: Any = REQUIRED) -> Any:
        """The same, refused unless it is a number (or the default)."""
        value = self.get(*names, default=default)
        if value is not default and (isinstance(value, bool) or not isinstance(value, (int, float))):
            raise self.wrong(next(n for n in names if self.raw.get(n) is not None), value, "a number")
        return value

    def wrong(self, name: str, value: Any, expected: str) -> AttnscopeError:
        """The error for a value that cannot be used."""
        return AttnscopeError(f"{name} is {shown(value)}", where=self.where, hint=f"expected {expected}")


def shown(value: Any) -> str:
    """A value as it stands in JSON, cut to one short line."""
    text = msgspec.json.encode(value).decode()
    return text if len(text) <= 80 else text[:77] + "…"


@dataclass(frozen=True)
class Key:
    """A value of config.json.

    Attributes:
        names: Keys that may hold it; the first that is there and not null wins.
        default: Value where none is there; `Same(field)` for another of our fields, REQUIRED to refuse.
        map: Their value to ours, where they differ.
    """

    names: tuple[str, ...]
    default: Any = REQUIRED
    map: Mapping[Any, Any] | None = None

    def read(self, reader: Reader, done: Mapping[str, Any]) -> Any:
        """The value for our field."""
        default = done[self.default.field] if isinstance(self.default, Same) else self.default
        value = reader.get(*self.names, default=default)
        if self.map is None or value is default:
            return value
        if not isinstance(value, str) or value not in self.map:
            name = next(n for n in self.names if reader.raw.get(n) is not None)
            raise reader.wrong(name, value, "one of " + ", ".join(map(str, self.map)))
        return self.map[value]


def key(*names: str, default: Any = REQUIRED, map: Mapping[Any, Any] | None = None) -> Key:
    """A value of config.json under one of these names."""
    return Key(names, default, map)


@dataclass(frozen=True)
class Same:
    """The value of another of our fields, read before."""

    field: str

    def read(self, _: Reader, done: Mapping[str, Any]) -> Any:
        """The value for our field."""
        return done[self.field]


@dataclass(frozen=True)
class Computed:
    """A value that takes more than one key; the function gets the reader and the fields read before."""

    rule: Callable[[Reader, Mapping[str, Any]], Any]

    def read(self, reader: Reader, done: Mapping[str, Any]) -> Any:
        """The value for our field."""
        return self.rule(reader, done)


def _per_head(reader: Reader, done: Mapping[str, Any]) -> int:
    width, heads = done["d_model"], done["n_heads"]
    if width % heads:
        hint = "the width must be a multiple of the heads"
        raise AttnscopeError(f"{heads} heads do not divide the width {width}", where=reader.where, hint=hint)
    return int(width // heads)


HEAD_WIDTH = Computed(_per_head)


def head_width(name: str) -> Computed:
    """An explicit head width under this key, else the model width over the number of heads."""

    def read(reader: Reader, done: Mapping[str, Any]) -> Any:
        value = reader.number(name, default=None)
        return _per_head(reader, done) if value is None else value

    return Computed(read)


@dataclass(frozen=True)
class Chunk:
    """One part of a module that holds several of ours, stacked along its output rows.

    Attributes:
        module: Their module.
        part: Which of `parts` this is.
        parts: Names of our sibling modules in the order in which they are stacked.
        per_head: Stacked within every head (GPT-NeoX: head by head q, k, v), not one whole after the other.
    """

    module: str
    part: str
    parts: tuple[str, ...] = ("q", "k", "v")
    per_head: bool = False


@dataclass(frozen=True)
class Family:
    """How checkpoints of one architecture are read.

    Attributes:
        name: The file's name in this folder.
        model_types: Values of config.json's `model_type` that it serves.
        config: Our field to a constant, a Key or a Computed, in reading order.
        modules: Our module to theirs, with `{l}` for the layer; weight and bias follow.
        prefixes: What may stand before every tensor's name; the first under which the token embedding is found.
        transposed: Our modules (last part of the name) whose weight is stored as (in, out).
        requires: Keys that must hold the one value that we support, where they are there at all.
        inert: Keys that do not change attention.
        leftover: Regular expressions for tensors that attention does not need.
    """

    name: str
    model_types: tuple[str, ...]
    config: Mapping[str, Any]
    modules: Mapping[str, str | Chunk]
    prefixes: tuple[str, ...] = ("",)
    transposed: frozenset[str] = frozenset()
    requires: Mapping[str, Any] = field(default_factory=dict)
    inert: frozenset[str] = frozenset()
    leftover: tuple[str, ...] = ()


def read_config(family: Family, raw: Mapping[str, Any], where: str) -> ModelConfig:
    """Turn a config.json into a ModelConfig.

    Args:
        family: The family of its `model_type`.
        raw: The parsed file.
        where: The file, for errors.

    Raises:
        AttnscopeError: A key is missing, unknown, of the wrong type, or holds a value that the family does not support.
    """
    reader = Reader(raw, where)
    done: dict[str, Any] = {}
    for name, entry in family.config.items():
        value = entry.read(reader, done) if hasattr(entry, "read") else entry
        done[name] = _checked(name, value, entry, reader)
    _check_requires(family, reader)
    _check_unknown(family, reader)
    config = ModelConfig(**done)
    check_sizes(config, where)
    return config


def _checked(name: str, value: Any, entry: Any, reader: Reader) -> Any:
    try:
        return msgspec.convert(value, _FIELD_TYPES[name])
    except msgspec.ValidationError as e:
        names = [n for n in getattr(entry, "names", ()) if reader.raw.get(n) is not None]
        expected = str(e).removeprefix("Expected ").split(" - at")[0].split(", got")[0].replace("`", "")
        raise reader.wrong(names[0] if names else name, value, expected) from e


def _check_requires(family: Family, reader: Reader) -> None:
    for name, wanted in {**COMMON_REQUIRES, **family.requires}.items():
        value = reader.raw.get(name)
        if value is not None and (value != wanted or isinstance(value, bool) != isinstance(wanted, bool)):
            raise reader.wrong(name, value, f"{shown(wanted)}, the one value that family '{family.name}' supports here")


def _check_unknown(family: Family, reader: Reader) -> None:
    known = reader.seen | COMMON_INERT | family.inert | family.requires.keys()
    for name in reader.raw:
        if name not in known:
            hint = did_you_mean(name, sorted(reader.seen))
            if not hint.startswith("did"):
                hint = "it may change attention, so attnscope refuses to ignore it"
            raise AttnscopeError(f"unknown key '{name}' for family '{family.name}'", where=reader.where, hint=hint)
