"""Make GivenArrays of Python values, or of a file."""

import hashlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import pairwise
from math import prod
from pathlib import Path
from typing import Any

import numpy as np

from attnscope.base.errors import AttnscopeError
from attnscope.base.model_config import check_scaling
from attnscope.checkpoints.tokenization.given import make_texts
from attnscope.engines.arrays.files import ENDINGS, ArrayFile, open_file
from attnscope.engines.arrays.given import GivenArrays, GivenSizes
from attnscope.engines.arrays.layout import (
    PackedShape,
    packed_shape,
    parse_layout,
    query_ranges,
    text_ranges,
)
from attnscope.engines.arrays.masks import function_digest, read_masks, read_score_mod
from attnscope.engines.arrays.settings import LayerSettings, layer_settings
from attnscope.engines.arrays.stored import StoredArray

_BYTES = {"float32": 4, "float64": 8, "bfloat16": 2, "float16": 2}
_WEIGHT_AXES = ("heads", "tokens", "width")  # of weights, keys are what width is of queries
_SAMPLES = 1 << 16  # numbers of an array that a fingerprint takes


@dataclass(frozen=True)
class _LayerArray:
    """An array of one layer, in a file or in memory."""

    shape: tuple[int, ...]
    dtype: str
    read: Callable[[], Any]


_Layers = Mapping[int, Mapping[str, _LayerArray]]  # arrays of every layer by name, such as `q`


def from_file(path: Path) -> GivenArrays:
    """Open a file of queries, keys and values, or of weights; numbers are read on demand."""
    file = open_file(path)
    layers = _of_file(file)
    try:
        return _assemble(str(path), layers, file.values, file.digest)
    except AttnscopeError as e:
        if e.parts.where is None:
            where = f"{path}"
        else:
            where = f"{path}: {e.parts.where}".replace(f"{path}: {path}", f"{path}")
        raise type(e)(e.parts.message, where=where, hint=e.parts.hint) from e


def _of_file(file: ArrayFile) -> _Layers:
    """Return the arrays of a file, without their axis of layers."""

    def whole(arrays: Mapping[str, StoredArray]) -> dict[str, _LayerArray]:
        return {
            name: _LayerArray(a.shape, a.dtype, partial(file.read, a)) for name, a in arrays.items()
        }

    def one(array: StoredArray, at: int) -> _LayerArray:
        shape = (*array.shape[:axis], *array.shape[axis + 1 :])
        return _LayerArray(shape, array.dtype, lambda: np.take(file.read(array), at, axis))

    if file.layers:
        _require_parts(
            {f"layer.{n}": set(arrays) for n, arrays in file.layers.items()}, str(file.path)
        )
        return {n: whole(arrays) for n, arrays in file.layers.items()}
    _require_parts({"": set(file.shared)}, str(file.path))
    axes = parse_layout(file.values.get("layout"), f"{file.path}: layout")
    first_array = next(iter(file.shared.values()))
    if not (len(first_array.shape) == 4 if axes is None else "layers" in axes):
        return {layer: whole(file.shared) for layer in _numbers(file.values.get("layers"), 1)}
    axis = 0 if axes is None else axes.index("layers")
    layers = _numbers(file.values.get("layers"), first_array.shape[axis])
    lengths = {
        array.shape[axis] if len(array.shape) > axis else 0 for array in file.shared.values()
    }
    if lengths != {len(layers)}:
        raise AttnscopeError(
            f"arrays have {sorted(lengths)} layers",
            where=file.path,
            hint="give all the same number",
        )
    return {
        layer: {name: one(a, at) for name, a in file.shared.items()}
        for at, layer in enumerate(layers)
    }


def _require_parts(parts: Mapping[str, set[str]], where: str) -> None:
    """Refuse a layer that lacks queries or keys, or has weights, too."""
    for layer, names in parts.items():
        if names == {"weights"}:
            continue
        location = f"{where}: {layer}" if layer else where
        if "weights" in names:
            hint = "keep one of them: weights are computed from queries and keys"
            raise AttnscopeError(
                "has weights beside queries, keys or values", where=location, hint=hint
            )
        if missing := [name for name in ("q", "k") if name not in names]:
            raise AttnscopeError(
                f"has no {missing[0]}",
                where=location,
                hint="give q and k, and v if there are values",
            )
    kinds = {frozenset(names) for names in parts.values()}
    if len(kinds) > 1:
        raise AttnscopeError(
            "layers hold different arrays", where=where, hint="give every layer q, k and v alike"
        )


def from_arrays(
    parts: Mapping[str, Any], values: Mapping[str, Any], layers: Sequence[int] | None, name: str
) -> GivenArrays:
    """Take arrays that are in memory.

    `parts` are `q`, `k`, and `v` and `output` if they are known; or `weights`. Each is one array, with or without an
    axis for layers, a list of arrays, or a dict by layer. `values` are settings, and what describes the texts.
    """
    from attnscope.engines.arrays.tensors import as_tensor

    axes = parse_layout(values.get("layout"), "layout")
    present_parts = {part for part, array in parts.items() if array is not None}
    if "weights" in parts and not present_parts:
        raise AttnscopeError(
            "is None", where="weights", hint="pass weights, (heads, queries, keys)"
        )
    _require_parts({"": present_parts}, name)
    by_name = {
        part: _split_layers(part, array, axes, layers, as_tensor)
        for part, array in parts.items()
        if array is not None
    }
    numbers = {part: list(arrays) for part, arrays in by_name.items()}
    first_part = next(iter(numbers))
    for part, layer_numbers in numbers.items():
        if layer_numbers != numbers[first_part]:
            message = (
                f"has layers {layer_numbers[:8]}, but {first_part} has {numbers[first_part][:8]}"
            )
            raise AttnscopeError(message, where=part, hint="give every layer q, k and v alike")
    digest = hashlib.sha256()  # of shapes, types and samples
    for part, arrays in by_name.items():
        for layer, tensor in arrays.items():
            places = np.arange(0, tensor.numel(), max(1, tensor.numel() // _SAMPLES))
            sample = tensor[tuple(np.unravel_index(places, tuple(tensor.shape)))].float().cpu()
            digest.update(f"{part} {layer} {list(tensor.shape)} {tensor.dtype}".encode())
            digest.update(sample.numpy().tobytes())
    if axes is not None and "layers" in axes:
        values = {**values, "layout": tuple(axis for axis in axes if axis != "layers")}
    given_layers = {
        layer: {part: _in_memory(arrays[layer]) for part, arrays in by_name.items()}
        for layer in numbers[first_part]
    }
    return _assemble(name, given_layers, values, digest.digest())


def _in_memory(tensor: Any) -> _LayerArray:
    return _LayerArray(
        tuple(tensor.shape), str(tensor.dtype).removeprefix("torch."), lambda: tensor
    )


def _split_layers(
    part: str,
    part_values: Any,
    axes: tuple[str, ...] | None,
    layers: Sequence[int] | None,
    as_tensor: Any,
) -> dict[int, Any]:
    """Return the tensors of one part by layer."""
    if isinstance(part_values, Mapping):
        if layers is not None:
            raise AttnscopeError(
                "cannot be used with a dict by layer", where="layers", hint="leave it out"
            )
        if not part_values or not all(
            isinstance(n, int | np.integer) and 0 <= n < 1_000_000 for n in part_values
        ):
            raise AttnscopeError(
                "is a dict without numbers of layers", where=part, hint="use {3: array, 7: array}"
            )
        return {
            int(n): as_tensor(part_values[n], f"layer {n}: {part}") for n in sorted(part_values)
        }
    if (
        isinstance(part_values, list | tuple)
        and part_values
        and all(hasattr(array, "shape") for array in part_values)
    ):
        numbers = _numbers(layers, len(part_values))
        return {
            n: as_tensor(array, f"layer {n}: {part}")
            for n, array in zip(numbers, part_values, strict=True)
        }
    tensor = as_tensor(part_values, part)
    if not (tensor.ndim == 4 if axes is None else "layers" in axes):
        (layer,) = _numbers(layers, 1)
        return {layer: tensor}
    axis = 0 if axes is None else axes.index("layers")
    if tensor.ndim <= axis:
        message = f"has {tensor.ndim} axes, but the layout {','.join(axes or ())} has more"
        raise AttnscopeError(message, where=part, hint="name the order of its axes with layout")
    return {n: tensor.select(axis, at) for at, n in enumerate(_numbers(layers, tensor.shape[axis]))}


def _numbers(layers: Any, count: int) -> list[int]:
    if layers is None:
        return list(range(count))
    listed = layers.tolist() if hasattr(layers, "tolist") else layers
    listed = [listed] if isinstance(listed, int) else listed
    usable = isinstance(listed, list | tuple | range) and all(
        type(n) is int and 0 <= n < 1_000_000 for n in listed
    )
    if not usable or len(listed) != count or any(b <= a for a, b in pairwise(listed)):
        hint = f"give {count} number{'s' if count > 1 else ''} in ascending order, such as {list(range(count))[:3]}"
        raise AttnscopeError(
            f"{listed!r:.60} are not the numbers of {count} layers", where="layers", hint=hint
        )
    return list(listed)


def _assemble(
    name: str, by_layer: _Layers, values: Mapping[str, Any], digest: bytes
) -> GivenArrays:
    """Check that arrays and settings go together."""
    layers = list(by_layer)
    shapes = {
        f"layer.{n}.{part}": array.shape
        for n, arrays in by_layer.items()
        for part, array in arrays.items()
    }
    dtypes = {array.dtype for arrays in by_layer.values() for array in arrays.values()}
    weights = next(iter(shapes)).endswith("weights")
    axes = parse_layout(values.get("layout"), "layout")
    if axes is not None and "layers" in axes:
        axes = tuple(axis for axis in axes if axis != "layers")
    if weights and axes is not None:
        hint = "weights are heads,queries,keys"
        raise AttnscopeError("applies to queries, keys and values", where="layout", hint=hint)
    ndim = len(next(iter(shapes.values())))
    axes = axes or (("texts", *_WEIGHT_AXES) if ndim == 4 else _WEIGHT_AXES)
    packed = {
        array_name: packed_shape(shape, axes, array_name) for array_name, shape in shapes.items()
    }
    if unknown := dtypes - set(_BYTES):
        hint = "use float32, bfloat16 or float16; dequantise what is stored as whole numbers"
        raise AttnscopeError(f"has type {min(unknown)}", where=next(iter(shapes)), hint=hint)
    sizes = _sizes(packed, weights=weights)
    layer = next(iter(packed)).rpartition(".")[0]
    array_name = f"{layer}.{'weights' if weights else 'q'}"
    first_shape = packed[array_name]
    if weights:  # the keys are columns
        keys = PackedShape(
            first_shape.width * (first_shape.texts or 1),
            first_shape.heads,
            first_shape.width,
            first_shape.texts,
        )
    else:
        keys = packed[f"{layer}.k"]
    cu_seqlens = values.get("cu_seqlens")
    cu_queries = values.get("cu_seqlens_q")
    ranges = text_ranges(keys, cu_seqlens, values.get("lengths"), axes, array_name)
    queries = query_ranges(
        first_shape, keys, ranges, cu_queries, axes, array_name, packed=cu_seqlens is not None
    )
    texts = make_texts(values.get("tokens"), ranges, "tokens", values.get("text"))
    lengths = [end - start for start, end in ranges]
    rows = [end - start for start, end in queries]
    settings = layer_settings(values, layers, sizes.heads)
    matrices = {}
    biases = {}
    if weights:
        if values.get("mask") is not None:
            raise AttnscopeError(
                "given weights are masked already", where="mask", hint="leave it out"
            )
        settings = {n: replace(unmasked, mask="bidirectional") for n, unmasked in settings.items()}
    else:
        masks = read_masks(values.get("mask"), layers, lengths, rows, sizes.heads)
        if values.get("window") is not None and any(
            window is not None for window in masks.windows.values()
        ):
            raise AttnscopeError(
                "masks of layers have windows already", where="window", hint="give them once"
            )
        settings = {
            n: replace(unmasked, mask=masks.masks[n], window=masks.windows[n] or unmasked.window)
            for n, unmasked in settings.items()
        }
        matrices = masks.matrices
        biases = masks.biases
    score_mod = read_score_mod(values.get("score_mod"))
    _check_ropes(settings, sizes.width)
    narrow = dtypes & {"bfloat16", "float16"}
    notes = ["the weights were given, not computed"] if weights else []
    notes += _decoding_notes(ranges, queries)
    if "float64" in dtypes:
        notes += ["float64 numbers are computed in float32"]
    if len(layers) <= layers[-1]:
        notes.append(
            f"layers {', '.join(map(str, layers[:12]))}{', …' * (len(layers) > 12)} are given"
        )
    functions = [f for f in (*matrices.values(), score_mod and score_mod.function) if callable(f)]
    settled = hashlib.sha256(
        digest + repr(settings).encode() + b"".join(map(function_digest, functions))
    )
    itemsize = max(_BYTES[dtype] for dtype in dtypes)
    numbers = max(
        sum(prod(array.shape) for array in arrays.values()) for arrays in by_layer.values()
    )
    return GivenArrays(
        name=name,
        sizes=sizes,
        settings=settings,
        axes=axes,
        ranges=ranges,
        query_ranges=queries,
        texts=texts,
        read=lambda layer: {part: array.read() for part, array in by_layer[layer].items()},
        layer_bytes=numbers * itemsize,
        matrices=matrices,
        biases=biases,
        score_mod=score_mod,
        dtype=next(iter(narrow)) if len(dtypes) == 1 and narrow else "float32",
        fingerprint=settled.hexdigest()[:16],
        weights=weights,
        outputs=any(name.endswith(".output") for name in shapes),
        notes=tuple(notes),
    )


def _check_ropes(settings: Mapping[int, LayerSettings], width: int) -> None:
    for layer, checked in settings.items():
        if checked.rope is not None:
            check_scaling(checked.rope.rope, width, f"rope of layer {layer}")
            if (rotated := checked.rope.width(width)) % 2 or rotated < 2:
                hint = "the rotated width, width × fraction, must be even"
                message = f"rotates {rotated} of {width} dimensions"
                raise AttnscopeError(message, where=f"rope of layer {layer}", hint=hint)


def _decoding_notes(
    ranges: Sequence[tuple[int, int]], queries: Sequence[tuple[int, int]]
) -> list[str]:
    """Say which queries are there, if some are not."""
    counts = [
        (q_end - q_start, end - start)
        for (start, end), (q_start, q_end) in zip(ranges, queries, strict=True)
    ]
    partial = [(count, of) for count, of in counts if count < of]
    if not partial:
        return []
    count, of = partial[0]
    if len(partial) > 1:
        return ["queries are those of the last tokens of each text; rows before them are unknown"]
    last = "last token" if count == 1 else f"last {count:,} tokens"
    return [f"queries are those of the {last} of {of:,}; rows before them are unknown"]


def _sizes(packed: Mapping[str, PackedShape], *, weights: bool) -> GivenSizes:
    """Return the sizes that all layers have."""
    first_shapes = {
        array_name.rpartition(".")[2]: shape for array_name, shape in reversed(list(packed.items()))
    }
    for array_name, shape in packed.items():
        model = first_shapes[array_name.rpartition(".")[2]]
        if (shape.heads, shape.width, shape.rows) != (model.heads, model.width, model.rows):
            message = f"has {_spell(shape)}, another layer {_spell(model)}"
            raise AttnscopeError(
                message, where=array_name, hint="give layers of one size, or open them one by one"
            )
    if weights:
        return GivenSizes(first_shapes["weights"].heads, first_shapes["weights"].heads, 0, 0)
    q = first_shapes["q"]
    k = first_shapes["k"]
    v = first_shapes.get("v", first_shapes["k"])
    array_name = next(iter(packed)).rpartition(".")[0]
    if q.width != k.width or q.width == 0:
        hint = "give queries and keys of one width"
        raise AttnscopeError(f"q has width {q.width}, k {k.width}", where=array_name, hint=hint)
    if k.rows != v.rows or q.texts != k.texts or q.rows > k.rows:
        message = f"q has {q.rows} tokens, k {k.rows}, v {v.rows}"
        hint = "give k and v of every token, and q of every token or of the last ones"
        raise AttnscopeError(message, where=array_name, hint=hint)
    if q.heads % k.heads or v.heads != k.heads:
        message = f"q has {q.heads} heads, k {k.heads}, v {v.heads}"
        hint = "the query heads are a multiple of the key/value heads; layout names another order of axes"
        raise AttnscopeError(message, where=array_name, hint=hint)
    output = first_shapes.get("output")
    expected = q.heads, q.rows, v.width
    if output is not None and (
        "v" not in first_shapes or (output.heads, output.rows, output.width) != expected
    ):
        hint = "give it the tokens and heads of q and the width of v, and give v, too"
        raise AttnscopeError(
            f"has {_spell(output)}, q {_spell(q)}, v {_spell(v)}",
            where=f"{array_name}.output",
            hint=hint,
        )
    return GivenSizes(q.heads, k.heads, q.width, v.width if "v" in first_shapes else 0)


def _spell(shape: PackedShape) -> str:
    return f"{shape.heads} heads × {shape.rows} tokens × {shape.width}"


__all__ = ["ENDINGS", "from_arrays", "from_file"]
