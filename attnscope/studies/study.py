"""What a study declares: its command, its Python function, and the kinds of its findings with their screens and files.

A study is a folder with a `study.py`, and its name in `studies/registry.py`. Declarations import nothing heavy: what
computes and what draws is imported when it is called.
"""

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from importlib import import_module
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from attnscope.base.errors import AttnscopeError, Extra, UsageError, arg
from attnscope.request.options import Option
from attnscope.views.settings import DisplaySettings, Listing

if TYPE_CHECKING:
    from attnscope.request.run_config import RunConfig, TextInput
    from attnscope.run.session import Session
    from attnscope.views.parts import ViewPart

# formats that every kind with a screen of parts can have
DRAWN = (".json", ".txt", ".svg", ".png", ".pdf", ".html")
TABLES = (".csv", ".parquet")


@dataclass(frozen=True)
class FindingsKind:
    """A kind of findings."""

    name: str  # the study's name, or one of its own if the study has several kinds
    findings: str  # module in `attnscope.findings` and name of its class, such as `run:Report`
    # module in `attnscope.studies` and name of the function of findings and settings that yields the parts of a screen
    screen: str
    formats: tuple[str, ...] = DRAWN  # extensions of files that can hold it
    typed: str = ""  # the command that finds it, as errors name it
    page: str = ""  # the function for a page; empty if a page shows the screen's parts

    def findings_type(self) -> Any:
        """Import the class of its findings."""
        return imported(f"attnscope.findings.{self.findings}")

    @property
    def schema(self) -> str:
        """Name and version of its JSON schema."""
        schema: str = self.findings_type().__struct_defaults__[-1]
        return schema


@dataclass(frozen=True)
class FileFormat:
    """A file format."""

    ending: str
    # yields the bytes of a file
    write: Callable[[Any, DisplaySettings], Iterator[bytes]]
    # made for reading, with rounded numbers: tokens of the longest text whose matrices it has whole; None for data
    window: int | None = None
    picture: bool = False
    page: bool = False  # a page to walk through, which holds more than it first shows
    extra: Extra | None = None  # the library that it needs


def imported(declared: str) -> Any:
    """Import what a declaration names as `module:name`."""
    module, _, name = declared.partition(":")
    return getattr(import_module(module), name)


# an option that is given once for every side of a comparison, and its values
Sides = tuple[str, Sequence[Any]]


def only_axis(repeated: Mapping[str, Sequence[Any]]) -> Sides | None:
    """Return the option with several values, one for every side; None if there is none."""
    if len(repeated) > 1:
        hint = f"compare one thing at a time; {arg('layer', '0,1')} is one value"
        raise UsageError(f"{' and '.join(map(arg, repeated))} have several values", hint=hint)
    for name, values in repeated.items():
        if len(values) < 2:
            message = f"has {len(values)} value{'s' * (not values)}"
            raise UsageError(message, where=arg(name), hint="a comparison needs at least two")
        return name, values
    return None


def is_saved(text: object) -> bool:
    """Tell whether a side is a saved report, in a file or in memory, which is not run again."""
    from attnscope.findings.run import Report

    return isinstance(text, PathLike | Report)


@dataclass(frozen=True)
class Request:
    """The request of a command or of a call in Python to a study."""

    run: "RunConfig"  # the texts, the model, and what applies to every study; of the first side
    session: "Session"
    values: Mapping[str, Any]  # the study's own options by name; None for one that is not given
    # where the findings go: a file, or the screen, which is like a file of text; None for data in Python
    form: FileFormat | None = None
    # draws generated tokens on the screen while the study runs; None if none are, or elsewhere
    draw: Callable[[Sequence["ViewPart"]], None] | None = None
    # reads a file with one text per line, which an option of the command line names
    read_lines: Callable[[Path], "Sequence[TextInput]"] | None = None
    built_in: bool = False  # whether the texts of the run are the built-in ones
    # reads a JSON file, or standard input for `-`; returns its name for errors, and the value
    read_json: Callable[[str], tuple[str, Any]] | None = None
    shows_every_head: bool = False  # a page, which shows every head beside the findings
    # what that page shows of them, or a figure of one, which the study appends
    every_head: list[Any] = field(default_factory=list)
    axis: str = ""  # the option whose values are compared; empty for no comparison
    sides: Sequence[tuple[Any, "RunConfig"]] = ()  # these values, with the run of each
    typed: Collection[str] = ()  # options of this call; others have defaults, or come from settings


@dataclass(frozen=True)
class Call:
    """What the options of a call make of it."""

    kind: str  # name of the kind of findings
    # which texts it takes: `named` ones; built-in ones if none are named (the study adds them), or if none are `typed`
    # (a piped text is not read); those of a `file`; or none
    texts: Literal["named", "built-in", "typed", "file", "none"] = "named"
    listing: Listing = field(default_factory=Listing)
    sides: Sides | None = None  # what is compared, if it is not the option that was repeated
    verdict: bool = False  # whether a screen shows a verdict alone, unless a format is chosen


@dataclass(frozen=True)
class StudyCommand:
    """A command and Python function that need no code in `cli` or `api`."""

    help: str  # its help; the first line says what it does
    examples: str
    answer: Callable[[Request], Any]
    # its options; empty if `request/options.py` lists them under the study's name
    options: tuple[Option, ...] = ()
    function: str = ""  # its function in Python; empty for the study's name
    # options that a RunConfig has, too, and that here mean something else
    own: tuple[str, ...] = ("top",)
    # returns what the given options, and the sides of a comparison, make of it; refuses some of them. None if it always
    # has named texts and the study's first kind of findings
    call: Callable[[Mapping[str, Any], Sides | None], Call] | None = None
    built_in: str = ""  # module and name of the texts that stand in for named ones
    # returns whether findings are a failure (exit code 1), or the error about it; None if they never are
    failed: Callable[[Any], bool | AttnscopeError | None] | None = None


@dataclass(frozen=True)
class Study:
    """The declaration of a study."""

    kinds: tuple[FindingsKind, ...]
    command: StudyCommand | None = None  # its command; None if `cli` and `api` have code for it
