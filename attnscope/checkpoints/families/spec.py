"""The vocabulary in which a family is described: where each of our config fields and modules comes from, as data."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from attnscope.base.errors import AttnscopeError
from attnscope.checkpoints.families.reader import REQUIRED, ConfigReader

ACTIVATIONS = {
    "gelu": "gelu",
    "gelu_fast": "gelu_tanh",
    "gelu_new": "gelu_tanh",
    "gelu_pytorch_tanh": "gelu_tanh",
    "relu": "relu",
    "silu": "silu",
    "swish": "silu",
    "quick_gelu": "quick_gelu",
}


@dataclass(frozen=True)
class Computed:
    """A value that a function computes of the reader and the fields read before."""

    rule: Callable[[ConfigReader, Mapping[str, Any]], Any]
    names: tuple[str, ...] = ()  # keys of config.json that it reads


def copy_of(field: str) -> Computed:
    """Return the value of another config field, which is read before."""
    return Computed(lambda _, done: done[field])


def key(*names: str, default: Any = REQUIRED) -> Computed:
    """Return the value of a key of config.json, under the name that exists.

    `default` is that of a missing key, which may be Computed; without it, a missing key is refused.
    """

    def read(reader: ConfigReader, done: Mapping[str, Any]) -> Any:
        derived = isinstance(default, Computed)
        value = reader.get(*names, default=None if derived else default)
        return default.rule(reader, done) if derived and value is None else value

    return Computed(read, names)


def activation(name: str, default: str = "gelu") -> Computed:
    """Return the native name of the activation that a key of config.json names."""

    def read(reader: ConfigReader, _: Mapping[str, Any]) -> str:
        value = reader.get(name, default=default)
        if not isinstance(value, str) or value not in ACTIVATIONS:
            raise reader.wrong(name, value, "one of " + ", ".join(ACTIVATIONS))
        return ACTIVATIONS[value]

    return Computed(read, (name,))


def _per_head(reader: ConfigReader, done: Mapping[str, Any]) -> int:
    width = done["d_model"]
    heads = done["n_heads"]
    if width % heads:
        hint = "it must be a multiple of the number of heads"
        raise AttnscopeError(
            f"the width is {width}, with {heads} heads", where=reader.where, hint=hint
        )
    return int(width // heads)


def _kv_heads(reader: ConfigReader, done: Mapping[str, Any]) -> Any:
    name = "num_key_value_heads"
    if reader.raw.get(name, REQUIRED) is None:
        return done["n_heads"]
    return reader.get(name)


HEAD_WIDTH = Computed(_per_head)  # the model's width divided by the number of heads
FOUR_WIDTHS = Computed(lambda _, done: 4 * done["d_model"])
# Null means one per query head. If the key is missing, each family has its own default.
KV_HEADS = Computed(_kv_heads, ("num_key_value_heads",))


# the sizes that most families have under the same keys
SIZES: Mapping[str, Computed] = {
    "vocab_size": key("vocab_size"),
    "d_model": key("hidden_size"),
    "n_layers": key("num_hidden_layers"),
    "n_heads": key("num_attention_heads"),
    "d_mlp": key("intermediate_size"),
    "max_positions": key("max_position_embeddings"),
}
# every query head has keys of its own, and the heads share the width
HEADS: Mapping[str, Any] = {
    "n_kv_heads": copy_of("n_heads"),
    "d_head": HEAD_WIDTH,
    "d_value": copy_of("d_head"),
}


@dataclass(frozen=True)
class Chunk:
    """One part of a module that stacks several native modules along its output rows."""

    module: str
    part: str
    parts: tuple[str, ...] = ("q", "k", "v")
    # stacked within every key/value head (GPT-NeoX: q, k, v of a head, then of the next one), not one whole after the
    # other
    per_group: bool = False


HALVES = ("gate", "up")


def chunks(
    module: str, native: str = "attention", parts: tuple[str, ...] = Chunk.parts, **options: bool
) -> dict[str, Chunk]:
    """Return the chunks of a module that stacks `parts` of each block's `native`."""
    return {
        f"blocks.{{l}}.{native}.{part}": Chunk(module, part, parts, **options) for part in parts
    }


@dataclass(frozen=True)
class Stacked:
    """A module of every expert in one tensor (experts, …); biases are in one whose name ends in `_bias`."""

    tensor: str
    part: str = ""  # which of `parts` this is; empty if it is the only one
    parts: tuple[str, ...] = ()
    transposed: bool = False  # each expert's weight is stored as (in, out)
    # output rows of the parts take turns, not one part whole after the other
    alternating: bool = False


@dataclass(frozen=True)
class Outside:
    """A module whose name does not start with the base model's prefix, such as `lm_head`."""

    module: str


Entry = str | Chunk | Stacked | Outside | tuple[str | Stacked | Outside, ...]


@dataclass(frozen=True)
class Head:
    """The output head of a family's models for language."""

    # native module to the checkpoint's, as in `Family.modules`: `head.norm`, `head.transform`, `head.transform_norm`,
    # `head.decoder`, and `head` for the bias on the logits
    modules: Mapping[str, Entry]
    # field of OutputHead to a constant or a Computed, if it differs from the default
    config: Mapping[str, Any] = field(default_factory=dict)


def lm_head(norm: str, **config: Any) -> Head:
    """Return a head that decodes by `lm_head`, or by the embedding, after a norm."""
    return Head({"head.norm": norm, "head.decoder": Outside("lm_head")}, config)


@dataclass(frozen=True)
class Family:
    """How checkpoints of one architecture are read."""

    name: str
    config: Mapping[str, Any]  # field of ModelConfig to a constant or a Computed, in reading order
    # native module to the checkpoint's, with `{l}` for the layer and `{x}` for the expert; weight and bias follow. All
    # names, if checkpoints use several
    modules: Mapping[str, Entry]
    # of every tensor's name; the first under which the token embedding is found
    prefixes: tuple[str, ...] = ("",)
    # native modules (last part of the name) stored as (in, out)
    transposed: frozenset[str] = frozenset()
    # keys that hold one value, if they exist
    requires: Mapping[str, Any] = field(default_factory=dict)
    # the same, but transformers runs a model in which they hold another value, if it is installed
    only: Mapping[str, Any] = field(default_factory=dict)
    inert: frozenset[str] = frozenset()
    # regular expressions for tensors that attention does not need, without prefix
    leftover: tuple[str, ...] = ()
    head: Head | None = None  # the output head; None if the family's models have none
    # published with model code of its own that transformers took over, under the same names
    upstreamed: bool = False
    model_type: str = ""  # if it is not the name

    def variant(
        self,
        name: str,
        config: Mapping[str, Any],
        modules: Mapping[str, Entry] | None = None,
        *,
        without: str | None = None,
        **changes: Any,
    ) -> "Family":
        """Return a family that is made of this one.

        `config` and `modules` are its own entries, which are added; no module whose name contains `without` is
        inherited. What the keys of config.json must hold, and which are inert, is not inherited either.
        """
        inherited = {
            module: entry
            for module, entry in self.modules.items()
            if without is None or without not in module
        }
        own = {"requires": {}, "inert": frozenset({"attention_dropout"}), **changes}
        return replace(
            self,
            name=name,
            config={**self.config, **config},
            modules={**inherited, **(modules or {})},
            **own,
        )

    @property
    def reads(self) -> set[str]:
        """Keys of config.json that attention or the output head depends on."""
        entries = [*self.config.values(), *(self.head.config.values() if self.head else ())]
        return {name for entry in entries for name in getattr(entry, "names", ())} | {
            *self.requires,
            *self.only,
        }
