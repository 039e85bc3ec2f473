"""Build a Stack that reads its parameters from safetensors; every tensor is accounted for."""

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from attnscope.base.errors import AttnscopeError
from attnscope.base.model_config import ModelConfig
from attnscope.checkpoints.families.names import (
    NOT_ONE_MODEL,
    Names,
    check_counts,
    find_prefix,
    unused_tensors,
)
from attnscope.checkpoints.families.spec import Chunk, Family, Outside, Stacked
from attnscope.checkpoints.folder import Folder
from attnscope.model.stack import Stack
from attnscope.model.tensors import contiguous, read_tensors
from attnscope.model.uploads import Uploads
from attnscope.model.weights import BlockIndex, WeightStore

# other types are quantised, and have no meaning without their scales
_FLOATS = ("F64", "F32", "F16", "BF16")


@dataclass(frozen=True)
class ParameterSlice:
    """Location of a native parameter in a tensor of the checkpoint."""

    parameter: str
    tensor: str
    shape: tuple[int, ...]
    transposed: bool  # the tensor is stored as (in, out)
    # rows (start, stop, all) within the tensor once it is laid (out, in); None for the whole
    rows: tuple[int, int, int] | None = None
    step: int = 1
    # key/value heads among whose rows the parts are interleaved; 0 where they are not
    groups: int = 0
    # number of the expert and of all, in a tensor that holds all; None otherwise
    expert: tuple[int, int] | None = None

    @property
    def block(self) -> BlockIndex:
        """Block of the parameter: a number, `head`, or None for the embedding."""
        if self.parameter.startswith("head."):
            return "head"
        if self.parameter.startswith("blocks."):
            return int(self.parameter.split(".")[1])
        return None

    @property
    def name(self) -> str:
        """The parameter's name within its block or head."""
        return self.parameter.split(".", 2 if isinstance(self.block, int) else 1)[-1]

    def source_shape(self) -> tuple[int, ...]:
        """Return the shape that the checkpoint's tensor must have."""
        shape = self.shape if self.rows is None else (self.rows[2], *self.shape[1:])
        shape = shape[::-1] if self.transposed else shape
        if self.expert is None:
            return shape
        return self.expert[1], *shape

    def extract(self, tensor: Tensor) -> Tensor:
        """Extract the parameter from the checkpoint's tensor, whose matrices are laid (out, in)."""
        if self.expert is not None:
            tensor = tensor[self.expert[0]]
        if self.rows is None:
            return tensor
        start, stop, _ = self.rows
        if not self.groups:
            return tensor[start : stop : self.step]
        by_group = tensor.reshape(self.groups, -1, *tensor.shape[1:])  # (G, rows of a group, …)
        return by_group[:, start // self.groups : stop // self.groups].flatten(0, 1)


def load_stack(
    family: Family,
    config: ModelConfig,
    folder: Folder,
    n_layers: int,
    dtype: torch.dtype,
    device: torch.device,
) -> Stack:
    """Load the first `n_layers` blocks of a checkpoint; every tensor is checked now, and read when it is needed."""
    pieces: dict[BlockIndex, dict[str, list[ParameterSlice]]] = {}
    for name, parts in check_tensors(family, config, folder).items():
        for part in parts:
            pieces.setdefault(part.block, {}).setdefault(name, []).append(part)
    with torch.device("meta"):
        stack = Stack(config, n_layers)

    uploads = Uploads(device)

    def read(piece: BlockIndex) -> Iterator[tuple[str, Tensor]]:
        wanted = pieces[piece]
        transposed = {name for name, parts in wanted.items() if parts[0].transposed}
        for name, tensor in read_tensors(folder, wanted, dtype, transposed):
            stored = uploads.copy(tensor)
            for part in wanted[name]:
                yield part.name, contiguous(part.extract(stored))

    stack.weights = WeightStore(stack.embed, list(stack.blocks), read, stack.head, uploads)
    return stack.eval()


def check_tensors(
    family: Family, config: ModelConfig, folder: Folder
) -> dict[str, list[ParameterSlice]]:
    """Return each needed tensor, with its native parameters, after comparing all headers with config.json."""
    where = str(folder.config_path)
    check_counts(family, config, {name: info.shape for name, info in folder.tensors.items()}, where)
    names = Names(
        family, find_prefix(family, folder.tensors, where), folder.tensors, str(folder.path)
    )
    plan: dict[str, list[ParameterSlice]] = {}
    for part in _parameter_slices(config, names):
        info = folder.tensors[part.tensor]
        if info.dtype not in _FLOATS and info.block is None:
            hint = "attnscope reads only floating-point checkpoints"
            raise AttnscopeError(
                f"is stored as {info.dtype}", where=f"{info.file}: {info.name}", hint=hint
            )
        if info.shape != part.source_shape():
            message = f"has shape {list(info.shape)}, '{part.parameter}' needs {list(part.source_shape())}"
            raise AttnscopeError(message, where=f"{info.file}: {info.name}", hint=NOT_ONE_MODEL)
        plan.setdefault(info.name, []).append(part)
    unused = unused_tensors(family, names.prefix, folder.tensors)
    for name, info in folder.tensors.items():
        if name not in plan and name not in unused:
            hint = f"family '{family.name}' does not use it, and it may change attention"
            raise AttnscopeError(f"unknown tensor '{name}'", where=info.file, hint=hint)
    return plan


def _parameter_slices(config: ModelConfig, names: Names) -> Iterator[ParameterSlice]:
    """Yield every parameter of the whole model."""
    with torch.device("meta"):
        stack = Stack(config, min(2, config.n_layers))
    shapes = shapes_of(stack)
    for name, _ in stack.named_parameters():
        if name.startswith("blocks.1."):
            layers = range(1, config.n_layers)
        else:
            layers = range(1)
        for layer in layers:
            parameter = name.replace("blocks.1.", f"blocks.{layer}.", 1)
            yield parameter_slice(names, parameter, shapes, config.n_kv_heads, config.n_experts)


def shapes_of(stack: Stack) -> dict[str, tuple[int, ...]]:
    """Return the shapes of parameters outside blocks, and of those of any block under the names of block 0."""
    return {
        _in_first_block(name): tuple(parameter.shape)
        for name, parameter in stack.named_parameters()
    }


def _in_first_block(parameter: str) -> str:
    return re.sub(r"^blocks\.\d+\.", "blocks.0.", parameter)


def parameter_slice(
    names: Names,
    parameter: str,
    shapes: Mapping[str, tuple[int, ...]],
    n_groups: int,
    n_experts: int = 0,
) -> ParameterSlice:
    """Locate a parameter in a checkpoint; `shapes` are those of `shapes_of`."""
    location = names.find(parameter)
    first_name = _in_first_block(parameter)
    module, suffix = first_name.rsplit(".", 1)
    name = module.rsplit(".", 1)[-1]
    entry = location.entry
    turned = names.family.transposed
    transposed = suffix == "weight" and (
        entry.transposed if isinstance(entry, Stacked) else name in turned
    )
    expert = None
    if isinstance(entry, Stacked):
        expert = location.expert or 0, n_experts
    located = ParameterSlice(
        parameter, location.tensor, shapes[first_name], transposed, expert=expert
    )
    if isinstance(entry, str | Outside) or not entry.part:
        return located
    sizes = [shapes[f"{module.removesuffix(name)}{sibling}.{suffix}"][0] for sibling in entry.parts]
    at = entry.parts.index(entry.part)
    if isinstance(entry, Stacked) and entry.alternating:
        return replace(located, rows=(at, sum(sizes), sum(sizes)), step=len(sizes))
    rows = sum(sizes[:at]), sum(sizes[: at + 1]), sum(sizes)
    groups = 0
    if isinstance(entry, Chunk) and entry.per_group:
        groups = n_groups
    return replace(located, rows=rows, groups=groups)
