"""The commands: the functions behind them, and what their help says."""

from collections.abc import Callable
from importlib import import_module
from inspect import cleandoc
from typing import NamedTuple

from attnscope.cli.parameters import Given
from attnscope.cli.study import answer
from attnscope.studies.registry import STUDIES, study

_MODULES = {
    "learn": "learn",
    "explore": "explore",
    "batch": "batch",
    "merge": "merge",
    "verify": "verify",
    "convert": "convert",
    "import": "import_",
    "info": "info",
    "pull": "pull",
    "help": "help_command",
}  # name of a command, and of its module and function
COMMANDS = list(dict.fromkeys((*STUDIES, *_MODULES)))
ALIASES = {"inspect": "run"}  # names that Python has for a command


class CommandText(NamedTuple):
    """A command: its function, what it does (the first line is a summary), and its examples, the most useful first."""

    function: Callable[[Given], None]
    help: str
    examples: str


def load(name: str) -> CommandText:
    """Import a command."""
    declared = study(name).command if name in STUDIES else None
    if declared is not None:
        return CommandText(
            answer(name, declared), cleandoc(declared.help), cleandoc(declared.examples)
        )
    module = import_module(f"attnscope.cli.{_MODULES[name]}")
    function = getattr(module, _MODULES[name])
    return CommandText(function, cleandoc(function.__doc__), module.EXAMPLES.strip())
