"""Draw findings on the terminal: the parts of their presentation, at the width and in the colours of a console.

This package is the only view that uses rich. Nothing is truncated silently: wide tables are split into blocks of
columns, shortened labels are spelled out below, and control characters of untrusted text are escaped.
"""

from typing import TYPE_CHECKING, Unpack

from rich.console import Console

from attnscope.studies.present import Findings, Format, present
from attnscope.views.settings import Detail
from attnscope.views.terminal.lowering import put_part
from attnscope.views.terminal.screen import Screen

if TYPE_CHECKING:
    from attnscope.studies.heads.screen import Listing


def draw(
    findings: Findings,
    console: Console,
    *,
    format: Format = "table",
    precision: int = 2,
    options: bool = True,
    listing: "Listing | None" = None,
    data_only: bool = False,
    **detail: Unpack[Detail],
) -> None:
    """Print findings of any kind.

    Args:
        findings: What to show.
        console: Where to. Its width, colours and encoding are taken as they are; for no escapes at all, give it
            `color_system=None`.
        format: See present.
        precision: See present.
        options: See present.
        listing: See present.
        data_only: See present.
        **detail: See present.
    """
    screen = Screen(console)
    parts = present(
        findings, format=format, precision=precision, options=options, listing=listing, data_only=data_only, **detail
    )
    for part in parts:
        put_part(screen, part)
