"""The formats of files that hold findings, each declared once.

`--output`, its help, `Report.save` and their errors use these declarations. A new format is an entry in FILE_FORMATS.
Nothing heavy is imported before a file is written.
"""

from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from attnscope.base.errors import FIGURES, PARQUET, PDF, UsageError
from attnscope.base.system.escape import escape_control
from attnscope.request.selection import PAGE, PRINTED
from attnscope.studies.registry import kind_of
from attnscope.studies.study import FileFormat, FindingsKind, imported
from attnscope.views.settings import DisplaySettings

_LONGEST_TITLE = 80  # characters of a text in a title


def export(
    findings: Any,
    path: Path,
    settings: DisplaySettings | None = None,
    **fields: Any,
) -> Iterator[bytes]:
    """Yield the contents of a file of this name piece by piece; the caller writes them.

    Args:
        path: The file's name; its ending chooses `.json`, `.txt` (the table view), `.svg`, `.png` or `.pdf` (a figure),
            `.html` (a page), `.safetensors` or `.npz` (the arrays of a Report, one for each stage), `.csv` or
            `.parquet` (a row for every head of a survey, or for whatever is cut alone).
        settings: How it is shown.
        **fields: Those of DisplaySettings, in place of all settings.
    """
    return format_for(path, kind_of(findings)).write(
        findings, settings or DisplaySettings(**fields)
    )


def format_for(path: Path, findings_kind: FindingsKind) -> FileFormat:
    """Return the format of a file name; refuse one that cannot hold findings of this kind."""
    hint = f"use {' '.join(findings_kind.formats)}"
    for form in FILE_FORMATS:
        if form.ending == path.suffix.lower():
            if form.ending not in findings_kind.formats:
                message = f"what {findings_kind.typed or findings_kind.name} finds cannot be written as {form.ending}"
                raise UsageError(message, where=path, hint=hint)
            return form
    message = "the name has no extension"
    if path.suffix:
        message = f"unknown extension '{path.suffix}'"
    raise UsageError(message, where=path, hint=hint)


def _json(findings: Any, _settings: DisplaySettings) -> Iterator[bytes]:
    from attnscope.findings.codec import json_parts

    yield from json_parts(findings)
    yield b"\n"


def _txt(findings: Any, settings: DisplaySettings) -> Iterator[bytes]:
    from attnscope.studies.registry import present
    from attnscope.views.terminal import as_text  # rich is only needed for drawing

    # A file has no end of the screen.
    yield as_text(present(findings, replace(settings, brief=False)), settings.columns).encode()


def _figure(function: str, findings: Any, settings: DisplaySettings) -> Iterator[bytes]:
    """Yield what a function of `views.figure` draws."""
    from attnscope.studies.registry import present

    parts = present(findings, replace(settings, format="heat", options=False, fixed=True))
    draw = imported(f"attnscope.views.figure:{function}")
    figure: str | bytes = draw(parts, settings.figure)
    yield figure.encode() if isinstance(figure, str) else figure


def page(findings: Any, settings: DisplaySettings) -> Iterator[bytes]:
    """Yield a page of findings of any kind."""
    from attnscope.studies.registry import present
    from attnscope.views.page import as_html
    from attnscope.views.page.command import PageCommand, with_command

    parts = present(findings, replace(settings, format="page", options=False, fixed=True))
    if (made_by := settings.made_by) is not None:
        line = PageCommand(made_by.spell(), made_by.elsewhere)
        parts = with_command(parts, line, walked=made_by.name in ("run", "compare"))
    kind = kind_of(findings)
    command = kind.typed or kind.name if made_by is None else made_by.name
    yield from as_html(parts, _title_of(findings, command))


def _title_of(findings: Any, command: str) -> str:
    text = _first_text(findings)
    if text is None:
        provenance = getattr(findings, "provenance", None)
        text = "" if provenance is None else provenance.model.rsplit("/", 1)[-1]
    text = " ".join(text.split())
    if len(text) > _LONGEST_TITLE:
        text = text[:_LONGEST_TITLE].rsplit(" ", 1)[0] + "…"
    if text:
        return f"{escape_control(text)} · attnscope {command}"
    return f"attnscope {command}"


def _first_text(findings: Any) -> str | None:
    """Return the first text that findings are about; None if they have none."""
    if sides := getattr(findings, "sides", None):
        if hasattr(sides[0], "report"):
            return _first_text(sides[0].report)
        return " → ".join(side.label.rsplit("/", 1)[-1] for side in sides)
    if texts := getattr(findings, "texts", None):
        first_entry = texts[0]
        if isinstance(first_entry, str):
            return first_entry
        return _asked(first_entry) or getattr(first_entry, "text", None)
    text = getattr(findings, "text", None)
    return text if isinstance(text, str) else None


def _asked(entry: Any) -> str | None:
    """Return the first message of the user in a chat, whose text begins with its template; None for other texts."""
    if getattr(entry, "chat", None) is None or entry.spans is None:
        return None
    spans = entry.spans.text
    user = spans.number("user 1")
    if user is None or not spans.characters[user]:
        return None
    characters = spans.characters[user]
    return str(entry.text[characters[0].start : characters[-1].end])


def _subtitles(function: str, findings: Any, _settings: DisplaySettings) -> Iterator[bytes]:
    """Yield subtitles of the words of all texts."""
    words = [
        word
        for text in findings.texts
        for word in (text.sound.words if text.sound is not None else ())
    ]
    if not any(text.sound is not None and text.sound.path is not None for text in findings.texts):
        hint = "pass --audio, and a model that writes down what it hears"
        raise UsageError("subtitles are the words of a sound, and there is none", hint=hint)
    lines: Iterator[str] = imported(f"attnscope.findings.sound:{function}")(words)
    yield from (line.encode() for line in lines)


def _data(writer: str, findings: Any, _settings: DisplaySettings) -> Iterator[bytes]:
    """Yield what a function `module:name` makes of findings, however they are displayed."""
    yield from imported(writer)(findings)


FILE_FORMATS = (
    FileFormat(".json", _json),
    FileFormat(".txt", _txt, PRINTED),
    FileFormat(".svg", partial(_figure, "as_svg"), PRINTED, picture=True),
    FileFormat(".png", partial(_figure, "as_png"), PRINTED, picture=True, extra=FIGURES),
    FileFormat(".pdf", partial(_figure, "as_pdf"), PRINTED, picture=True, extra=PDF),
    FileFormat(".html", page, PAGE, page=True),
    FileFormat(".safetensors", partial(_data, "attnscope.findings.array_files:safetensors_parts")),
    FileFormat(".npz", partial(_data, "attnscope.findings.array_files:npz_parts")),
    FileFormat(".csv", partial(_data, "attnscope.findings.tables:csv_parts")),
    FileFormat(
        ".parquet", partial(_data, "attnscope.findings.tables:parquet_parts"), extra=PARQUET
    ),
    FileFormat(".srt", partial(_subtitles, "srt_lines")),
    FileFormat(".vtt", partial(_subtitles, "vtt_lines")),
    FileFormat(".xml", partial(_data, "attnscope.studies.doctor.junit:junit_xml")),
)
