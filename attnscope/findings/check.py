"""What `attnscope check` found, as plain data. No torch in here."""

from typing import Literal

import msgspec

from attnscope.findings.run import Provenance
from attnscope.findings.tokens import Token

CHECK_SCHEMA = "attnscope.check/1"
Verdict = Literal["pass", "fail", "skipped"]


class Check(msgspec.Struct, frozen=True):
    """One invariant or comparison, over every layer and head.

    Attributes:
        name: Short name, such as `rows sum to 1`.
        verdict: `pass`, `fail`, or `skipped` if it does not apply to this model.
        measured: The largest deviation relative to its limit; None if nothing was measured, or it is not finite.
        limit: The limit; None if nothing was measured.
        where: Layer and head of that deviation, such as `L3H7`; None if it has none.
        note: Why it was skipped, or further information.
    """

    name: str
    verdict: Verdict
    measured: float | None = None
    limit: float | None = None
    where: str | None = None
    note: str | None = None


class Differences(msgspec.Struct, frozen=True):
    """Difference between attnscope and another implementation.

    Attributes:
        reference: The other implementation: `scaled_dot_product_attention`, or `transformers`.
        stage: The stage that is compared.
        limits: Largest allowed difference in each layer.
        by_head: Largest difference of every layer (outer) and head (inner); null if it is not finite.
    """

    reference: str
    stage: str
    limits: list[float]
    by_head: list[list[float | None]]


class CheckReport(msgspec.Struct, frozen=True):
    """What `attnscope check` found.

    Attributes:
        provenance: What produced the numbers.
        mask: The model's own mask.
        text: The text.
        tokens: Its tokens.
        checks: Every check, in order.
        differences: The differences that the comparisons measured, by layer and head.
        fully_masked: Positions of the queries that may attend to nothing in some layer.
        passed: No check failed.
        schema: Name and version of this format.
    """

    provenance: Provenance
    mask: str
    text: str
    tokens: list[Token]
    checks: list[Check]
    differences: list[Differences]
    fully_masked: list[int]
    passed: bool
    schema: str = CHECK_SCHEMA
