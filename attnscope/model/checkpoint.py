"""Safetensors in, parameters of a Stack out: pulled one by one, and every tensor of the checkpoint accounted for."""

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from attnscope.config import ModelConfig
from attnscope.errors import AttnscopeError
from attnscope.families.counts import NOT_ONE_MODEL, check_counts, find_prefix, theirs
from attnscope.families.spec import Chunk, Family
from attnscope.folder import Folder, TensorInfo
from attnscope.model.stack import Stack
from attnscope.model.tensors import read_tensors

_OLD_NAMES = {"weight": "gamma", "bias": "beta"}  # norms in checkpoints converted from TensorFlow
_FLOATS = ("F64", "F32", "F16", "BF16")  # anything else is quantised, and means nothing without its scales


@dataclass(frozen=True)
class _Part:
    """Where one of our parameters lies in one of their tensors.

    Attributes:
        ours: Our parameter.
        shape: Its shape.
        transposed: The tensor is stored as (in, out).
        rows: Rows (start, stop, all) within the tensor once it is laid (out, in); None for the whole.
        per_head: Heads among whose rows the parts are interleaved; 0 where they are not.
    """

    ours: str
    shape: tuple[int, ...]
    transposed: bool
    rows: tuple[int, int, int] | None = None
    per_head: int = 0

    def source_shape(self) -> tuple[int, ...]:
        """The shape that their tensor must have."""
        shape = self.shape if self.rows is None else (self.rows[2], *self.shape[1:])
        return shape[::-1] if self.transposed else shape

    def take(self, tensor: Tensor) -> Tensor:
        """Our parameter out of their tensor, laid (out, in)."""
        if self.rows is None:
            return tensor
        start, stop, _ = self.rows
        if not self.per_head:
            return tensor[start:stop]
        by_head = tensor.reshape(self.per_head, -1, *tensor.shape[1:])  # (H, rows of a head, …)
        return by_head[:, start // self.per_head : stop // self.per_head].flatten(0, 1)


def load(
    family: Family, config: ModelConfig, folder: Folder, n_layers: int, dtype: torch.dtype, device: torch.device
) -> Stack:
    """Build the first `n_layers` blocks of a checkpoint's model and fill them; later blocks are checked, not read.

    Raises:
        AttnscopeError: A tensor is missing, unknown, of the wrong shape, or holds a value that is not finite.
    """
    plan = check(family, config, folder)
    with torch.device("meta"):
        stack = Stack(config, n_layers)
    ours = {name for name, _ in stack.named_parameters()}
    wanted = {name: needed for name, parts in plan.items() if (needed := [p for p in parts if p.ours in ours])}
    state: dict[str, Tensor] = {}
    for name, tensor in read_tensors(folder, wanted):
        whole = tensor.to(device=device, dtype=dtype)
        if wanted[name][0].transposed and tensor.ndim == 2:
            whole = whole.T.contiguous()  # here, for torch turns parts of a matrix many times as slowly
        for part in wanted[name]:
            state[part.ours] = part.take(whole).contiguous()
    stack.load_state_dict(state, strict=True, assign=True)
    return stack.eval()


def check(family: Family, config: ModelConfig, folder: Folder) -> dict[str, list[_Part]]:
    """Hold config.json against the tensors' headers, without reading or allocating anything.

    Returns:
        Each of their tensors that we need, with the parts of it that are ours, over all layers.

    Raises:
        AttnscopeError: The config promises layers, words or widths that the weights do not hold; a tensor is missing,
            unknown or of the wrong shape.
    """
    where = str(folder.path / "config.json" if folder.config else folder.path)
    check_counts(family, config, {name: info.shape for name, info in folder.tensors.items()}, where)
    names = _Names(family, folder, find_prefix(family, folder.tensors, where))
    plan: dict[str, list[_Part]] = {}
    for part, info in _parts(config, names):
        if info.dtype not in _FLOATS:
            hint = "attnscope reads floating-point checkpoints only"
            raise AttnscopeError(f"is stored as {info.dtype}", where=f"{info.file}: {info.name}", hint=hint)
        if info.shape != part.source_shape():
            found = f"has shape {list(info.shape)}, '{part.ours}' needs {list(part.source_shape())}"
            raise AttnscopeError(found, where=f"{info.file}: {info.name}", hint=NOT_ONE_MODEL)
        plan.setdefault(info.name, []).append(part)
    _account(names, plan)
    return plan


@dataclass(frozen=True)
class _Names:
    """Their names for our modules, in one folder.

    Attributes:
        family: The family.
        folder: The folder.
        prefix: What stands before the names in this folder.
    """

    family: Family
    folder: Folder
    prefix: str

    def entry(self, module: str) -> str | Chunk:
        """What the family says of one of our modules."""
        found = self.family.modules.get(re.sub(r"\.\d+\.", ".{l}.", module, count=1))
        if found is None:
            raise AttnscopeError(f"family '{self.family.name}' has no '{module}'", where=self.folder.path)
        return found

    def tensor(self, module: str, kind: str) -> TensorInfo:
        """The header entry for one of our parameters, under its new or its old name."""
        layer = re.search(r"\.(\d+)\.", module)
        base = self.prefix + theirs(self.entry(module)).replace("{l}", layer[1] if layer else "")
        for name in (f"{base}.{kind}", f"{base}.{_OLD_NAMES.get(kind, kind)}"):
            if name in self.folder.tensors:
                return self.folder.tensors[name]
        hint = f"it is needed for '{module}.{kind}'; weights are never made up"
        raise AttnscopeError(f"the tensor '{base}.{kind}' is missing", where=self.folder.path, hint=hint)


def _parts(config: ModelConfig, names: _Names) -> Iterator[tuple[_Part, TensorInfo]]:
    """Every parameter of the whole model, with the tensor that holds it."""
    with torch.device("meta"):
        shapes = {name: tuple(p.shape) for name, p in Stack(config, 1).named_parameters()}
    for first, shape in shapes.items():
        layers = range(config.n_layers) if first.startswith("blocks.0.") else range(1)
        for layer in layers:  # every block has the shapes of block 0
            ours = first.replace("blocks.0.", f"blocks.{layer}.", 1)
            yield _part(config, names, ours, shape, first, shapes), names.tensor(*ours.rsplit(".", 1))


def _part(
    config: ModelConfig,
    names: _Names,
    ours: str,
    shape: tuple[int, ...],
    first: str,
    shapes: Mapping[str, tuple[int, ...]],
) -> _Part:
    """Where a parameter lies within its tensor; `first` is the same parameter of block 0, `shapes` are block 0's."""
    module, kind = first.rsplit(".", 1)
    name = module.rsplit(".", 1)[-1]
    transposed = kind == "weight" and name in names.family.transposed
    entry = names.entry(module)
    if isinstance(entry, str):
        return _Part(ours, shape, transposed)
    sizes = [shapes[f"{module.removesuffix(name)}{sibling}.{kind}"][0] for sibling in entry.parts]
    start = sum(sizes[: entry.parts.index(entry.part)])
    return _Part(
        ours, shape, transposed, (start, start + shape[0], sum(sizes)), config.n_heads if entry.per_head else 0
    )


def _account(names: _Names, plan: Mapping[str, object]) -> None:
    """Refuse a checkpoint with a tensor that the family neither uses nor expects to be left over."""
    leftover = re.compile("|".join(f"(?:{pattern})" for pattern in names.family.leftover) or "(?!)")
    for name, info in names.folder.tensors.items():
        if name not in plan and not leftover.fullmatch(name.removeprefix(names.prefix)):
            hint = f"family '{names.family.name}' does not know it, and it may change attention"
            raise AttnscopeError(f"unknown tensor '{name}'", where=info.file, hint=hint)
