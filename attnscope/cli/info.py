"""The command `attnscope info`: describe a model."""

import os
from typing import Annotated

from attnscope.base.errors import UsageError
from attnscope.cli.options import SHOW, FormatOptions, ModelOptions, option

EXAMPLES = """
attnscope info
attnscope info --model ./my-bert --cost
attnscope info --model ./my-bert/config.json
attnscope info --config sliding-window --cost
attnscope info --model ./my-bert --json | jq .parameters
attnscope info --list
"""


def info(
    stack: ModelOptions,
    show: FormatOptions,
    cost: Annotated[
        bool, option("--cost", group=SHOW, help="Show FLOPs and bytes of attention as the text grows.")
    ] = False,
    every: Annotated[
        bool,
        option("--list", group=SHOW, help="List bundled samples, bundled configs and supported families instead."),
    ] = False,
) -> None:
    """Show what is in a checkpoint or config.

    Shows architecture, sizes, parameters, mask, positions, tokenizer and files; --cost adds the cost of attention. A
    config.json alone is enough.
    """
    import sys

    from attnscope.cli.deliver import page, write_bytes
    from attnscope.engines.description import describe, known_models
    from attnscope.studies.info import screen as view

    if every:
        _refuse_beside_list(stack, cost=cost)
        models = known_models()
        if show.format == "json":
            write_bytes(view.models_as_json(models))
        else:
            sys.stdout.write(view.models_as_text(models, page()))
        return
    description = describe(**stack.chosen())
    rows = None
    if cost:
        from attnscope.run.cost import cost_table

        rows = cost_table(description.config)
    if show.format == "json":
        write_bytes(view.as_json(description, rows))
    else:
        sys.stdout.write(view.as_text(description, rows, page()))


def _refuse_beside_list(stack: ModelOptions, *, cost: bool) -> None:
    """Refuse options that describe one model, beside a list of all.

    Raises:
        UsageError: One was given; a model in the environment is ignored.
    """
    named = vars(stack) | {"cost": cost}
    if stack.model == os.environ.get("ATTNSCOPE_MODEL"):
        del named["model"]
    for name, value in named.items():
        if value:
            where = f"--{name.replace('_', '-')}"
            raise UsageError("cannot be used with --list", where=where, hint="remove one of them")
