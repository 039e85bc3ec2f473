"""The system calls behind a dump, one method each, so that a test can make each of them fail."""

import errno
import os
from pathlib import Path

try:
    import fcntl
except ImportError:  # Windows: no lock, so a second writer is not noticed there
    fcntl = None  # type: ignore[assignment]


class FileSystem:
    """What the operating system does for us."""

    def open(self, path: Path, flags: int) -> int:
        """Open a file, never through a symbolic link, and never waiting for the other end of a pipe."""
        careful = getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0)
        return os.open(path, flags | careful, 0o666)

    def lock(self, descriptor: int) -> None:
        """Take the file for this process; the system gives it back when the process ends, however that happens.

        Raises:
            BlockingIOError: Another process has it.
        """
        if fcntl is not None:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)

    def write(self, descriptor: int, data: memoryview) -> int:
        """Write some of the data; how much."""
        return os.write(descriptor, data)

    def direct(self, descriptor: int) -> bool:
        """Write past the system's cache from now on; whether system and file system do that."""
        if fcntl is None or not hasattr(os, "O_DIRECT"):
            return False
        try:
            fcntl.fcntl(descriptor, fcntl.F_SETFL, fcntl.fcntl(descriptor, fcntl.F_GETFL) | os.O_DIRECT)
        except OSError:
            return False
        return True

    def cached(self, descriptor: int) -> None:
        """Write through the system's cache again, where `direct` said yes."""
        fcntl.fcntl(descriptor, fcntl.F_SETFL, fcntl.fcntl(descriptor, fcntl.F_GETFL) & ~os.O_DIRECT)

    def truncate(self, descriptor: int, size: int) -> None:
        """Cut a file off."""
        os.ftruncate(descriptor, size)

    def sync(self, descriptor: int) -> None:
        """Wait until a file is safe on disk."""
        os.fsync(descriptor)

    def sync_folder(self, folder: Path) -> None:
        """Wait until the names in a folder are safe on disk, where the file system can say so."""
        descriptor = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        except OSError as e:
            if e.errno not in (errno.EINVAL, errno.EOPNOTSUPP):
                raise
        finally:
            os.close(descriptor)

    def close(self, descriptor: int) -> None:
        """Close a file."""
        os.close(descriptor)

    def replace(self, old: Path, new: Path) -> None:
        """Rename, replacing an existing file."""
        os.replace(old, new)

    def remove(self, path: Path) -> None:
        """Remove a file."""
        os.unlink(path)

    def make_folder(self, path: Path) -> None:
        """Make a folder, unless it is there."""
        path.mkdir(exist_ok=True)

    def write_all(self, descriptor: int, data: bytes | memoryview) -> None:
        """Write, in one call unless the system takes less at once."""
        rest = memoryview(data).cast("B")
        while len(rest):
            rest = rest[self.write(descriptor, rest) :]
