"""The lines of a dump as plain data and as JSON: a header, one record per text, an end line.

Arrays of a record have the unit (a layer and head) as their first axis. They are NumPy arrays in memory and nested
lists in JSON, float32 in shortest exact digits; null stands for "none" (fewer sources than ranks, a fully masked
row), and in the stage `masked` for "not allowed".
"""

from collections.abc import Callable, Mapping
from inspect import cleandoc
from textwrap import indent
from typing import TYPE_CHECKING, Annotated, Any, Literal

import msgspec
import numpy as np

from attnscope.batch.header import Header
from attnscope.findings.arrays import Float1, Float2
from attnscope.findings.codec import clean_descriptions, encode_array
from attnscope.findings.record_parts import RECORD_PARTS
from attnscope.findings.row_statistics import RowArrays
from attnscope.findings.tokens import Token


def _nested(depth: int, kind: Any) -> dict[str, Any]:
    return {"type": "array", "items": _nested(depth - 1, kind)} if depth else {"type": kind}


_F3 = np.ndarray[tuple[int, int, int], np.dtype[np.float32]]
_I3 = np.ndarray[tuple[int, int, int], np.dtype[np.int32]]
Floats1 = Annotated[Float1, msgspec.Meta(extra_json_schema=_nested(1, ["number", "null"]))]
Floats2 = Annotated[Float2, msgspec.Meta(extra_json_schema=_nested(2, ["number", "null"]))]
Floats3 = Annotated[_F3, msgspec.Meta(extra_json_schema=_nested(3, ["number", "null"]))]
Places3 = Annotated[_I3, msgspec.Meta(extra_json_schema=_nested(3, "integer"))]


class TopArrays(msgspec.Struct, frozen=True, omit_defaults=True):
    """The strongest sources of every query, (unit, query, rank) each, strongest first.

    Attributes:
        keys: Position of the source; −1 where there are fewer sources than ranks.
        weight: α_ij, the attention weight.
        value: α_ij·‖v_j‖; with `--by value` and `--by projected`.
        projected: α_ij·‖v_j W_O^h‖ (Kobayashi et al., 2020); with `--by projected`.
    """

    keys: Places3
    weight: Floats3
    value: Floats3 | None = None
    projected: Floats3 | None = None


class EffectArrays(msgspec.Struct, frozen=True, omit_defaults=True):
    """The effect of cutting each head, as `attnscope ablate --each head` measures it: one number for every unit.

    Attributes:
        hidden: Change of the final hidden state, ‖after − before‖ / ‖before‖, averaged over the positions, or over all
            tokens if there are none; those whose state is 0 before are left out, and it is null if all are.
        weight: Weight that words give to tokens other than the first and special ones, averaged over words, without the
            cut.
        kl: KL(before ‖ after) of the predictions in bits, averaged over the positions; absent without an output head
            or position.
    """

    hidden: Floats1
    weight: Floats1
    kl: Floats1 | None = None


class RecordText(msgspec.Struct, frozen=True, omit_defaults=True):
    """A text of a dump, without what was kept of it.

    Attributes:
        index: Number of the record in the input, from 0.
        id: Id in the input; the number of its line (or row of a table) if it has none.
        line: Line in the input, from 1; for a .parquet file, the row.
        hash: First 16 hex digits of the SHA-256 of its texts (of its bytes if they cannot be read).
        status: `ok`, `skipped` (no text) or `failed`.
        error: Why it failed or was skipped.
        needs: How many numbers would have to be kept of a text that memory does not hold: the one failure that a later
            run tries again; absent otherwise.
        text: The text.
        pair: The second text of an encoder's pair.
        context: The text that provides keys and values in cross-attention.
        fields: All other members of the record in the input.
        notes: Remarks for the reader, such as what was truncated or left out.
        tokens: Its tokens.
        sources: Tokens of the context under cross-attention.
        queries: Positions of the rows.
        keys: Positions of the columns of stages; absent if no stage is kept.
        units: Layer and head of every unit: numbers, or `mean`.
        positions: Positions at which effects compare predictions and final hidden states: the last token of a causal
            model, the mask tokens of a masked one; absent if the hidden states of all tokens are compared.
    """

    index: int
    id: int | str
    line: int
    hash: str
    status: Literal["ok", "skipped", "failed"]
    error: str | None = None
    needs: int | None = None
    text: str | None = None
    pair: str | None = None
    context: str | None = None
    fields: dict[str, Any] = {}
    notes: list[str] = []
    tokens: list[Token] = []
    sources: list[Token] | None = None
    queries: list[int] = []
    keys: list[int] = []
    units: list[tuple[int | str, int | str]] = []
    positions: list[int] = []


# What holds the arrays of a part that has several: named by a struct, or by what was asked for
STRUCTURES: dict[str, Callable[..., Any]] = {
    "top": TopArrays,
    "rows": RowArrays,
    "effects": EffectArrays,
    "stages": dict,
}


def _record_struct() -> Any:
    """Return the struct of a record: a text, a field for each of RECORD_PARTS, and where its arrays are instead."""
    fields: list[Any] = []
    for part in RECORD_PARTS:
        kind: Any = STRUCTURES.get(part.name, (Floats1, Floats2, Floats3)[len(part.axes)])
        fields.append((part.name, dict[str, Floats3], {}) if kind is dict else (part.name, kind | None, None))
    meanings = {part.name: part.meaning for part in RECORD_PARTS} | {
        "shard": "The .safetensors file that holds the arrays instead, under `<index>/<name>`.",
        "shard_check": "CRC-32 of that file.",
    }
    lines = [cleandoc(str(RecordText.__doc__)).replace("A text of a dump, without what was kept of it.", "One text.")]
    lines += [indent(f"{name}: {meaning}", "    ") for name, meaning in meanings.items()]
    fields += [("shard", str | None, None), ("shard_check", str | None, None)]
    return msgspec.defstruct(
        "Record",
        fields,
        bases=(RecordText,),
        namespace={"__doc__": "\n".join(lines)},
        module=__name__,
        frozen=True,
        omit_defaults=True,
    )


if TYPE_CHECKING:  # the fields of parts are those of RECORD_PARTS, which a type checker does not see

    class Record(RecordText, frozen=True):
        """A text of a dump, with what was kept of it."""

        top: TopArrays | None = None
        rows: RowArrays | None = None
        columns: Floats2 | None = None
        pooled: Floats3 | None = None
        effects: EffectArrays | None = None
        stages: dict[str, Floats3] = {}
        shard: str | None = None
        shard_check: str | None = None
else:
    Record = _record_struct()


def gather_parts(arrays: Mapping[str, Any]) -> dict[str, Any]:
    """Gather the parts of a record, by name, from arrays that are named `part` or `part.array`.

    Raises:
        TypeError: A part has an array too many, or lacks one.
    """
    found: dict[str, dict[str, Any]] = {}
    for name, array in arrays.items():
        part, _, inner = name.partition(".")
        found.setdefault(part, {})[inner] = array
    make = STRUCTURES
    return {part: make[part](**its) if part in make else its.get("", its) for part, its in found.items()}


class End(msgspec.Struct, frozen=True):
    """The last line of a dump: without it, the dump is not finished.

    Attributes:
        end: True.
        records: Number of records in the dump.
        ok: Number of records with findings.
        skipped: Number of records without text.
        failed: Number of records that failed.
    """

    end: Literal[True]
    records: int
    ok: int
    skipped: int
    failed: int


def encode(line: Header | Record | End) -> bytes:
    """Return one line as strict JSON, without its check and newline."""
    return msgspec.json.encode(line, enc_hook=encode_array)


def json_schema() -> dict[str, Any]:
    """Generate the JSON Schema of a line of a dump from the types above."""
    lines, parts = msgspec.json.schema_components(
        (Header, Record, End), schema_hook=lambda _: {}, ref_template="#/$defs/{name}"
    )
    check = {"type": "string", "pattern": "^[0-9a-f]{8}$", "description": "CRC-32 of the file up to here."}
    for part in ("Header", "Record", "End"):
        parts[part]["properties"]["check"] = check
        parts[part]["required"].append("check")
    found = {"$schema": "https://json-schema.org/draft/2020-12/schema", "anyOf": list(lines), "$defs": parts}
    return clean_descriptions(found)  # type: ignore[no-any-return]


if __name__ == "__main__":
    import sys

    sys.stdout.buffer.write(msgspec.json.format(msgspec.json.encode(json_schema()), indent=1) + b"\n")
