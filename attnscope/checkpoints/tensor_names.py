"""Facts in the names of tensors: wrappers around the model, quantised weights, MXFP4."""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from attnscope.base.errors import AttnscopeError
from attnscope.checkpoints.headers import TensorInfo

# Prefixes that saving a wrapped model leaves: DataParallel and DeepSpeed, torch.compile, peft.
_WRAPPERS = ("module.", "_orig_mod.", "base_model.model.")
_BLOCKS, _SCALES = "_blocks", "_scales"
MXFP4_BLOCK = (32, 16)  # numbers and bytes


def unwrap_names(tensors: Mapping[str, TensorInfo]) -> tuple[dict[str, TensorInfo], tuple[str, ...]]:
    """Return the tensors without a wrapper's prefix that all of them have, and a note on it."""
    unwrapped, removed = dict(tensors), ""
    while prefix := next((p for p in _WRAPPERS if unwrapped and all(name.startswith(p) for name in unwrapped)), None):
        unwrapped = {
            name.removeprefix(prefix): replace(info, name=name.removeprefix(prefix)) for name, info in unwrapped.items()
        }
        removed += prefix
    return unwrapped, (f"every tensor's name starts with '{removed}', which is ignored",) if removed else ()


def refuse_quantised(tensors: Mapping[str, TensorInfo], path: Path) -> None:
    """Refuse the quantised weights of other programs, by the names that each gives its tensors."""
    endings = {name.rpartition(".")[2] for name in tensors}
    packed = any(info.dtype == "U32" and name.endswith(".weight") for name, info in tensors.items())
    kind = None
    if "qweight" in endings:
        kind = "GPTQ" if "g_idx" in endings else "AWQ"
    elif "absmax" in endings or "SCB" in endings or any("bitsandbytes" in ending for ending in endings):
        kind = "bitsandbytes"
    elif packed and {"scales", "biases"} <= endings:
        kind = "MLX"
    elif "weight_packed" in endings:
        kind = "compressed-tensors"
    if kind is not None:
        hint = "use the floating-point model that they were made from, or a GGUF file of it"
        raise AttnscopeError(f"the weights are quantised ({kind})", where=path, hint=hint)


def pair_mxfp4(tensors: Mapping[str, TensorInfo]) -> tuple[dict[str, TensorInfo], tuple[str, ...]]:
    """Replace every pair of experts' blocks and scales by the tensor that they encode; add a note.

    Blocks of shape (experts, out, groups, 16) with scales of shape (experts, out, groups) become (experts, in, out), as
    transformers has them (`convert_moe_packed_tensors`).
    """
    paired = dict(tensors)
    for name, blocks in tensors.items():
        stem = name.removesuffix(_BLOCKS)
        scales = tensors.get(stem + _SCALES)
        if stem == name or scales is None or {blocks.dtype, scales.dtype} != {"U8"}:
            continue
        if len(blocks.shape) == 4 and blocks.shape[3] == MXFP4_BLOCK[1] and scales.shape == blocks.shape[:3]:
            del paired[name], paired[stem + _SCALES]
            experts, out, groups, _ = blocks.shape
            shape = experts, groups * MXFP4_BLOCK[0], out
            paired[stem] = replace(blocks, name=stem, dtype="MXFP4", shape=shape, block=MXFP4_BLOCK, scales=scales)
    note = "experts in four-bit blocks (MXFP4), converted to floating point as they are read"
    return paired, (note,) if len(paired) < len(tensors) else ()
