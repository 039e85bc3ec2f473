"""Turn Typer's exceptions into one-line usage errors with hints."""

import re
from typing import Any

from typer import TyperException

from attnscope.errors import UsageError, did_you_mean

_EXTRA = re.compile(r"Got unexpected extra arguments?(?:\(s\))? \((.*)\)")  # in the words of Typer


def to_usage_error(error: TyperException) -> UsageError:
    """Return Typer's usage error as ours, on one line and with a hint."""
    message = " ".join(error.format_message().split()).rstrip(".")
    option = getattr(error, "option_name", None)
    if option and message.startswith("No such option"):
        return UsageError(f"no such option '{option}'", hint=_near(option, error))
    if extra := _EXTRA.fullmatch(message):
        hint = 'put quotation marks around a text: "The bank by the river"' if _takes_text(error) else _see_help(error)
        return UsageError(f"unexpected extra argument: {extra[1]}", hint=hint)
    return UsageError(message[:1].lower() + message[1:], hint=_see_help(error))


def _takes_text(error: TyperException) -> bool:
    context: Any = getattr(error, "ctx", None)
    return context is not None and any(p.name == "text" for p in context.command.params)


def _near(option: str, error: TyperException) -> str:
    context: Any = getattr(error, "ctx", None)
    known = [name for p in context.command.get_params(context) for name in p.opts] if context else []
    hint = did_you_mean(option, [name for name in known if name.startswith("--")])
    if hint.startswith("known"):
        return f"{_see_help(error)}; put -- before a text that starts with '-'"
    return hint


def _see_help(error: TyperException) -> str:
    context: Any = getattr(error, "ctx", None)
    return f"see {context.command_path if context else 'attnscope'} --help"
