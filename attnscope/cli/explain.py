"""The command `attnscope explain`: show the arithmetic of one token's attention."""

from dataclasses import dataclass
from typing import Annotated, Literal

from attnscope import arguments
from attnscope.cli import completion
from attnscope.cli.option_groups import subset_of
from attnscope.cli.options import MachineOptions, ModelOptions, OutputOptions, TextOptions, choice, option
from attnscope.cli.selection_options import SelectionOptions

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
Masking = subset_of(SelectionOptions, "mask", "what_if", "hide")


@dataclass(frozen=True, kw_only=True)
class TokenOptions:
    """Which token is walked through, and where.

    Attributes:
        layer: Its layer, as typed.
        head: Its head, as typed.
        query: Its position, or the word.
        key: Cells in depth.
        top: Keys shown.
    """

    query: Annotated[
        str | None,
        option("--query", group=_SELECT, metavar="TOKEN", help="Token to explain: a position such as 3, or a word."),
    ] = None
    key: Annotated[
        str | None,
        option(
            "--key",
            group=_SELECT,
            metavar="TOKEN",
            help="Key whose dot product is broken down; default: the one with the largest.",
        ),
    ] = None
    layer: Annotated[
        str,
        option(
            "--layer",
            group=_SELECT,
            metavar="LAYER",
            parser=arguments.indices("--layer"),
            autocompletion=completion.words("auto"),
            help="Layer, counted from 0; -1 is the last.",
        ),
    ] = "auto"
    head: Annotated[
        str,
        option(
            "--head",
            group=_SELECT,
            metavar="HEAD",
            parser=arguments.indices("--head"),
            autocompletion=completion.words("auto"),
            help="Head, in the same form. auto picks the head with the most weight from "
            "--query on --key; without --key, the one whose weights depend most on content, not on distance, special "
            "tokens or the first.",
        ),
    ] = "auto"
    top: Annotated[
        int | None,
        option(
            "--top",
            group=_SELECT,
            metavar="K",
            parser=arguments.number("--top", 1),
            help=f"Keys to show, heaviest first; default: {_WINDOW} in a terminal, all in json.",
        ),
    ] = None


@dataclass(frozen=True, kw_only=True)
class ExplainOutputOptions(OutputOptions):
    """Where the explanation goes, and how it looks.

    Attributes:
        format: On standard output.
        precision: Digits after the point in tables.
    """

    format: Annotated[
        ExplainFormat | None,
        choice("--format", ExplainFormat, group=_SHOW, help="Output format: table (default) or json (exact)."),
    ] = None
    precision: Annotated[
        int,
        option(
            "--precision",
            group=_SHOW,
            metavar="DIGITS",
            parser=arguments.number("--precision", 0, 9),
            help="Decimal places in tables; json is exact.",
        ),
    ] = 4


def explain(
    source: TextOptions,
    stack: ModelOptions,
    token: TokenOptions,
    masking: Masking,  # type: ignore[valid-type]
    show: ExplainOutputOptions,
    machine: MachineOptions,
) -> None:
    """Explain the attention of one token, step by step.

    Shows the model's own numbers: what enters the layer, the query and every key, the dot products and the dimensions
    behind the largest, scale, mask, softmax, and the weighted sum of the values. Every step is recomputed and compared
    with the model.
    """
    from attnscope.cli.deliver import check_output, deliver, is_table
    from attnscope.cli.progress import progress
    from attnscope.cli.run_config import run_config

    check_output(show, "explain")
    window = token.top or (_WINDOW if is_table(show) else None)
    selection = SelectionOptions(layer=token.layer, head=token.head, query=token.query, key=token.key, **vars(masking))
    asked = run_config(source, stack, selection, machine, window=window, quiet=show.quiet)
    from attnscope.explanation import explain as walk

    with progress(quiet=show.quiet) as on_progress:
        explanation = walk(asked, on_progress)
    deliver(explanation, show)
