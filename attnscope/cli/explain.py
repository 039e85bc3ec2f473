"""A text, a token and a head in; every step of its attention with real numbers out: `attnscope explain`."""

from dataclasses import dataclass
from typing import Annotated, Literal

from attnscope.cli import read
from attnscope.cli.options import Machine, Show, Source, Stack, choice, option
from attnscope.cli.selection_options import Selection
from attnscope.cli.shared import part_of

_WINDOW = 16  # keys of a long text that a screen shows
_SELECT, _SHOW = "What to compute", "What to show"

EXAMPLES = """
attnscope explain "The bank by the river" --query bank
attnscope explain "The bank by the river" --query bank --key river
attnscope explain "The bank by the river" --query 1 --layer 0 --head 2
attnscope explain "The bank by the river" --query bank --config causal --mask bidirectional
attnscope explain "The bank by the river" --query bank --format json | jq .cells[0].parts
"""

ExplainFormat = Literal["table", "json"]
Where = part_of(Selection, "layer", "head", "mask", "what_if")


@dataclass(frozen=True, kw_only=True)
class Token:
    """Which token is walked through.

    Attributes:
        query: Its position, or the word.
        key: Cells in depth.
        top: Keys shown.
    """

    query: Annotated[
        str | None,
        option("--query", group=_SELECT, metavar="TOKEN", help="The token: a position such as 3, or a word."),
    ] = None
    key: Annotated[
        str | None,
        option(
            "--key",
            group=_SELECT,
            metavar="TOKEN",
            help="The key whose dot product is taken apart; without it, the one with the largest.",
        ),
    ] = None
    top: Annotated[
        int | None,
        option(
            "--top",
            group=_SELECT,
            metavar="K",
            parser=read.number("--top", 1),
            help=f"Keys shown, the heaviest first; without it, {_WINDOW} on a screen and all in json.",
        ),
    ] = None


@dataclass(frozen=True, kw_only=True)
class Shown(Show):
    """Where the explanation goes, and how it looks.

    Attributes:
        format: On standard output.
        precision: Digits after the point in tables.
    """

    format: Annotated[
        ExplainFormat | None,
        choice("--format", ExplainFormat, group=_SHOW, help="table (the default), or json (exact)."),
    ] = None
    precision: Annotated[
        int,
        option(
            "--precision",
            group=_SHOW,
            metavar="DIGITS",
            parser=read.number("--precision", 0, 9),
            help="Digits after the point in tables; json is exact.",
        ),
    ] = 4


def explain(
    source: Source,
    stack: Stack,
    token: Token,
    where: Where,  # type: ignore[valid-type]
    show: Shown,
    machine: Machine,
) -> None:
    """Walk one token through attention, step by step, with the model's own numbers.

    What enters the layer, the query and every key, the dot products and what makes the largest of them, scale, mask,
    softmax, and the blend of the values; every step is done again and held against the model.
    """
    from attnscope.cli.deliver import check_output, deliver, is_table
    from attnscope.cli.progress import progress
    from attnscope.cli.request import run_config

    check_output(show, (".json", ".txt", ".svg"))
    window = token.top or (_WINDOW if is_table(show) else None)
    selection = Selection(query=token.query, key=token.key, **vars(where))
    asked = run_config(source, stack, selection, machine, window=window, quiet=show.quiet)
    from attnscope.explanation import explain as walk

    with progress(quiet=show.quiet) as tell:
        explanation = walk(asked, tell)
    deliver(explanation, show)
