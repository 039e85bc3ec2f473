"""File operations that differ between operating systems.

The calls that write a dump are methods of one class, so that a test can make each of them fail.
"""

import errno
import os
import select
import stat
from pathlib import Path

try:
    import fcntl
except ImportError:  # Windows has no such lock, so a second writer is not detected there
    fcntl = None  # type: ignore[assignment]

_BINARY = getattr(os, "O_BINARY", 0)  # Windows would translate line ends
_AT_ONCE = getattr(os, "O_NONBLOCK", 0)  # do not wait for the other end of a pipe
PATIENCE = 30  # seconds that a named pipe's writer may come later than we do
_NO_LINK = getattr(os, "O_NOFOLLOW", 0)


def open_nonblocking(path: str | os.PathLike[str]) -> int:
    """Open a file for reading, without waiting for a writer if it is a pipe; call `wait_for_data` next."""
    return os.open(path, os.O_RDONLY | _AT_ONCE | _BINARY)


def wait_for_data(descriptor: int) -> None:
    """Let reads from a pipe that `open_nonblocking` opened wait for its writer, which may come up to PATIENCE later."""
    if _AT_ONCE:
        poll = select.poll()
        poll.register(descriptor, select.POLLIN)
        poll.poll(1000 * PATIENCE)
        # With a writer, reads wait for ever; without one, the pipe is empty.
        os.set_blocking(descriptor, True)


def create_new(path: Path) -> int:
    """Create a file for writing.

    Raises:
        FileExistsError: The name is taken.
    """
    return os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | _BINARY, 0o666)


def copy_permissions(descriptor: int, path: Path) -> None:
    """Give an open file the permissions of another file, if the system has permissions."""
    if hasattr(os, "fchmod"):
        os.fchmod(descriptor, stat.S_IMODE(path.stat().st_mode))


def rename_new(old: Path, new: Path) -> None:
    """Give a file its name, which may leave the old name behind as a second one.

    Raises:
        FileExistsError: The name is taken.
    """
    try:
        # Unlike a rename, never replaces a file that appeared in the meantime.
        os.link(old, new)
    except AttributeError:
        # The system has no hard links.
        os.rename(old, new)
    except OSError as e:
        if e.errno not in (errno.EPERM, errno.EOPNOTSUPP, errno.ENOSYS, errno.EMLINK):
            raise
        # FAT and some network file systems have no hard links.
        os.rename(old, new)


def sync_file(path: Path) -> None:
    """Wait until a file's content is safe on disk."""
    # Windows syncs only what may be written.
    _sync(path, os.O_RDWR | _BINARY)


def sync_folder(folder: Path) -> None:
    """Wait until the names in a folder are safe on disk, if system and file system support that."""
    if not hasattr(os, "O_DIRECTORY"):
        # Windows opens no folders.
        return
    try:
        _sync(folder, os.O_RDONLY)
    except OSError as e:
        if e.errno not in (errno.EINVAL, errno.EOPNOTSUPP):
            raise


def _sync(path: Path, flags: int) -> None:
    descriptor = os.open(path, flags)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


class FileSystem:
    """The file operations of the operating system; tests replace them."""

    def open(self, path: Path, flags: int) -> int:
        """Open a file, never through a symbolic link, and never waiting for the other end of a pipe."""
        return os.open(path, flags | _NO_LINK | _AT_ONCE | _BINARY, 0o666)

    def lock(self, descriptor: int) -> None:
        """Lock the file for this process; the system releases the lock when the process ends in any way.

        Raises:
            BlockingIOError: Another process has it.
        """
        if fcntl is not None:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)

    def write(self, descriptor: int, data: memoryview) -> int:
        """Write some of the data; return the number of bytes."""
        return os.write(descriptor, data)

    def truncate(self, descriptor: int, size: int) -> None:
        """Cut a file off."""
        os.ftruncate(descriptor, size)

    def sync(self, descriptor: int) -> None:
        """Wait until a file is safe on disk."""
        os.fsync(descriptor)

    def sync_folder(self, folder: Path) -> None:
        """Wait until the names in a folder are safe on disk, if the file system supports that."""
        sync_folder(folder)

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
        remaining = memoryview(data).cast("B")
        while len(remaining):
            remaining = remaining[self.write(descriptor, remaining) :]
