"""How findings are shown."""

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

if TYPE_CHECKING:
    from attnscope.findings.arrays import Matrix
    from attnscope.views.scales import Shape

FigureLabels = Literal["tokens", "positions", "none"]
FigureParts = Literal["map", "bars"]
FigureFont = Literal["sans", "serif"]
Format = Literal["table", "heat", "verdict", "page"]


@dataclass(frozen=True)
class FigureSettings:
    """How a figure is drawn."""

    # CSS pixels, of which an inch has 96; None for the width of its content
    width: float | None = None
    # what names rows and columns of tokens; None for position and token
    labels: FigureLabels | None = None
    # parts that are drawn: matrices and maps, or tables with bars; None for all
    only: FigureParts | None = None
    font: FigureFont = "sans"


@dataclass(frozen=True)
class Listing:
    """The heads that are listed below a picture."""

    # number of heads of each role or measure; None for as many as fit on a line, or ten
    top: int | None = None
    sort: Literal["value", "layer"] = "value"  # order of the listed heads
    signed: bool = True  # whether values below 0 are weak; otherwise the magnitude counts

    def heads(self, values: "Matrix", limit: int) -> list[tuple[int, int]]:
        """Return the layers and heads that are listed; NaN is left out."""
        import numpy as np

        flat = np.where(
            np.isnan(values), -np.inf, values if self.signed else np.abs(values)
        ).ravel()
        order = [
            int(n)
            for n in np.argsort(-flat, kind="stable")[: self.top or limit]
            if flat[n] > -np.inf
        ]
        return [
            divmod(n, values.shape[1]) for n in (sorted(order) if self.sort == "layer" else order)
        ]


@dataclass(frozen=True)
class TypedCommand:
    """The command line that made some findings, for readers on other machines."""

    name: str  # such as `heads`
    words: Sequence[
        tuple[str, str]
    ]  # quoted words, each with the name of its option; "" for arguments
    piped: str | None = None  # the quoted text, if it is printed into the command
    elsewhere: bool = False  # whether files are named without their folders

    def spell(self, left_out: Collection[str] = ()) -> str:
        """Return it without some options."""
        words = [word for option, word in self.words if option not in left_out]
        spelled = " ".join(["attnscope", self.name, *words])
        if self.piped is None:
            return spelled
        return f"printf %s {self.piped} | {spelled}"


@dataclass(frozen=True)
class DisplaySettings:
    """Settings that a caller chooses."""

    precision: int = 2  # digits after the point in matrices; weights of contributors have one more
    options: bool = True  # whether it is for the command line, so that hints name its options
    fixed: bool = False  # whether it is a figure or page, whose reader can type no option
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
    ramp: "Shape" = "sqrt"  # how colours follow weights
    # whether the colours of weights end at 1; otherwise at the largest weight on another token
    sinks: bool = True
    least: int = 10  # number of least attended tokens that are listed
    streamed: bool = False  # generated tokens were printed while they were generated
    summary: bool = False  # of a comparison, show how much moves in every head, and no matrices
    # `table` has every number; `heat` is a picture of the same; `verdict` only what a tolerance says of a comparison;
    # `page` is a page to walk through
    format: Format = "table"
    listing: Listing = Listing()
    # for a page: every head of a text, or the roles of heads on the sides of a comparison; for a figure: the Report of
    # one head; None for none
    every_head: Any = None
    # words of the command that cuts the edges which a run was asked about; none if there are none
    cut_command: Sequence[str] = ()
    made_by: TypedCommand | None = None  # for a page: its command; None if none can be typed
    columns: int = 120  # of `.txt`
    figure: FigureSettings = FigureSettings()

    @property
    def is_figure(self) -> bool:
        """Whether it is a figure, which has a picture where a page has a walk."""
        return self.fixed and self.format != "page"

    def named(self, option: str, argument: str, hint: str = "{}") -> str:
        """Name the option that shows more, as the command line or Python spells it, in a hint; a figure or page has none."""
        return "" if self.fixed else hint.format(option if self.options else argument)
