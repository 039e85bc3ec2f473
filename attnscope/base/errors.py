"""Error classes, each shown on one line, and exit codes."""

import os
from ast import literal_eval
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import IntEnum
from importlib import import_module
from os import PathLike
from typing import NamedTuple

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


# Marks the name of an option inside a message. It is drawn at random, so that no text of a user can hold it.
_MARK = f"\0{os.urandom(8).hex()}\0"
Value = str | int | tuple[str, ...] | None
# arguments of Python functions whose options have other names
PYTHON_NAMES = {"chat": "messages", "cuts": "cut"}


class OptionName(NamedTuple):
    """An option that an error names, or a word that the command line and Python spell differently."""

    name: str
    # its value; True or False for a flag, None if the error names the option alone
    value: Value = None
    placeholder: str = ""  # placeholder of the value, such as `WORD`
    # how the command line spells it; empty for the spelling that its option table declares
    typed: str = ""

    def in_python(self) -> str:
        """Spell it as in a Python call."""
        name = PYTHON_NAMES.get(self.name, self.name)
        if self.placeholder:
            return f"{name}={self.placeholder}"
        if self.value is None:
            return name
        return f"{name}={self.value!r}"


def arg(name: str, value: Value | PathLike[str] = None, placeholder: str = "") -> str:
    """Name an option in the message, place or hint of an error; see OptionName.

    Returns:
        A mark that only an AttnscopeError reads.
    """
    if value is None or isinstance(value, str | int | tuple):
        plain = value
    else:
        plain = str(value)
    return _marked(OptionName(name, plain, placeholder))


def _marked(option_name: OptionName) -> str:
    return f"{_MARK}{tuple(option_name)!r}{_MARK}"


# what is no option, and spelled differently on the command line
JSON_FILE = _marked(OptionName(".save('report.json')", typed="--json"))
TEXTS_FILE = _marked(OptionName("text", typed="--file"))
TWO_MASKS = _marked(OptionName("mask=['own', 'causal']", typed="--mask own --mask causal"))
Spelling = Callable[[OptionName], str]


def spell_options(text: str, spelling: Spelling = OptionName.in_python) -> str:
    """Spell the options that a text names with `arg`."""
    pieces = text.split(_MARK)
    pieces[1::2] = [spelling(OptionName(*literal_eval(literal))) for literal in pieces[1::2]]
    return "".join(pieces)


class ErrorParts(NamedTuple):
    """The parts of an error, in which options are marked."""

    message: str
    where: str | None  # the option, or the file and the field in it; None if there is none
    hint: str | None


class AttnscopeError(Exception):
    """The work could not be done: bad data, a model that cannot be read, I/O, memory refused.

    Attributes:
        parts: Message, place and hint, in which `arg` marks the names of options.
        message: What is wrong, with the value, in Python's spelling.
        where: The option, or the file and the field in it, in Python's spelling; None if there is none.
        hint: What the user can do about it, in Python's spelling.
    """

    code = Exit.FAILED

    def __init__(
        self, message: str, *, where: str | PathLike[str] | None = None, hint: str | None = None
    ) -> None:
        self.parts = ErrorParts(message, None if where is None else str(where), hint)
        self.message = spell_options(message)
        self.where, self.hint = (part and spell_options(part) for part in self.parts[1:])
        super().__init__(self.message)

    def placed(self, where: str | PathLike[str]) -> "AttnscopeError":
        """Return this error, or one at this place if it names none."""
        if self.where:
            return self
        return AttnscopeError(self.parts.message, where=where, hint=self.parts.hint)

    def __str__(self) -> str:
        """Return the line in Python's spelling."""
        return self.line()

    def line(self, spelling: Spelling = OptionName.in_python) -> str:
        """Return one line: `<where>: <message>; <hint>`, with every control character made visible."""
        message, where, hint = (
            _shortened(escape_control(spell_options(part, spelling))) if part else ""
            for part in self.parts
        )
        return (f"{where}: " if where else "") + message + (f"; {hint}" if hint else "")


def _shortened(text: str) -> str:
    """Return a text without its middle, if it is too long for an error line."""
    half = _LONGEST // 2
    if len(text) <= _LONGEST:
        return text
    return f"{text[:half]}…{text[-half:]}"


def listed(names: Sequence[str], limit: int) -> str:
    """Join names with commas; `…` ends a list that is cut."""
    return ", ".join([*names[:limit], "…"] if len(names) > limit else names)


class ModelError(AttnscopeError):
    """The model's weights cannot be read while it runs: other texts would fail as well."""


class NotFinite(AttnscopeError):
    """A score or an output is infinite or no number."""


class MemoryExceeded(AttnscopeError):
    """A run takes more memory than it was given, contrary to its estimate: other texts would fail as well."""


class DeviceMemoryExceeded(AttnscopeError):
    """A GPU has no memory left: less at a time may fit."""


class DeviceFailed(AttnscopeError):
    """A GPU or its driver fails: other texts would fail as well."""


class UsageError(AttnscopeError):
    """The command line itself is wrong: an unknown option value, a range that cannot be read."""

    code = Exit.USAGE


class NotInText(UsageError):
    """A word or position that was typed is not in a text; it may be in another."""


@dataclass(frozen=True)
class Extra:
    """A library that an extra of attnscope installs."""

    name: str
    package: str
    module: str
    instead: str = ""

    def require(self, what: str, where: str | PathLike[str] | None = None) -> None:
        """Import the library, so that the caller can."""
        try:
            import_module(self.module)
        except ImportError as e:
            hint = f"pip install 'attnscope[{self.name}]'{self.instead and ', or '}{self.instead}"
            raise AttnscopeError(f"{what} needs {self.package}", where=where, hint=hint) from e


PARQUET = Extra("parquet", "pyarrow", "pyarrow")
FIGURES = Extra("figures", "resvg-py", "resvg_py", "write .svg")
PDF = Extra("pdf", "typst", "typst", "write .svg")
TUI = Extra("tui", "textual", "textual")
RAY = Extra("ray", "ray", "ray")
REMOTE = Extra("remote", "fsspec", "fsspec", "copy the file to this disk")
PANDAS = Extra("pandas", "pandas", "pandas")
AUDIO = Extra("audio", "soundfile and soxr", "soundfile")
SENTENCEPIECE = Extra(
    "sentencepiece",
    "sentencepiece",
    "sentencepiece",
    f"pass {arg('tokenizer')} with a tokenizer.json",
)


def did_you_mean(word: str, known_words: "list[str] | tuple[str, ...]") -> str:
    """Return a hint that names the nearest of the known words, or lists them all."""
    return suggestion(word, known_words) or f"known: {', '.join(known_words)}"


def suggestion(word: str, known_words: "list[str] | tuple[str, ...]") -> str | None:
    """Return a hint that names the nearest of the known words; None if none is near."""
    near = nearest(word, known_words)
    if near is None:
        return None
    return f"did you mean '{near}'?"


def nearest(word: str, known_words: "list[str] | tuple[str, ...]") -> str | None:
    """Return the known word that is most like a word; None if none is much like it."""
    # A fifth of a millisecond, only paid for errors.
    from difflib import get_close_matches

    return next(iter(get_close_matches(word, known_words, n=1, cutoff=0.6)), None)
