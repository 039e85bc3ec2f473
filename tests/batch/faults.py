"""A system that fails where it is told to: every call is counted, and the chosen one goes wrong."""

import errno
import os

from attnscope.batch.files import Files

CALLS = ("open", "lock", "write", "truncate", "sync", "sync_folder", "replace", "close", "make_folder", "remove")


class Crash(BaseException):
    """The process is gone at this point: nothing of ours may clean up after it."""


class Faulty(Files):
    """Fail one call, in one of several ways.

    `refuse` raises; `torn` writes half, then raises; `short` writes a byte and says so; `crash` does half of a write
    and ends there, as kill −9 does.
    """

    def __init__(self, at=None, how="refuse", code=errno.ENOSPC):
        self.at, self.how, self.code, self.calls = at, how, code, []
        self.dead = False

    def _due(self, name):
        if self.dead:
            raise Crash
        self.calls.append(name)
        self.dead = self.how == "crash" and len(self.calls) - 1 == self.at
        return len(self.calls) - 1 == self.at

    def write(self, descriptor, data):
        if not self._due("write"):
            return super().write(descriptor, data)
        if self.how == "short":
            return os.write(descriptor, data[:1])
        if self.how in ("torn", "crash"):
            os.write(descriptor, data[: len(data) // 2])
        raise Crash if self.how == "crash" else OSError(self.code, os.strerror(self.code))


def _method(name):
    real = getattr(Files, name)

    def call(self, *args):
        if name == "close":
            real(self, *args)  # the descriptor is given back, also where that reports an error and when a process ends
        if self._due(name) and self.how != "short":
            raise Crash if self.how == "crash" else OSError(self.code, os.strerror(self.code))
        return None if name == "close" else real(self, *args)

    return call


for _name in CALLS:
    if _name != "write":
        setattr(Faulty, _name, _method(_name))
