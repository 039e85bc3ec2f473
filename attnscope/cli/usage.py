"""Turn Typer's exceptions into one-line usage errors with hints."""

import re
import shlex
from typing import Any

from typer import TyperException

from attnscope.base.errors import UsageError, did_you_mean

_EXTRA = re.compile(r"Got unexpected extra arguments?(?:\(s\))? \((.*)\)")  # in the words of Typer


def to_usage_error(error: TyperException) -> UsageError:
    """Return Typer's usage error as ours, on one line and with a hint."""
    message = " ".join(error.format_message().split()).rstrip(".")
    option = getattr(error, "option_name", None)
    if option and message.startswith("No such option"):
        return UsageError(f"no such option '{option}'", hint=_near(option, error))
    if extra := _EXTRA.fullmatch(message):
        names = _parameters(error)
        hint = _see_help(error)
        if "text" in names:
            hint = 'put quotation marks around a text: "The bank by the river"'
        elif "model" in names and "argument" not in names.values():
            hint = f"name a model with --model: {_command(error)} --model {shlex.quote(extra[1])}"
        return UsageError(f"unexpected extra argument: {extra[1]}", hint=hint)
    return UsageError(message[:1].lower() + message[1:], hint=_see_help(error))


def _parameters(error: TyperException) -> dict[str, str]:
    """Return the names of the command's parameters, and whether each is an option or an argument."""
    context: Any = getattr(error, "ctx", None)
    return {p.name: p.param_type_name for p in context.command.params} if context else {}


def _near(option: str, error: TyperException) -> str:
    context: Any = getattr(error, "ctx", None)
    known = [name for p in context.command.get_params(context) for name in p.opts] if context else []
    hint = did_you_mean(option, [name for name in known if name.startswith("--")])
    if hint.startswith("known"):
        return f"{_see_help(error)}; put -- before a text that starts with '-'"
    return hint


def _see_help(error: TyperException) -> str:
    return f"see {_command(error)} --help"


def _command(error: TyperException) -> str:
    context: Any = getattr(error, "ctx", None)
    return context.command_path if context else "attnscope"
