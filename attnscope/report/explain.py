"""What `attnscope explain` found, as plain data: one query of one head, from what enters the layer to its output."""

import msgspec

from attnscope.report.arrays import Floats, Matrix
from attnscope.report.run import TextFindings

EXPLAIN_SCHEMA = "attnscope.explain/1"


class Vector(msgspec.Struct, frozen=True):
    """One vector on the way.

    Attributes:
        name: What it is, such as `token`, `residual`, `query`.
        made: How it was made, such as `W_q x + b`.
        norm: Its Euclidean norm.
        values: The vector.
    """

    name: str
    made: str
    norm: float
    values: Floats


class ArithmeticCheck(msgspec.Struct, frozen=True):
    """A step of the arithmetic, recomputed in float64 and compared with the model.

    Attributes:
        name: `embedding`, `embedding norm`, `norm`, `query`, `key` (those in depth), `position`, `parts`, `scaled`,
            `weights` or `output`; each where the model has the step.
        said: What equals what.
        difference: The largest absolute difference.
        tolerance: What rounding may make of it in the type that the step ran in.
    """

    name: str
    said: str
    difference: float
    tolerance: float

    @property
    def holds(self) -> bool:
        """Whether the two differ only by rounding."""
        return self.difference <= self.tolerance


class Row(msgspec.Struct, frozen=True):
    """The query's row, step by step: one number for each position in Explanation.keys, float32.

    Attributes:
        key_norms: ‖k_j‖ as attention takes it (normed and rotated).
        value_norms: ‖v_j‖.
        scores: q·k.
        times_scale: scores × scale.
        capped: c·tanh(x/c) of those; None where the model has no soft-cap.
        bias: What a position bias adds; None where the model has none.
        scaled: After scale, soft-cap and bias.
        masked: The same where the mask allows it; −inf in memory and null in JSON where it does not.
        exponentials: exp(masked − the row's maximum); null in a fully masked row.
        weights: Each exponential over their sum; null in a fully masked row.
    """

    key_norms: Floats
    value_norms: Floats
    scores: Floats
    times_scale: Floats
    capped: Floats | None
    bias: Floats | None
    scaled: Floats
    masked: Floats
    exponentials: Floats
    weights: Floats


class Rest(msgspec.Struct, frozen=True):
    """The keys that Explanation.keys leaves out, as sums.

    Attributes:
        allowed: How many the mask allows.
        barred: How many it does not.
        exponentials: Sum of their exponentials.
        weight: Sum of their weights.
        blend: Σ α·v over them, (Ev,).
    """

    allowed: int
    barred: int
    exponentials: float
    weight: float
    blend: Floats


class Sink(msgspec.Struct, frozen=True):
    """A logit that takes part in the softmax and belongs to no token: it has no value vector.

    Attributes:
        logit: The head's, one more masked score.
        exponential: exp(logit − the row's maximum).
        weight: Its share: the weights of all keys sum to 1 minus this.
    """

    logit: float
    exponential: float
    weight: float


class Part(msgspec.Struct, frozen=True):
    """What one dimension, or one rotated pair of dimensions, adds to a dot product; float64.

    Attributes:
        dims: The dimension; for a rotated pair, both.
        q: The query there.
        k: The key there.
        product: Sum of q × k over them.
        wavelength: Tokens that a rotated pair takes for a whole turn; None for a dimension that is not rotated.
        before: Its product before the rotation; None likewise.
    """

    dims: list[int]
    q: list[float]
    k: list[float]
    product: float
    wavelength: float | None = None
    before: float | None = None


class ExplainedCell(msgspec.Struct, frozen=True):
    """One query and one key in depth.

    Attributes:
        key: Position of the key.
        chosen: `--key`, or why it is this one.
        allowed: The mask lets the query see it.
        score: q·k as attention computed it, float32.
        key_steps: The key as projected, as normed where the model norms it, and as rotated where it rotates it.
        parts: Every part of q·k, largest magnitude first.
        total: Sum of the parts, float64.
    """

    key: int
    chosen: str
    allowed: bool
    score: float
    key_steps: list[Vector]
    parts: list[Part]
    total: float


class Explanation(TextFindings, frozen=True):
    """What `attnscope explain` found.

    Attributes:
        query: Position of the query.
        layer: Number of the layer.
        head: Number of the query head.
        group: Number of the key/value head that serves it.
        chosen: How layer and head came to be shown where the user did not name them.
        inputs: What enters the layer: for layer 0 the vectors that the embedding sums, later the residual stream as
            each layer found it; at the end what queries are made of.
        query_steps: The query as projected, normed, rotated; each where the model does so.
        scale: Factor on the scores.
        softcap: c of c·tanh(x/c); None for none.
        bias: Name of the position bias; None for none.
        keys: Positions that are shown, ascending.
        row: Their numbers.
        key_vectors: k_j as attention takes it, (keys, E).
        value_vectors: v_j, (keys, Ev).
        rest: The keys that are not shown; None where all are.
        maximum: Largest masked score, or the sink's logit where that is larger; None in a fully masked row.
        exponential_sum: Sum of the exponentials over all keys, and of the sink's; None likewise.
        fully_masked: The mask lets the query see nothing.
        cells: The cells in depth.
        blend: Σ α·v, float64 rounded to float32; empty in a fully masked row.
        output: What attention gave; empty likewise.
        projected: What the output projection makes of it; None where the layer has none, or nothing came out.
        checks: Every step, done again.
        notes: What was left out or cut.
        sink: What the head's sink takes; None where the model has none, or in a fully masked row.
        schema: Name and version of this format.
    """

    query: int
    layer: int
    head: int
    group: int
    chosen: str | None
    inputs: list[Vector]
    query_steps: list[Vector]
    scale: float
    softcap: float | None
    bias: str | None
    keys: list[int]
    row: Row
    key_vectors: Matrix
    value_vectors: Matrix
    rest: Rest | None
    maximum: float | None
    exponential_sum: float | None
    fully_masked: bool
    cells: list[ExplainedCell]
    blend: Floats
    output: Floats
    projected: Vector | None
    checks: list[ArithmeticCheck]
    notes: list[str] = msgspec.field(default_factory=list)
    sink: Sink | None = None
    schema: str = EXPLAIN_SCHEMA

    def check(self, name: str) -> ArithmeticCheck | None:
        """Return the check of this name, where the step is there."""
        return next((check for check in self.checks if check.name == name), None)
