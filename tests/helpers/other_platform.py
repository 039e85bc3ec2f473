"""A plugin of pytest that hides what only Unix, or only Linux, has: `-p tests.helpers.other_platform`.

What is left is what Python offers on Windows and macOS alike: no fcntl, no signals but SIGINT and SIGTERM and no masks
of them, no /proc, no cgroups, no glibc, no direct or non-blocking files, no permissions, no hard links.
"""

import ctypes
import mmap
import os
import signal
import sys
from pathlib import Path

# These take what the platform has when they are imported: they are not what is tested.

sys.modules.update(dict.fromkeys(("fcntl", "grp", "pwd", "resource", "termios")))
for _module, _names in {
    os: (
        *("O_DIRECTORY", "O_NOFOLLOW", "O_NONBLOCK"),
        *("fchmod", "link", "sched_getaffinity", "set_blocking", "sysconf"),
    ),
    signal: ("SIGHUP", "pthread_sigmask", "sigwait"),
    mmap: ("MADV_HUGEPAGE",),
}.items():
    for _name in _names:
        delattr(_module, _name)


class _Library(ctypes.CDLL):
    def __init__(self, name: str | None, *more: object, **named: object) -> None:
        if name is None:
            raise TypeError("this system loads no library without a name")
        super().__init__(name, *more, **named)  # type: ignore[arg-type]


ctypes.CDLL = _Library  # type: ignore[misc]

from attnscope.base.system import machine  # noqa: E402

machine._PROC = machine.ROOT = machine.MEMBERSHIP = Path("/nowhere")
