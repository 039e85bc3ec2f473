"""Read files of queries, keys and values (`--qkv`): .safetensors or .npz. Never imports torch.

The layout of such a file is described in docs/other-engines.md: arrays `layer.3.q`, `layer.3.k` and `layer.3.v`, and
settings beside them, each as metadata (JSON or plain text in .safetensors) or as an array (.npz).
"""

import re
import zipfile
import zlib
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from math import prod
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

from attnscope.base.errors import AttnscopeError, did_you_mean
from attnscope.base.files.reading import open_regular, parse_json, read_at_most
from attnscope.checkpoints.headers import TensorInfo, read_header, sample_digest
from attnscope.engines.arrays.serving import translate_hook, translate_lens
from attnscope.engines.arrays.stored import StoredArray

ENDINGS = (".safetensors", ".npz")
ARRAYS = ("q", "k", "v", "output", "weights")
SETTINGS = ("scale", "softcap", "window", "sinks", "rope", "mask")
SHARED = (
    *SETTINGS,
    "layout",
    "tokens",
    "text",
    "cu_seqlens",
    "cu_seqlens_q",
    "lengths",
    "layers",
    "dtype",
    "source",
)
_LAYER = re.compile(r"layer\.(\d{1,6})\.([a-z_]+)")
_TYPES = {"F16": "float16", "BF16": "bfloat16", "F32": "float32", "F64": "float64"}
_NUMPY = {
    "I32": "<i4",
    "I64": "<i8",
    "U8": "u1",
    "BOOL": "?",
    "F64": "<f8",
    "F32": "<f4",
    "F16": "<f2",
    "BF16": "<u2",
}
_SMALL = 64 << 20  # bytes of an array that says how to read the others
_DAMAGE = (
    ValueError,
    EOFError,
    SyntaxError,
    TypeError,
    OverflowError,
    KeyError,
    RuntimeError,
    NotImplementedError,
)


@dataclass(frozen=True)
class ArrayFile:
    """A file of arrays."""

    path: Path
    layers: dict[int, dict[str, StoredArray]]
    shared: dict[str, StoredArray]
    # setting to its value, for all layers or, in a dict, by layer
    values: dict[str, Any] = field(default_factory=dict)
    digest: bytes = b""  # SHA-256 over its header and samples of its data

    def read(self, array: StoredArray) -> "np.ndarray[Any, Any]":
        return _read(self.path, array)


def open_file(path: Path) -> ArrayFile:
    """Read the header of a file: its arrays and settings."""
    if path.suffix.lower() not in ENDINGS:
        message = "has no extension"
        if path.suffix:
            message = f"'{path.suffix}' is no format of queries, keys and values"
        raise AttnscopeError(message, where=path, hint=f"use {' or '.join(ENDINGS)}")
    if path.suffix.lower() == ".npz":
        stored, metadata, digest = _npz(path)
    else:
        stored, metadata, digest = _safetensors(path)
    layers: dict[int, dict[str, StoredArray]] = {}
    shared: dict[str, StoredArray] = {}
    values: dict[str, Any] = {}
    by_layer: dict[str, dict[int, Any]] = {}
    for name, held in _as_ours(path, stored, metadata).items():
        match = _LAYER.fullmatch(name)
        own = match[2] if match else name
        known_names = (*ARRAYS, *(SETTINGS if match else SHARED))
        if own not in known_names:
            raise AttnscopeError(
                f"unknown name '{name}'", where=path, hint=did_you_mean(own, known_names)
            )
        if isinstance(held, StoredArray) and own in ARRAYS:
            (shared if match is None else layers.setdefault(int(match[1]), {}))[own] = held
            continue
        value = _setting(path, own, held)
        if match is None:
            values[own] = value
        else:
            by_layer.setdefault(own, {})[int(match[1])] = value
    for name, layer_values in by_layer.items():
        if name in values:
            hint = "give it once, or for every layer"
            raise AttnscopeError(
                f"{name} is given for all layers and for one", where=path, hint=hint
            )
        values[name] = layer_values
    if not layers and not shared:
        hint = "name arrays layer.0.q, layer.0.k and layer.0.v"
        raise AttnscopeError("holds no queries, keys or values", where=path, hint=hint)
    if layers and shared:
        message = f"holds arrays of layers and {next(iter(shared))}, which belongs to none"
        raise AttnscopeError(
            message, where=path, hint="name all arrays layer.0.q, or all q, k and v"
        )
    return ArrayFile(path, dict(sorted(layers.items())), shared, values, digest)


def _as_ours(
    path: Path, stored: dict[str, StoredArray], metadata: Mapping[str, Any]
) -> dict[str, Any]:
    """Return arrays and settings under the names of this layout; those of plug-ins of vLLM are translated."""
    names = {**stored, **metadata}
    if "attn_q" in stored:
        texts = {}
        for name in ("qk_layers", "qk_meta"):
            held = names.get(name)
            if isinstance(held, StoredArray):
                held = _setting(path, "source", held)
            if isinstance(held, str):
                held = parse_json(held.encode(), f"{path}: {name}")
            texts[name] = held
        return translate_lens(stored, texts, path) | {
            n: names[n] for n in ("tokens", "text") if n in names
        }
    if (
        path.name == "qk.safetensors"
        and stored
        and all(name.endswith(("__q", "__k")) for name in stored)
    ):
        return translate_hook(stored, path)
    return names


def _setting(path: Path, name: str, held: Any) -> Any:
    """Return a setting: an array as it is, text parsed if it is JSON."""
    if isinstance(held, StoredArray):
        if held.nbytes > _SMALL:
            raise AttnscopeError(
                f"{name} has {held.nbytes:,} bytes",
                where=path,
                hint="it is a setting: make it small",
            )
        array = _read(path, held)
        if array.ndim == 0:
            held = array.item()
        elif name == "mask":
            held = array
        else:
            held = array.tolist()
    if isinstance(held, bytes):
        held = held.decode(errors="replace")
    if not isinstance(held, str) or name in ("layout", "source"):
        return held
    if name in ("text", "mask") and held[:1] not in "[{":
        return held
    try:
        return parse_json(held.encode(), str(path))
    except (AttnscopeError, UnicodeEncodeError):
        return held


def _safetensors(path: Path) -> tuple[dict[str, StoredArray], Mapping[str, Any], bytes]:
    header = read_header(path)
    # safetensors' own key
    metadata = {name: text for name, text in header.metadata.items() if name != "format"}
    stored = {
        name: StoredArray(name, t.shape, _TYPES.get(t.dtype, t.dtype.lower()), t.end - t.start, t)
        for name, t in header.tensors.items()
    }
    return stored, metadata, header.digest


def _npz(path: Path) -> tuple[dict[str, StoredArray], Mapping[str, Any], bytes]:
    stored = {}
    with open_regular(path) as (file, status):
        digest = sample_digest(file, b"", 0, status.st_size)
        for info in _archive(file, path).infolist():
            with _archive(file, path).open(info) as entry:
                stored[info.filename.removesuffix(".npy")] = _npy(entry, info, path, status.st_size)
    # the numbers of bfloat16 have no type in NumPy; a file that holds them has to say so
    wide = {name for name, array in stored.items() if array.dtype == "void16"}
    if wide:
        dtype_name = "dtype" in stored and _read(path, stored["dtype"]).item()
        if dtype_name != "bfloat16":
            hint = "save it as float32, or add an array dtype that says bfloat16"
            raise AttnscopeError("has no type of numbers", where=f"{path}: {min(wide)}", hint=hint)
        stored |= {name: replace(stored[name], dtype="bfloat16") for name in wide}
    return stored, {}, digest


def _archive(file: BinaryIO, path: Path) -> zipfile.ZipFile:
    try:
        return zipfile.ZipFile(file)
    except (zipfile.BadZipFile, *_DAMAGE) as e:
        raise AttnscopeError(
            f"is not an .npz file ({e})", where=path, hint="write it with numpy.savez"
        ) from e


def _npy_header(entry: Any) -> tuple[tuple[int, ...], bool, "np.dtype[Any]"]:
    """Return shape, whether it is in Fortran's order, and type; the numbers follow."""
    old = np.lib.format.read_magic(entry) == (1, 0)
    if old:
        return np.lib.format.read_array_header_1_0(entry)
    return np.lib.format.read_array_header_2_0(entry)


def _npy(entry: Any, info: zipfile.ZipInfo, path: Path, size: int) -> StoredArray:
    """Read the header of an array, and hold it against the size that the archive says."""
    where = f"{path}: {info.filename.removesuffix('.npy')}"
    try:
        shape, fortran, dtype = _npy_header(entry)
        start = entry.tell()
    except (zipfile.BadZipFile, zlib.error, *_DAMAGE) as e:
        reason = str(e).splitlines()[0] if str(e) else type(e).__name__
        raise AttnscopeError(
            f"is not a NumPy array ({reason})", where=where, hint="write it with numpy.savez"
        ) from e
    needed_bytes = prod(shape) * dtype.itemsize
    stored = info.compress_type == zipfile.ZIP_STORED
    if dtype.hasobject:
        raise AttnscopeError(
            "holds Python objects", where=where, hint="save plain numbers, or strings as an array"
        )
    if (
        start + needed_bytes != info.file_size
        or (stored and info.file_size > size)
        or min(shape, default=0) < 0
    ):
        held = info.file_size - start
        message = f"{dtype} of shape {list(shape)} needs {needed_bytes:,} bytes, the file has {held:,} for it"
        raise AttnscopeError(message, where=where, hint="the file is damaged: write it again")
    if dtype.kind == "V" and dtype.itemsize == 2:
        dtype_name = "void16"
    else:
        dtype_name = dtype.newbyteorder("=").name
    return StoredArray(
        info.filename.removesuffix(".npy"),
        tuple(shape),
        dtype_name,
        needed_bytes,
        (info.filename, dtype, fortran),
    )


def _read(path: Path, array: StoredArray) -> "np.ndarray[Any, Any]":
    with open_regular(path) as (file, _):
        if isinstance(array.place, TensorInfo):
            file.seek(array.place.start)
            data = read_at_most(file, array.nbytes)
            stored_dtype = np.dtype(_NUMPY.get(array.place.dtype, "u1"))
            order = "C"
        else:
            name, stored_dtype, fortran = array.place
            order = "F" if fortran else "C"
            try:
                with _archive(file, path).open(name) as entry:
                    _npy_header(entry)
                    data = entry.read(array.nbytes)
            except (zipfile.BadZipFile, zlib.error, *_DAMAGE) as e:
                raise AttnscopeError(f"cannot be read ({e})", where=f"{path}: {array.name}") from e
            if array.dtype == "bfloat16":
                stored_dtype = np.dtype("<u2")
    if len(data) != array.nbytes:
        raise AttnscopeError("was truncated while it was read", where=f"{path}: {array.name}")
    values: np.ndarray[Any, Any] = np.frombuffer(data, stored_dtype).reshape(
        array.shape, order=order
    )  # type: ignore[call-overload]
    return values
