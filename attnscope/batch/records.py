"""The lines of a dump as plain data and as JSON: a header, one record per text, an end line.

Arrays of a record have the unit (a layer and head) as their first axis. They are NumPy arrays in memory and nested
lists in JSON, float32 in shortest exact digits; null stands for "none" (fewer sources than ranks, a fully masked
row), and in the stage `masked` for "not allowed".
"""

from typing import Annotated, Any, Literal

import msgspec
import numpy as np

from attnscope.batch.header import Header
from attnscope.findings.arrays import Floats, along
from attnscope.findings.axes import arrays_in
from attnscope.findings.codec import encode_array
from attnscope.findings.heads import UnitArrays
from attnscope.findings.spans import TextSpans
from attnscope.findings.tokens import Token


class EffectArrays(msgspec.Struct, frozen=True, omit_defaults=True):
    """The effect of cutting each head, as `attnscope ablate --each head` measures it: one number for every unit.

    Attributes:
        hidden: Change of the final hidden state, ‖after − before‖ / ‖before‖, averaged over the positions, or over all
            tokens if there are none; those whose state is 0 before are left out, and it is null if all are.
        weight: Weight that words give to tokens other than the first and special ones, averaged over words behind
            the first token, without the cut.
        kl: KL(before ‖ after) of the predictions in bits, averaged over the positions; absent without an output head
            or position.
        target: Change of the target's logit, or of the difference of two; absent without a target.
    """

    hidden: Annotated[Floats, along("unit")]
    weight: Annotated[Floats, along("unit")]
    kl: Annotated[Floats, along("unit")] | None = None
    target: Annotated[Floats, along("unit")] | None = None


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


class Record(UnitArrays, frozen=True, omit_defaults=True):
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
        positions: Positions at which effects compare predictions and final hidden states: the last token of a causal
            model, the mask tokens of a masked one; absent if the hidden states of all tokens are compared.
        divided: The text divided into spans; with `--keep spans` and `--keep span_effects`.
        effects: What changes where each head is cut.
        span_effects: Effect of cutting the answer, or `--query`, off from each span.
        span_rows: Positions of the tokens whose reading `span_effects` cuts.
        span_positions: Positions at which they compare predictions and final hidden states.
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
    positions: Annotated[list[int], along("position", positions="token", ascending=True)] = []
    divided: TextSpans | None = None
    effects: EffectArrays | None = None
    span_effects: SpanEffectArrays | None = None
    span_rows: Annotated[list[int], along("span row", positions="token", ascending=True)] = []
    span_positions: Annotated[
        list[int], along("span position", positions="token", ascending=True)
    ] = []
    shard: str | None = None
    shard_check: str | None = None

    @property
    def key_tokens(self) -> list[Token]:
        """Tokens of the keys."""
        if self.sources is None:
            return self.tokens
        return self.sources

    def axis_lengths(self) -> dict[str, int]:
        """Return the lengths of axes that its parts share."""
        lengths = super().axis_lengths() | {
            "token": len(self.tokens),
            "source": len(self.key_tokens),
        }
        lengths |= {"query": len(self.queries), "key": len(self.keys), "word": len(self.tokens)}
        if self.divided is not None:
            lengths |= dict.fromkeys(("span", "key span"), len(self.divided.names))
        return lengths


def arrays_of(record: Record) -> "dict[str, np.ndarray[Any, Any]]":
    """Return every array of a record: `top.keys`, `rows.entropy`, `columns`, `stages.weights` and so on."""
    return {path: array for path, _, array in arrays_in(record)}


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
