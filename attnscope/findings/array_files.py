"""The arrays of a Report as a .safetensors or .npz file, one for a stage of every layer and head; and reading it back.

The metadata are the Report's JSON, in which every array names its place in the file: `{"array": "weights"}` has the
weights of all heads, with the axes layer and head instead of the axis `unit`.
"""

import io
import zipfile
import zlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import product
from math import prod
from typing import Any

import msgspec
import numpy as np

from attnscope.base.errors import AttnscopeError
from attnscope.findings.arrays import Array, count_axes, decode_array
from attnscope.findings.axes import arrays_in, check_axes
from attnscope.findings.codec import decode_json, require_version
from attnscope.findings.heads import HeadRef
from attnscope.findings.run import Report, TextReport

# Name of the array of an .npz file that holds the metadata, bytes of JSON.
METADATA = "metadata"
# Key of the metadata in a .safetensors file.
SAFETENSORS_KEY = "attnscope"
# Number of a layer or head that is a mean.
MEAN = -1
ARRAY_FILES = (".npz", ".safetensors")
_NAMES = {"float32": "F32", "int32": "I32", "int64": "I64"}
_DTYPES: "dict[str, np.dtype[Any]]" = {
    "F32": np.dtype("<f4"),
    "I32": np.dtype("<i4"),
    "I64": np.dtype("<i8"),
}
# Larger entries, in bytes, need the zip format for large files.
_LONGEST_ZIP = 1 << 30
_HINT = "pass a file of arrays that attnscope wrote"
_DAMAGE = (
    LookupError, TypeError, AttributeError, ValueError, OverflowError, EOFError, MemoryError,
    RuntimeError, zipfile.BadZipFile, zlib.error,
)  # fmt: skip


@dataclass(frozen=True)
class LabelledArray:
    """An array in pieces, which is written without a copy of the whole."""

    name: str
    axes: tuple[str, ...]
    shape: tuple[int, ...]
    pieces: Sequence[Array]  # arrays of one shape and type, whose numbers follow each other

    @property
    def dtype(self) -> "np.dtype[Any]":
        """Type of its numbers."""
        dtype: np.dtype[Any] = self.pieces[0].dtype
        return dtype

    @property
    def nbytes(self) -> int:
        """Bytes of its numbers."""
        return sum(piece.nbytes for piece in self.pieces)

    def parts(self) -> Iterator[bytes]:
        """Yield its numbers; a slice is written as contiguous rows, too."""
        for piece in self.pieces:
            yield from (part.tobytes() for part in (piece if piece.ndim > 1 else [piece]))


def labelled_arrays(report: Report) -> list[LabelledArray]:
    """Return every array of a report, with names that begin with `text0.` etc. if it has several texts.

    `queries` and `keys` are the positions of rows and columns, `ids` and `context_ids` the tokens, `layers` and `heads`
    the numbers of layers and heads, MEAN for a mean. A stage, such as `weights`, and `top.keys`, `rows.sink`,
    `rows.entropy`, `columns` and `pooled.weights` begin with the axes layer and head; with one axis, `unit`, where
    `auto` has taken other heads in each layer: `layers` and `heads` then have an entry for each unit.
    `rollouts.matrix`, `rollouts.keys` and `rollouts.values` are those of a measure over layers; the metadata say which
    layers each of its matrices covers.
    """
    prefixes = [f"text{text.index}." if len(report.texts) > 1 else "" for text in report.texts]
    texts = zip(report.texts, prefixes, strict=True)
    return [array for text, prefix in texts for array in _text_arrays(text, prefix)]


def _text_arrays(text: TextReport, prefix: str) -> Iterator[LabelledArray]:
    layers, heads, axes = _units(text.heads.units if text.mixing is None else text.mixing.units)
    numbers: dict[str, tuple[str, Sequence[int]]] = {
        "queries": ("query", text.queries),
        "keys": ("key", text.keys),
        "ids": ("token", [token.id for token in text.tokens]),
        "layers": (axes[0], layers),
        "heads": (axes[-1], heads),
    }
    if text.context is not None:
        numbers["context_ids"] = "source", [token.id for token in text.context]
    for name, (axis, values) in numbers.items():
        yield LabelledArray(
            prefix + name, (axis,), (len(values),), [np.array(values, dtype=np.int64)]
        )
    leading = (len(layers), len(heads))[: len(axes)]
    for path, along, array in arrays_in(text):
        name = prefix + path.removeprefix("heads.").removeprefix("stages.")
        if along.axes[0] == "unit":
            yield LabelledArray(
                name, (*axes, *along.axes[1:]), (*leading, *array.shape[1:]), [array]
            )
        else:
            yield LabelledArray(name, along.axes, array.shape, [array])
    rollouts = [
        {path: (along.axes, array) for path, along, array in arrays_in(each)}
        for each in text.rollouts
    ]
    for path, (last, first_array) in rollouts[0].items() if rollouts else ():
        pieces = [of_rollout[path][1] for of_rollout in rollouts]
        shape = (len(pieces), *first_array.shape)
        yield LabelledArray(f"{prefix}rollouts.{path}", ("matrix", *last), shape, pieces)


def _units(units: Sequence[HeadRef]) -> tuple[list[int], list[int], tuple[str, ...]]:
    """Return the numbers of layers and heads, and their axes."""
    layers, heads = ([number_of(unit[n]) for unit in units] for n in (0, 1))
    of_layer = layers.count(layers[0]) if layers else 0
    if layers and list(zip(layers, heads, strict=True)) == list(
        product(layers[::of_layer], heads[:of_layer])
    ):
        return layers[::of_layer], heads[:of_layer], ("layer", "head")
    return layers, heads, ("unit",)


def number_of(label: int | str) -> int:
    """Return the number of a layer or head; MEAN for a mean."""
    return label if isinstance(label, int) else MEAN


def _metadata(report: Report, arrays: Sequence[LabelledArray]) -> bytes:
    """Return the JSON of a report with references to its arrays, and the axes of all arrays."""
    places = {
        id(piece): {"array": array.name} | ({"at": index} if len(array.pieces) > 1 else {})
        for array in arrays
        for index, piece in enumerate(array.pieces)
    }
    facts = msgspec.structs.asdict(report) | {"axes": {array.name: array.axes for array in arrays}}
    return msgspec.json.encode(facts, enc_hook=lambda array: places[id(array)])


def safetensors_parts(report: Report) -> Iterator[bytes]:
    """Yield a safetensors file: a header, then every array from memory. The library's writer copies each twice more."""
    arrays = labelled_arrays(report)
    # under one key: the order of several is not kept
    header: dict[str, Any] = {"__metadata__": {SAFETENSORS_KEY: _metadata(report, arrays).decode()}}
    # widest numbers first, so that each array begins at a multiple of its numbers' size
    arrays.sort(key=lambda array: (-array.dtype.itemsize, array.name))
    end = 0
    for array in arrays:
        start = end
        end = end + array.nbytes
        header[array.name] = {
            "dtype": _NAMES[array.dtype.name],
            "shape": array.shape,
            "data_offsets": (start, end),
        }
    text = msgspec.json.encode(header)
    text += b" " * (-len(text) % 8)
    yield len(text).to_bytes(8, "little") + text
    for array in arrays:
        yield from array.parts()


def npz_parts(report: Report) -> Iterator[bytes]:
    """Yield the file that numpy.savez would write, array by array, with the metadata as an array without axes."""
    arrays = labelled_arrays(report)
    metadata = np.array(_metadata(report, arrays))
    file = _Collected()
    with zipfile.ZipFile(file, "w") as archive:
        for array in [LabelledArray(METADATA, (), (), [metadata]), *arrays]:
            member = zipfile.ZipInfo(f"{array.name}.npy")
            with archive.open(member, "w", force_zip64=array.nbytes > _LONGEST_ZIP) as entry:
                header = {"descr": array.dtype.str, "fortran_order": False, "shape": array.shape}
                np.lib.format.write_array_header_1_0(entry, header)
                for numbers in array.parts():
                    entry.write(numbers)
                    yield file.take()
    yield file.take()


class _Collected(io.RawIOBase):
    """A write-only file that hands over what was written; it cannot seek, so an archive is written in one pass."""

    def __init__(self) -> None:
        self._written: list[bytes] = []

    def writable(self) -> bool:
        return True

    def write(self, data: Any) -> int:
        self._written.append(bytes(data))
        return len(data)

    def take(self) -> bytes:
        data = b"".join(self._written)
        self._written = []
        return data


def from_arrays(data: bytes, ending: str) -> Report:
    """Read a Report from a file of arrays (see ARRAY_FILES), exactly; refuse another format or contradictions."""
    try:
        if ending == ".npz":
            metadata, arrays = _from_npz(data)
        else:
            metadata, arrays = _from_safetensors(data)

        def find(value_type: Any, reference: Any) -> Any:
            array = arrays[reference["array"]]
            if "at" in reference:
                array = array[int(reference["at"])]
            n_axes = count_axes(value_type)
            if array.ndim == n_axes + 1:  # layer and head, or the only one of several rollouts
                array = array.reshape(array.shape[0] * array.shape[1], *array.shape[2:])
            return decode_array(value_type, array)

        report = msgspec.json.decode(metadata, type=Report, dec_hook=find)
    except RecursionError as e:
        raise AttnscopeError(
            "not an attnscope file of arrays (nested too deeply)", hint=_HINT
        ) from e
    except _DAMAGE as e:
        fault = f"lacks {e}" if isinstance(e, KeyError) else f"{e}"
        raise AttnscopeError(f"not an attnscope file of arrays ({fault})", hint=_HINT) from e
    require_version(report)
    check_axes(report)
    return report


def _from_npz(data: bytes) -> tuple[bytes | str, dict[str, Array]]:
    with np.load(io.BytesIO(data), allow_pickle=False) as file:
        arrays = dict(file)
    return arrays.pop(METADATA).item(), arrays


def _from_safetensors(data: bytes) -> tuple[bytes | str, dict[str, Array]]:
    start = 8 + int.from_bytes(data[:8], "little")
    header = decode_json(data[8:start], dict[str, Any])
    metadata = header.pop("__metadata__")[SAFETENSORS_KEY]
    arrays = {}
    for name, entry in header.items():
        numbers = np.frombuffer(
            data, _DTYPES[entry["dtype"]], prod(entry["shape"]), start + entry["data_offsets"][0]
        )
        arrays[name] = numbers.reshape(entry["shape"])
    return metadata, arrays
