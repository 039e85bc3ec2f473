"""Findings as plain data: what every view and export reads, and nothing else. No torch in here.

A Report is versioned (`SCHEMA`), survives a round trip through JSON to the last bit of every float32, and can be
opened again without the model. Arrays are NumPy arrays in memory and nested lists in JSON.
"""

from typing import Annotated, Any

import msgspec
import numpy as np
import orjson

from attnscope.errors import AttnscopeError

SCHEMA = "attnscope.report/1"
STAGES = ("scores", "scaled", "masked", "weights", "output")

_ROW = {"type": "array", "items": {"type": ["number", "null"]}}
_Float1 = np.ndarray[tuple[int], np.dtype[np.float32]]
_Float2 = np.ndarray[tuple[int, int], np.dtype[np.float32]]
_Int2 = np.ndarray[tuple[int, int], np.dtype[np.int64]]
Floats = Annotated[_Float1, msgspec.Meta(extra_json_schema=_ROW)]
Matrix = Annotated[_Float2, msgspec.Meta(extra_json_schema={"type": "array", "items": _ROW})]
Places = Annotated[
    _Int2,
    msgspec.Meta(extra_json_schema={"type": "array", "items": {"type": "array", "items": {"type": "integer"}}}),
]


class Token(msgspec.Struct, frozen=True):
    """One token of a text.

    Attributes:
        id: The vocabulary id that the model was given.
        piece: The tokenizer's own spelling, such as `Ġriver` or `##ing`.
        text: The readable piece: what stands in the text, or the piece where nothing does.
        start: Where it starts in its text, in characters; None for a token that stands for no text.
        end: Where it ends, exclusive.
        special: Added by the tokenizer (such as `[CLS]`), or a special token that the user wrote, which has a span.
        segment: 0, or 1 for the second text of a pair; `start` and `end` count in that text.
    """

    id: int
    piece: str
    text: str
    start: int | None = None
    end: int | None = None
    special: bool = False
    segment: int = 0


class Provenance(msgspec.Struct, frozen=True):
    """What produced the numbers.

    Attributes:
        attnscope: Version of this program.
        torch: Version of torch.
        model: What the user named: a folder, a shipped sample or a config file.
        family: `model_type` of the checkpoint, or `config` for a stack described in TOML.
        fingerprint: SHA-256 (hex, first 16 digits) over config, tokenizer and tensor headers.
        engine: `native` or `transformers`.
        dtype: Type that the model ran in; scores and softmax are float32 whatever it says.
        device: `cpu`, `cuda:0`.
        weights: `trained`, or `random` where nobody trained them.
        n_layers: Layers in the model.
        n_heads: Query heads in a layer.
        notes: Anything else that changes how the numbers are read.
    """

    attnscope: str
    torch: str
    model: str
    family: str
    fingerprint: str
    engine: str
    dtype: str
    device: str
    weights: str
    n_layers: int
    n_heads: int
    notes: list[str] = []


class MaskUse(msgspec.Struct, frozen=True):
    """Which keys a query could see, and by whose decision.

    Attributes:
        own: The model's own mask, such as `causal` or `bidirectional`.
        used: The mask behind the numbers shown.
        what_if: None where `used` is the model's own; else `stack` (the whole model ran under the new mask) or
            `same-scores` (the q·k that the model computed under its own mask, masked anew).
    """

    own: str
    used: str
    what_if: str | None = None


class Top(msgspec.Struct, frozen=True):
    """The strongest sources of every shown query: arrays of one shape (queries, rank), strongest first.

    Where a query has fewer sources than there are ranks, `keys` is −1 and the numbers are null.

    Attributes:
        by: The measure that ranks them: `weight`, `value` or `projected`.
        keys: Position of the source.
        weight: α_ij, the attention weight.
        value: α_ij·‖v_j‖.
        projected: α_ij·‖v_j W_O^h‖ (Kobayashi et al., 2020); None where it was not asked for.
        left_out: What does not take part in the ranking: `special tokens`, `first token`.
    """

    by: str
    keys: Places
    weight: Matrix
    value: Matrix
    projected: Matrix | None = None
    left_out: list[str] = []


class Rows(msgspec.Struct, frozen=True):
    """Statistics of every shown query's whole row of weights, keys that are not shown included.

    Attributes:
        entropy: −Σ α log₂ α, in bits.
        first: Weight on the first token.
        special: Weight on special tokens.
        self: Weight on the query's own position; null under cross-attention.
        other: Weight on the rest: not the query itself, not special, not the first token.
        distance: Mean |query − key| in tokens, weighted by α; null under cross-attention.
    """

    entropy: Floats
    first: Floats
    special: Floats
    self: Floats
    other: Floats
    distance: Floats


class HeadReport(msgspec.Struct, frozen=True):
    """One layer and head over one text.

    Attributes:
        layer: Number from 0, or `mean` over the selected layers.
        head: Number from 0, or `mean` over the selected heads.
        chosen: How it came to be shown where the user did not name it, such as
            `auto: most mass on other words (0.71)`.
        scale: Factor from `scores` to `scaled`.
        softcap: c of c·tanh(x/c), applied to the scaled scores; None where the model has none.
        bias: Name of the position bias that `scaled` contains, such as `alibi`; None where there is none.
        stages: Stage name to matrix of shape (queries, keys); `output` is (queries, value width). In `masked`,
            −inf in memory and null in JSON mean "not allowed".
        fully_masked: Positions of the queries that may attend to nothing; their weights and output are null.
        top: Strongest sources per query.
        rows: Statistics per query.
    """

    layer: int | str
    head: int | str
    chosen: str | None
    scale: float
    softcap: float | None
    bias: str | None
    stages: dict[str, Matrix]
    fully_masked: list[int]
    top: Top
    rows: Rows


class TextReport(msgspec.Struct, frozen=True):
    """One text.

    Attributes:
        index: Number of the text within the call, from 0.
        text: The text.
        pair: The second text of an encoder's pair.
        tokens: Tokens of the query side, all of them.
        context: Tokens of the key side under cross-attention; None where queries and keys are the same tokens.
        queries: Positions that the rows of every matrix stand for.
        keys: Positions that the columns stand for.
        heads: One entry per shown layer and head.
        notes: What was left out of this text's report, and which option shows it.
    """

    index: int
    text: str
    pair: str | None
    tokens: list[Token]
    context: list[Token] | None
    queries: list[int]
    keys: list[int]
    heads: list[HeadReport]
    notes: list[str] = []

    @property
    def sources(self) -> list[Token]:
        """The tokens that keys stand for."""
        return self.tokens if self.context is None else self.context


class Report(msgspec.Struct, frozen=True):
    """What `attnscope run` found.

    Attributes:
        provenance: What produced the numbers.
        mask: Which keys a query could see.
        texts: One entry per text.
        schema: Name and version of this format.
    """

    provenance: Provenance
    mask: MaskUse
    texts: list[TextReport]
    schema: str = SCHEMA


def to_json(report: Report) -> bytes:
    """The Report as strict JSON on one line: float32 in shortest exact digits, null for −inf and for "none"."""
    return msgspec.json.encode(report, enc_hook=_encode_array)


def from_json(data: bytes) -> Report:
    """Read a Report that `to_json` wrote.

    Raises:
        AttnscopeError: It is not a Report, or one of another version.
    """
    try:
        report = msgspec.json.decode(data, type=Report, dec_hook=_decode_array)
    except (msgspec.DecodeError, ValueError) as e:
        raise AttnscopeError(f"not an attnscope report ({e})", hint="save one with --format json") from e
    if report.schema != SCHEMA:
        raise AttnscopeError(f"schema is '{report.schema}'", hint=f"this version reads '{SCHEMA}'")
    for text in report.texts:
        for head in text.heads:
            if "masked" in head.stages:
                masked = head.stages["masked"]
                masked[np.isnan(masked)] = -np.inf
    return report


def json_schema() -> dict[str, Any]:
    """JSON Schema of the Report, generated from the types above."""
    return msgspec.json.schema(Report, schema_hook=lambda _: {})


def _encode_array(value: Any) -> msgspec.Raw:
    return msgspec.Raw(orjson.dumps(np.ascontiguousarray(value), option=orjson.OPT_SERIALIZE_NUMPY))


def _decode_array(kind: Any, value: Any) -> Any:
    dtype = kind.__args__[1].__args__[0]
    array = np.array(value, dtype=dtype)
    return array.reshape(len(value), -1) if kind is not _Float1 and array.ndim == 1 else array


if __name__ == "__main__":
    import sys

    sys.stdout.buffer.write(msgspec.json.format(msgspec.json.encode(json_schema()), indent=1) + b"\n")
