"""The command `attnscope info`: describe a model."""

from typing import Annotated, Literal

from attnscope.arguments import one_of
from attnscope.cli.options import ModelOptions, option

EXAMPLES = """
attnscope info
attnscope info --model ./my-bert --cost
attnscope info --model ./my-bert/config.json
attnscope info --config sliding-window --cost
attnscope info --model ./my-bert --format json | jq .parameters
"""

InfoFormat = Literal["table", "json"]


def info(
    stack: ModelOptions,
    cost: Annotated[
        bool, option("--cost", group="What to show", help="Show FLOPs and bytes of attention as the text grows.")
    ] = False,
    format: Annotated[
        InfoFormat,
        option(
            "--format",
            group="What to show",
            metavar="table|json",
            parser=one_of("--format", InfoFormat),
            help="Output format.",
        ),
    ] = "table",
) -> None:
    """Show what is in a checkpoint or config.

    Architecture, sizes, parameters, mask, positions, tokenizer and files; --cost adds the cost of its attention. A
    config.json needs no weights beside it.
    """
    import sys

    from attnscope.engines.description import describe
    from attnscope.views import info as view

    description = describe(**stack.chosen())
    rows = None
    if cost:
        from attnscope.planning.cost import cost_table

        rows = cost_table(description.config)
    if format == "json":
        from attnscope.cli.deliver import write_bytes

        write_bytes(view.as_json(description, rows))
    else:
        from attnscope.cli.deliver import page

        sys.stdout.write(view.as_text(description, rows, page()))
