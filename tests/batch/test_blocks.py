"""Direct writes past the system's cache, on systems that allow all, none or some of them."""

import errno
import fcntl
import os
import random
from zlib import crc32

import numpy as np
import pytest

from attnscope.base.system.file_system import FileSystem
from attnscope.batch import direct_writer
from attnscope.batch.direct_writer import BLOCK, DirectWriter

DATA = random.Random(5).randbytes(7 * BLOCK + 123)


class Picky(FileSystem):
    """Notes every write, and whether it went past the cache; `how` says what the system does with these."""

    def __init__(self, how="takes"):
        self.how, self.went = how, []

    def direct(self, descriptor):
        return self.how != "refuses" and super().direct(descriptor)

    def write(self, descriptor, data):
        flags = fcntl.fcntl(descriptor, fcntl.F_GETFL)
        direct = bool(flags & os.O_DIRECT)
        self.went.append((direct, len(data)))
        if direct and self.how == "fails":
            raise OSError(errno.EINVAL, "Invalid argument")
        if direct and self.how == "blocks":
            data = data[:BLOCK]
        if direct and self.how == "odd":
            self.cached(descriptor)
            data = data[:1000]
        done = super().write(descriptor, data)
        fcntl.fcntl(descriptor, fcntl.F_SETFL, flags)
        return done


@pytest.fixture
def small(monkeypatch):
    monkeypatch.setattr(direct_writer, "BUFFER_BYTES", 2 * BLOCK)


def written(files, path, parts):
    """What lies in a file that parts were written to, and the check sum that came out."""
    gathered = DirectWriter(files)
    for _ in range(2):  # the second file as the first: nothing is left of it
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
        gathered.start(descriptor)
        for part in parts:
            gathered.put(np.frombuffer(part, dtype=np.uint8))
        check = gathered.finish()
        os.close(descriptor)
    return path.read_bytes(), check


@pytest.mark.parametrize("how", ["takes", "refuses", "fails", "blocks", "odd"])
@pytest.mark.parametrize("size", [0, 1, BLOCK - 1, BLOCK, 2 * BLOCK, 2 * BLOCK + 1, 6 * BLOCK, len(DATA)])
def test_every_byte_arrives(small, tmp_path, how, size):
    luck, parts, start = random.Random(size), [], 0
    while start < size:
        end = min(size, start + luck.randrange(1, 3 * BLOCK))
        parts.append(memoryview(DATA)[start:end])
        start = end
    assert written(Picky(how), tmp_path / "file", parts) == (DATA[:size], crc32(DATA[:size]))


def test_only_the_last_part_of_a_block_goes_through_the_cache(small, tmp_path):
    files, path = Picky(), tmp_path / "file"
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT)
    if not files.direct(descriptor):
        pytest.skip("the file system of temporary files takes nothing past the cache")
    os.close(descriptor)
    written(files, path, [DATA])
    assert files.went == 2 * [*3 * [(True, 2 * BLOCK)], (True, BLOCK), (False, 123)]


def test_another_error_is_raised(small, tmp_path):
    class Full(FileSystem):
        def write(self, descriptor, data):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with pytest.raises(OSError, match="No space"):
        written(Full(), tmp_path / "file", [DATA])


def test_no_such_thing_here(monkeypatch, tmp_path):
    """A system without the flag: everything goes through the cache."""
    monkeypatch.delattr(os, "O_DIRECT")
    descriptor = os.open(tmp_path / "file", os.O_WRONLY | os.O_CREAT)
    assert FileSystem().direct(descriptor) is False
    os.close(descriptor)
