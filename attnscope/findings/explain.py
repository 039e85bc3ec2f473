"""What `attnscope explain` found, as plain data: one query of one head, from what enters the layer to its output."""

from collections.abc import Iterator, Mapping
from typing import Annotated, Literal

import msgspec

from attnscope.findings.arrays import Floats, Matrix, OfDims, along
from attnscope.findings.provenance import TextFindings
from attnscope.findings.tables import Table

EXPLAIN_SCHEMA = "attnscope.explain/1"
# A step of the arithmetic; `key` is that of the cells in depth.
Step = Literal[
    "embedding",
    "embedding norm",
    "norm",
    "query",
    "key",
    "position",
    "parts",
    "scaled",
    "weights",
    "output",
    "value",
    "norm of the residual",
    "layer output",
]
_OfBlend = Annotated[Floats, along("blend")]
_OfKeys = Annotated[Floats, along("key")]


class Vector(msgspec.Struct, frozen=True):
    """One vector of the computation.

    Attributes:
        name: Name of the vector, such as `token`, `residual`, `query`.
        origin: What it is computed from, such as `W_q x`.
        norm: Its Euclidean norm.
        values: The vector.
        bias: Whether a bias is added.
        position: Position that it is rotated by; None if it is not rotated.
        times: Factor on a rotated vector, such as `, × 1.2`; empty for 1.
    """

    name: str
    origin: str
    norm: float
    values: Floats
    bias: bool = False
    position: int | None = None
    times: str = ""

    @property
    def formula(self) -> str:
        """How it is computed, such as `W_q x + b`, or `rotated by position 3`."""
        position_text = ""
        if self.position is not None:
            position_text = f" by position {self.position}"
        return f"{self.origin}{' + b' if self.bias else ''}{position_text}{self.times}"


class ArithmeticCheck(msgspec.Struct, frozen=True):
    """A step of the arithmetic, recomputed in float64 and compared with the model.

    Attributes:
        name: The step; each only if the model has it.
        said: The equation that is checked.
        difference: The largest absolute difference.
        tolerance: Largest difference that rounding explains in the type of the step.
    """

    name: Step
    said: str
    difference: float
    tolerance: float

    @property
    def holds(self) -> bool:
        """Whether they differ only by rounding."""
        return self.difference <= self.tolerance


class SoftmaxEffects(msgspec.Struct, frozen=True):
    """What scale and mask do to the row's softmax; numbers of all allowed keys, and of the sink if there is one.

    Attributes:
        spread: Standard deviation of q·k.
        scaled_spread: The same after the scale.
        entropy: Entropy of the weights, in bits.
        unscaled_entropy: Entropy that they would have without the scale, in bits.
        masked_after: Sum of the weights if the mask were applied after the softmax; None if the mask forbids no key.
    """

    spread: float
    scaled_spread: float
    entropy: float
    unscaled_entropy: float
    masked_after: float | None = None


class Row(msgspec.Struct, frozen=True):
    """The query's row, step by step: one number for each position in Explanation.keys, float32.

    Attributes:
        key_norms: ‖k_j‖ of the keys that attention uses (after norm and rotation).
        value_norms: ‖v_j‖.
        scores: q·k.
        times_scale: scores × scale.
        capped: c·tanh(x/c) of `times_scale`; None if the model has no soft-cap.
        bias: Position bias; None if the model has none.
        content_position: Part of a disentangled bias: the query with a key made of the distance; None without.
        position_content: Part of a disentangled bias: a query made of the distance with the key; None without.
        scaled: Scores after scale, soft-cap and bias.
        masked: `scaled` if the mask allows the key; otherwise −inf in memory and null in JSON.
        exponentials: exp(masked − the row's maximum); null in a fully masked row.
        weights: Each exponential divided by their sum; null in a fully masked row.
    """

    key_norms: _OfKeys
    value_norms: _OfKeys
    scores: _OfKeys
    times_scale: _OfKeys
    capped: _OfKeys | None
    bias: _OfKeys | None
    scaled: _OfKeys
    masked: _OfKeys
    exponentials: _OfKeys
    weights: _OfKeys
    content_position: _OfKeys | None = None
    position_content: _OfKeys | None = None


class Rest(msgspec.Struct, frozen=True):
    """Sums over the keys that Explanation.keys leaves out.

    Attributes:
        allowed: Number of keys that the mask allows.
        barred: Number of keys that the mask forbids.
        exponentials: Sum of their exponentials.
        weight: Sum of their weights.
        blend: Σ α·v over them, (Ev,).
    """

    allowed: int
    barred: int
    exponentials: float
    weight: float
    blend: _OfBlend


class Sink(msgspec.Struct, frozen=True):
    """A logit that takes part in the softmax and belongs to no token: it has no value vector.

    Attributes:
        logit: The head's sink logit: one more masked score.
        exponential: exp(logit − the row's maximum).
        weight: Weight of the sink: the weights of all keys sum to 1 minus this.
    """

    logit: float
    exponential: float
    weight: float


class Part(msgspec.Struct, frozen=True):
    """Contribution of one dimension, or one rotated pair of dimensions, to a dot product; float64.

    Attributes:
        dims: The dimension; for a rotated pair, both.
        q: Values of the query in these dimensions.
        k: Values of the key in these dimensions.
        product: Sum of q × k over them.
        wavelength: Tokens per full turn of a rotated pair; None for a dimension that is not rotated.
        before: Product before the rotation; None for a dimension that is not rotated.
    """

    dims: Annotated[list[int], along("dim")]
    q: OfDims
    k: OfDims
    product: float
    wavelength: float | None = None
    before: float | None = None


class Rival(msgspec.Struct, frozen=True):
    """The allowed key with the largest score, or the next one for that key itself, and what is between both keys.

    The ratio of the keys' weights is e to the power of `lead`, if the mask allows both.

    Attributes:
        key: Its position.
        score: Its q·k.
        key_norm: Its ‖k‖.
        weight: Its weight.
        lead: What softmax takes for the cell, without the mask, minus the same for the rival; the sum of the following.
        content: Part of it that q·k × scale makes, without a rotation.
        rotation: Part that the rotation by positions adds; None if the model rotates nothing.
        cap: Part that the soft-cap adds; None if the model has none.
        bias: Part that the position bias adds; None if the model has none.
    """

    key: int
    score: float
    key_norm: float
    weight: float
    lead: float
    content: float
    rotation: float | None = None
    cap: float | None = None
    bias: float | None = None


class Reason(msgspec.Struct, frozen=True):
    """Why a cell has its weight.

    Attributes:
        rank: Place of what softmax takes for the key, without the mask, among the allowed keys and itself; 1 is the
            largest, and equal keys share a place.
        allowed: Number of keys that the mask allows.
        rival: The key that it is compared with; None if the mask allows no other.
    """

    rank: int
    allowed: int
    rival: Rival | None


class ExplainedCell(msgspec.Struct, frozen=True):
    """One query and one key in detail.

    Attributes:
        key: Position of the key.
        chosen: Why it is this key.
        allowed: The mask lets the query see it.
        score: q·k as attention computed it, float32.
        key_steps: The key after the projection, after the norm if the model has one, and after the rotation if the
            model has one.
        parts: Every part of q·k, largest magnitude first.
        total: Sum of the parts, float64.
        reason: Why it has its weight; None in a fully masked row.
    """

    key: int
    chosen: str
    allowed: bool
    score: float
    key_steps: Annotated[list[Vector], along(filled=True)]
    parts: list[Part]
    total: float
    reason: Reason | None = None


class Explanation(TextFindings, frozen=True):
    """What `attnscope explain` found.

    Attributes:
        query: Position of the query.
        layer: Number of the layer.
        head: Number of the query head.
        group: Number of the key/value head that serves it.
        chosen: Why this layer and head are shown, if the user did not name them.
        inputs: The inputs of the layer: for layer 0, the vectors that the embedding sums; for later layers, the
            residual stream before each layer; the last vector is the one that queries are computed from.
        query_steps: The query after the projection, after the norm if the model has one, and after the rotation if the
            model has one.
        scale: Factor on the scores.
        softcap: c of c·tanh(x/c); None if there is none.
        bias: Name of the position bias; None if there is none.
        keys: Positions of the keys that are shown, ascending.
        row: The numbers of these keys, step by step.
        key_vectors: k_j of the keys that attention uses (after norm and rotation), (keys, E).
        value_vectors: v_j, (keys, Ev).
        rest: Sums over the keys that are not shown; None if all are shown.
        maximum: Largest masked score, or the sink's logit if that is larger; None in a fully masked row.
        exponential_sum: Sum of the exponentials over all keys and the sink; None in a fully masked row.
        fully_masked: Whether the mask allows the query no key.
        cells: The cells in depth.
        blend: Σ α·v, float64 rounded to float32; empty in a fully masked row.
        output: The output of attention for the query; empty in a fully masked row.
        projected: That output (behind the gate, if there is one) after the output projection; None if the layer has no
            projection, or the row is fully masked.
        checks: Every step, recomputed and compared.
        notes: What was left out or shortened.
        sink: The sink's part of the softmax; None if the model has none, or in a fully masked row.
        gate: The gate on the head's output; None if the layer has none, or the row is fully masked.
        gated: The output times the gate, which the output projection takes; None as the gate is.
        layer_mask: The mask that was used in this layer; None if `mask.used` holds for every layer.
        effects: What scale and mask do to the softmax; None in a fully masked row.
        rest_of_layer: What follows attention: all heads after the output projection, the residual stream, norms, the
            MLP and the layer's output; empty if that is not known.
        schema: Name and version of this format.
    """

    query: Annotated[int, along(positions="token")]
    layer: int
    head: int
    group: int
    chosen: str | None
    inputs: Annotated[list[Vector], along(filled=True)]
    query_steps: Annotated[list[Vector], along(filled=True)]
    scale: float
    softcap: float | None
    bias: str | None
    keys: Annotated[list[int], along("key", positions="source", ascending=True)]
    row: Row
    key_vectors: Annotated[Matrix, along("key", "key width")]
    value_vectors: Annotated[Matrix, along("key", "width")]
    rest: Rest | None
    maximum: float | None
    exponential_sum: float | None
    fully_masked: bool
    cells: Annotated[list[ExplainedCell], along(filled=True)]
    blend: _OfBlend
    output: _OfBlend
    projected: Vector | None
    checks: list[ArithmeticCheck]
    notes: list[str] = []
    sink: Sink | None = None
    gate: Vector | None = None
    gated: Vector | None = None
    layer_mask: str | None = None
    effects: SoftmaxEffects | None = None
    rest_of_layer: Annotated[list[Vector], along(filled=False)] = []
    schema: str = EXPLAIN_SCHEMA

    @property
    def head_width(self) -> int:
        """Numbers in a query and a key."""
        return int(self.key_vectors.shape[1])

    def axis_lengths(self) -> dict[str, int]:
        """Return the lengths of axes; the blend of a fully masked row is empty."""
        return (
            super().axis_lengths()
            | {"key": len(self.keys)}
            | {"blend": 0 if self.fully_masked else self.value_vectors.shape[1]}
        )

    def contradictions(self, _lengths: Mapping[str, int]) -> Iterator[tuple[str, str]]:
        """Yield contradictions that axes cannot express; see `axes`."""
        for name, field in (("capped", "softcap"), ("bias", "bias")):
            if (getattr(self.row, name) is None) != (getattr(self, field) is None):
                yield (
                    f"row.{name}",
                    f"is {'missing' if getattr(self.row, name) is None else 'there'}, unlike {field}",
                )
        for n, cell in enumerate(self.cells):
            if cell.key not in self.keys:
                yield f"cells[{n}].key", f"is {cell.key}, which is not among keys"

    def table(self) -> Table:
        """Return a row for every key, with its numbers step by step."""
        numbers = {
            name: values
            for name, values in msgspec.structs.asdict(self.row).items()
            if values is not None
        }
        return {
            "key": self.keys,
            "key_token": [self.sources[key].text for key in self.keys],
            **numbers,
        }

    def check(self, name: Step) -> ArithmeticCheck | None:
        """Return the check of this name, if the model has the step."""
        return next((check for check in self.checks if check.name == name), None)
