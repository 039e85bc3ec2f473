"""The command `attnscope info`: describe a model."""

import sys

from attnscope.base.errors import UsageError, arg
from attnscope.cli.next_command import SAMPLE, carried, suggest
from attnscope.cli.parameters import Given

EXAMPLES = """
attnscope info
attnscope info ./my-bert --cost
attnscope info ./my-bert/config.json
attnscope info --config sliding-window --cost
attnscope info ./my-bert --json | jq .parameters
attnscope info --list
attnscope info --settings
"""


def info(options: Given) -> None:
    """Show what is in a checkpoint or config.

    Shows architecture, sizes, parameters, mask, positions, tokenizer and files; --cost adds the cost of attention. A
    config.json alone is enough.
    """
    from attnscope.cli.deliver import console, write_bytes
    from attnscope.cli.run_config import model_fields
    from attnscope.engines.description import describe, known_models
    from attnscope.studies.info import screen as view
    from attnscope.views.terminal import draw

    if options.settings_listed:
        _show_settings(options)
        return
    if options.list:
        models = known_models()
        if options.format == "json":
            write_bytes(view.models_as_json(models))
        else:
            draw(view.present_models(models), console("auto"))
        return
    options.model = options.named or options.model
    description = describe(**model_fields(options))
    rows = None
    if options.cost and description.engine == "transformers":
        message = (
            "cost follows from the masks of layers, which transformers shows only while it runs"
        )
        raise UsageError(message, where=arg("cost"), hint="remove it")
    if options.cost:
        from attnscope.run.cost import cost_table

        rows = cost_table(description.config)
    if options.format == "json":
        write_bytes(view.as_json(description, rows))
    else:
        draw(view.present_info(description, rows, data_only=options.quiet), console("auto"))
    sys.stdout.flush()
    model = ["--model", options.named] if options.named else []
    suggest(["run", SAMPLE, *model, *carried("info", "run", options.command_line)], options)


def _show_settings(options: Given) -> None:
    """Print the settings of every command, and where each comes from."""
    import json

    from attnscope.base.system.escape import escape_control
    from attnscope.cli.settings import described_settings

    listed = described_settings(options.command_line)
    if options.format == "json":
        print(json.dumps(listed, ensure_ascii=False))
        return
    none = "none; attnscope help settings says what to write into attnscope.toml"
    print("files    " + (escape_control(", ".join(listed["files"])) or none))
    if listed["profiles"]:
        print("profiles " + escape_control(", ".join(listed["profiles"])))
    rows = [
        (setting["option"], setting["value"], setting["source"]) for setting in listed["settings"]
    ]
    widths = [max((len(row[column]) for row in rows), default=0) for column in (0, 1)]
    for (option, value, source), setting in zip(rows, listed["settings"], strict=True):
        commands = ", ".join(setting["commands"])
        line = f"{option:{widths[0]}}  {value:{widths[1]}}  {source}  ({commands})"
        print(escape_control(line))
