"""What a model retrieves of a needle in a long text, by the length of the text and the needle's depth."""

from typing import Annotated

import numpy as np

from attnscope.findings.arrays import Matrix, along
from attnscope.findings.provenance import ModelFindings
from attnscope.findings.tables import Table

NEEDLE_SCHEMA = "attnscope.needle/1"


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
    weight: Annotated[Matrix, along("length", "depth")]
    all_heads: Annotated[Matrix, along("length", "depth")]
    log_probability: Annotated[Matrix, along("length", "depth")]
    notes: list[str] = []
    schema: str = NEEDLE_SCHEMA

    def table(self) -> Table:
        """Return a row for every length and depth."""
        lengths, depths = np.meshgrid(self.lengths, self.depths, indexing="ij")
        columns: Table = {"length": lengths.ravel(), "depth": depths.ravel()}
        cells = (("weight", self.weight), ("all_heads", self.all_heads), ("log_probability", self.log_probability))
        return columns | {name: values.ravel() for name, values in cells}
