"""The background of the terminal: what it answers, else what COLORFGBG says."""

import os
import re
import select
import time
from collections.abc import Sequence
from contextlib import suppress
from functools import lru_cache

# What colour is the background (OSC 11), and what terminal are you (DA1), which every terminal answers, the last.
_QUESTION = b"\x1b]11;?\x1b\\\x1b[c"
_COLOUR = re.compile(rb"\x1b\]11;rgba?:([0-9a-fA-F]{1,4})/([0-9a-fA-F]{1,4})/([0-9a-fA-F]{1,4})")
_LAST = re.compile(rb"\x1b\[\?[0-9;]*c")
# Seconds to wait for the answer, which takes a round trip over a network.
_PATIENCE = 0.3
_REMOTE_PATIENCE = 2.0
_BLACK = (0, 0, 0)
_WHITE = (255, 255, 255)
# Colours of COLORFGBG that are light: white, bright ones but black and blue.
_LIGHT_NUMBERS = (7, 9, 10, 11, 13, 14, 15)


@lru_cache(maxsize=1)
def announced_background() -> tuple[int, int, int] | None:
    """Return red, green and blue of the background of the process's terminal, which is asked once; None if it is silent."""
    colours = os.environ.get("COLORFGBG", "")
    is_named = colours.rpartition(";")[2].isdecimal()
    return _answered() or (named_background(colours) if is_named else None)


def named_background(colours: str) -> tuple[int, int, int]:
    """Return black or white, as COLORFGBG names the background: `15;0`, `0;default;15`; black if it names none."""
    colour = colours.rpartition(";")[2]
    if colour.isdecimal() and int(colour) in _LIGHT_NUMBERS:
        return _WHITE
    return _BLACK


def read_answer(answer: bytes) -> tuple[int, int, int] | None:
    """Return the colour of an answer: `rgb:` with one to four hexadecimal digits for each; None without one."""
    match = _COLOUR.search(answer)
    if match is None:
        return None
    red, green, blue = (
        round(255 * int(digits, 16) / (16 ** len(digits) - 1)) for digits in match.groups()
    )
    return red, green, blue


def _answered() -> tuple[int, int, int] | None:
    """Ask the terminal; None if there is none in the foreground, or if it does not answer in time."""
    if os.environ.get("TERM") in (None, "", "dumb"):
        return None
    with suppress(ImportError, OSError, ValueError):
        import termios

        terminal = os.open("/dev/tty", os.O_RDWR | os.O_NOCTTY)
        try:
            # A process in the background would be stopped.
            if os.tcgetpgrp(terminal) != os.getpgrp():
                return None
            before = termios.tcgetattr(terminal)
            silent = [*before[:3], before[3] & ~(termios.ECHO | termios.ICANON), *before[4:]]
            termios.tcsetattr(terminal, termios.TCSADRAIN, silent)
            try:
                os.write(terminal, _QUESTION)
                return read_answer(_read(terminal))
            finally:
                termios.tcsetattr(terminal, termios.TCSADRAIN, before)
        finally:
            os.close(terminal)
    return None


def _read(terminal: int) -> bytes:
    """Read until the last answer, or until patience ends."""
    deadline = time.monotonic() + (_REMOTE_PATIENCE if "SSH_TTY" in os.environ else _PATIENCE)
    answer = b""
    while not _LAST.search(answer) and (left := deadline - time.monotonic()) > 0:
        readable, _, _ = select.select([terminal], [], [], left)
        if readable:
            answer += os.read(terminal, 256)
    return answer


def chosen_background(*, on_terminal: bool) -> Sequence[int] | None:
    """Return the background to draw on: that of the terminal, None if it is silent; for a file or a pipe, COLORFGBG's."""
    if on_terminal:
        return announced_background()
    return named_background(os.environ.get("COLORFGBG", ""))
