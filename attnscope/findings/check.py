"""What `attnscope check` found, as plain data. No torch in here."""

from typing import Literal

import msgspec

from attnscope.findings.provenance import ModelFindings, TokenizedText
from attnscope.findings.tables import Table, columns_of

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
        text: Number of the text of that deviation, from 0.
    """

    name: str
    verdict: Verdict
    measured: float | None = None
    limit: float | None = None
    where: str | None = None
    note: str | None = None
    text: int = 0


class Differences(msgspec.Struct, frozen=True):
    """Difference between attnscope and another implementation: in each layer, for the text nearest to its limit.

    Attributes:
        reference: The other implementation: `scaled_dot_product_attention`, or `transformers`.
        stage: The stage that is compared.
        limits: Largest allowed difference in each layer.
        by_head: Largest difference of every layer (outer) and head (inner); null if it is not finite.
        layers: Numbers of these layers: those with attention over tokens.
    """

    reference: str
    stage: str
    limits: list[float]
    by_head: list[list[float | None]]
    layers: list[int]


class CheckedText(TokenizedText, frozen=True):
    """A text that a model was checked with; `text` describes tokens that were drawn from the vocabulary.

    Attributes:
        fully_masked: Positions of the queries that may attend to nothing in some layer.
    """

    fully_masked: list[int]


class CheckReport(ModelFindings, frozen=True):
    """What `attnscope check` found.

    Attributes:
        texts: The texts.
        checks: Every check, in order: of the text in which it is nearest to its limit, or furthest beyond it.
        differences: The differences that the comparisons measured, by layer and head.
        passed: No check failed.
        schema: Name and version of this format.
    """

    texts: list[CheckedText]
    checks: list[Check]
    differences: list[Differences]
    passed: bool
    schema: str = CHECK_SCHEMA

    def table(self) -> Table:
        """Return a row for every check."""
        return columns_of([msgspec.structs.asdict(check) for check in self.checks])
