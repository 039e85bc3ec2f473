"""Send findings to the terminal, to standard output as JSON, or to a file."""

import os
import shutil
import sys
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from attnscope.base.errors import AttnscopeError, arg
from attnscope.base.system.escape import escape_control
from attnscope.cli.next_command import after, is_read_along, suggest
from attnscope.cli.parameters import Given
from attnscope.cli.process import print_notice, wants_color
from attnscope.request.options import FIGURE, RAMP
from attnscope.studies.formats import FILE_FORMATS, format_for
from attnscope.studies.registry import kind_named
from attnscope.studies.study import FileFormat
from attnscope.views.settings import DisplaySettings, FigureSettings

if TYPE_CHECKING:
    from rich.console import Console

    from attnscope.views.parts import ViewPart


# fields that options of the same name set; `put` sets the others
_CHOSEN = DisplaySettings.__dataclass_fields__.keys() - {"format", "verbose"}
_NARROWEST = 40
_WIDEST = 10_000


def file_format(options: Given) -> FileFormat:
    """Return the format of the file that findings are written to; a screen is like a file of text, or of JSON."""
    ending = ".json" if options.format == "json" else ".txt"
    if options.output is not None:
        ending = options.output.suffix.lower()
    # an unknown ending is refused later, and nothing is drawn for it
    return next((form for form in FILE_FORMATS if form.ending == ending), FILE_FORMATS[0])


def check_output(options: Given, command: str) -> None:
    """Refuse an output that cannot be written before any work is done.

    Args:
        command: Name of the kind of findings that it is to hold.
    """
    if getattr(options, "open", False) and options.output is None:
        import tempfile

        options.output = Path(tempfile.mkdtemp(prefix="attnscope-")) / f"{command}.html"
    if options.output is None:
        if options.format is None and any(option.name in options.typed for option in RAMP):
            options.format = "heat"
        return
    from attnscope.base.files.atomic import check_not_read, check_target

    files = [
        value for name, value in vars(options).items() if name not in ("output", "command_line")
    ]
    check_not_read(options.output, [*files, *options.repeated.values()])
    # Check last whether the file exists: --force helps only then.
    check_target(options.output, force=True)
    form = format_for(options.output, kind_named(command))
    if form.extra is not None:
        form.extra.require(form.ending)
    check_target(options.output, force=options.force)


def deliver(findings: Any, options: Given, *, verdict: bool = False, **fields: Any) -> None:
    """Write findings to a file, print them as JSON, or draw them on the terminal.

    Args:
        verdict: Draw only their verdict, also beside a file, unless a format is chosen.
        **fields: Those of DisplaySettings that follow from more than one option.
    """
    is_judged = verdict and options.format is None
    if options.output is not None:
        _to_file(findings, options, _settings(options, **fields))
    elif options.format == "json":
        from attnscope.findings.codec import json_parts

        for part in json_parts(findings):
            write_bytes(part)
        write_bytes(b"\n")
    elif not is_judged:
        put(findings, options, **fields)
    if is_judged:
        put(findings, options, format="verdict")
    sys.stdout.flush()
    if is_read_along(options) and not is_judged:
        suggest(after(findings, options), options)


def draw_now(options: Given, progress: Any) -> Callable[[Sequence["ViewPart"]], None] | None:
    """Return what draws parts on the screen before all findings are there; None if no screen shows them.

    Args:
        progress: The bar on standard error, which would be drawn over them; None if there is none.
    """
    if options.output is not None or options.format == "json":
        return None

    def draw_parts(parts: Sequence["ViewPart"]) -> None:
        from attnscope.views.terminal import draw

        if progress is not None:
            progress.pause()
        draw(parts, console(options.color))
        sys.stdout.flush()

    return draw_parts


def _settings(options: Given, **fields: Any) -> DisplaySettings:
    chosen = {name: getattr(options, name) for name in _CHOSEN if hasattr(options, name)}
    # A page is read elsewhere, so that --quiet leaves its remarks and headers.
    data_only = not getattr(options, "header", True) or (
        options.quiet and not file_format(options).page
    )
    return DisplaySettings(**{**chosen, "data_only": data_only, **fields})


def require_plain_reading(findings: Any) -> None:
    """Fail if anything that stands above the numbers changes how they are read."""
    from attnscope.findings.reading import changed_readings

    if notes := list(dict.fromkeys(changed_readings(findings))):
        more = f" (and {len(notes) - 1} more)" if len(notes) > 1 else ""
        raise AttnscopeError(notes[0] + more, where=arg("strict"))


def put(findings: Any, options: Given, **fields: Any) -> None:
    """Draw findings on standard output; `fields` are those of DisplaySettings that follow from more than one option."""
    from attnscope.studies.registry import present
    from attnscope.views.terminal import draw

    if options.verbose:
        fields |= {"verbose": True, "brief": False}
    parts = present(findings, _settings(options, **{"format": options.format or "table", **fields}))
    screen = console(options.color)
    if not (options.pager and sys.stdout.isatty()):
        draw(parts, screen)
        return
    from attnscope.cli.pager import write_paged

    with screen.capture() as captured:
        draw(parts, screen)
    write_paged(captured.get())


def _to_file(findings: Any, options: Given, settings: DisplaySettings) -> None:
    from attnscope.base.files.atomic import write_atomic
    from attnscope.batch.reports import file_parts

    path = Path(str(options.output))
    settings = replace(
        settings, figure=_figure_settings(options), columns=_columns(settings.columns)
    )
    parts = file_parts(findings, path, settings, getattr(options, "table", None))
    size = write_atomic(path, parts, force=options.force)
    if not options.quiet:
        print_notice("wrote", f"{escape_control(str(path))} ({size:,} bytes)")
    if getattr(options, "open", False):
        import webbrowser

        if not webbrowser.open(path.absolute().as_uri()):
            print_notice("note", f"no browser was found; open {escape_control(str(path))}")


def _columns(usual: int) -> int:
    """Return the width of a file of text: COLUMNS, if it is a number, within the supported range of tables."""
    columns = os.environ.get("COLUMNS", "")[:9]
    named = int(columns) if columns.isascii() and columns.isdigit() else 0
    if named:
        return min(max(named, _NARROWEST), _WIDEST)
    return usual


def _figure_settings(options: Given) -> FigureSettings:
    given = {option.name: getattr(options, option.name, None) for option in FIGURE}
    return FigureSettings(**{name: value for name, value in given.items() if value is not None})


def write_bytes(data: bytes) -> None:
    """Write bytes to standard output, whatever its encoding is."""
    sys.stdout.flush()
    sys.stdout.buffer.write(data)


def console(color: str) -> "Console":
    """Return a rich console as wide as the terminal, without colours if they are not wanted.

    Args:
        color: `auto` (see process.wants_color), `always` or `never`.
    """
    from rich.console import Console

    plain = color == "never" or (color == "auto" and not wants_color(sys.stdout))
    return Console(
        file=sys.stdout,
        # COLUMNS, else the terminal's width, else 80; a narrower terminal wraps the lines
        width=min(max(shutil.get_terminal_size((80, 24)).columns, _NARROWEST), _WIDEST),
        color_system=None if plain else "auto",
        force_terminal=not plain,
        # Otherwise, rich lets NO_COLOR take the colours of --color always.
        no_color=plain,
        markup=False,
        emoji=False,
        highlight=False,
    )
