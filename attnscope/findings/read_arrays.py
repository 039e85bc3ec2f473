"""Read a Report from the arrays of a .npz or .safetensors file, which `views/arrays.py` writes."""

import io
import json
import zipfile
import zlib
from collections.abc import Mapping
from math import prod
from typing import Any

import msgspec
import numpy as np

from attnscope.base.errors import AttnscopeError
from attnscope.findings.arrays import decode_array
from attnscope.findings.run import SCHEMA, STAGES, Report
from attnscope.findings.shapes import check_shapes

METADATA = "metadata"  # array of an .npz file with the metadata: bytes of JSON
_METADATA_BEFORE = "metadata.json"  # the same in files of attnscope 0.1.0: no array, which NumPy returns as bytes
SAFETENSORS_KEY = "attnscope"  # key of the metadata in a .safetensors file
MEAN = -1  # number of a layer or head that is a mean
ARRAY_FILES = (".npz", ".safetensors")
_DTYPES: "dict[str, np.dtype[Any]]" = {"F32": np.dtype("<f4"), "I64": np.dtype("<i8")}
_HINT = "pass a file of arrays that attnscope wrote"
_DAMAGE = (
    LookupError, TypeError, AttributeError, ValueError, OverflowError, EOFError, MemoryError,
    RuntimeError, zipfile.BadZipFile, zlib.error,
)  # fmt: skip

Arrays = dict[str, "np.ndarray[Any, Any]"]


def from_arrays(data: bytes, ending: str) -> Report:
    """Read a Report from a file of arrays, to the last bit.

    Args:
        data: The file.
        ending: One of ARRAY_FILES.

    Raises:
        AttnscopeError: The file has another format, or its parts contradict each other.
    """
    try:
        metadata, arrays = _from_npz(data) if ending == ".npz" else _from_safetensors(data)
        if metadata["schema"] != SCHEMA:
            raise AttnscopeError(f"schema is '{metadata['schema']}'", hint=f"this version reads '{SCHEMA}'")
        texts = [
            _text(name, facts, metadata["axes"], arrays, metadata["texts"]) for name, facts in metadata["texts"].items()
        ]
        report = {name: metadata[name] for name in ("provenance", "mask", "schema")} | {"texts": texts}
        found = msgspec.convert(report, Report, dec_hook=decode_array)
    except _DAMAGE as e:
        said = f"lacks {e}" if isinstance(e, KeyError) else f"{e}"
        raise AttnscopeError(f"not an attnscope file of arrays ({said})", hint=_HINT) from e
    check_shapes(found)
    return found


def _from_npz(data: bytes) -> tuple[Any, Arrays]:
    arrays = {}
    with zipfile.ZipFile(io.BytesIO(data)) as archive:
        for name in archive.namelist():
            with archive.open(name) as entry:
                if name == _METADATA_BEFORE:
                    arrays[METADATA] = np.array(entry.read())
                else:
                    arrays[name.removesuffix(".npy")] = np.lib.format.read_array(entry, allow_pickle=False)
    return json.loads(arrays.pop(METADATA).item()), arrays


def _from_safetensors(data: bytes) -> tuple[Any, Arrays]:
    start = 8 + int.from_bytes(data[:8], "little")
    header = json.loads(data[8:start])
    metadata = json.loads(header.pop("__metadata__")[SAFETENSORS_KEY])
    arrays = {}
    for name, one in header.items():
        numbers = np.frombuffer(data, _DTYPES[one["dtype"]], prod(one["shape"]), start + one["data_offsets"][0])
        arrays[name] = numbers.reshape(one["shape"])
    return metadata, arrays


def _text(name: str, facts: Any, axes: Any, arrays: Arrays, texts: Any) -> dict[str, Any]:
    """Return the fields of a TextReport."""
    prefix = f"{name}." if len(texts) > 1 else ""
    own = {one.removeprefix(prefix): array for one, array in arrays.items() if one.startswith(prefix)}
    layers, heads = (own[axis].tolist() for axis in ("layers", "heads"))
    product = axes[f"{prefix}layers"] == ["layers"]
    places = (
        [(i, j) for i in range(len(layers)) for j in range(len(heads))]
        if product
        else [(i,) for i in range(len(layers))]
    )
    units = [_unit(layers[place[0]], heads[place[-1]]) for place in places]
    text: dict[str, Any] = dict(facts)
    text |= {"index": int(name.removeprefix("text")), "queries": own["queries"].tolist(), "keys": own["keys"].tolist()}
    text["heads"] = [_head(unit, place, facts["heads"], own) for unit, place in zip(units, places, strict=True)]
    text["flows"] = [_flow(n, flow, own) for n, flow in enumerate(facts.get("flows", []))]
    return text


def _unit(layer: int, head: int) -> tuple[int | str, int | str]:
    return "mean" if layer == MEAN else layer, "mean" if head == MEAN else head


def _head(unit: tuple[int | str, int | str], place: tuple[int, ...], facts: Any, arrays: Arrays) -> dict[str, Any]:
    """Return the fields of a HeadReport."""
    name = f"L{unit[0]}H{unit[1]}"
    fields: dict[str, Any] = dict(facts[name])
    own = _of_unit(name, place, arrays)
    groups: dict[str, dict[str, Any]] = {
        "stages": {stage: own.pop(stage) for stage in STAGES if stage in own},
        "rows": {},
    }
    groups["top"] = {"by": fields.pop("by"), "left_out": fields.pop("left_out")}
    if (total := fields.pop("columns_total", None)) is not None:
        groups["columns"] = {"total": total}
    for path, array in own.items():
        group, _, field = path.rpartition(".")
        if path == "sink":
            fields["sink"] = array
        else:
            groups.setdefault(group, {})[field] = array.tolist() if path in ("pooled.queries", "pooled.keys") else array
    return {"layer": unit[0], "head": unit[1], **fields, **groups}


def _of_unit(name: str, place: tuple[int, ...], arrays: Arrays) -> Arrays:
    """Return the arrays of one head: its part of those of all, or those that it has alone."""
    alone = f"{name}."
    found = {path.removeprefix(alone): array for path, array in arrays.items() if path.startswith(alone)}
    for path, array in arrays.items():
        first = path.partition(".")[0]
        if first in (*STAGES, "sink", "top", "rows", "columns", "pooled"):
            found[path] = array[place]
    return found


def _flow(number: int, facts: Mapping[str, Any], arrays: Arrays) -> dict[str, Any]:
    """Return the fields of a TokenFlow."""
    name = facts["measure"]
    parts = {"matrix": name, "keys": f"{name}.keys", "values": f"{name}.values"}
    return {**facts, **{field: arrays[path][number] for field, path in parts.items()}}
