"""Find the checkpoint tensor that holds a native parameter."""

import re
from collections.abc import Callable, Container, Iterable, Iterator, Mapping
from dataclasses import dataclass

from attnscope.base.errors import AttnscopeError
from attnscope.base.model_config import ModelConfig
from attnscope.checkpoints.families.spec import Chunk, Entry, Family, Head, Outside, Stacked

# names of norms in checkpoints converted from TensorFlow
_OLD_NAMES = {"weight": "gamma", "bias": "beta"}
_FREQUENCIES = re.compile(r"(.*\.)?rotary_emb\.(\w+_)?inv_freq")
_NUMBERS = re.compile(r"^blocks\.(\d+)(?:\.mlp\.experts\.(\d+))?")


def their_name(entry: str | Chunk | Stacked | Outside) -> str:
    """Return the checkpoint's module, or tensor, in an entry of `Family.modules`."""
    if isinstance(entry, Stacked):
        return entry.tensor
    if isinstance(entry, str):
        return entry
    return entry.module


def find_prefix(family: Family, names: Container[str], where: str) -> str:
    """Find the prefix of a checkpoint's tensor names."""
    name = f"{family.modules['embed.tokens']}.weight"
    for prefix in family.prefixes:
        if prefix + name in names:
            return prefix
    tried = " or ".join(f"'{prefix}{name}'" for prefix in family.prefixes)
    hint = f"family '{family.name}' needs its token embedding"
    raise AttnscopeError(f"the tensor {tried} is missing", where=where, hint=hint)


def unused_tensors(family: Family, prefix: str, names: Iterable[str]) -> dict[str, bool]:
    """Return the tensors that attention does not depend on, and whether each is worth a note.

    Tensors outside the base model's prefix are heads. Within it, the family lists the unused ones; rotary frequencies
    are computed from the config, as in transformers.
    """
    leftover = re.compile("|".join(f"(?:{pattern})" for pattern in family.leftover) or "(?!)")
    unused = {}
    for name in names:
        if _FREQUENCIES.fullmatch(name):
            unused[name] = True
        elif leftover.fullmatch(name.removeprefix(prefix)):
            unused[name] = False
        elif not name.startswith(prefix):
            unused[name] = True
    return unused


@dataclass(frozen=True)
class TensorLocation:
    """Location of a native parameter in a checkpoint."""

    tensor: str
    entry: str | Chunk | Stacked | Outside
    expert: int | None


@dataclass(frozen=True)
class Names:
    """A checkpoint's names for native parameters."""

    family: Family
    prefix: str
    tensors: Container[str]
    where: str

    def find(self, parameter: str) -> TensorLocation:
        """Return the tensor that holds a native parameter, under the name that exists."""
        for location in self._places(parameter):
            if location.tensor in self.tensors:
                return location
        tried = list(self._places(parameter))
        names = dict.fromkeys(
            location.tensor
            for location in tried
            if not location.tensor.endswith(tuple(_OLD_NAMES.values()))
        )
        hint = f"'{parameter}' needs it; missing weights are never filled in"
        missing = " or ".join(f"'{name}'" for name in names)
        raise AttnscopeError(f"the tensor {missing} is missing", where=self.where, hint=hint)

    def holds(self, parameter: str) -> bool:
        """Tell whether a native parameter exists."""
        return any(location.tensor in self.tensors for location in self._places(parameter))

    def first(self, parameter: str) -> str:
        """Return the usual name of a native parameter, whether it exists or not."""
        return next(self._places(parameter)).tensor

    def any_block(self) -> str:
        """Return the checkpoint's name for a module in a block, with `{l}` for the layer."""
        first_module = next(module for module in self.family.modules if "{l}" in module)
        return their_name(self._entries(first_module)[0])

    def _places(self, parameter: str) -> Iterator[TensorLocation]:
        module, _, suffix = parameter.rpartition(".")
        match = _NUMBERS.match(parameter)
        layer, expert = (match[1], match[2]) if match else ("", None)
        for entry in self._entries(module):
            prefix = "" if isinstance(entry, Outside) else self.prefix
            base = prefix + their_name(entry).replace("{l}", layer).replace("{x}", expert or "")
            expert_index = None if expert is None else int(expert)
            if isinstance(entry, Stacked):
                yield TensorLocation(
                    base if suffix == "weight" else f"{base}_{suffix}", entry, expert_index
                )
                continue
            for spelled in dict.fromkeys((suffix, _OLD_NAMES.get(suffix, suffix))):
                yield TensorLocation(f"{base}.{spelled}", entry, expert_index)

    def _entries(self, module: str) -> tuple[str | Chunk | Stacked | Outside, ...]:
        numberless = re.sub(r"^blocks\.\d+", "blocks.{l}", module)
        numberless = re.sub(r"\.experts\.\d+", ".experts.{x}", numberless)
        head = {} if self.family.head is None else self.family.head.modules
        entry: Entry | None = self.family.modules.get(numberless, head.get(numberless))
        if entry is None:
            raise AttnscopeError(f"family '{self.family.name}' has no '{module}'", where=self.where)
        return entry if isinstance(entry, tuple) else (entry,)


NOT_ONE_MODEL = "config.json and weights do not match"


def check_counts(
    family: Family, config: ModelConfig, shapes: Mapping[str, tuple[int, ...]], where: str
) -> None:
    """Check a config's layers, heads, experts, vocabulary and width against the shapes of a checkpoint."""
    names = Names(family, find_prefix(family, shapes, where), shapes, where)
    before = names.any_block().partition("{l}")[0]
    layer = re.compile(re.escape(names.prefix + before) + r"(\d{1,9})\.")
    held = 1 + max((int(m[1]) for m in map(layer.match, shapes) if m), default=-1)
    if config.n_layers != held:
        message = f"config says {config.n_layers} layers, but the weights have {held}"
        raise AttnscopeError(message, where=where, hint=NOT_ONE_MODEL)

    def check(parameter: str, says: str, fits: Callable[[tuple[int, ...]], bool]) -> None:
        tensor = names.find(parameter).tensor
        if not fits(shapes[tensor]):
            message = (
                f"config says {says}, but the weights have {list(shapes[tensor])} in '{tensor}'"
            )
            raise AttnscopeError(message, where=where, hint=NOT_ONE_MODEL)

    vocabulary = config.vocab_size
    heads = config.n_heads
    experts = config.n_experts
    width = config.d_model
    says = f"a vocabulary of {vocabulary} and a width of {width}"
    check("embed.tokens.weight", says, lambda shape: shape == (vocabulary, width))
    says = f"{heads} heads, {config.d_head} wide each"
    check(
        "blocks.0.attention.q.weight",
        says,
        lambda shape: heads * config.d_head <= max(shape, default=0),
    )
    if experts:
        says = f"{experts} experts and a width of {width}"
        check("blocks.0.mlp.router.weight", says, lambda shape: shape == (experts, width))


_ATTENTION = ("q", "k", "v", "out", "q_norm", "k_norm", "distance_q", "distance_k")
_MLP = ("up", "gate", "down")
_BLOCK = (
    *("attention", *(f"attention.{name}" for name in _ATTENTION)),
    *("norm_attention", "norm_attention_out", "norm_mlp", "norm_mlp_out"),
    *(
        "mlp.router",
        *(f"mlp.{name}" for name in _MLP),
        *(f"mlp.experts.{{x}}.{name}" for name in _MLP),
    ),
)
_NAMES = (
    "embed.tokens",
    "embed.positions",
    "embed.segments",
    "embed.norm",
    "embed.relative_bias",
    "embed.distances",
    "embed.distances_norm",
    *(f"blocks.{{l}}.{n}" for n in _BLOCK),
)

_HEAD = ("head", "head.norm", "head.transform", "head.transform_norm", "head.decoder")

NATIVE_LAYOUT = Family(
    name="config",
    config={},
    modules={name: name for name in _NAMES},
    head=Head({name: name for name in _HEAD}),
)
