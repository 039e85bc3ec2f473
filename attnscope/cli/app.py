"""The Typer application. The commands of studies follow from the registry; another one is a file and a line here."""

from collections.abc import Callable
from importlib import import_module
from inspect import cleandoc

import typer

from attnscope.cli.help import Command, Group
from attnscope.cli.parameters import Given, Version, as_command
from attnscope.cli.study import answer
from attnscope.studies.registry import STUDIES, study

_MODULES = {
    "run": "run",
    "compare": "compare",
    "explore": "explore",
    "batch": "batch",
    "merge": "merge",
    "verify": "verify",
    "convert": "convert",
    "import": "import_",
    "info": "info",
    "pull": "pull",
}  # name of a command, and of its module and function
COMMANDS = list(dict.fromkeys((*STUDIES, *_MODULES)))
_EXAMPLES = """
attnscope run "The bank by the river"
attnscope run "The bank by the river" --head all --format heat
attnscope compare "The bank by the river"
attnscope explain "The bank by the river" --query bank
attnscope heads
attnscope ablate "The bank by the river" --each head
attnscope explore "The bank by the river"
attnscope batch texts.txt -o dump.jsonl
attnscope check
attnscope info
"""


def build_app(command: str | None = None) -> typer.Typer:
    """Build the application.

    Args:
        command: The only command that is needed, which then is the only one that is imported; None, or no command's
            name, for all of them.
    """
    app = typer.Typer(
        cls=Group,
        epilog=_EXAMPLES,
        rich_markup_mode=None,
        context_settings={"help_option_names": ["-h", "--help"]},
    )
    for name in [command] if command in COMMANDS else COMMANDS:
        function, examples = _function(name)
        app.command(name, cls=Command, epilog=examples)(as_command(name, function))
    app.callback(invoke_without_command=True)(_root)
    return app


def _function(name: str) -> tuple[Callable[[Given], None], str]:
    """Return the function of a command, and its examples."""
    declared = study(name).command if name in STUDIES else None
    if declared is not None:
        return answer(name, declared), cleandoc(declared.examples)
    module = import_module(f"attnscope.cli.{_MODULES[name]}")
    return getattr(module, _MODULES[name]), module.EXAMPLES


def _root(
    context: typer.Context,
    version: Version = False,
) -> None:
    """See what attention does inside a transformer: scores, masked scores, weights and top contributors."""
    if context.invoked_subcommand is None:
        typer.echo(context.get_help(), err=True)
        raise typer.Exit(2)
