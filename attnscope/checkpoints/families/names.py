"""Find the checkpoint tensor that holds a native parameter."""

import re
from collections.abc import Container, Iterable, Iterator
from dataclasses import dataclass

from attnscope.base.errors import AttnscopeError
from attnscope.checkpoints.families.spec import Chunk, Entry, Family, Outside, Stacked

_OLD_NAMES = {"weight": "gamma", "bias": "beta"}  # names of norms in checkpoints converted from TensorFlow
_FREQUENCIES = re.compile(r"(.*\.)?rotary_emb\.(\w+_)?inv_freq")
_NUMBERS = re.compile(r"^blocks\.(\d+)(?:\.mlp\.experts\.(\d+))?")


def their_name(entry: str | Chunk | Stacked | Outside) -> str:
    """Return the checkpoint's module, or tensor, in an entry of `Family.modules`."""
    if isinstance(entry, Stacked):
        return entry.tensor
    return entry if isinstance(entry, str) else entry.module


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
        for place in self._places(parameter):
            if place.tensor in self.tensors:
                return place
        tried = list(self._places(parameter))
        names = dict.fromkeys(place.tensor for place in tried if not place.tensor.endswith(tuple(_OLD_NAMES.values())))
        hint = f"'{parameter}' needs it; missing weights are never filled in"
        missing = " or ".join(f"'{name}'" for name in names)
        raise AttnscopeError(f"the tensor {missing} is missing", where=self.where, hint=hint)

    def holds(self, parameter: str) -> bool:
        """Tell whether a native parameter exists."""
        return any(place.tensor in self.tensors for place in self._places(parameter))

    def first(self, parameter: str) -> str:
        """Return the usual name of a native parameter, whether it exists or not."""
        return next(self._places(parameter)).tensor

    def any_block(self) -> str:
        """Return the checkpoint's name for a module in a block, with `{l}` for the layer."""
        first = next(module for module in self.family.modules if "{l}" in module)
        return their_name(self._entries(first)[0])

    def _places(self, parameter: str) -> Iterator[TensorLocation]:
        module, _, kind = parameter.rpartition(".")
        match = _NUMBERS.match(parameter)
        layer, expert = (match[1], match[2]) if match else ("", None)
        for entry in self._entries(module):
            prefix = "" if isinstance(entry, Outside) else self.prefix
            base = prefix + their_name(entry).replace("{l}", layer).replace("{x}", expert or "")
            number = None if expert is None else int(expert)
            if isinstance(entry, Stacked):
                yield TensorLocation(base if kind == "weight" else f"{base}_{kind}", entry, number)
                continue
            for spelled in dict.fromkeys((kind, _OLD_NAMES.get(kind, kind))):
                yield TensorLocation(f"{base}.{spelled}", entry, number)

    def _entries(self, module: str) -> tuple[str | Chunk | Stacked | Outside, ...]:
        numberless = re.sub(r"^blocks\.\d+", "blocks.{l}", module)
        numberless = re.sub(r"\.experts\.\d+", ".experts.{x}", numberless)
        head = {} if self.family.head is None else self.family.head.modules
        entry: Entry | None = self.family.modules.get(numberless, head.get(numberless))
        if entry is None:
            raise AttnscopeError(f"family '{self.family.name}' has no '{module}'", where=self.where)
        return entry if isinstance(entry, tuple) else (entry,)
