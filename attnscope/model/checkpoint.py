"""Safetensors in, parameters of a Stack out: pulled one by one, and every tensor of the checkpoint accounted for."""

import re
from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from attnscope.config import ModelConfig
from attnscope.errors import AttnscopeError
from attnscope.families.spec import Chunk, Family
from attnscope.folder import Folder, TensorInfo
from attnscope.model.stack import Stack
from attnscope.model.tensors import read_tensors

_OLD_NAMES = {"weight": "gamma", "bias": "beta"}  # norms in checkpoints converted from TensorFlow


@dataclass(frozen=True)
class _Part:
    """Where one of our parameters lies in one of their tensors.

    Attributes:
        ours: Our parameter.
        shape: Its shape.
        rows: Rows (start, stop, all) within the tensor once it is laid (out, in); None for the whole.
        per_head: Heads among whose rows the parts are interleaved; 0 where they are not.
        transposed: The tensor is stored as (in, out).
    """

    ours: str
    shape: tuple[int, ...]
    rows: tuple[int, int, int] | None = None
    per_head: int = 0
    transposed: bool = False

    def source_shape(self) -> tuple[int, ...]:
        """The shape that their tensor must have."""
        shape = self.shape if self.rows is None else (self.rows[2], *self.shape[1:])
        return shape[::-1] if self.transposed and len(shape) == 2 else shape

    def take(self, tensor: Tensor) -> Tensor:
        """Our parameter out of their tensor."""
        if self.transposed and tensor.ndim == 2:
            tensor = tensor.T
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
    check(family, config, folder)
    with torch.device("meta"):
        stack = Stack(config, n_layers)
    plan = _plan(family, config, folder, stack)
    state: dict[str, Tensor] = {}
    wanted = {
        name: parts for name, parts in plan.items() if any(p.ours in dict(stack.named_parameters()) for p in parts)
    }
    for name, tensor in read_tensors(folder, wanted):
        for part in wanted[name]:
            state[part.ours] = part.take(tensor).to(device=device, dtype=dtype).contiguous()
    stack.load_state_dict(state, strict=True, assign=True)
    return stack.eval()


def check(family: Family, config: ModelConfig, folder: Folder) -> None:
    """Hold config.json against the tensors' headers, without reading or allocating anything.

    Raises:
        AttnscopeError: The config promises layers, words or widths that the weights do not hold; a tensor is missing,
            unknown or of the wrong shape.
    """
    _check_counts(family, config, folder)
    with torch.device("meta"):
        _plan(family, config, folder, Stack(config, 1))


def _check_counts(family: Family, config: ModelConfig, folder: Folder) -> None:
    prefix = _prefix(family, folder)
    where = folder.path / "config.json"
    pattern = next(_module(theirs) for ours, theirs in family.modules.items() if "{l}" in ours)
    layer = re.compile(re.escape(prefix) + re.escape(pattern.split("{l}")[0]) + r"(\d+)\.")
    numbers = [int(m[1]) for m in map(layer.match, folder.tensors) if m]
    if config.n_layers != (held := max(numbers, default=-1) + 1):
        raise AttnscopeError(f"config says {config.n_layers} layers, the weights hold {held}", where=where,
                             hint="config.json and the weights are not of one model")  # fmt: skip
    words = _tensor(family, folder, prefix, "embed.tokens", "weight")
    if words.shape != (config.vocab_size, config.d_model):
        found = f"config says a vocabulary of {config.vocab_size} and a width of {config.d_model}, the weights hold "
        raise AttnscopeError(found + f"{list(words.shape)} in '{words.name}'", where=where,
                             hint="config.json and the weights are not of one model")  # fmt: skip


def _prefix(family: Family, folder: Folder) -> str:
    name = _module(family.modules["embed.tokens"]) + ".weight"
    for prefix in family.prefixes:
        if prefix + name in folder.tensors:
            return prefix
    tried = ", ".join(f"'{prefix}{name}'" for prefix in family.prefixes)
    raise AttnscopeError(
        f"no tensor {tried}", where=folder.path, hint=f"family '{family.name}' needs its token embedding"
    )


def _module(theirs: str | Chunk) -> str:
    return theirs.module if isinstance(theirs, Chunk) else theirs


def _tensor(family: Family, folder: Folder, prefix: str, module: str, kind: str) -> TensorInfo:
    """The header entry of one of our parameters' tensors, under its new or its old name."""
    layer = re.search(r"\.(\d+)\.", module)
    ours = re.sub(r"\.\d+\.", ".{l}.", module, count=1)
    if ours not in family.modules:
        raise AttnscopeError(f"family '{family.name}' does not say where '{module}' comes from", where=folder.path)
    base = prefix + _module(family.modules[ours]).replace("{l}", layer[1] if layer else "")
    for name in (f"{base}.{kind}", f"{base}.{_OLD_NAMES.get(kind, kind)}"):
        if name in folder.tensors:
            return folder.tensors[name]
    raise AttnscopeError(f"the tensor '{base}.{kind}' is missing", where=folder.path,
                         hint=f"it is needed for '{module}.{kind}'; weights are never made up")  # fmt: skip


def _plan(family: Family, config: ModelConfig, folder: Folder, stack: nn.Module) -> dict[str, list[_Part]]:
    """Their tensor to the parts of it that are ours, for every layer; every tensor is accounted for."""
    prefix = _prefix(family, folder)
    shapes = {name: tuple(p.shape) for name, p in stack.named_parameters()}
    plan: dict[str, list[_Part]] = {}
    for first, shape in shapes.items():
        if re.match(r"blocks\.[1-9]", first):
            continue  # every block has the shapes of block 0
        layers = range(config.n_layers) if first.startswith("blocks.0.") else range(1)
        for layer in layers:
            ours = first.replace("blocks.0.", f"blocks.{layer}.")
            module, kind = ours.rsplit(".", 1)
            info = _tensor(family, folder, prefix, module, kind)
            part = _part(family, config, ours, shape, shapes)
            if info.shape != part.source_shape():
                raise AttnscopeError(
                    f"'{info.name}' has shape {list(info.shape)}, '{ours}' needs {list(part.source_shape())}",
                    where=info.file, hint="config.json and the weights are not of one model",
                )  # fmt: skip
            plan.setdefault(info.name, []).append(part)
    _account(family, folder, plan)
    return plan


def _part(
    family: Family, config: ModelConfig, ours: str, shape: tuple[int, ...], shapes: Mapping[str, tuple[int, ...]]
) -> _Part:
    module, kind = ours.rsplit(".", 1)
    parent, name = module.rsplit(".", 1) if "." in module else ("", module)
    transposed = name in family.transposed
    chunk = family.modules[re.sub(r"\.\d+\.", ".{l}.", module, count=1)]
    if not isinstance(chunk, Chunk):
        return _Part(ours, shape, transposed=transposed)
    parent = re.sub(r"\.\d+\.", ".0.", parent, count=1)
    sizes = [shapes[f"{parent}.{sibling}.{kind}"][0] for sibling in chunk.parts]
    start = sum(sizes[: chunk.parts.index(chunk.part)])
    rows = (start, start + shape[0], sum(sizes))
    return _Part(ours, shape, rows, config.n_heads if chunk.per_head else 0, transposed)


def _account(family: Family, folder: Folder, plan: Mapping[str, object]) -> None:
    leftover = [re.compile(pattern) for pattern in family.leftover]
    for name, info in folder.tensors.items():
        if name not in plan and not any(pattern.fullmatch(name) for pattern in leftover):
            hint = f"family '{family.name}' does not know it, and it may change attention"
            raise AttnscopeError(f"unknown tensor '{name}'", where=info.file, hint=hint)
