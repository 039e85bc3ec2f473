"""The arrays of a Report as a .safetensors or .npz file: one array for a stage, with every layer and head."""

import io
import zipfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby
from math import prod
from typing import Any

import msgspec
import numpy as np

from attnscope.findings.codec import encode_array
from attnscope.findings.read_arrays import MEAN, METADATA, SAFETENSORS_KEY
from attnscope.findings.run import HeadReport, Report, TextReport

_DTYPES = {"float32": "F32", "int64": "I64"}
_LONGEST_ZIP = 1 << 30  # largest size in bytes of an entry without the zip format for large files
_LAST_AXES = {
    "stages": ("queries", "keys"),
    "output": ("queries", "dimensions"),
    "sink": ("queries",),
    "top": ("queries", "ranks"),
    "rows": ("queries",),
    "columns": ("all keys",),
    "pooled": ("runs of queries", "runs of keys"),
}

Array = np.ndarray[Any, Any]


@dataclass(frozen=True)
class LabelledArray:
    """An array in pieces, so that writing it needs no copy of the whole.

    Attributes:
        name: Its name.
        axes: Names of its axes.
        leading: Lengths of the axes that the pieces are along.
        pieces: Arrays of one shape and type, in the order of the leading axes.
    """

    name: str
    axes: tuple[str, ...]
    leading: tuple[int, ...]
    pieces: Sequence[Array]

    @property
    def shape(self) -> tuple[int, ...]:
        """Lengths of all axes."""
        return (*self.leading, *self.pieces[0].shape)

    @property
    def dtype(self) -> "np.dtype[Any]":
        """Type of its numbers."""
        found: np.dtype[Any] = self.pieces[0].dtype
        return found

    @property
    def nbytes(self) -> int:
        """Bytes of its numbers."""
        return prod(self.shape) * self.dtype.itemsize


def labelled_arrays(report: Report) -> list[LabelledArray]:
    """Return every array of a report, under names that begin with `text0.` and so on if it has several texts.

    `queries` and `keys` are the positions of rows and columns, `ids` and `context_ids` the tokens, `layers` and `heads`
    the numbers of layers and heads, MEAN for a mean. A stage, such as `weights`, and `sink`, `top.keys`,
    `rows.entropy`, `columns.mass` and `pooled.weights` begin with the axes layers and heads; with one axis, `units`,
    where `auto` has taken other heads in each layer: `layers` and `heads` then have an entry for each unit. A measure
    over layers is one array as well, such as `rollout`, with `rollout.keys` and `rollout.values` for the strongest
    sources; the metadata says which layers each of its matrices covers.
    """
    return [
        one
        for text in report.texts
        for one in _text_arrays(text, f"text{text.index}." if len(report.texts) > 1 else "")
    ]


def _text_arrays(text: TextReport, prefix: str) -> Iterator[LabelledArray]:
    layers, heads, axes = _units(text)
    positions: dict[str, tuple[str, Sequence[int]]] = {
        "queries": ("queries", text.queries),
        "keys": ("keys", text.keys),
        "ids": ("tokens", [token.id for token in text.tokens]),
        "layers": (axes[0], layers),
        "heads": (axes[-1], heads),
    }
    if text.context is not None:
        positions["context_ids"] = "context", [token.id for token in text.context]
    for name, (axis, numbers) in positions.items():
        yield LabelledArray(prefix + name, (axis,), (), [np.array(numbers, dtype=np.int64)])
    yield from _flow_arrays(text, prefix)
    leading = (len(layers), len(heads)) if len(axes) == 2 else (len(layers),)
    found = [_head_arrays(head) for head in text.heads]
    for name, (last, _) in found[0].items() if found else ():
        pieces = [arrays[name][1] for arrays in found]
        if len({piece.shape for piece in pieces}) == 1:
            yield LabelledArray(prefix + name, (*axes, *last), leading, pieces)
        else:  # layers whose values have other widths
            for head, piece in zip(text.heads, pieces, strict=True):
                yield LabelledArray(f"{prefix}L{head.layer}H{head.head}.{name}", last, (), [piece])


def _flow_arrays(text: TextReport, prefix: str) -> Iterator[LabelledArray]:
    if text.flows:
        name, count = prefix + text.flows[0].measure, (len(text.flows),)
        yield LabelledArray(name, ("matrices", "queries", "keys"), count, [flow.matrix for flow in text.flows])
        ranked = ("matrices", "queries", "ranks")
        yield LabelledArray(f"{name}.keys", ranked, count, [flow.keys for flow in text.flows])
        yield LabelledArray(f"{name}.values", ranked, count, [flow.values for flow in text.flows])


def _units(text: TextReport) -> tuple[list[int], list[int], tuple[str, ...]]:
    """Return numbers of layers and heads, and the axes that they are along."""
    by_layer = [[_number(head.head) for head in heads] for _, heads in groupby(text.heads, key=lambda head: head.layer)]
    layers = [_number(head.layer) for head in text.heads]
    if by_layer and all(heads == by_layer[0] for heads in by_layer):
        return layers[:: len(by_layer[0])], by_layer[0], ("layers", "heads")
    return layers, [_number(head.head) for head in text.heads], ("units",)


def _number(label: int | str) -> int:
    return label if isinstance(label, int) else MEAN


def _head_arrays(head: HeadReport) -> dict[str, tuple[tuple[str, ...], Array]]:
    """Return the arrays of a head, each with its last axes."""
    found: dict[str, tuple[tuple[str, ...], Array]]
    found = {name: (_LAST_AXES.get(name, _LAST_AXES["stages"]), matrix) for name, matrix in head.stages.items()}
    if head.sink is not None:
        found["sink"] = _LAST_AXES["sink"], head.sink
    for part in ("top", "rows", "pooled", "columns"):
        struct = getattr(head, part)
        for field in () if struct is None else struct.__struct_fields__:
            value = getattr(struct, field)
            if isinstance(value, np.ndarray):
                found[f"{part}.{field}"] = _LAST_AXES[part], value
    if head.pooled is not None:
        for field in ("queries", "keys"):
            found[f"pooled.{field}"] = ("starts and end",), np.array(getattr(head.pooled, field), dtype=np.int64)
    return found


def _metadata(report: Report, arrays: Sequence[LabelledArray]) -> bytes:
    """Return all that is not in the arrays, as JSON."""
    texts = {f"text{text.index}": _text_facts(text) for text in report.texts}
    axes = {one.name: one.axes for one in arrays}
    facts = {
        "schema": report.schema,
        "provenance": report.provenance,
        "mask": report.mask,
        "axes": axes,
        "texts": texts,
    }
    return msgspec.json.encode(facts, enc_hook=encode_array)


def _text_facts(text: TextReport) -> dict[str, Any]:
    heads = {
        f"L{head.layer}H{head.head}": {
            **{field: getattr(head, field) for field in ("chosen", "scale", "softcap", "bias", "fully_masked")},
            "by": head.top.by,
            "left_out": head.top.left_out,
            "means": head.means,
            "columns_total": None if head.columns is None else head.columns.total,
        }
        for head in text.heads
    }
    facts = {
        field: getattr(text, field)
        for field in text.__struct_fields__
        if field not in ("index", "queries", "keys", "heads", "flows")
    }
    if text.flows:
        named = ("measure", "layers", "nothing", "left_out")
        facts["flows"] = [{field: getattr(flow, field) for field in named} for flow in text.flows]
    return {**facts, "heads": heads}


def safetensors_parts(report: Report) -> Iterator[bytes]:
    """Yield a header, then every array from memory: the library's writer makes two more copies of each."""
    arrays = labelled_arrays(report)
    # under one key: the order of several is not kept
    header: dict[str, Any] = {"__metadata__": {SAFETENSORS_KEY: _metadata(report, arrays).decode()}}
    # widest numbers first, so that each array begins at a multiple of its numbers' size
    arrays.sort(key=lambda one: (-one.dtype.itemsize, one.name))
    end = 0
    for one in arrays:
        start, end = end, end + one.nbytes
        header[one.name] = {"dtype": _DTYPES[one.dtype.name], "shape": one.shape, "data_offsets": (start, end)}
    text = msgspec.json.encode(header)
    text += b" " * (-len(text) % 8)
    yield len(text).to_bytes(8, "little") + text
    for one in arrays:
        yield from _numbers(one)


def npz_parts(report: Report) -> Iterator[bytes]:
    """Yield what numpy.savez would write, array by array, with the metadata as an array without axes."""
    arrays = labelled_arrays(report)
    metadata = np.array(_metadata(report, arrays))
    file = _Collected()
    with zipfile.ZipFile(file, "w") as archive:
        for one in [LabelledArray(METADATA, (), (), [metadata]), *arrays]:
            with archive.open(zipfile.ZipInfo(f"{one.name}.npy"), "w", force_zip64=one.nbytes > _LONGEST_ZIP) as entry:
                header = {"descr": one.dtype.str, "fortran_order": False, "shape": one.shape}
                np.lib.format.write_array_header_1_0(entry, header)
                for numbers in _numbers(one):
                    entry.write(numbers)
                    yield file.take()
    yield file.take()


def _numbers(one: LabelledArray) -> Iterator[bytes]:
    return (piece.tobytes() for piece in one.pieces)  # contiguous rows, also of a slice


class _Collected(io.RawIOBase):
    """A file that hands over what was written to it; it cannot go back, so an archive in it is written in one pass."""

    def __init__(self) -> None:
        self._written: list[bytes] = []

    def writable(self) -> bool:
        return True

    def write(self, data: Any) -> int:
        self._written.append(bytes(data))
        return len(data)

    def take(self) -> bytes:
        written, self._written = b"".join(self._written), []
        return written
