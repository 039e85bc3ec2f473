"""The formats of files that hold findings, each declared once.

`--output` and its help, `Report.save` and the refusals of both read them from here. A new format is an entry in
FILE_FORMATS. Nothing heavy is imported before a file is written.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from attnscope.errors import UsageError

if TYPE_CHECKING:
    from attnscope.report import Explanation, Report
    from attnscope.report.check import CheckReport
    from attnscope.report.compare import Comparison

WIDTH = 120  # columns of what is drawn into a file
Command = Literal["run", "compare", "explain", "check"]
_DRAWS: tuple[Command, ...] = ("run", "compare", "explain")


@dataclass(frozen=True)
class FileFormat:
    """One format.

    Attributes:
        ending: Of the file's name, with its dot.
        holds: The commands whose findings it can hold.
        write: Its bytes piece by piece, from findings, digits after the point, and columns.
        drawn: It is made for eyes: a window of a long text is enough, and digits are rounded.
    """

    ending: str
    holds: tuple[Command, ...]
    write: Callable[[Any, int, int], Iterator[bytes]]
    drawn: bool = False


def export(
    findings: "Report | Comparison | Explanation | CheckReport",
    path: Path,
    *,
    precision: int = 2,
    width: int | None = None,
) -> Iterator[bytes]:
    """What a file of this name holds, piece by piece; writing it is the caller's business.

    Args:
        findings: What to export.
        path: The file's name; its ending chooses `.json`, `.txt` (the table view), `.svg` (the same in colour) or
            `.safetensors` (every array of a Report by name, such as `text0.L2H1.weights`).
        precision: Digits after the point in `.txt` and `.svg`; the others are exact.
        width: Columns of `.txt` and `.svg`; None for 120.

    Raises:
        UsageError: The ending is none of these, or the format cannot hold such findings.
    """
    return format_for(path, _command_of(findings)).write(findings, precision, width or WIDTH)


def format_for(path: Path, command: Command) -> FileFormat:
    """Find the format of a file's name.

    Raises:
        UsageError: The ending is unknown, or the format cannot hold the command's findings.
    """
    hint = f"use {' '.join(endings(command))}"
    for one in FILE_FORMATS:
        if one.ending == path.suffix.lower():
            if command not in one.holds:
                found = f"{one.ending} holds findings of {' and '.join(one.holds)} only"
                raise UsageError(found, where=path, hint=hint)
            return one
    found = f"unknown extension '{path.suffix}'" if path.suffix else "the name has no extension"
    raise UsageError(found, where=path, hint=hint)


def endings(command: Command) -> list[str]:
    """List the endings that the findings of a command can have."""
    return [one.ending for one in FILE_FORMATS if command in one.holds]


def endings_in_words() -> str:
    """Describe the endings for help: `.json .txt .svg, or .safetensors for run`."""
    everywhere = [one.ending for one in FILE_FORMATS if set(_DRAWS) <= set(one.holds)]
    others = [f"{one.ending} for {' and '.join(one.holds)}" for one in FILE_FORMATS if one.ending not in everywhere]
    return f"{' '.join(everywhere)}, or {', '.join(others)}"


def _command_of(findings: "Report | Comparison | Explanation | CheckReport") -> Command:
    from attnscope.report import Explanation, Report
    from attnscope.report.compare import Comparison

    if isinstance(findings, Report):
        return "run"
    return (
        "compare" if isinstance(findings, Comparison) else "explain" if isinstance(findings, Explanation) else "check"
    )


def _json(findings: Any, _precision: int, _width: int) -> Iterator[bytes]:
    from attnscope.report import json_parts

    yield from json_parts(findings)
    yield b"\n"


def _txt(findings: Any, precision: int, width: int) -> Iterator[bytes]:
    if _command_of(findings) == "check":
        from attnscope.views.check import as_text as check_as_text
        from attnscope.views.plain import Page

        yield check_as_text(findings, Page(width)).encode()
        return
    from attnscope.views.terminal.recorded import as_text  # rich is only needed for drawing

    yield as_text(findings, width=width, precision=precision).encode()


def _svg(findings: Any, precision: int, width: int) -> Iterator[bytes]:
    from attnscope.views.terminal.recorded import as_svg

    yield as_svg(findings, width=width, precision=precision).encode()


def _safetensors(findings: Any, _precision: int, _width: int) -> Iterator[bytes]:
    from attnscope.views.tensors import safetensors_parts

    yield from safetensors_parts(findings)


FILE_FORMATS = (
    FileFormat(".json", ("run", "compare", "explain", "check"), _json),
    FileFormat(".txt", ("run", "compare", "explain", "check"), _txt, drawn=True),
    FileFormat(".svg", _DRAWS, _svg, drawn=True),
    FileFormat(".safetensors", ("run",), _safetensors),
)
