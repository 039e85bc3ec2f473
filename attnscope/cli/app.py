"""The Typer application; `commands.py` lists the commands."""

from collections.abc import Iterable
from typing import Annotated, Any

import typer

from attnscope.base.version import __version__
from attnscope.cli.commands import COMMANDS, load
from attnscope.cli.help import Command, Group
from attnscope.cli.parameters import as_command


def _show(context: typer.Context, flag: typer.CallbackParam, requested: bool) -> None:
    """Show what a flag asks for, and end."""
    if not requested:
        return
    from attnscope.cli.help_text import full_help, program_help, short_help
    from attnscope.cli.pager import write_paged

    if flag.name == "typer_full_help":
        write_paged(full_help(str(context.command.name)))
    elif flag.name == "typer_short_help":
        typer.echo(short_help(str(context.command.name)), nl=False)
    elif flag.name == "help":
        typer.echo(program_help(), nl=False)
    else:
        typer.echo(f"attnscope {__version__}")
    raise typer.Exit


def _flag(help: str, *names: str) -> Any:
    return Annotated[bool, typer.Option(*names, callback=_show, is_eager=True, help=help)]


_VERSION = _flag("Show the version.", "--version")
_FLAGS = {
    "typer_short_help": _flag("Show the options that most runs use.", "-h"),
    "typer_full_help": _flag("Show every option.", "--help"),
    "typer_version": _VERSION,
}
_HELP = _flag("Show this help.", "-h", "--help")


def build_app(needed: Iterable[str] = COMMANDS) -> typer.Typer:
    """Build the application.

    Args:
        needed: Names of the commands that it has; only these are imported.
    """
    app = typer.Typer(cls=Group, rich_markup_mode=None, context_settings={"help_option_names": []})
    for name in needed:
        app.command(name, cls=Command, add_help_option=False)(
            as_command(name, load(name).function, _FLAGS)
        )
    app.callback(invoke_without_command=True, add_help_option=False)(_root)
    return app


def _root(context: typer.Context, version: _VERSION = False, help: _HELP = False) -> None:  # type: ignore[valid-type]
    if context.invoked_subcommand is None:
        from attnscope.cli.help_text import program_help

        typer.echo(program_help(), err=True, nl=False)
        raise typer.Exit(2)
