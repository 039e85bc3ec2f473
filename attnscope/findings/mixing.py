"""What layers without softmax gave for one text: the exact matrix from tokens to tokens, of every shown head."""

from collections.abc import Iterator, Mapping
from typing import Annotated

import msgspec

from attnscope.findings.arrays import (
    OfDims,
    OfRanks,
    OfRows,
    RankedKeys,
    UnitMatrices,
    along,
)
from attnscope.findings.heads import HeadRef, Pooled
from attnscope.findings.tokens import LeftOut

_OfCells = Annotated[UnitMatrices, along("unit", "query", "key")] | None


class RankedHead(msgspec.Struct, frozen=True):
    """A head among those that `auto` chose from.

    Attributes:
        layer: Its layer.
        head: Its number, or that of a channel.
        share: Mean over rows of the share of |M| on other tokens, or on the named columns.
    """

    layer: int
    head: int
    share: float


class ReadKey(msgspec.Struct, frozen=True):
    """What the explained row reads of one key, dimension by dimension.

    Attributes:
        key: Position of the key.
        products: q ⊙ k, whose sum is q·k.
        decayed: The same, decayed from the key to the row.
        left: What the delta rule leaves of that; the same without a delta rule. Its sum times the key's write strength
            is M; an xLSTM divides it as it does the row.
    """

    key: Annotated[int, along(positions="source")]
    products: OfDims
    decayed: OfDims
    left: OfDims


class Mixing(msgspec.Struct, frozen=True, omit_defaults=True, kw_only=True):
    """The matrices M of layers without softmax, whose output is Σ_j M_ij v_j: signed, rows do not sum to 1.

    Attributes:
        units: Layer and head of every matrix.
        kinds: Kind of every layer, such as `gated delta`.
        chosen: Why it is shown, if the user did not name the head.
        matrix: M of the shown queries and keys; 0 for keys behind the query. Absent if no stage is kept.
        keys: Position of the strongest sources of every query, strongest first; −1 if there are fewer.
        mixing: M of these sources, with its sign; null if there are fewer.
        share: |M| of these sources, as a share of all |M| of the row.
        value: |M|·‖v‖ of these sources.
        by: The measure that ranks them: `weight`, for |M|, or `value`, for |M|·‖v‖.
        left_out: Tokens that are excluded from the ranking.
        row_sum: Sum of M over all sources of every query.
        size: Sum of |M| over all sources of every query.
        half_life: Number of tokens after which half of the state is left if each decays it as this one; with a decay of
            each channel, of their geometric mean. Null if it does not decay.
        write: How strongly the token is written to the state: β of the delta rule, the step Δ of Mamba; null in a layer
            that writes every token as it is.
        gate: Mean over the numbers of a head's output of the gate's factor on it, behind the norm or before it; null if
            the layer has none, or computes it where it is not seen.
        channels: Number of channels of each layer that has a matrix for every channel: its heads are channels, and
            `mean` is the mean of all of these matrices.
        ranked: The heads with the largest shares among those that one was chosen from, largest first.
        direct: q·k times decay and write strength: M before the delta rule takes away what the state holds, and without
            what Mamba adds of the token itself. Absent unless a single row is shown.
        products: q·k of a single row. Null if a decay of each channel stands inside of the product.
        decay: Decay from every key to that row; null as above.
        key_write: How strongly every key was written; see write.
        read_keys: The named keys of an explained row in detail, by default the one with the largest |M|; empty where
            there are no dimensions, as in a mean of channels.
        pooled: A map that replaces the matrix of a long text. Its numbers are shares of |M|.
    """

    units: Annotated[list[HeadRef], along("unit", filled=True)]
    kinds: Annotated[list[str], along("unit")]
    chosen: Annotated[list[str | None], along("unit")]
    keys: RankedKeys
    mixing: OfRanks
    share: OfRanks
    value: OfRanks
    row_sum: OfRows
    size: OfRows
    half_life: OfRows
    write: OfRows
    gate: OfRows | None = None
    channels: dict[int, int] = {}
    ranked: list[RankedHead] = []
    by: str = "weight"
    left_out: list[LeftOut] = []
    matrix: _OfCells = None
    direct: _OfCells = None
    products: _OfCells = None
    decay: _OfCells = None
    key_write: _OfCells = None
    read_keys: list[ReadKey] = []
    pooled: Pooled | None = None

    def axis_lengths(self) -> dict[str, int]:
        """Return the lengths of axes that its parts share."""
        return {"unit": len(self.units)}

    def contradictions(self, _lengths: Mapping[str, int]) -> Iterator[tuple[str, str]]:
        """Yield contradictions that axes cannot express; see `axes`."""
        if self.by not in ("weight", "value"):
            yield "by", f"is {self.by[:40]!r}, neither weight nor value"
