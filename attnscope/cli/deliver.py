"""Send findings to the terminal, to standard output as JSON, or to a file."""

import os
import shutil
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Unpack

from attnscope.base.errors import UsageError
from attnscope.base.system.escape import escape_control
from attnscope.cli.options import OutputOptions
from attnscope.cli.process import print_notice, wants_color
from attnscope.studies.formats import FILE_FORMATS, Command, check_look, format_for

if TYPE_CHECKING:
    from rich.console import Console

    from attnscope.studies.heads.screen import Listing
    from attnscope.studies.present import Findings, Format
    from attnscope.views.plain import Page
    from attnscope.views.settings import Detail

_NARROWEST, _WIDEST = 40, 10_000


def is_table(show: OutputOptions) -> bool:
    """Tell whether findings are drawn for reading, where a window of a long text is enough."""
    if show.output is not None:
        return any(one.drawn and one.ending == show.output.suffix.lower() for one in FILE_FORMATS)
    return show.format != "json"


def is_picture(show: OutputOptions) -> bool:
    """Tell whether findings are drawn as a picture."""
    return show.output is not None and any(
        one.picture and one.ending == show.output.suffix.lower() for one in FILE_FORMATS
    )


def check_output(show: OutputOptions, command: Command, *inputs: object) -> None:
    """Refuse an output that cannot be written before any work is done.

    Args:
        show: What the user asked.
        command: Whose findings it is to hold.
        inputs: Groups of options that may name files to read.

    Raises:
        UsageError: The file's extension names no format, or another than `--format`.
        AttnscopeError: The file cannot be written, is the input, or exists and `--force` is off; or a library that its
            format needs is not installed.
    """
    if show.output is None:
        if show.look != "figure":
            raise UsageError("applies only to files", where="--look", hint="add --output picture.svg")
        return
    from attnscope.base.files.atomic import check_not_read, check_target

    check_not_read(show.output, (value for group in inputs for value in vars(group).values()))
    check_target(show.output, force=True)  # check last whether the file exists: --force helps only then
    form = format_for(show.output, command)
    check_look(show.output, show.look)
    if form.extra is not None:
        form.extra.require(form.ending)
    if show.format is not None and show.format != ("table" if form.drawn else form.ending[1:]):
        hint = "remove --format: the extension sets the format"
        raise UsageError(f"--format {show.format} cannot be written to a {form.ending} file", hint=hint)
    check_target(show.output, force=show.force)


def deliver(
    findings: "Findings", show: OutputOptions, listing: "Listing | None" = None, **detail: "Unpack[Detail]"
) -> None:
    """Write findings to a file, print them as JSON, or draw them on the terminal.

    Args:
        findings: What was found.
        show: Where to, and how it looks.
        listing: Of a survey of heads: which of them are listed.
        **detail: How much is shown on a terminal, in addition to what `show` says.

    Raises:
        AttnscopeError: It cannot be written.
    """
    if show.output is not None:
        _to_file(findings, show, listing)
    elif show.format == "json":
        from attnscope.findings.codec import json_parts

        for part in json_parts(findings):
            write_bytes(part)
        write_bytes(b"\n")
    else:
        put(findings, show, show.format or "table", listing, **detail)


def put(
    findings: "Findings",
    show: OutputOptions,
    format: "Format",
    listing: "Listing | None" = None,
    **detail: "Unpack[Detail]",
) -> None:
    """Draw findings on standard output."""
    from attnscope.views.terminal import draw

    if show.verbose:
        detail |= {"verbose": True, "brief": False}
    draw(
        findings,
        console(show.color),
        format=format,
        precision=show.precision,
        listing=listing,
        data_only=show.quiet,
        **detail,
    )


def _to_file(findings: "Findings", show: OutputOptions, listing: "Listing | None") -> None:
    from attnscope.base.files.atomic import write_atomic
    from attnscope.studies.formats import export

    path = Path(str(show.output))
    parts = export(
        findings,
        path,
        precision=show.precision,
        width=_named_width(),
        listing=listing,
        look=show.look,
        data_only=show.quiet,
    )
    size = write_atomic(path, parts, force=show.force)
    if not show.quiet:
        print_notice("wrote", f"{escape_control(str(path))} ({size:,} bytes)")


def write_bytes(data: bytes) -> None:
    """Write bytes to standard output, whatever its encoding is."""
    sys.stdout.flush()
    sys.stdout.buffer.write(data)


def page() -> "Page":
    """Describe standard output as plain text: as wide as the terminal, and in ASCII where its encoding is."""
    from attnscope.views.plain import Page

    encoding = (sys.stdout.encoding or "ascii").lower().replace("-", "")
    return Page(_width(), ascii=not encoding.startswith("utf"))


def console(color: str) -> "Console":
    """Return a rich console as wide as the terminal, without colours where they are not wanted.

    Args:
        color: `auto` (see process.wants_color), `always` or `never`.
    """
    from rich.console import Console

    plain = color == "never" or (color == "auto" and not wants_color(sys.stdout))
    return Console(
        file=sys.stdout,
        width=_width(),
        color_system=None if plain else "auto",
        force_terminal=not plain,
        no_color=plain,  # otherwise, rich lets NO_COLOR take the colours of --color always
        markup=False,
        emoji=False,
        highlight=False,
    )


def _width() -> int:
    """Return the width to draw at: COLUMNS, else the terminal's width, else 80."""
    return _named_width() or _bounded(shutil.get_terminal_size((80, 24)).columns)


def _named_width() -> int | None:
    columns = os.environ.get("COLUMNS", "")
    return _bounded(int(columns[:9])) if columns.isascii() and columns.isdigit() and int(columns[:9]) else None


def _bounded(columns: int) -> int:
    """Clamp a width to what tables are drawn for; a narrower terminal wraps the lines."""
    return min(max(columns, _NARROWEST), _WIDEST)
