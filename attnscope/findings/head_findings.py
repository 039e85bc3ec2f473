"""What `attnscope heads` found, as plain data: the roles or a number of every head, or what is read of a needle."""

from typing import Annotated

import msgspec
import numpy as np

from attnscope.findings.arrays import Matrix, OfHeads, along
from attnscope.findings.provenance import ModelFindings, TokenizedText
from attnscope.findings.tables import Table, head_columns

SURVEY_SCHEMA = "attnscope.heads/2"
MEASURED_SCHEMA = "attnscope.measured-heads/1"
NEEDLE_SCHEMA = "attnscope.needle/1"
_OfDepths = Annotated[Matrix, along("length", "depth")]


class Probes(msgspec.Struct, frozen=True):
    """The data on which the heads were measured.

    Attributes:
        seed: Seed of the random tokens.
        draws: Number of random sequences of each kind.
        repeated: Number of different tokens in a sequence that is repeated once; 0 if the model is too small.
        needle: Number of tokens in a needle; 0 if the model is too small.
        before: Special tokens before random tokens.
        after: Special tokens after random tokens.
        texts: Number of texts.
        tokens: Number of tokens in all texts.
        shipped: Whether the texts are attnscope's built-in ones.
        unknown: Number of tokens for words that the tokenizer does not know.
        tripled: Number of different tokens in a sequence that is repeated twice; 0 if the model is too small.
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
        letter: Letter of the role in the grid.
        title: Title of the role.
        meaning: Definition of its value.
        source: Publication that describes it.
        measured: Where it is measured: on `texts`, on `repeated` or `tripled` random tokens, on a `needle`, or on the
            `weights`.
        clear: Smallest value at which it can be the main role of a head.
        values: Values, (layers, heads); null if not measured.
        errors: Standard error of each value, over texts or draws; null if there is only one.
    """

    name: str
    letter: str
    title: str
    meaning: str
    source: str
    measured: str
    clear: float
    values: OfHeads
    errors: OfHeads


class HeadRoles(ModelFindings, frozen=True):
    """The roles of every head of a model.

    Attributes:
        probes: The data on which the heads were measured.
        roles: Every requested role.
        main: Name of each head's main role, (layers, heads); null if none is clear.
        notes: Remarks for the reader, such as what was left out, and why.
        shares: Number of heads of every layer without softmax that is shown: its roles are of shares of |M|, where M is
            its matrix from tokens to tokens, in place of weights.
        channels: Number of channels of each of these layers that has a matrix for every channel: its only head is the
            mean over channels of their shares.
        schema: Name and version of this format.
    """

    probes: Probes
    roles: list[RoleValues]
    main: Annotated[list[list[str | None]], along("layer")]
    notes: list[str] = []
    shares: dict[int, int] = {}
    channels: dict[int, int] = {}
    schema: str = SURVEY_SCHEMA

    def by_name(self) -> dict[str, Matrix]:
        """Return the values of every role."""
        return {role.name: role.values for role in self.roles}

    def table(self) -> Table:
        """Return a row for every head: its main role, and the value and error of every role."""
        columns = head_columns(*self.roles[0].values.shape)
        columns["main"] = [name for row in self.main for name in row]
        for role in self.roles:
            columns |= {role.name: role.values.ravel(), f"{role.name}_error": role.errors.ravel()}
        return columns


class MeasuredText(TokenizedText, frozen=True):
    """One text of the measurement.

    Attributes:
        queries: Positions of the rows that are averaged.
        keys: Positions of the keys whose weights are summed; None for a statistic of whole rows.
        against: Positions of the keys whose sum is subtracted; None if nothing is.
    """

    queries: list[int]
    keys: list[int] | None = None
    against: list[int] | None = None


class KeyContrast(msgspec.Struct, frozen=True):
    """What two sets of keys get, whose difference is the number of every head.

    Attributes:
        keys: Number of the keys, (layers, heads).
        against: Number of the keys that are subtracted, (layers, heads).
    """

    keys: OfHeads
    against: OfHeads


class HeadScores(ModelFindings, frozen=True):
    """One number for every head, averaged over the rows of the texts.

    Attributes:
        measure: `weight`, `value`, `projected`, or a row statistic.
        meaning: Definition of the number, and its unit.
        values: (layers, heads).
        texts: The texts, with the rows and keys.
        notes: Remarks for the reader, such as what was left out, and why.
        contrast: The two numbers whose difference `values` are; null for one set of keys.
        shares: Number of heads of every layer without softmax that is shown: its numbers are of shares of |M|; see
            HeadRoles.
        channels: See HeadRoles.
        schema: Name and version of this format.
    """

    measure: str
    meaning: str
    values: OfHeads
    texts: list[MeasuredText]
    notes: list[str] = []
    contrast: KeyContrast | None = None
    shares: dict[int, int] = {}
    channels: dict[int, int] = {}
    schema: str = MEASURED_SCHEMA

    def by_name(self) -> dict[str, Matrix]:
        """Return the values of the measure."""
        return {self.measure: self.values}

    def table(self) -> Table:
        """Return a row for every head: its number, and the two numbers of a difference."""
        columns = head_columns(*self.values.shape) | {self.measure: self.values.ravel()}
        if self.contrast is not None:
            columns |= {"key": self.contrast.keys.ravel(), "against": self.contrast.against.ravel()}
        return columns


class NeedleSurvey(ModelFindings, frozen=True):
    """How much heads read of a needle, and how probable its answer is.

    Attributes:
        needle: The needle.
        cue: What the text ends with: the needle up to its answer.
        answer: The answer, whose probability is measured.
        filler: Where the text around the needle comes from.
        heads: Layer and head of each retrieval head, the strongest first.
        retrieval: Value of the role `retrieval` of each of them.
        lengths: Tokens of the texts.
        depths: Share of the filler that stands before the needle.
        weight: Weight of the tokens that predict the answer on the needle, averaged over these tokens and the retrieval
            heads, (length, depth).
        all_heads: The same, averaged over all heads.
        log_probability: Log-probability of the answer in bits, (length, depth).
        notes: Remarks for the reader.
        schema: Name and version of this format.
    """

    needle: str
    cue: str
    answer: str
    filler: str
    heads: list[tuple[int, int]]
    retrieval: list[float]
    lengths: Annotated[list[int], along("length")]
    depths: Annotated[list[float], along("depth")]
    weight: _OfDepths
    all_heads: _OfDepths
    log_probability: _OfDepths
    notes: list[str] = []
    schema: str = NEEDLE_SCHEMA

    def table(self) -> Table:
        """Return a row for every length and depth."""
        lengths, depths = np.meshgrid(self.lengths, self.depths, indexing="ij")
        columns: Table = {"length": lengths.ravel(), "depth": depths.ravel()}
        cells = (
            ("weight", self.weight),
            ("all_heads", self.all_heads),
            ("log_probability", self.log_probability),
        )
        return columns | {name: values.ravel() for name, values in cells}
