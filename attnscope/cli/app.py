"""The Typer application. A new command is one file and one line here."""

from typing import Annotated

import typer

from attnscope.cli import ablate, batch, check, compare, convert, explain, heads, import_, info, pull, run
from attnscope.cli.help import Command, Group
from attnscope.cli.option_groups import expand_groups, with_option
from attnscope.version import __version__

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

app = typer.Typer(
    cls=Group,
    epilog=_EXAMPLES,
    rich_markup_mode=None,
    context_settings={"help_option_names": ["-h", "--help"]},
)
for command, examples in (
    (run.run, run.EXAMPLES),
    (compare.compare, compare.EXAMPLES),
    (explain.explain, explain.EXAMPLES),
    (heads.heads, heads.EXAMPLES),
    (ablate.ablate, ablate.EXAMPLES),
    (batch.batch, batch.EXAMPLES),
    (convert.convert, convert.EXAMPLES),
    (import_.import_, import_.EXAMPLES),
    (check.check, check.EXAMPLES),
    (info.info, info.EXAMPLES),
    (pull.pull, pull.EXAMPLES),
):
    app.command(command.__name__.rstrip("_"), cls=Command, epilog=examples)(
        with_option(expand_groups(command), "version", Version)
    )


@app.callback(invoke_without_command=True)
def root(
    context: typer.Context,
    version: Version = False,
) -> None:
    """See what attention does inside a transformer: scores, masked scores, weights and top contributors."""
    if context.invoked_subcommand is None:
        typer.echo(context.get_help(), err=True)
        raise typer.Exit(2)
