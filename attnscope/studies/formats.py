"""The formats of files that hold findings, each declared once.

`--output`, its help, `Report.save` and their errors use these declarations. A new format is an entry in FILE_FORMATS.
Nothing heavy is imported before a file is written.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Unpack

from attnscope.base.errors import FIGURES, PARQUET, PDF, Extra, UsageError
from attnscope.studies.registry import kind_of
from attnscope.studies.study import FindingsKind, Listing, imported

if TYPE_CHECKING:
    from attnscope.views.parts import ViewPart
    from attnscope.views.settings import Detail

WIDTH = 120  # columns of text drawn into a file
_WHOLE = {"brief": False}  # a file has no end of the screen


@dataclass(frozen=True)
class Drawing:
    """Settings of formats that are made for reading."""

    precision: int = 2
    width: int = WIDTH
    listing: Listing | None = None  # heads of a survey that are listed; None for a choice by the format
    data_only: bool = False
    every_head: Any = None
    detail: "Detail" = field(default_factory=dict)  # type: ignore[assignment]

    @property
    def settings(self) -> dict[str, Any]:
        """Arguments of `present`."""
        shown = {"precision": self.precision, "listing": self.listing, "data_only": self.data_only}
        return {**shown, **self.detail}


@dataclass(frozen=True)
class FileFormat:
    """A file format."""

    ending: str
    write: "Callable[[Any, Drawing], Iterator[bytes]]"  # yields the bytes of a file, from findings and their drawing
    drawn: bool = False  # made for reading: a window of a long text is enough, and numbers are rounded
    picture: bool = False
    page: bool = False  # a page to walk through, which holds more than it first shows
    extra: Extra | None = None  # the library that it needs


def export(
    findings: Any,
    path: Path,
    *,
    precision: int = 2,
    width: int | None = None,
    listing: Listing | None = None,
    data_only: bool = False,
    every_head: Any = None,
    **detail: "Unpack[Detail]",
) -> Iterator[bytes]:
    """Yield the contents of a file of this name piece by piece; the caller writes them.

    Args:
        path: The file's name; its ending chooses `.json`, `.txt` (the table view), `.svg`, `.png` or `.pdf` (a figure),
            `.html` (a page), `.safetensors` or `.npz` (the arrays of a Report, one for each stage), `.csv` or
            `.parquet` (a row for every head of a survey, or for whatever is cut alone).
        **detail: Levels of detail in formats made for reading.
    """
    file_format = format_for(path, kind_of(findings))
    return file_format.write(findings, Drawing(precision, width or WIDTH, listing, data_only, every_head, detail))


def format_for(path: Path, kind: FindingsKind) -> FileFormat:
    """Return the format of a file name; refuse one that cannot hold findings of this kind."""
    hint = f"use {' '.join(kind.formats)}"
    for form in FILE_FORMATS:
        if form.ending == path.suffix.lower():
            if form.ending not in kind.formats:
                message = f"what {kind.typed or kind.name} finds cannot be written as {form.ending}"
                raise UsageError(message, where=path, hint=hint)
            return form
    message = f"unknown extension '{path.suffix}'" if path.suffix else "the name has no extension"
    raise UsageError(message, where=path, hint=hint)


def _json(findings: Any, _drawing: Drawing) -> Iterator[bytes]:
    from attnscope.findings.codec import json_parts

    yield from json_parts(findings)
    yield b"\n"


def _txt(findings: Any, drawing: Drawing) -> Iterator[bytes]:
    from attnscope.studies.present import present
    from attnscope.views.terminal import as_text  # rich is only needed for drawing

    yield as_text(present(findings, **drawing.settings | _WHOLE), drawing.width).encode()


def _svg(findings: Any, drawing: Drawing) -> Iterator[bytes]:
    from attnscope.views.figure import as_svg

    yield as_svg(_figure_parts(findings, drawing)).encode()


def _png(findings: Any, drawing: Drawing) -> Iterator[bytes]:
    from attnscope.views.figure import as_png

    yield as_png(_figure_parts(findings, drawing))


def _pdf(findings: Any, drawing: Drawing) -> Iterator[bytes]:
    from attnscope.views.figure import as_pdf

    yield as_pdf(_figure_parts(findings, drawing))


def _figure_parts(findings: Any, drawing: Drawing) -> "Iterator[ViewPart]":
    from attnscope.studies.present import present

    return present(findings, format="heat", options=False, **drawing.settings)


def page(findings: Any, drawing: Drawing) -> Iterator[bytes]:
    """Yield a page of findings of any kind."""
    from attnscope.studies.present import present
    from attnscope.studies.titles import title_of
    from attnscope.views.page import as_html

    parts = present(findings, format="page", options=False, every_head=drawing.every_head, **drawing.settings)
    yield from as_html(parts, title_of(findings))


def _imported(writer: str) -> Callable[[Any, Drawing], Iterator[bytes]]:
    """Return the writer of this name in `module:function`, which takes only findings; imported when it is called."""
    return lambda findings, _: imported(writer)(findings)


FILE_FORMATS = (
    FileFormat(".json", _json),
    FileFormat(".txt", _txt, drawn=True),
    FileFormat(".svg", _svg, drawn=True, picture=True),
    FileFormat(".png", _png, drawn=True, picture=True, extra=FIGURES),
    FileFormat(".pdf", _pdf, drawn=True, picture=True, extra=PDF),
    FileFormat(".html", page, drawn=True, page=True),
    FileFormat(".safetensors", _imported("attnscope.findings.array_files:safetensors_parts")),
    FileFormat(".npz", _imported("attnscope.findings.array_files:npz_parts")),
    FileFormat(".csv", _imported("attnscope.findings.tables:csv_parts")),
    FileFormat(".parquet", _imported("attnscope.findings.tables:parquet_parts"), extra=PARQUET),
    FileFormat(".xml", _imported("attnscope.studies.doctor.junit:junit_xml")),
)
