"""Run a walk in the terminal, which is as it was afterwards, however the walk ends."""

import gc
import os
import select
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any, NamedTuple

from attnscope.base.errors import OptionName, Spelling
from attnscope.base.system.signals import at_signal
from attnscope.findings.run import Report
from attnscope.views.walk.keys import ACTIONS, KeyAction
from attnscope.views.walk.place import Begin
from attnscope.views.walk.scene import Source

# keyboard protocol, mouse, paste and focus reports, size reports, colours, line wrap, cursor, and the other screen last
_RESTORE = (
    b"\x1b[<u\x1b[?1000l\x1b[?1003l\x1b[?1015l\x1b[?1006l\x1b[?1016l\x1b[?2004l\x1b[?1004l\x1b[?2048l\x1b[?2026l"
    b"\x1b[0m\x1b[?7h\x1b[?1049l\x1b[?25h"
)
_COLOURS = {"never": 0, "always": 1 << 24, "auto": None}


class WalkEnd(NamedTuple):
    """How a walk was left."""

    code: int  # exit code
    command: str  # the command that shows the same place; empty if there is none
    computes: bool  # whether its thread still computes: it stops where it reports progress, such as after a layer


def walk(
    source: Source,
    write: Callable[[Report, str], str],
    actions: tuple[KeyAction, ...] = ACTIONS,
    begin: Begin | None = None,
    *,
    color: str = "auto",
    own_process: bool = False,
    spelling: Spelling = OptionName.in_python,
) -> WalkEnd:
    """Walk until the user leaves.

    Args:
        write: Writes a report to a file of this name, and describes the file.
        color: `auto`, `always` or `never`.
        own_process: No objects of others are in this process: what is there at the start is not looked at when garbage
            is collected, which would hold up a key by a tenth of a second.
    """
    # At the usual 60, a key may wait 16 ms for its screen.
    os.environ.setdefault("TEXTUAL_FPS", "240")
    from attnscope.views.explore.app import ExploreApp
    from attnscope.views.terminal.background import announced_background

    if color == "always":
        os.environ.pop("NO_COLOR", None)
    app = ExploreApp(source, actions, begin, _COLOURS[color], announced_background())
    app.write = write
    app.watch_terminal = _is_there
    app.spelling = spelling
    if own_process:
        gc.freeze()
    with terminal_kept():
        app.run()
    if app.failure is not None:
        raise app.failure
    return WalkEnd(app.return_value or 0, app.last_command(), not app.worker.stop(0.0))


def _is_there() -> bool:
    """Tell whether the terminal that keys come from is still there."""
    with suppress(OSError, ValueError):
        poll = select.poll()
        poll.register(sys.__stdin__ or 0, 0)
        return not any(
            event & (select.POLLHUP | select.POLLERR | select.POLLNVAL) for _, event in poll.poll(0)
        )
    return False


@contextmanager
def terminal_kept() -> Iterator[None]:
    """Draw through another descriptor, and put the terminal back at the end, also if a signal ends the process within.

    Standard error leads nowhere while another thread calls a tokenizer, whose panics must not be seen: what is drawn
    there meanwhile would be lost, and the screen would lack it until it changes.
    """
    saved = _settings()
    usual = sys.__stderr__
    terminal = os.dup(2)
    encoding = getattr(usual, "encoding", None)

    def restore() -> None:
        with suppress(OSError):
            # A terminal that is not read must not hold the end up.
            os.set_blocking(terminal, False)
            os.write(terminal, _RESTORE)
        _restore(saved)

    try:
        with (
            at_signal(restore),
            open(
                terminal, "w", encoding=encoding, errors="backslashreplace", closefd=False
            ) as screen,
        ):
            # textual draws there.
            sys.__stderr__ = screen  # type: ignore[misc]
            yield
    except BaseException:
        restore()
        raise
    finally:
        sys.__stderr__ = usual  # type: ignore[misc]
        _restore(saved)
        with suppress(OSError):
            os.set_blocking(terminal, True)
        os.close(terminal)


def _settings() -> Any:
    try:
        import termios

        return termios.tcgetattr(0)
    except Exception:
        # There is no terminal, or this system has no termios.
        return None


def _restore(saved: Any) -> None:
    if saved is None:
        return
    import termios

    with suppress(termios.error, OSError):
        termios.tcsetattr(0, termios.TCSANOW, saved)
