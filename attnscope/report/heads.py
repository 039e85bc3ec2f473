"""What `attnscope heads` found, as plain data: the roles of every head, or one number for every head."""

import msgspec

from attnscope.report.arrays import Matrix, Places
from attnscope.report.run import MaskUse, Provenance
from attnscope.report.tokens import Token

SURVEY_SCHEMA = "attnscope.heads/1"
MEASURED_SCHEMA = "attnscope.measured-heads/1"


class Probes(msgspec.Struct, frozen=True):
    """What the heads were measured on.

    Attributes:
        seed: Of the random tokens.
        draws: Draws of random tokens, of each kind.
        repeated: Different tokens of a draw that is repeated once; 0 where the model is too small for any.
        needle: Tokens of a needle; likewise.
        before: Special tokens in front of random tokens.
        after: Special tokens behind them.
        texts: Texts.
        tokens: Tokens of all texts.
        shipped: The texts are attnscope's own.
        unknown: Tokens of the texts that stand for words which the tokenizer does not know.
        tripled: Different tokens of a draw that is repeated twice; 0 where the model is too small for any.
    """

    seed: int
    draws: int
    repeated: int
    needle: int
    before: list[str]
    after: list[str]
    texts: int
    tokens: int
    shipped: bool
    unknown: int = 0
    tripled: int = 0


class RoleValues(msgspec.Struct, frozen=True):
    """One role of every head.

    Attributes:
        name: Its name.
        letter: What stands for it in the picture.
        title: What it is called.
        meaning: How its value is measured.
        source: Who described it.
        measured: On `texts`, `repeated` or `tripled` random tokens, a `needle`, or from `weights`.
        clear: Values from here on make it the main role of a head.
        values: (layers, heads); null where it was not measured.
        errors: Standard error of each, over texts or draws; null where there is one of them alone.
    """

    name: str
    letter: str
    title: str
    meaning: str
    source: str
    measured: str
    clear: float
    values: Matrix
    errors: Matrix


class HeadSurvey(msgspec.Struct, frozen=True):
    """What every head of a model does.

    Attributes:
        provenance: What produced the numbers.
        mask: Which keys a query could see.
        probes: What the heads were measured on.
        roles: Every role that was asked for.
        main: Place in `roles` of each head's main role, (layers, heads); −1 where none is clear.
        notes: What was left out, and why.
        schema: Name and version of this format.
    """

    provenance: Provenance
    mask: MaskUse
    probes: Probes
    roles: list[RoleValues]
    main: Places
    notes: list[str] = []
    schema: str = SURVEY_SCHEMA


class MeasuredText(msgspec.Struct, frozen=True):
    """One text of a question.

    Attributes:
        text: The text.
        tokens: Its tokens.
        queries: Positions of the rows that are averaged.
        keys: Positions of the keys whose weights are added up; None for a statistic of whole rows.
        context: Tokens of the key side under cross-attention; None elsewhere.
    """

    text: str
    tokens: list[Token]
    queries: list[int]
    keys: list[int] | None = None
    context: list[Token] | None = None


class MeasuredHeads(msgspec.Struct, frozen=True):
    """One number for every head, averaged over rows of a text.

    Attributes:
        provenance: What produced the numbers.
        mask: Which keys a query could see.
        measure: `weight`, `value`, `projected`, or a row statistic.
        meaning: What it is, and its unit.
        values: (layers, heads).
        texts: The texts, with the rows and keys.
        notes: What was left out, and why.
        schema: Name and version of this format.
    """

    provenance: Provenance
    mask: MaskUse
    measure: str
    meaning: str
    values: Matrix
    texts: list[MeasuredText]
    notes: list[str] = []
    schema: str = MEASURED_SCHEMA
