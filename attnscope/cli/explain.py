"""The command `attnscope explain`: show the arithmetic of one token's attention."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from attnscope.cli.option_groups import subset_of
from attnscope.cli.options import (
    MachineOptions,
    ModelOptions,
    TableOutputOptions,
    TextOptions,
    exported,
    output_option,
    precision_option,
)
from attnscope.cli.selection_options import (
    AUTO_HEAD,
    SelectionOptions,
    head_option,
    key_option,
    layer_option,
    query_option,
    top_option,
)

_WINDOW = 16  # number of keys of a long text that a screen shows

EXAMPLES = """
attnscope explain "The bank by the river" --query bank
attnscope explain "The bank by the river" --query bank --key river
attnscope explain "The bank by the river" --query 1 --layer 0 --head 2
attnscope explain "The bank by the river" --query bank --config causal --mask bidirectional
attnscope explain "The bank by the river" --query bank --json | jq .cells[0].parts
"""

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
        str | None, query_option("Token to explain: a position such as 3, or a word.", metavar="TOKEN")
    ] = None
    key: Annotated[
        str | None,
        key_option(
            "Key whose dot product is broken down; default: the one with the largest dot product.", metavar="TOKEN"
        ),
    ] = None
    layer: Annotated[str, layer_option("Layer, counted from 0; -1 is the last.", "auto", metavar="LAYER")] = "auto"
    head: Annotated[str, head_option(f"Head, in the same form. {AUTO_HEAD}", "auto", metavar="HEAD")] = "auto"
    top: Annotated[
        int | None,
        top_option(f"Keys to show, largest weight first; default: {_WINDOW} in a terminal, all in json.", lowest=1),
    ] = None


@dataclass(frozen=True, kw_only=True)
class ExplainOutputOptions(TableOutputOptions):
    """Where the explanation goes, and how it looks.

    Attributes:
        format: See TableOutputOptions.
        output: A file instead.
        precision: Digits after the point in tables.
    """

    output: Annotated[Path | None, output_option(exported("explain"))] = None
    precision: Annotated[int, precision_option("Decimal places in tables; json is exact.")] = 4


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
    that contribute most to the largest, scale, mask, softmax, and the weighted sum of the values. Every step is
    recomputed and compared with the model.
    """
    from attnscope.cli.deliver import check_output, deliver, is_table
    from attnscope.cli.progress import progress
    from attnscope.cli.run_config import read_texts, run_config

    check_output(show, "explain", source, stack, masking)
    window = token.top or (_WINDOW if is_table(show) else None)
    selection = SelectionOptions(layer=token.layer, head=token.head, query=token.query, key=token.key, **vars(masking))
    asked = run_config(read_texts(source, quiet=show.quiet), stack, selection, machine, window=window)
    from attnscope.studies.explain.run import explain as walk

    with progress(quiet=show.quiet) as on_progress:
        explanation = walk(asked, on_progress)
    deliver(explanation, show)
