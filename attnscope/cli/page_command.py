"""The command that a page names: what was typed, without what only its file needs."""

import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from attnscope.base.system.escape import quote_for_shell
from attnscope.cli.parameters import Given
from attnscope.request.options import COMMON, Option
from attnscope.studies.registry import options_of
from attnscope.views.settings import TypedCommand

if TYPE_CHECKING:
    from attnscope.request.run_config import TextInput

_OF_FILES = ("output", "open", "force", "quiet", "header", "effects", "keep_newline", "errors")
_PIPED = "standard input"


def page_command(options: Given, texts: "Sequence[TextInput]") -> TypedCommand | None:
    """Return the command that finds the same without a page; None if it reads from a pipe what it cannot name.

    Files and folders of this machine are named by their ends, and a text that was piped is written out.
    """
    piped = [text for text in texts if text.where == _PIPED]
    if any(text.chat or text.given for text in piped) or len(piped) > 1:
        return None
    words = [*_typed(options), *_from_elsewhere(options)]
    printed = None
    if piped:
        text = piped[0].text
        words = [(name, word) for name, word in words if (name, word) != ("", "-")]
        printed = text if text.startswith("-") else None
        words.insert(0, ("", "-" if printed else text))
    shared = [(name, _shared(word)) for name, word in words]
    return TypedCommand(
        options.command_name,
        [(name, quote_for_shell(word)) for name, word in shared],
        None if printed is None else quote_for_shell(printed),
        shared != words,
    )


def _typed(options: Given) -> Iterator[tuple[str, str]]:
    """Yield the words that were typed, each with the name of its option; arguments have none."""
    by_flag = {flag: option for option in _options(options) for flag in _flags(option)}
    words = list(options.command_line)
    while words:
        word = words.pop(0)
        flag, equals, value = word.partition("=")
        option = by_flag.get(flag)
        if option is None:
            yield "", word
            continue
        if option.is_flag:
            values = []
        elif equals:
            values = [value]
        else:
            values = words[:1]
        if not option.is_flag and not equals:
            del words[:1]
        if option.name not in _OF_FILES:
            yield from ((option.name, part) for part in (flag, *values))


def _from_elsewhere(options: Given) -> Iterator[tuple[str, str]]:
    """Yield options whose values come from a settings file or the environment."""
    for option in _options(options):
        value = options.explicit.get(option.name)
        if option.name == "model" and os.environ.get(str(option.variable)):
            value = None if {"config", "qkv"} & options.typed else options.model
        if option.name in (*options.typed, *_OF_FILES) or value is None:
            continue
        if option.is_flag and value is True:
            yield option.name, option.spelled
        elif isinstance(value, str | Path | int | float) and not isinstance(value, bool):
            yield from ((option.name, part) for part in (option.spelled, str(value)))


def _options(options: Given) -> Sequence[Option]:
    return (*options_of(options.command_name), *COMMON)


def _flags(option: Option) -> list[str]:
    flags = () if option.argument else (option.spelled, option.off, option.short, *option.aliases)
    return [flag for flag in flags if flag]


def _shared(word: str) -> str:
    """Name a file or folder for readers on other machines by the end of its path; other words stay."""
    from attnscope.studies.screens.header import short_path

    try:
        is_path = Path(word).is_absolute() and Path(word).exists()
    except (OSError, ValueError):  # it is too long, or has a NUL
        is_path = False
    return short_path(word) if is_path else word
