"""Declare the numbers of a head over all rows of a text, each once: what `attnscope batch --keep heads` keeps.

The fields of records, their JSON Schema, the columns of tables and what the recorder computes follow from these
declarations. Imports nothing heavy: options are made of it.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

TARGETS = ("self", "previous", "induction")


class HeadRows(Protocol):
    """The weights of some rows on a device: B texts, h heads, r rows; see row_statistics.RowWeights."""

    def entropy(self) -> Any:
        """Return −Σ α log₂ α, (B, h, r)."""

    def on_first(self) -> Any:
        """Return the weight on the first key, (B, h, r)."""

    def on_keys(self, name: str) -> Any:
        """Return the weight on the keys that the row statistic of this name selects, (B, h, r)."""

    def distance(self) -> Any:
        """Return Σ α · |query − key|, (B, h, r)."""

    def max_score(self) -> Any:
        """Return the largest masked score, (B, h, r)."""

    def largest(self) -> Any:
        """Return the largest weight, (B, h, r)."""

    def on_target(self, name: str) -> Any:
        """Return the weight on the key that one of TARGETS names, (B, h, r); NaN in a row without one."""


@dataclass(frozen=True)
class HeadAverage:
    """A number of a head: the mean of its rows, or the largest of them."""

    name: str  # name in JSON, tables and Python
    meaning: str  # definition and unit
    compute: Callable[[HeadRows], Any]  # computes it of every row, NaN in rows that have none
    # whether it requires queries and keys to be the same tokens; null under cross-attention
    aligned: bool = False
    largest: bool = False  # whether it is the largest of the rows, not their mean


HEAD_AVERAGES = (
    HeadAverage("entropy", "Mean −Σ α log₂ α of a row, in bits.", lambda rows: rows.entropy()),
    HeadAverage("first", "Mean weight on the first token.", lambda rows: rows.on_first()),
    HeadAverage("special", "Mean weight on special tokens.", lambda rows: rows.on_keys("special")),
    HeadAverage(
        "self",
        "Mean weight on the query's own position.",
        lambda rows: rows.on_target("self"),
        aligned=True,
    ),
    HeadAverage(
        "distance",
        "Mean |query − key| in tokens, weighted by α.",
        lambda rows: rows.distance(),
        aligned=True,
    ),
    HeadAverage(
        "largest",
        "Mean of the largest weight of a row (Voita et al., 2019).",
        lambda rows: rows.largest(),
    ),
    HeadAverage(
        "max_score",
        "Largest scaled score on a key that the mask allows, of all rows.",
        lambda rows: rows.max_score(),
        largest=True,
    ),
    HeadAverage(
        "previous",
        "Mean weight on the token before the query, of rows that have one.",
        lambda rows: rows.on_target("previous"),
        aligned=True,
    ),
    HeadAverage(
        "induction",
        "Mean weight on the token that followed the query's token where it stood last, two or more tokens earlier, of "
        "rows whose token stood there (Olsson et al., 2022).",
        lambda rows: rows.on_target("induction"),
        aligned=True,
    ),
)
AVERAGES = tuple(average.name for average in HEAD_AVERAGES)
