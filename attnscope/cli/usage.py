"""Turn Typer's exceptions into one-line usage errors with hints."""

import shlex
from collections.abc import Sequence
from itertools import pairwise
from typing import Any

from typer import TyperException

from attnscope.base.errors import UsageError, arg, nearest
from attnscope.request.options import COMMANDS


def to_usage_error(error: TyperException) -> UsageError:
    """Return Typer's usage error as a UsageError, on one line and with a hint."""
    context: Any = getattr(error, "ctx", None)
    if hasattr(error, "possibilities"):
        # Only the error about an unknown option has them.
        name = str(getattr(error, "option_name", ""))
        return UsageError(f"no such option '{name}'", hint=_near(name, context))
    message = " ".join(error.format_message().split()).rstrip(".")
    return UsageError(message[:1].lower() + message[1:], hint=_see_help(context))


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
    options = {name: parameter for parameter in parameters for name in parameter.opts if name.startswith("-")}
    typed = words[: words.index("--")] if "--" in words else words
    for word, following in pairwise(typed):
        if word in options and not options[word].is_flag and following.partition("=")[0] in options:
            value = options[word].metavar
            hint = f"use {word} {value}, or {word}={following} if that is meant"
            raise UsageError(f"needs {value}, but {following} follows", where=word, hint=hint)


def _near(option: str, context: Any) -> str:
    names = [name for p in context.command.get_params(context) for name in p.opts] if context else []
    others = [name for name, options in COMMANDS.items() if any(option == other.spelled for other in options)]
    if others and context:
        *most, last = others
        return f"it is an option of {', '.join(most)}{' and ' * bool(most)}{last}"
    near = nearest(option, [name for name in names if name.startswith("--")])
    if near is None:
        return f"{_see_help(context)}; put -- before a text that starts with '-'"
    return f"did you mean '{near}'?"


def _see_help(context: Any) -> str:
    return f"see {context.command_path if context else 'attnscope'} --help"
