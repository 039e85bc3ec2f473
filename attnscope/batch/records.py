"""The lines of a dump as plain data and as JSON: a header, one record per text, an end line.

Arrays of a record have the unit (a layer and head) as their first axis. They are NumPy arrays in memory and nested
lists in JSON, float32 in shortest exact digits; null stands for "none" (fewer sources than ranks, a fully masked
row), and in the stage `masked` for "not allowed".
"""

from collections.abc import Mapping
from typing import Annotated, Any, Literal

import msgspec
import numpy as np

from attnscope.batch.header import Header
from attnscope.findings.arrays import Floats, Matrices, Matrix, Places3, along
from attnscope.findings.axes import arrays_in, declared_paths, structs_in
from attnscope.findings.codec import encode_array
from attnscope.findings.head_arrays import HeadArrays
from attnscope.findings.row_statistics import RowArrays
from attnscope.findings.spans import TextSpans
from attnscope.findings.tokens import Token

_OfRanks = Annotated[Matrices, along("unit", "query", "rank")]


class TopArrays(msgspec.Struct, frozen=True, omit_defaults=True):
    """The strongest sources of every query, (unit, query, rank) each, strongest first.

    Attributes:
        keys: Position of the source; −1 where there are fewer sources than ranks.
        weight: α_ij, the attention weight.
        value: α_ij·‖v_j‖; with `--by value` and `--by projected`.
        projected: α_ij·‖v_j W_O^h‖ (Kobayashi et al., 2020); with `--by projected`.
    """

    keys: Annotated[Places3, along("unit", "query", "rank", positions="source", or_none=True)]
    weight: _OfRanks
    value: _OfRanks | None = None
    projected: _OfRanks | None = None


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

    hidden: Annotated[Floats, along("unit")]
    weight: Annotated[Floats, along("unit")]
    kl: Annotated[Floats, along("unit")] | None = None


class SpanArrays(msgspec.Struct, frozen=True, omit_defaults=True):
    """The weight between the spans of a text; `divided` has their names.

    Attributes:
        weights: Average weight of the query span's tokens on the key span's tokens together, (unit, query span, key
            span); null in the rows of a span that may attend to nothing.
        sink: Average weight that the tokens of a span give to the head's sink, (unit, query span); absent if no layer
            has sinks.
    """

    weights: Annotated[Matrices, along("unit", "span", "key span")]
    sink: Annotated[Matrix, along("unit", "span")] | None = None


class SpanEffectArrays(msgspec.Struct, frozen=True, omit_defaults=True):
    """The effect of cutting the answer off from each span, as in `attnscope ablate --each span`.

    Each array has one number for every span; NaN for those that are not cut: the answer's own, and those behind it. The
    edges are cut in every kept layer and head, with their scores −inf.

    Attributes:
        hidden: Change of the final hidden state, ‖after − before‖ / ‖before‖, averaged over `span_positions`, or over
            all tokens if there are none.
        weight: Weight that `span_rows` give to the span without the cut, averaged over these layers, heads and rows.
        kl: KL(before ‖ after) of the predictions in bits, averaged over the positions; absent without an output head
            or position.
        loss: Bits of log-probability that the answer loses; absent without an answer.
    """

    hidden: Annotated[Floats, along("key span")]
    weight: Annotated[Floats, along("key span")]
    kl: Annotated[Floats, along("key span")] | None = None
    loss: Annotated[Floats, along("key span")] | None = None


class Record(msgspec.Struct, frozen=True, omit_defaults=True):
    """One text.

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
        top: Strongest sources.
        rows: Row statistics.
        columns: Weight that every source gets, summed over the shown queries: (unit, source).
        heads: A few numbers of every head, averaged over rows.
        received: Weight that every source receives from other tokens, (unit, source); only in reports, see
            HeadReport.
        pooled: Weights between runs of neighbouring tokens, (unit, rows, columns): summed over a run of keys, and
            averaged over a run of those queries that may attend to anything. At most as large as there are tokens.
        divided: The text divided into spans; with `--keep spans` and `--keep span_effects`.
        spans: The weight between them.
        effects: What changes where each head is cut.
        span_effects: Effect of cutting the answer, or `--query`, off from each span.
        span_rows: Positions of the tokens whose reading `span_effects` cuts.
        span_positions: Positions at which they compare predictions and final hidden states.
        stages: Stage name to matrices, (unit, query, key), or (unit, query, value width) for `output`.
        shard: The .safetensors file that holds the arrays instead, under `<index>/<name>`.
        shard_check: CRC-32 of that file.
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
    queries: Annotated[list[int], along("query", positions="token", ascending=True)] = []
    keys: Annotated[list[int], along("key", positions="source", ascending=True)] = []
    units: list[tuple[int | str, int | str]] = []
    positions: Annotated[list[int], along("position", positions="token", ascending=True)] = []
    top: TopArrays | None = None
    rows: RowArrays | None = None
    columns: Annotated[Matrix, along("unit", "source")] | None = None
    heads: HeadArrays | None = None
    received: Annotated[Matrix, along("unit", "source")] | None = None
    pooled: Annotated[Matrices, along("unit", "query run", "key run")] | None = None
    divided: TextSpans | None = None
    spans: SpanArrays | None = None
    effects: EffectArrays | None = None
    span_effects: SpanEffectArrays | None = None
    span_rows: Annotated[list[int], along("span row", positions="token", ascending=True)] = []
    span_positions: Annotated[list[int], along("span position", positions="token", ascending=True)] = []
    stages: Annotated[
        dict[str, Matrices], along("unit", "query", "key", members=(("output", ("unit", "query", "width")),))
    ] = {}
    shard: str | None = None
    shard_check: str | None = None

    @property
    def key_tokens(self) -> list[Token]:
        """Tokens of the keys."""
        return self.tokens if self.sources is None else self.sources

    def axis_lengths(self) -> dict[str, int]:
        """Return the lengths of axes that its parts share."""
        lengths = {"token": len(self.tokens), "source": len(self.key_tokens), "unit": len(self.units)}
        lengths |= {"query": len(self.queries), "key": len(self.keys), "word": len(self.tokens)}
        if self.divided is not None:
            lengths |= dict.fromkeys(("span", "key span"), len(self.divided.names))
        runs = () if self.pooled is None else self.pooled.shape[1:]
        most = (("query run", "token"), ("key run", "source"))
        return lengths | {axis: min(count, lengths[of]) for count, (axis, of) in zip(runs, most, strict=False)}


def gather_parts(arrays: Mapping[str, Any]) -> dict[str, Any]:
    """Gather the parts of a record from arrays named `part` or `part.array`; TypeError if a part's arrays differ."""
    parts: dict[str, dict[str, Any]] = {}
    for name, array in arrays.items():
        part, _, inner = name.partition(".")
        parts.setdefault(part, {})[inner] = array
    structs = structs_in(Record)
    return {part: structs[part](**own) if part in structs else own.get("", own) for part, own in parts.items()}


def arrays_of(record: Record) -> "dict[str, np.ndarray[Any, Any]]":
    """Return every array of a record: `top.keys`, `rows.entropy`, `columns`, `pooled`, `stages.weights` and so on."""
    return {path: array for path, _, array in arrays_in(record)}


def axes_of(array: str) -> tuple[str, ...]:
    """Return the axes of an array of a record, by its path, such as `stages.output`."""
    declared = declared_paths(Record)
    part, _, member = array.partition(".")
    return declared[array].axes if array in declared else declared[part].of_member(member).axes


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
