"""The command that shows in a terminal what a page shows."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

from attnscope.views.page.container import Container
from attnscope.views.page.elements import ELSEWHERE, element, pasted
from attnscope.views.page.walk import Walk


@dataclass(frozen=True)
class PageCommand:
    """A command: a part that only a page draws."""

    command: str
    elsewhere: bool  # whether it names files without their folders


def lowered_command(part: PageCommand, _container: Container) -> list[Any]:
    """Return the line of a command; none if it would not be pasted into a terminal as it is."""
    command = pasted(part.command)
    if not command:
        return []
    where = f" {ELSEWHERE}" if part.elsewhere else ""
    first, *options = command.split(" --")
    # lines break before an option, not within one
    items = [
        child for option in options for child in (" ", element("span", f"--{option}", look="item"))
    ]
    line = [f"This page in a terminal{where}: ", element("code", first, *items)]
    return [element("p", *line, look="dim command", tabIndex=0, id="page-command")]


def with_command(parts: Iterable[Any], line: PageCommand, *, walked: bool) -> Iterator[Any]:
    """Yield the parts of a page, and its command: below its walk, or at the end of a page without one.

    Args:
        walked: A walk whose places options select has its own command, which shows the same.
    """
    found = False
    for part in parts:
        yield part
        if isinstance(part, Walk) and not found:
            found = True
            if not walked or not part.selects:
                yield line
    if not found:
        yield line
