"""The command `attnscope info`: describe a model."""

import os

from attnscope.base.errors import UsageError, arg
from attnscope.cli.parameters import Given
from attnscope.request.options import COMPLETE_MODEL

EXAMPLES = """
attnscope info
attnscope info --model ./my-bert --cost
attnscope info --model ./my-bert/config.json
attnscope info --config sliding-window --cost
attnscope info --model ./my-bert --json | jq .parameters
attnscope info --list
"""


def info(given: Given) -> None:
    """Show what is in a checkpoint or config.

    Shows architecture, sizes, parameters, mask, positions, tokenizer and files; --cost adds the cost of attention. A
    config.json alone is enough.
    """
    from attnscope.cli.deliver import console, write_bytes
    from attnscope.cli.run_config import model_fields
    from attnscope.engines.description import describe, known_models
    from attnscope.studies.info import screen as view
    from attnscope.views.terminal import draw

    if given.list:
        _refuse_beside_list(given)
        models = known_models()
        if given.format == "json":
            write_bytes(view.models_as_json(models))
        else:
            draw(view.present_models(models), console("auto"))
        return
    description = describe(**model_fields(given))
    rows = None
    if given.cost:
        from attnscope.run.cost import cost_table

        rows = cost_table(description.config)
    if given.format == "json":
        write_bytes(view.as_json(description, rows))
    else:
        draw(view.present_info(description, rows, data_only=given.quiet), console("auto"))


def _refuse_beside_list(given: Given) -> None:
    for name in (*(option.name for option in COMPLETE_MODEL), "cost"):
        ignored = name == "model" and given.model == os.environ.get("ATTNSCOPE_MODEL")
        if getattr(given, name) and not ignored:
            raise UsageError(f"cannot be used with {arg('list')}", where=arg(name), hint="remove one of them")
