"""Help texts of the commands as plain text; Rich would double the time and draw boxes around what one copies."""

import inspect
import sys
from typing import Any

from typer import TyperException
from typer.core import TyperCommand, TyperGroup

from attnscope.base.errors import UsageError, did_you_mean
from attnscope.cli.parameters import WORDS
from attnscope.cli.plain_values import take_plain_values
from attnscope.cli.process import wants_color
from attnscope.cli.usage import extra_arguments, refuse_option_as_value
from attnscope.request.arguments import with_ray_address


def _write_help(self: Any, ctx: Any, formatter: Any) -> None:
    """Write usage, description, commands, options by group, and examples."""
    _style_headings(ctx, formatter)
    self.format_usage(ctx, formatter)
    self.format_help_text(ctx, formatter)
    if isinstance(self, TyperGroup):
        self.format_commands(ctx, formatter)
    for title, rows in _by_group(self, ctx).items():
        with formatter.section(title):
            formatter.write_dl(rows, col_max=26)
    if self.name in _GLOSSARIES:
        title, entries = _GLOSSARIES[self.name]
        with formatter.section(title):
            formatter.write_dl(entries(), col_max=26)
    if self.epilog:
        with formatter.section("Examples"):
            for line in inspect.cleandoc(self.epilog).splitlines():
                formatter.write(f"  {line}\n" if line else "\n")


_REFUSING_REPEATS = ("compare",)  # where a repeated option asks for a comparison; elsewhere the last value counts


def _refuse_repeats(given: list[Any]) -> None:
    """Refuse an option that is given several times, and takes one value.

    Args:
        given: Every option and argument in the order of the command line.
    """
    for parameter in given:
        single = not parameter.multiple and not parameter.is_flag if parameter.param_type_name == "option" else False
        if single and given.count(parameter) > 1:
            hint = "pass it once; texts, models, adapters, tokenizers, masks, hidden tokens, layers, heads, dtypes and "
            hint += "engines can be compared"
            raise UsageError("its values cannot be compared", where=max(parameter.opts, key=len), hint=hint)


class Command(TyperCommand):
    """A command whose help shows its options in groups and ends with worked examples."""

    format_help = _write_help
    allow_extra_args = True  # refused in parse_args, with a hint

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Parse, refuse further arguments, and add the command to every usage error."""
        args = with_ray_address(args) if self.name == "batch" else args
        ctx.meta[WORDS] = list(args)
        take_plain_values(self.get_params(ctx))
        refuse_option_as_value(self.get_params(ctx), args)
        try:
            if self.name in _REFUSING_REPEATS and not ctx.resilient_parsing:
                _refuse_repeats(self.make_parser(ctx).parse_args(args=list(args))[2])
            extra = super().parse_args(ctx, args)
        except TyperException as e:
            if getattr(e, "ctx", ctx) is None:
                e.ctx = ctx  # type: ignore[attr-defined]
            raise
        if extra and not ctx.resilient_parsing:
            raise extra_arguments(extra, ctx)
        return extra


class Group(TyperGroup):
    """The program itself, with the same help."""

    format_help = _write_help

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Parse the options in front of a command."""
        take_plain_values(self.get_params(ctx))
        return super().parse_args(ctx, args)

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        """Find the command, or name the nearest one."""
        if self.get_command(ctx, args[0]) is None and not ctx.resilient_parsing:
            hint = did_you_mean(args[0], self.list_commands(ctx))
            if len(args[0].split()) > 1:
                import shlex

                hint = f"to see its attention, use attnscope run {shlex.quote(args[0])}"
            raise UsageError(f"no such command '{args[0]}'", hint=hint)
        return super().resolve_command(ctx, args)


def _by_group(command: Any, ctx: Any) -> dict[str, list[tuple[str, str]]]:
    groups: dict[str, list[tuple[str, str]]] = {}
    for parameter in command.get_params(ctx):
        record = _record(parameter, ctx)
        if record:
            title = getattr(parameter, "rich_help_panel", None) or "Options"
            groups.setdefault(title, []).append(record)
    return groups


def _record(parameter: Any, ctx: Any) -> tuple[str, str] | None:
    if parameter.param_type_name == "argument":
        return parameter.metavar, parameter.help
    record: tuple[str, str] | None = parameter.get_help_record(ctx)
    if record and "{row_statistics}" in record[1]:
        from attnscope.findings.row_statistics import STATISTICS  # takes NumPy, which other help does without

        return record[0], record[1].replace("{row_statistics}", ", ".join(STATISTICS))
    return record


def _roles() -> list[tuple[str, str]]:
    from attnscope.findings.head_roles import HEAD_ROLES

    return [(f"{role.letter} {role.name}", f"{role.meaning} ({role.source})") for role in HEAD_ROLES]


_GLOSSARIES = {"heads": ("Roles", _roles)}  # sections that the help of a command has in addition to its options


def _style_headings(ctx: Any, formatter: Any) -> None:
    """Print bold headings if there is colour."""
    # Otherwise escapes are removed if standard output is no terminal.
    ctx.color = wants_color(sys.stdout)
    if not ctx.color:
        return

    def write_heading(heading: str) -> None:
        formatter.write(f"{'':>{formatter.current_indent}}\x1b[1m{heading}\x1b[0m\n")

    formatter.write_heading = write_heading
