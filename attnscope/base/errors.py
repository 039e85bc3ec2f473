"""Error classes, each shown on one line, and exit codes."""

from collections.abc import Sequence
from dataclasses import dataclass
from enum import IntEnum
from importlib import import_module
from os import PathLike

from attnscope.base.system.escape import escape_control

_LONGEST = 1000  # characters of each part of an error line: a typed value may have any length


class Exit(IntEnum):
    """Exit codes of the command line; a signal ends with 128 plus its number."""

    DONE = 0
    FAILED = 1
    USAGE = 2
    SOME_RECORDS_FAILED = 3
    BUG = 70
    READER_GONE = 141


class AttnscopeError(Exception):
    """The work could not be done: bad data, a model that cannot be read, I/O, memory refused.

    Attributes:
        found: What is wrong, with the value.
        where: The option, or the file and the field in it; None if there is none.
        hint: What the user can do about it.
        code: The exit code.
    """

    code = Exit.FAILED

    def __init__(self, found: str, *, where: str | PathLike[str] | None = None, hint: str | None = None) -> None:
        super().__init__(found)
        self.found, self.hint = found, hint
        self.where = None if where is None else str(where)

    def __str__(self) -> str:
        """Return one line: `<where>: <found>; <hint>`, with every control character made visible."""
        where, found, hint = (
            _shortened(escape_control(part)) if part else "" for part in (self.where, self.found, self.hint)
        )
        return (f"{where}: " if where else "") + found + (f"; {hint}" if hint else "")


def _shortened(text: str) -> str:
    """Return a text without its middle, where it is too long for an error line."""
    half = _LONGEST // 2
    return text if len(text) <= _LONGEST else f"{text[:half]}…{text[-half:]}"


def listed(names: Sequence[str], most: int) -> str:
    """Join names with commas; `…` ends a list that is cut."""
    return ", ".join([*names[:most], "…"] if len(names) > most else names)


class ModelError(AttnscopeError):
    """The model's weights cannot be read while it runs: with another text it would fail as well."""


class MemoryExceeded(AttnscopeError):
    """A run takes more memory than it was given, against its estimate: with another text it would be no better."""


class DeviceMemoryExceeded(AttnscopeError):
    """A GPU has no memory left: less at a time may fit."""


class UsageError(AttnscopeError):
    """The command line itself is wrong: an unknown option value, a range that cannot be read."""

    code = Exit.USAGE


class NotInText(UsageError):
    """A word or position that was typed is not in a text; it may be in another."""


@dataclass(frozen=True)
class Extra:
    """A library that an extra of attnscope installs.

    Attributes:
        name: Name of the extra.
        package: Name of the package to install.
        module: Name of the module to import.
        instead: An alternative without the library.
    """

    name: str
    package: str
    module: str
    instead: str = ""

    def require(self, what: str, where: str | PathLike[str] | None = None) -> None:
        """Import the library, so that the caller can.

        Args:
            what: The feature that needs it, for the error.
            where: The file that needs it.

        Raises:
            AttnscopeError: The library is not installed.
        """
        try:
            import_module(self.module)
        except ImportError as e:
            hint = f"pip install 'attnscope[{self.name}]'{self.instead and ', or '}{self.instead}"
            raise AttnscopeError(f"{what} needs {self.package}", where=where, hint=hint) from e


PARQUET = Extra("parquet", "pyarrow", "pyarrow")
FIGURES = Extra("figures", "resvg-py", "resvg_py", "write .svg")
PANDAS = Extra("pandas", "pandas", "pandas")
SENTENCEPIECE = Extra("sentencepiece", "sentencepiece", "sentencepiece", "pass --tokenizer with a tokenizer.json")


def did_you_mean(word: str, known: "list[str] | tuple[str, ...]") -> str:
    """Return a hint that names the nearest of the known words, or lists them all."""
    near = nearest(word, known)
    return f"known: {', '.join(known)}" if near is None else f"did you mean '{near}'?"


def nearest(word: str, known: "list[str] | tuple[str, ...]") -> str | None:
    """Return the known word that is most like a word; None if none is much like it."""
    from difflib import get_close_matches  # a fifth of a millisecond, only paid for errors

    return next(iter(get_close_matches(word, known, n=1, cutoff=0.6)), None)
