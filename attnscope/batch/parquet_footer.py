"""Join Parquet files to one, group of rows by group of rows, as they are.

pyarrow writes a file in one thread, and the bytes of a group of rows depend on nothing outside of it: only the footer
knows where they are. So threads write files of one group each, and here their footers become one. A footer is a struct
of Thrift's compact protocol; numbers are in zigzag, 7 bits a byte.
(https://github.com/apache/parquet-format/blob/master/src/main/thrift/parquet.thrift)
"""

from collections.abc import Sequence
from typing import Any

_MAGIC = b"PAR1"
_TAIL = 8  # bytes of the footer's length and the magic after it
_TRUE, _FALSE, _BYTE, _DOUBLE, _BINARY, _LIST, _STRUCT = (1, 2, 3, 7, 8, 9, 12)
_INTEGERS = (4, 5, 6)
# Numbers of fields.
_ROWS, _GROUPS = (3, 4)  # of a footer
_COLUMNS, _GROUP_START, _ORDINAL = (1, 5, 7)  # of a group of rows
_COLUMN_START, _COLUMN = (2, 3)  # of a column of it
_PAGE_STARTS = (9, 11)  # of what a column's field 3 holds: its data, its dictionary

_Struct = dict[int, tuple[int, Any]]  # number of a field to its type and value


def join(files: Sequence[Any]) -> bytes:
    """Return one file with the groups of rows of several, which have the same columns and no other indexes."""
    if len(files) == 1:
        return bytes(files[0])
    pieces: list[Any] = [_MAGIC]
    groups: list[_Struct] = []
    footer: _Struct = {}
    rows = 0
    size = len(_MAGIC)
    for buffer in files:
        file = memoryview(buffer).cast("B")
        end = len(file) - _TAIL
        start = end - int.from_bytes(file[end : end + 4], "little")
        found, _ = _read(file, start, _STRUCT)
        footer = footer or found
        rows += found[_ROWS][1]
        for group in found[_GROUPS][1][1]:
            _move(group, size - len(_MAGIC))
            if _ORDINAL in group:
                group[_ORDINAL] = (group[_ORDINAL][0], len(groups))
            groups.append(group)
        pieces.append(file[len(_MAGIC) : start])
        size += start - len(_MAGIC)
    footer[_ROWS] = (footer[_ROWS][0], rows)
    footer[_GROUPS] = (_LIST, (_STRUCT, groups))
    tail = _written(_STRUCT, footer)
    return b"".join([*pieces, tail, len(tail).to_bytes(4, "little"), _MAGIC])


def _move(group: _Struct, distance: int) -> None:
    """Say that a group of rows is later in its file."""
    places = [(group, _GROUP_START)]
    for column in group[_COLUMNS][1][1]:
        places.append((column, _COLUMN_START))
        places += [(column[_COLUMN][1], field) for field in _PAGE_STARTS]
    for struct, field in places:
        kind, start = struct.get(field, (_BYTE, 0))
        if start:  # 0 stands for none
            struct[field] = (kind, start + distance)


def _read(data: memoryview, at: int, kind: int) -> tuple[Any, int]:
    """Return the value that begins at a byte, and the byte after it."""
    if kind in _INTEGERS:
        number, at = _varint(data, at)
        return (number >> 1) ^ -(number & 1), at
    if kind == _BINARY:
        size, at = _varint(data, at)
        return bytes(data[at : at + size]), at + size
    if kind == _STRUCT:
        return _struct(data, at)
    if kind == _LIST:
        head = data[at]
        size, at = (head >> 4, at + 1) if head < 0xF0 else _varint(data, at + 1)
        values = []
        for _ in range(size):
            value, at = _read(data, at, head & 15)
            values.append(value)
        return (head & 15, values), at
    size = {_TRUE: 1, _FALSE: 1, _BYTE: 1, _DOUBLE: 8}[kind]
    return bytes(data[at : at + size]), at + size


def _struct(data: memoryview, at: int) -> tuple[_Struct, int]:
    fields: _Struct = {}
    field = 0
    while head := data[at]:
        kind = head & 15
        field += head >> 4
        at += 1
        if not head >> 4:
            field, at = _read(data, at, _INTEGERS[0])
        if kind in (_TRUE, _FALSE):
            fields[field] = (kind, b"")  # the type is the value
        else:
            value, at = _read(data, at, kind)
            fields[field] = (kind, value)
    return fields, at + 1


def _varint(data: memoryview, at: int) -> tuple[int, int]:
    number = shift = 0
    while (byte := data[at]) > 127:
        number |= (byte & 127) << shift
        shift += 7
        at += 1
    return number | byte << shift, at + 1


def _written(kind: int, value: Any) -> bytes:
    """Return the bytes that `_read` would read."""
    if kind in _INTEGERS:
        return _packed(value << 1 if value >= 0 else ~(value << 1))
    if kind == _BINARY:
        return _packed(len(value)) + value  # type: ignore[no-any-return]
    if kind == _LIST:
        kind, values = value
        size = len(values)
        head = bytes([size << 4 | kind]) if size < 15 else bytes([0xF0 | kind]) + _packed(size)
        return head + b"".join(_written(kind, item) for item in values)
    if kind != _STRUCT:
        return value  # type: ignore[no-any-return]
    pieces = []
    last = 0
    for field, (of, content) in value.items():
        step = field - last
        head = bytes([step << 4 | of]) if 0 < step < 16 else bytes([of]) + _written(4, field)
        pieces += [head, _written(of, content)]
        last = field
    return b"".join([*pieces, b"\0"])


def _packed(number: int) -> bytes:
    packed = bytearray()
    while number > 127:
        packed.append(number & 127 | 128)
        number >>= 7
    return bytes([*packed, number])
