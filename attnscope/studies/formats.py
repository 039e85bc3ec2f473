"""The formats of files that hold findings, each declared once.

`--output`, its help, `Report.save` and their errors use these declarations. A new format is an entry in FILE_FORMATS.
Nothing heavy is imported before a file is written.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from attnscope.base.errors import FIGURES, PARQUET, Extra, UsageError, arg

if TYPE_CHECKING:
    from attnscope.findings.ablation import Ablation, EffectSurvey
    from attnscope.findings.check import CheckReport
    from attnscope.findings.compare import Comparison
    from attnscope.findings.explain import Explanation
    from attnscope.findings.heads import HeadSurvey, MeasuredHeads
    from attnscope.findings.run import Report
    from attnscope.studies.heads.screen import Listing
    from attnscope.views.parts import ViewPart

WIDTH = 120  # columns of text drawn into a file
Look = Literal["figure", "terminal"]
Command = Literal["run", "compare", "explain", "heads", "ablate", "effects", "check"]
_DRAWS: tuple[Command, ...] = ("run", "compare", "explain", "heads", "ablate", "effects")


@dataclass(frozen=True)
class Drawing:
    """How findings are drawn, for formats that are made for eyes.

    Attributes:
        precision: Digits after the point.
        width: Columns of what looks like a terminal.
        listing: Of a survey of heads: which of them are listed; None for a choice by the format.
        look: Of pictures.
        data_only: Whether remarks are left out.
    """

    precision: int = 2
    width: int = WIDTH
    listing: "Listing | None" = None
    look: Look = "figure"
    data_only: bool = False


@dataclass(frozen=True)
class FileFormat:
    """One format.

    Attributes:
        ending: Of the file's name, with its dot.
        holds: The commands whose findings it can hold.
        write: Function that yields the bytes of a file, from findings and their drawing settings.
        drawn: Whether it is made for reading: a window of a long text is enough, and numbers are rounded.
        picture: Whether it is a picture.
        extra: The library that it needs.
    """

    ending: str
    holds: tuple[Command, ...]
    write: "Callable[[Any, Drawing], Iterator[bytes]]"
    drawn: bool = False
    picture: bool = False
    extra: Extra | None = None


def export(
    findings: "Report | Comparison | Explanation | CheckReport | HeadSurvey | MeasuredHeads | Ablation | EffectSurvey",
    path: Path,
    *,
    precision: int = 2,
    width: int | None = None,
    listing: "Listing | None" = None,
    look: Look = "figure",
    data_only: bool = False,
) -> Iterator[bytes]:
    """Yield what a file of this name holds, piece by piece; writing it is the caller's business.

    Args:
        findings: Findings to export.
        path: The file's name; its ending chooses `.json`, `.txt` (the table view), `.svg` or `.png` (a figure),
            `.safetensors` or `.npz` (the arrays of a Report, one for each stage), `.csv` or `.parquet` (a row for every
            head of a survey, or for whatever is cut alone).
        precision: Decimal places in formats made for reading; other formats are exact.
        width: Columns of `.txt`, and of a picture of the terminal; None for 120.
        listing: For a survey of heads, which heads are listed.
        look: Of `.svg`: `figure`, or `terminal` for the table view in colour.
        data_only: Leave out header, remarks and notes of formats made for reading.

    Raises:
        UsageError: The extension is unknown, or its format cannot hold these findings or this look.
    """
    found = format_for(path, _command_of(findings))
    check_look(path, look)
    return found.write(findings, Drawing(precision, width or WIDTH, listing, look, data_only))


def check_look(path: Path, look: Look) -> None:
    """Refuse a look that a file of this name cannot have.

    Raises:
        UsageError: The look is `terminal`, and the file is not an .svg.
    """
    if look == "terminal" and path.suffix.lower() != ".svg":
        raise UsageError(f"terminal cannot be used with {path.suffix}", where=arg("look"), hint="use an .svg file")


def format_for(path: Path, command: Command) -> FileFormat:
    """Find the format of a file's name.

    Raises:
        UsageError: The extension is unknown, or its format cannot hold the command's findings.
    """
    hint = f"use {' '.join(endings(command))}"
    for one in FILE_FORMATS:
        if one.ending == path.suffix.lower():
            if command not in one.holds:
                if command == "run" and "heads" in one.holds:
                    hint += "; attnscope convert makes tables of reports"
                typed = "ablate --each" if command == "effects" else command
                raise UsageError(f"what {typed} finds cannot be written as {one.ending}", where=path, hint=hint)
            return one
    found = f"unknown extension '{path.suffix}'" if path.suffix else "the name has no extension"
    raise UsageError(found, where=path, hint=hint)


def endings(command: Command) -> list[str]:
    """List the endings that the findings of a command can have."""
    return [one.ending for one in FILE_FORMATS if command in one.holds]


def _command_of(findings: object) -> Command:
    from attnscope.findings.ablation import Ablation, EffectSurvey
    from attnscope.findings.check import CheckReport
    from attnscope.findings.compare import Comparison
    from attnscope.findings.explain import Explanation
    from attnscope.findings.run import Report

    kinds: dict[type, Command] = {Report: "run", Comparison: "compare", Explanation: "explain", CheckReport: "check"}
    kinds |= {Ablation: "ablate", EffectSurvey: "effects"}
    return kinds.get(type(findings), "heads")


def _json(findings: Any, _drawing: Drawing) -> Iterator[bytes]:
    from attnscope.findings.codec import json_parts

    yield from json_parts(findings)
    yield b"\n"


def _txt(findings: Any, drawing: Drawing) -> Iterator[bytes]:
    if _command_of(findings) == "check":
        from attnscope.studies.check.screen import as_text as check_as_text
        from attnscope.views.plain import Page

        yield check_as_text(findings, Page(drawing.width), data_only=drawing.data_only).encode()
        return
    from attnscope.studies.present import present
    from attnscope.views.terminal.recorded import as_text  # rich is only needed for drawing

    parts = present(findings, precision=drawing.precision, listing=drawing.listing, data_only=drawing.data_only)
    yield as_text(parts, drawing.width).encode()


def _svg(findings: Any, drawing: Drawing) -> Iterator[bytes]:
    if drawing.look == "terminal":
        from attnscope.studies.present import present
        from attnscope.views.terminal.recorded import as_svg as as_terminal

        parts = present(findings, precision=drawing.precision, listing=drawing.listing, data_only=drawing.data_only)
        text = as_terminal(parts, drawing.width)
    else:
        from attnscope.views.figure import as_svg

        text = as_svg(_figure_parts(findings, drawing))
    yield text.encode()


def _png(findings: Any, drawing: Drawing) -> Iterator[bytes]:
    from attnscope.views.figure import as_png

    yield as_png(_figure_parts(findings, drawing))


def _figure_parts(findings: Any, drawing: Drawing) -> "Iterator[ViewPart]":
    from attnscope.studies.present import present

    settings: Any = {"precision": drawing.precision, "listing": drawing.listing, "data_only": drawing.data_only}
    return present(findings, format="heat", options=False, **settings)


def _safetensors(findings: Any, _drawing: Drawing) -> Iterator[bytes]:
    from attnscope.findings.write_arrays import safetensors_parts

    yield from safetensors_parts(findings)


def _npz(findings: Any, _drawing: Drawing) -> Iterator[bytes]:
    from attnscope.findings.write_arrays import npz_parts

    yield from npz_parts(findings)


def _csv(findings: Any, _drawing: Drawing) -> Iterator[bytes]:
    from attnscope.findings.head_tables import csv_parts

    yield from csv_parts(findings)


def _parquet(findings: Any, _drawing: Drawing) -> Iterator[bytes]:
    from attnscope.findings.head_tables import parquet_parts

    yield from parquet_parts(findings)


FILE_FORMATS = (
    FileFormat(".json", (*_DRAWS, "check"), _json),
    FileFormat(".txt", (*_DRAWS, "check"), _txt, drawn=True),
    FileFormat(".svg", _DRAWS, _svg, drawn=True, picture=True),
    FileFormat(".png", _DRAWS, _png, drawn=True, picture=True, extra=FIGURES),
    FileFormat(".safetensors", ("run",), _safetensors),
    FileFormat(".npz", ("run",), _npz),
    FileFormat(".csv", ("heads", "effects"), _csv),
    FileFormat(".parquet", ("heads", "effects"), _parquet, extra=PARQUET),
)
