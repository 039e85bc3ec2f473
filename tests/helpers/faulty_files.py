"""A file system that fails on request: every call is counted, and the chosen one raises an error."""

import errno
import os
from pathlib import Path

from attnscope.base.system.file_system import FileSystem

BLOCK = 4096
CALLS = (
    *("open", "lock", "write", "truncate", "sync", "sync_folder", "replace", "close"),
    *("make_folder", "remove"),
)


class Crash(BaseException):
    """The process is gone at this point: nothing of ours may clean up after it."""


class Faulty(FileSystem):
    """Fail one call, in one of several ways.

    `refuse` raises; `torn` writes half, then raises; `short` writes a block or a byte and says so; `crash` does half of
    a write and ends there, as kill −9 does; after `power`, the same, `lose` takes away what no one waited for. Halves
    are whole blocks where there are any, as a disk wants them.
    """

    def __init__(self, at=None, how="refuse", code=errno.ENOSPC):
        self.at, self.how, self.code, self.calls = at, how, code, []
        self.dead = False
        self.paths, self.safe, self.renamed = {}, {}, []

    def _due(self, name):
        if self.dead:
            raise Crash
        self.calls.append(name)
        self.dead = self.how in ("crash", "power") and len(self.calls) - 1 == self.at
        return len(self.calls) - 1 == self.at

    def write(self, descriptor, data):
        if not self._due("write"):
            return super().write(descriptor, data)
        if self.how == "short":
            return os.write(descriptor, data[:BLOCK] if len(data) > BLOCK else data[:1])
        if self.how in ("torn", "crash", "power"):
            half = len(data) // 2
            os.write(descriptor, data[: half - half % BLOCK or half])
        raise Crash if self.dead else OSError(self.code, os.strerror(self.code))

    def _note(self, name, args, made):
        """What would still be there after a loss of power: sizes, and files under the names that they had before."""
        if name == "open":
            self.paths[made] = Path(args[0])
            self.safe.setdefault(
                Path(args[0]), 0 if args[1] & os.O_TRUNC else os.fstat(made).st_size
            )
        elif name == "sync":
            self.safe[self.paths[args[0]]] = os.fstat(args[0]).st_size
        elif name == "replace":
            if args[0] in self.safe:
                self.safe[args[1]] = self.safe.pop(args[0])
            self.paths = {
                descriptor: args[1] if path == args[0] else path
                for descriptor, path in self.paths.items()
            }
        elif name == "remove":
            self.safe.pop(args[0], None)
        elif name == "sync_folder":
            self.renamed.clear()

    def lose(self):
        """Leave what a loss of power leaves at worst."""
        for path, size in self.safe.items():
            if path.exists():
                os.truncate(path, min(size, path.stat().st_size))
        for old, new, there in reversed(self.renamed):
            os.rename(new, old)
            if there is not None:
                new.write_bytes(there)


def _method(name):
    real = getattr(FileSystem, name)

    def call(self, *args):
        if name == "close":
            # the descriptor is given back, also where that reports an error and when a process ends
            real(self, *args)
        if self._due(name) and self.how != "short":
            raise Crash if self.dead else OSError(self.code, os.strerror(self.code))
        if name == "replace":
            there = args[1].read_bytes() if args[1].exists() else None
        made = None if name == "close" else real(self, *args)
        if name == "replace":
            self.renamed.append((*args, there))
        self._note(name, args, made)
        return made

    return call


for _name in CALLS:
    if _name != "write":
        setattr(Faulty, _name, _method(_name))
