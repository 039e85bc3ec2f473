"""Display settings shared by all views."""

from dataclasses import dataclass
from typing import Literal, TypedDict

from attnscope.views.scales import Shape

FigureLabels = Literal["tokens", "positions", "none"]
FigureParts = Literal["map", "bars"]
FigureFont = Literal["sans", "serif"]


@dataclass(frozen=True)
class DisplaySettings:
    """Settings that a caller chooses."""

    precision: int = 2  # digits after the point in matrices; weights of contributors have one more
    options: bool = True  # whether it is for the command line, so that hints name its options
    # leave out the header, remarks, notes and options, but not the label of random weights, nor a mask that is not the
    # model's own
    data_only: bool = False
    verbose: bool = False
    # the stages were not chosen by a user: parts that fill more than a screen may be left out, with the option that
    # shows it
    brief: bool = False
    ids: bool = False  # list the tokens with their ids
    percent: bool = False
    map_scale: Literal["row", "max"] = "row"  # where the colours of maps on pictures end
    ramp: Shape = "sqrt"  # how colours follow weights
    sinks: bool = True  # whether the colours of weights end at 1; otherwise at the largest weight on another token
    least: int = 10  # number of least attended tokens that are listed
    streamed: bool = False  # generated tokens were printed while they were generated
    summary: bool = False  # of a comparison, show how much moves in every head, and no matrices

    def named(self, option: str, argument: str) -> str:
        """Name the option that shows more, as the command line or Python spells it."""
        return option if self.options else argument


class Detail(TypedDict, total=False):
    """Keyword arguments for how much is shown; see DisplaySettings."""

    verbose: bool
    brief: bool
    ids: bool
    percent: bool
    map_scale: Literal["row", "max"]
    ramp: Shape
    sinks: bool
    least: int
    streamed: bool
    summary: bool


class Shown(Detail, total=False):
    """Keyword arguments for every field of DisplaySettings."""

    precision: int
    options: bool
    data_only: bool


@dataclass(frozen=True)
class FigureSettings:
    """How a figure is drawn."""

    width: float | None = None  # CSS pixels, of which an inch has 96; None for the width of its content
    labels: FigureLabels | None = None  # what names rows and columns of tokens; None for position and token
    only: FigureParts | None = None  # parts that are drawn: matrices and maps, or tables with bars; None for all
    font: FigureFont = "sans"
