"""Display settings shared by all views."""

from dataclasses import dataclass
from typing import TypedDict


class Detail(TypedDict, total=False):
    """How much is shown; see DisplaySettings."""

    verbose: bool
    brief: bool
    ids: bool
    percent: bool
    least: int
    streamed: bool
    summary: bool


@dataclass(frozen=True)
class DisplaySettings:
    """Settings that a caller chooses.

    Attributes:
        options: Whether it is for the command line, so that hints name its options.
        brief: The stages were not chosen by a user: parts that fill more than a screen may be left out, with the
            option
            that shows it.
        ids: List the tokens with their ids.
        least: Number of least attended tokens that are listed.
        streamed: Generated tokens were printed while they were generated.
        summary: Of a comparison, show how much moves in every head, and no matrices.
    """

    precision: int
    options: bool = True
    data_only: bool = False
    verbose: bool = False
    brief: bool = False
    ids: bool = False
    percent: bool = False
    least: int = 10
    streamed: bool = False
    summary: bool = False

    def named(self, option: str, argument: str) -> str:
        """Name the option that shows more, as the command line or Python spells it."""
        return option if self.options else argument
