"""Our parts of Typer's commands: values without pydantic, and usage errors of one line with hints.

Importing pydantic, which Typer would set up for every option, takes a tenth of the time of `import torch`, and most
values are strings, or read by our own parsers.
"""

import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, get_args, get_origin

from typer import TyperException
from typer.core import TyperCommand, TyperGroup

from attnscope.base.errors import UsageError, arg, did_you_mean, nearest, suggestion
from attnscope.cli.parameters import SETTINGS, WORDS
from attnscope.cli.settings import settings_of
from attnscope.request.arguments import with_ray_address
from attnscope.request.options import COMMANDS
from attnscope.studies.registry import options_of

# where a repeated option asks for a comparison; elsewhere the last value counts
_REFUSING_REPEATS = ("compare",)
# what others have commands for
_MEASURES = ("rollout", "value-zeroing")
# what others call --output, to an example of its value
_FILES = {
    **{f"--{ending}": f"FILE.{ending}" for ending in ("html", "svg", "png", "pdf", "csv", "npz")},
    **dict.fromkeys(("--export", "--save", "--save-to", "--outfile"), "FILE"),
}


def _refuse_repeats(options: list[Any]) -> None:
    """Refuse an option that is given several times, and takes one value.

    Args:
        options: Every option and argument in the order of the command line.
    """
    for parameter in options:
        single = False
        if parameter.param_type_name == "option":
            single = not parameter.multiple and not parameter.is_flag
        if single and options.count(parameter) > 1:
            hint = "pass it once; texts, models, adapters, tokenizers, masks, hidden tokens, layers, heads, dtypes and "
            hint += "engines can be compared"
            raise UsageError(
                "its values cannot be compared", where=max(parameter.opts, key=len), hint=hint
            )


class Command(TyperCommand):
    """A command that takes further names of its options, and refuses what it does not take with a hint."""

    allow_extra_args = True  # refused in parse_args, with a hint

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Parse, refuse further arguments, and add the command to every usage error."""
        args = with_ray_address(args) if self.name == "batch" else args
        args = _without_aliases(str(self.name), args)
        ctx.meta[WORDS] = list(args)
        # What only shows help, or completes, needs no settings.
        if not (
            ctx.resilient_parsing
            or {"-h", "--help", "--version"} & set(args)
            or self.name == "help"
        ):
            settings = settings_of(str(self.name), args)
            ctx.default_map = {name: setting.typed for name, setting in settings.items()}
            ctx.meta[SETTINGS] = {name: setting.source for name, setting in settings.items()}
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
    """The program itself."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Parse the options in front of a command."""
        take_plain_values(self.get_params(ctx))
        return super().parse_args(ctx, args)

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        """Find the command, or name the nearest one."""
        if self.get_command(ctx, args[0]) is None and not ctx.resilient_parsing:
            commands = self.list_commands(ctx)
            hint = suggestion(args[0], commands) or _option_named(args[0])
            hint = hint or did_you_mean(args[0], commands)
            if len(args[0].split()) > 1:
                import shlex

                hint = f"to see its attention, use attnscope run {shlex.quote(args[0])}"
            raise UsageError(f"no such command '{args[0]}'", hint=hint)
        return super().resolve_command(ctx, args)


def _without_aliases(command: str, words: Sequence[str]) -> list[str]:
    """Replace further names of options by those that help and errors use."""
    names = {alias: option.spelled for option in options_of(command) for alias in option.aliases}
    typed = words[: words.index("--")] if "--" in words else words
    canonical = []
    for word in typed:
        name, equals, value = word.partition("=")
        canonical.append(names.get(name, name) + equals + value)
    return [*canonical, *words[len(typed) :]]


def to_usage_error(error: TyperException) -> UsageError:
    """Return Typer's usage error as a UsageError, on one line and with a hint."""
    context: Any = getattr(error, "ctx", None)
    if hasattr(error, "possibilities"):
        # Only the error about an unknown option has them.
        name = str(getattr(error, "option_name", ""))
        return UsageError(f"no such option '{name}'", hint=_near(name, context))
    message = " ".join(error.format_message().split()).rstrip(".")
    hint = _see_help(context)
    if "'--output'" in message:
        hint = f"name the file to write, such as -o dump.jsonl, or {hint}"
    return UsageError(message[:1].lower() + message[1:], hint=hint)


def extra_arguments(words: Sequence[str], context: Any) -> UsageError:
    """Return the error about arguments that the command does not take."""
    names = {p.name: p.param_type_name for p in context.command.params}
    extra = " ".join(words)
    hint = _see_help(context)
    if "text" in names:
        hint = 'put quotation marks around a text: "The bank by the river"'
    elif "model" in names and "argument" not in names.values():
        command = f"{context.command_path} --model {shlex.quote(extra)}"
        hint = f"name a model with {arg('model')}: {command}"
    return UsageError(f"unexpected extra argument: {extra}", hint=hint)


def refuse_option_as_value(parameters: Sequence[Any], words: Sequence[str]) -> None:
    """Refuse an option in the place of the value of another, such as `--chat --layer 3`."""
    options = {
        name: parameter
        for parameter in parameters
        for name in parameter.opts
        if name.startswith("-")
    }
    typed = words[: words.index("--")] if "--" in words else words
    for word, following in pairwise(typed):
        if word in options and not options[word].is_flag and following.partition("=")[0] in options:
            value = options[word].metavar
            hint = f"use {word} {value}, or {word}={following} if that is meant"
            raise UsageError(f"needs {value}, but {following} follows", where=word, hint=hint)


def _option_named(word: str) -> str | None:
    """Return a hint to the option of this name, or that takes this value; None if there is none."""
    if word in _MEASURES:
        return f"use --measure {word} of attnscope run"
    for command, options in COMMANDS.items():
        for option in options:
            if option.spelled == f"--{word}":
                return f"use {f'{option.spelled} {option.metavar}'.rstrip()} of attnscope {command}"
    return None


def _near(option: str, context: Any) -> str:
    if context:
        names = [name for p in context.command.get_params(context) for name in p.opts]
    else:
        names = []
    others = [
        name
        for name, options in COMMANDS.items()
        if any(option in (other.spelled, *other.aliases) for other in options)
    ]
    if others and context and "out" not in names:
        *all_but_last, last = others
        return f"it is an option of {', '.join(all_but_last)}{' and ' * bool(all_but_last)}{last}"
    if option in _FILES and "--output" in names:
        return f"use -o {_FILES[option]}"
    if option[2:] in _MEASURES:
        return f"use --measure {option[2:]} of attnscope run"
    # their dashes would make all options alike
    near = nearest(option.strip("-"), [name[2:] for name in names if name.startswith("--")])
    if near is None:
        hint = _see_help(context)
        if option in ("-o", "--output") and "out" in names:
            hint = f"the file comes second, without {option}: {context.command_path} IN OUT"
        if "text" in names:
            hint += "; put -- before a text that starts with '-'"
        return hint
    return f"did you mean '--{near}'?"


def _see_help(context: Any) -> str:
    return f"see {context.command_path if context else 'attnscope'} --help"


def take_plain_values(parameters: Sequence[Any]) -> None:
    """Let the parameters of a command take plain values themselves; nothing happens under another version of Typer."""
    for parameter in parameters:
        if getattr(parameter, "_runtime_param", "") is None:
            parameter._runtime_param = _PlainValues(parameter.type_descriptor)


@dataclass(frozen=True)
class _PlainValues:
    """Typer's coercion of one parameter, which it asks for `_runtime_param.coerce`."""

    descriptor: Any  # the parameter's type, as Typer describes it

    def coerce(self, value: Any, param: Any, ctx: Any) -> Any:
        """Return the value of a parameter as its annotation says."""
        several = param.multiple or param.nargs == -1
        if value is None:
            return () if several else None
        annotation = self.descriptor.annotation
        try:
            if get_origin(annotation) is list and isinstance(value, (list, tuple)):
                return [self._one(item, get_args(annotation)[0]) for item in value]
            if not several:
                return self._one(value, annotation)
        except ValueError:
            pass  # refused, or not plain
        from typer._coercion import build_runtime_param

        return build_runtime_param(self.descriptor).coerce(value, param=param, ctx=ctx)

    def _one(self, value: Any, annotation: Any) -> Any:
        info = self.descriptor.parameter_info
        if info.parser is not None:
            return info.parser(value)
        if annotation is str and isinstance(value, str):
            return value
        raise ValueError("not plain")
