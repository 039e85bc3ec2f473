"""The Typer application. A new command is one file and one line here."""

from importlib import import_module
from typing import Annotated

import typer

from attnscope.base.version import __version__
from attnscope.cli.help import Command, Group
from attnscope.cli.option_groups import expand_groups, with_option

COMMANDS = {
    "run": "run",
    "compare": "compare",
    "explain": "explain",
    "heads": "heads",
    "ablate": "ablate",
    "batch": "batch",
    "convert": "convert",
    "import": "import_",
    "check": "check",
    "info": "info",
    "pull": "pull",
}  # name of a command, and of its module and function
_EXAMPLES = """
attnscope run "The bank by the river"
attnscope run "The bank by the river" --head all --format heat
attnscope compare "The bank by the river"
attnscope explain "The bank by the river" --query bank
attnscope heads
attnscope ablate "The bank by the river" --each head
attnscope batch texts.txt -o dump.jsonl
attnscope check
attnscope info
"""


def _show_version(asked: bool) -> None:
    if asked:
        typer.echo(f"attnscope {__version__}")
        raise typer.Exit


Version = Annotated[bool, typer.Option("--version", callback=_show_version, is_eager=True, help="Show the version.")]


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
        module = import_module(f"attnscope.cli.{COMMANDS[name]}")
        function = expand_groups(getattr(module, COMMANDS[name]))
        app.command(name, cls=Command, epilog=module.EXAMPLES)(with_option(function, "version", Version))
    app.callback(invoke_without_command=True)(_root)
    return app


def _root(
    context: typer.Context,
    version: Version = False,
) -> None:
    """See what attention does inside a transformer: scores, masked scores, weights and top contributors."""
    if context.invoked_subcommand is None:
        typer.echo(context.get_help(), err=True)
        raise typer.Exit(2)
