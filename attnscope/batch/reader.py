"""Read an input file: its items, as often as needed, and facts about it.

The input is read twice: once to hash it, measure its records and find duplicate ids, and once to process it. Lines and
rows are made into records only the second time; of a small input of lines, the records stay in memory. An input that
can be read only once (a pipe, standard input, an object of a store) is copied to a temporary file first.
"""

import os
import shutil
import stat
import sys
import tempfile
from array import array
from collections.abc import Callable, Iterator
from functools import partial
from hashlib import file_digest, sha256
from pathlib import PurePath
from typing import IO, Any, BinaryIO, TypeVar

import numpy as np

from attnscope.base.errors import AttnscopeError, UsageError, arg
from attnscope.base.files.reading import reading
from attnscope.base.system.escape import as_unicode
from attnscope.base.system.file_system import open_nonblocking, wait_for_data
from attnscope.batch.arrow_input import ENDINGS, folder_files, row_sizes, rows_of
from attnscope.batch.compressed import COMPRESSED, open_decompressed
from attnscope.batch.header import InputFacts, Settings
from attnscope.batch.items import (
    ARRAYS,
    DELIMITERS,
    FORMATS,
    Item,
    RecordSize,
    from_arrays,
    from_jsonl,
    from_table,
    from_txt,
    jsonl_sizes,
    size_of,
    table_sizes,
    txt_sizes,
)
from attnscope.batch.remote import Store, url_of

T = TypeVar("T")
# of an input that stays in memory, at most: lines, half a kilobyte each beside their texts, and bytes of its file
_KEPT_RECORDS = 1 << 15
_KEPT_BYTES = 1 << 24


class InputReader:
    """An input that is open.

    Args:
        name: The file, or `-` for standard input; of texts in memory, what messages and the header call them.
        format: One of FORMATS, or ARRAYS; None for the one of the file's extension.
        lines: Texts in memory, as the lines of a .jsonl file (see items.to_jsonl); None for a file.

    Attributes:
        costs: How long every text is, once `facts` has read them; see items.cost.
    """

    def __init__(
        self, name: str, format: str | None, column: str, lines: bytes | None = None
    ) -> None:
        self.name = "standard input" if name == "-" else name
        endings = [] if name == "-" else PurePath(name).suffixes
        self._packing = endings.pop() if endings and endings[-1].lower() in COMPRESSED else ""
        files = [name]
        if lines is not None:
            self.format = "jsonl"
            if format not in (None, self.format):
                raise UsageError(
                    "applies only to a file", where=arg("input_format", format), hint="remove it"
                )
        elif name != "-" and os.path.isdir(name):
            self._packing = ""
            files, self.format = folder_files(name)
            if format not in (None, self.format):
                raise UsageError(
                    f"the folder holds .{self.format} files",
                    where=arg("input_format", format),
                    hint="remove it",
                )
        else:
            self.format = format or _format(endings, name)
        if self.format == "txt" and column != Settings().column:
            hint = f"remove it, or set {arg('input_format')} if the file is a table or .jsonl"
            raise UsageError(
                "applies only to tables and .jsonl: every line of .txt is a text",
                where=arg("column"),
                hint=hint,
            )
        self._column = column
        self.costs = array("I")
        self._facts: InputFacts | None = None
        self._kept: list[Item] | None = None
        self._files: list[Any] = []
        try:
            for path in files:
                self._files.append(_open(path, lines))
        except BaseException:
            self._close()
            raise
        self._states = self._file_states()

    def items(self) -> Iterator[Item]:
        """Return every record, from the first."""
        if self._kept is None:
            return self._read(self._items)
        return iter(self._kept)

    def _read(self, parse: Callable[[IO[bytes]], Iterator[T]]) -> Iterator[T]:
        for file in self._files:
            file.seek(0)
        with open_decompressed(self._files[0], self._packing.lower(), self.name) as file:
            yield from parse(file)
        if self._file_states() != self._states:
            raise AttnscopeError(
                "changed while it was read", where=self.name, hint="run the command again"
            )

    def _file_states(self) -> list[tuple[int, int]]:
        states = [os.fstat(file.fileno()) for file in self._files]
        return [(state.st_size, state.st_mtime_ns) for state in states]

    def _items(self, file: IO[bytes]) -> Iterator[Item]:
        if self.format == "txt":
            return from_txt(file, self.name)
        if self.format == "jsonl":
            return from_jsonl(file, self.name, self._column)
        if self.format in ENDINGS.values():
            return rows_of(self.format, [file, *self._files[1:]], self.name, self._column)
        if self.format == ARRAYS:
            return from_arrays(self.name)
        return from_table(file, self.name, self._column, DELIMITERS[self.format])

    def _sizes(self, file: IO[bytes]) -> Iterator[RecordSize]:
        if self.format == "txt":
            return txt_sizes(file)
        if self.format == "jsonl":
            return jsonl_sizes(file, self._column)
        if self.format in ENDINGS.values():
            return row_sizes(self.format, [file, *self._files[1:]], self.name, self._column)
        if self.format in DELIMITERS:
            return table_sizes(file, self.name, self._column, DELIMITERS[self.format])
        return map(size_of, self._items(file))

    def facts(self) -> InputFacts:
        """Return digest and number of records; the first call reads the whole input."""
        if self._facts is not None:
            return self._facts
        try:
            digest = self._digest()
        except OSError as e:
            raise AttnscopeError(f"cannot be read ({e.strerror or e})", where=self.name) from e
        ids = array("q")
        self.costs = array("I")
        if self._is_small():
            self._kept = list(self.items())
        if self._kept is None:
            sizes = self._read(self._sizes)
        else:
            sizes = map(size_of, self._kept)
        for characters, id_hash in sizes:
            self.costs.append(characters)
            ids.append(id_hash)
        self._check_ids(np.frombuffer(ids, dtype=np.int64))
        self._facts = InputFacts(as_unicode(self.name), self.format, digest, len(ids))
        return self._facts

    def _is_small(self) -> bool:
        packed = self._packing or self.format in ENDINGS.values()
        if packed or self._states[0][0] > _KEPT_BYTES:
            return False
        self._files[0].seek(0)
        content: bytes = self._files[0].read()
        return content.count(b"\n") <= _KEPT_RECORDS

    def _digest(self) -> str:
        """Return the SHA-256 of the file; for several files, the SHA-256 of their digests, one a line."""
        digests = []
        for file in self._files:
            file.seek(0)
            digests.append(file_digest(file, "sha256").hexdigest())
        if len(digests) == 1:
            return digests[0]
        return sha256("\n".join(digests).encode()).hexdigest()

    def _check_ids(self, hashes: "np.ndarray[tuple[int], np.dtype[np.int64]]") -> None:
        """Refuse an id that occurs twice.

        Eight bytes of each id's hash are kept; where two are equal, the input is read again to name the id."""
        if self.format == "txt" or len(hashes) < 2:
            return
        ordered = np.sort(hashes)
        twice = set(ordered[1:][ordered[1:] == ordered[:-1]].tolist())
        seen: dict[int | str, int] = {}
        for item in self.items() if twice else ():
            if hash(item.id) not in twice:
                continue
            if item.id in seen:
                message = f"duplicate id {item.id!r}, first used on line {seen[item.id]}"
                hint = "make every id unique"
                if item.id in (item.line, seen[item.id]):
                    hint += "; that of a record without one is the number of its line"
                raise AttnscopeError(message, where=f"{self.name}:{item.line}", hint=hint)
            seen[item.id] = item.line

    def __enter__(self) -> "InputReader":
        return self

    def __exit__(self, *_: object) -> None:
        self._close()

    def _close(self) -> None:
        for file in self._files:
            file.close()


def _format(endings: list[str], name: str) -> str:
    ending = endings[-1].lower().removeprefix(".") if endings else ""
    if ending in FORMATS or ending in ENDINGS:
        return ENDINGS.get(ending, ending)
    if name == "-":
        return "txt"
    remote = url_of(name) is not None
    if not remote and not os.path.exists(name):
        hint = "pass a file of texts, or use attnscope run for a single text"
        raise AttnscopeError("no such file", where=name, hint=hint)
    hint = f"set {arg('input_format')} to {', '.join(FORMATS[:-1])} or {FORMATS[-1]}"
    raise UsageError(
        f"cannot tell the format of '{name}' from its name", where=arg("texts"), hint=hint
    )


def _open(name: str, lines: bytes | None) -> BinaryIO:
    if lines is not None:
        return _spool(lambda copy: copy.writelines([lines]), name)
    if url_of(name) is not None:
        return _spool(lambda copy: Store(name).read(copy), name)
    if name == "-":
        if sys.stdin is None:
            raise AttnscopeError("standard input is closed", hint="pass a file")
        return _spool(
            partial(shutil.copyfileobj, sys.stdin.buffer, length=1 << 20), "standard input"
        )
    with reading(name):
        descriptor = open_nonblocking(name)
        file = open(descriptor, "rb")  # noqa: SIM115
        if stat.S_ISREG(os.fstat(descriptor).st_mode):
            return file
        wait_for_data(descriptor)
        with file:
            return _spool(partial(shutil.copyfileobj, file, length=1 << 20), name)


def _spool(copy_to: Callable[[IO[bytes]], None], name: str) -> BinaryIO:
    copy = tempfile.TemporaryFile(prefix="attnscope-")  # noqa: SIM115
    try:
        copy_to(copy)
        copy.flush()
    except OSError as e:
        copy.close()
        hint = "set TMPDIR to a folder with more free space"
        raise AttnscopeError(
            f"cannot be copied to a temporary file ({e.strerror or e})", where=name, hint=hint
        ) from e
    except AttnscopeError:
        copy.close()
        raise
    return copy
