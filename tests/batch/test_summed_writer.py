"""Every byte arrives, in any pieces, however much of a write the system takes."""

import errno
import os
import random
import time
from zlib import crc32

import numpy as np
import pytest

from attnscope.base.system.file_system import FileSystem
from attnscope.batch import summed_writer
from attnscope.batch.summed_writer import SummedWriter

BUFFER = 8192
DATA = random.Random(5).randbytes(4 * BUFFER + 123)


class Short(FileSystem):
    """Writes at most so many bytes at a time."""

    def __init__(self, most):
        self.most = most

    def write(self, descriptor, data):
        return super().write(descriptor, data[: self.most])


@pytest.fixture(autouse=True)
def small(monkeypatch):
    monkeypatch.setattr(summed_writer, "BUFFER_BYTES", BUFFER)


def written(files, path, parts):
    """What lies in a file that parts were written to, and the checksum that came out."""
    gathered = SummedWriter(files)
    for _ in range(2):  # the second file as the first: nothing is left of it
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
        gathered.start(descriptor)
        for part in parts:
            gathered.put(np.frombuffer(part, dtype=np.uint8))
        check = gathered.finish()
        os.close(descriptor)
    return path.read_bytes(), check


@pytest.mark.parametrize("most", [1 << 20, 1000, BUFFER])
@pytest.mark.parametrize("size", [0, 1, BUFFER - 1, BUFFER, BUFFER + 1, 3 * BUFFER, len(DATA)])
def test_every_byte_arrives(tmp_path, most, size):
    luck, parts, start = random.Random(size), [], 0
    while start < size:
        end = min(size, start + luck.randrange(1, 3 * BUFFER // 2))
        parts.append(memoryview(DATA)[start:end])
        start = end
    assert written(Short(most), tmp_path / "file", parts) == (DATA[:size], crc32(DATA[:size]))


@pytest.mark.parametrize("wide", [3, 500, BUFFER])
def test_rows_that_lie_apart_arrive_in_order_and_in_their_type(tmp_path, wide):
    numbers = np.random.default_rng(wide).integers(-1, 65_535, (wide, 40, 2), dtype=np.int32)
    rows = numbers.swapaxes(
        0, 1
    )  # (40, wide, 2), as the queries of a text are in what was recorded
    path = tmp_path / "file"
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT)
    writer = SummedWriter(FileSystem())
    writer.start(descriptor)
    writer.put(rows, np.dtype(np.uint16))
    writer.put(rows[:, 0, 0])
    check = writer.finish()
    os.close(descriptor)
    expected = rows.astype(np.uint16).tobytes() + rows[:, 0, 0].tobytes()
    assert (path.read_bytes(), check) == (expected, crc32(expected))


def test_a_file_that_is_abandoned_is_written_to_no_more(tmp_path):
    class Slow(FileSystem):
        writing = False

        def write(self, descriptor, data):
            self.writing = True
            time.sleep(0.2)
            self.writing = False
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    files = Slow()
    writer = SummedWriter(files)
    writer.start(-1)
    writer.put(np.zeros(BUFFER + 1, dtype=np.uint8))
    writer.abandon()
    assert not files.writing


def test_an_error_is_raised(tmp_path):
    class Full(FileSystem):
        def write(self, descriptor, data):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with pytest.raises(OSError, match="No space"):
        written(Full(), tmp_path / "file", [DATA])
