"""Parse one line or row of an input file into a text, or say why there is none."""

import csv
import re
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from hashlib import sha256
from pathlib import Path
from types import NoneType
from typing import IO, Any

import msgspec

from attnscope.base.errors import AttnscopeError, UsageError, arg, suggestion
from attnscope.batch.header import CHARACTERS_OF_A_TOKEN
from attnscope.engines.arrays.making import from_file
from attnscope.findings.codec import decode_json
from attnscope.request.chat import CHAT_KEYS, MESSAGES, chat_of
from attnscope.request.media import MediaFile, MediaKind
from attnscope.request.options import on_command_line
from attnscope.request.run_config import TextInput
from attnscope.request.text_files import MAX_LINE, decode_line, read_lines

PICTURE = "image"  # member of a record that names its picture, or a list of pictures
SOUND = "audio"  # member of a record that names its sound
BESIDE = 2 * CHARACTERS_OF_A_TOKEN  # characters that special tokens stand for
_DEEPEST = 100  # levels of a JSON line
# strings (which may contain brackets), and brackets
_BRACKETS = re.compile(r'"(?:[^"\\]|\\.)*"|[\[\]{}]')
FORMATS = ("txt", "jsonl", "csv", "tsv", "parquet", "arrow")
DELIMITERS = {"csv": ",", "tsv": "\t"}
ARRAYS = "qkv"  # the texts of given queries and keys
# known beside the text
_KINDS: dict[str, Any] = {"id": int | str | None, "pair": str | None, "context": str | None}
_MEMBERS = msgspec.json.Decoder(dict[str, Any])
# length of a record's text in characters (see `cost`), and the hash of its id
RecordSize = tuple[int, int]


class Item(msgspec.Struct, frozen=True):
    """One record of an input."""

    index: int  # number of the record, from 0
    line: int  # line in the input, from 1; for .parquet and .arrow, the row
    id: int | str  # id in the input; the number of the line if it has none
    hash: str
    text: TextInput | None  # the text; None if it cannot be read
    fields: dict[str, Any] = {}  # members that are copied
    error: str | None = None
    block: int = 0  # its block, once the input has been cut into blocks; see blocks.py


def cost(item: Item) -> int:
    """Return the length of a text, in characters."""
    text = item.text
    return BESIDE + (
        0 if text is None else len(text.text) + len(text.pair or "") + len(text.context or "")
    )


def size_of(item: Item) -> RecordSize:
    """Return the size of a record."""
    return cost(item), hash(item.id)


def _digest(data: bytes) -> str:
    return sha256(data).hexdigest()[:16]


def text_item(index: int, text: str) -> Item:
    """Return the item of a text that comes from no file."""
    return _text_item(index, index + 1, "row", {"text": text}, {})


def _text_item(
    index: int, line: int, name: str, values: dict[str, Any], fields: dict[str, Any]
) -> Item:
    text = TextInput(
        values["text"],
        values.get("pair"),
        values.get("context"),
        f"{name}:{line}",
        chat=values.get("chat"),
    )
    content = (text.text, text.pair, text.context) if text.chat is None else text.chat
    digest = _digest(msgspec.json.encode(content))
    return Item(index, line, named(values.get("id"), line), digest, text, fields)


def _failed_item(
    index: int, line: int, raw: bytes, error: AttnscopeError, own_id: Any = None
) -> Item:
    return Item(
        index, line, named(own_id, line), _digest(raw), None, error=error.line(on_command_line)
    )


def named(own_id: Any, line: int) -> int | str:
    """Return the id of a record, which is the number of its line if it has none."""
    return line if own_id in (None, "") else own_id


def to_jsonl(records: Any, column: str) -> bytes:
    """Return texts in memory as the lines of a .jsonl file.

    Args:
        records: An iterable of texts, or of mappings with the members of a line.
        column: Member that holds a text.

    Raises:
        UsageError: It is no iterable of these, or has what JSON cannot hold.
    """
    is_one_axis = getattr(records, "ndim", 1) == 1  # a DataFrame yields the names of its columns
    if not isinstance(records, Iterable) or isinstance(records, Mapping) or not is_one_axis:
        message = f"expected a path or several texts, got {records!r:.80}"
        raise UsageError(message, where=arg("texts"), hint="pass a path, or a list of strings")
    lines = []
    for index, record in enumerate(records):
        members = {column: str(record)} if isinstance(record, str) else record
        try:
            if not isinstance(members, Mapping):
                raise TypeError
            lines.append(msgspec.json.encode(dict(members)))
        except (TypeError, ValueError) as e:
            message = f"expected a text, or a record of JSON values, got {record!r:.80}"
            hint = "pass strings, or dicts with the members of a line of .jsonl"
            raise UsageError(message, where=f"texts[{index}]", hint=hint) from e
    return b"".join(line + b"\n" for line in lines)


def from_arrays(name: str) -> Iterator[Item]:
    """Yield the texts of a file of queries, keys and values."""
    for index, text in enumerate(from_file(Path(name)).inputs):
        digest = _digest(msgspec.json.encode((text.text, text.pair, text.context)))
        yield Item(index, index + 1, index + 1, digest, text)


def from_txt(file: IO[bytes], name: str) -> Iterator[Item]:
    """Yield one text a line, blank ones included."""
    for line_number, start, line in read_lines(file):
        try:
            yield _text_item(
                line_number - 1, line_number, name, {"text": decode_line(line, start)}, {}
            )
        except AttnscopeError as e:
            yield _failed_item(line_number - 1, line_number, line or b"", e)


def txt_sizes(file: IO[bytes]) -> Iterator[RecordSize]:
    """Yield the size of every record, without making it."""
    for line_number, start, line in read_lines(file):
        characters = 0
        with suppress(AttnscopeError):
            characters = len(decode_line(line, start))
        yield BESIDE + characters, line_number


def from_jsonl(file: IO[bytes], name: str, column: str) -> Iterator[Item]:
    """Yield one JSON object a line, blank lines left out; a line that is a list has the messages of a chat."""
    for index, (line_number, start, line) in enumerate(_json_lines(file)):
        yield _json_item(index, line_number, start, line, name, column)


def jsonl_sizes(file: IO[bytes], column: str) -> Iterator[RecordSize]:
    """Yield the size of every record; those that are more than a text with an id are made for it."""
    for line_number, start, line in _json_lines(file):
        with suppress(AttnscopeError, ValueError, RecursionError):
            data = decode_line(line, start)
            members = _MEMBERS.decode(data)
            text = members.pop(column, None)
            own_id = members.get("id")
            others = members.get("pair") or "", members.get("context") or ""
            plain = type(own_id) in (str, int, NoneType) and {type(text), *map(type, others)} == {
                str
            }
            if plain and _brackets(data) <= _DEEPEST:
                characters = len(text) + sum(map(len, others))
                yield BESIDE + characters, hash(named(own_id, line_number))
                continue
        yield size_of(_json_item(0, line_number, start, line, "", column))


def _json_lines(file: IO[bytes]) -> Iterator[tuple[int, int, bytes | None]]:
    return (row for row in read_lines(file) if row[2] is None or row[2].strip())


def _json_item(
    index: int, line_number: int, start: int, line: bytes | None, name: str, column: str
) -> Item:
    members: dict[str, Any] = {}
    try:
        text = decode_line(line, start)
        members = {MESSAGES: msgspec.Raw(text.encode())}
        if not text.lstrip().startswith("["):
            members = _member(text, dict[str, msgspec.Raw], None)
        _check_depth(text)
        return _text_item(index, line_number, name, *_object(dict(members), column))
    except AttnscopeError as e:
        return _failed_item(index, line_number, line or b"", e, _id(members))


def _id(members: dict[str, Any]) -> int | str | None:
    try:
        identifier: int | str | None = decode_json(members.get("id", b"null"), int | str | None)
    except ValueError:  # msgspec.DecodeError is one
        return None
    return identifier


def _object(members: dict[str, Any], column: str) -> tuple[dict[str, Any], dict[str, Any]]:
    """Split the members into known ones and others, which are copied."""
    if column in members:
        values: dict[str, Any] = {"text": _member(members.pop(column), str, column)}
    elif MESSAGES in members:
        chat_members = {
            key: _member(members.pop(key), Any, key) for key in CHAT_KEYS if key in members
        }
        values = {"text": "", "chat": chat_of(chat_members, MESSAGES)}
    elif PICTURE in members or SOUND in members:
        values = {"text": ""}
    else:
        hint = f"set {arg('column')} to the member that holds the text"
        raise AttnscopeError(f"no member '{column}' or '{MESSAGES}'", hint=hint)
    for key in [key for key in _KINDS if key in members]:
        values[key] = _member(members.pop(key), _KINDS[key], key)
    for key, data in members.items():
        # A number such as 1e999, copied as it is, would make the whole dump unreadable.
        _member(data, Any, key)
    return values, members


def media_of(fields: Mapping[str, Any]) -> tuple[MediaFile, ...]:
    """Return what a record names as its members `image`, a file or a list of files, and `audio`, a file."""
    pictures = _files(
        fields, PICTURE, str | list[str], "give the path of a picture, or a list of paths"
    )
    sounds = _files(fields, SOUND, str, "give the path of a sound")
    if pictures and sounds:
        raise AttnscopeError(
            f"has both {PICTURE} and {SOUND}", hint="give each a record of its own"
        )
    kind: MediaKind = "audio" if sounds else "image"
    return tuple(MediaFile(kind, name, name) for name in pictures or sounds)


def _files(fields: Mapping[str, Any], key: str, kind: Any, hint: str) -> list[str]:
    value = fields.get(key)
    if isinstance(value, msgspec.Raw):
        value = _member(value, kind | None, key)
    try:
        names: str | list[str] = msgspec.convert(value or [], kind | list[str])
    except ValueError as e:  # msgspec.ValidationError is one
        raise AttnscopeError(f"{key}: is no file", hint=hint) from e
    return [names] if isinstance(names, str) else names


def _member(data: Any, value_type: Any, key: str | None) -> Any:
    try:
        return decode_json(data, value_type)
    except ValueError as e:  # msgspec.DecodeError is one
        raise _wrong(e, key) from e


def _wrong(error: ValueError, key: str | None) -> AttnscopeError:
    wrong = f"{error}".replace("`", "'")
    return AttnscopeError(f"not valid JSON ({wrong})" if key is None else f"{key}: {wrong}")


def _brackets(text: str) -> int:
    return text.count("[") + text.count("{")


def _check_depth(text: str) -> None:
    """Refuse members nested too deeply for other programs to read from a dump."""
    if _brackets(text) <= _DEEPEST:
        return
    depth = 0
    for bracket in _BRACKETS.findall(text):
        depth += {"[": 1, "{": 1, "]": -1, "}": -1}.get(bracket, 0)  # a string counts as nothing
        if depth > _DEEPEST:
            raise AttnscopeError(
                f"nested more than {_DEEPEST} deep", hint="remove what is not needed"
            )


def from_table(file: IO[bytes], name: str, column: str, delimiter: str) -> Iterator[Item]:
    """Yield one row of a CSV or TSV file with a header row."""
    for index, row in enumerate(_table_rows(file, name, column, delimiter)):
        yield _row(index, *row, name, column)


def table_sizes(file: IO[bytes], name: str, column: str, delimiter: str) -> Iterator[RecordSize]:
    """Yield the size of every row; those that cannot be read are made into records for it."""
    for line_number, header, cells in _table_rows(file, name, column, delimiter):
        with suppress(TypeError, ValueError):
            "".join(cells).encode()
            row = dict(zip(header, cells, strict=True))
            texts = row.pop(column), row.get("pair", ""), row.get("context", "")
            own_id = hash(named(row.get("id"), line_number))
            yield BESIDE + sum(map(len, texts)), own_id
            continue
        yield size_of(_row(0, line_number, header, cells, name, column))


def _table_rows(
    file: IO[bytes], name: str, column: str, delimiter: str
) -> Iterator[tuple[int, list[str], Any]]:
    """Yield line, column names and cells of every row, or the error in place of its cells."""
    csv.field_size_limit(MAX_LINE)
    # one that is too long is not UTF-8
    lines = (b"\xff" if line is None else line for _, _, line in read_lines(file))
    texts = (line.decode(errors="surrogateescape") + "\n" for line in lines)
    reader = csv.reader(texts, delimiter=delimiter, strict=True)
    header = _header(reader, name)
    check_header(header, column, name)
    cells: list[str] | csv.Error | None = []
    while cells is not None:
        line_number = reader.line_num + 1
        try:
            cells = next(reader, None)
        except csv.Error as e:
            cells = e
        if cells:  # else a blank line
            yield line_number, header, cells


def _header(rows: Iterator[list[str]], name: str) -> list[str]:
    """Return the first row that is not blank; empty if there is none."""
    try:
        header = [title.removeprefix("\ufeff") for title in next(filter(None, rows), [])]
        "".join(header).encode()
    except csv.Error as e:
        raise AttnscopeError(f"its row of column names is not valid CSV ({e})", where=name) from e
    except UnicodeEncodeError as e:
        raise AttnscopeError(
            "its row of column names is not UTF-8", where=name, hint="convert it to UTF-8"
        ) from e
    return header


def check_header(header: list[str], column: str, name: str) -> None:
    """Refuse a table that has no column of texts, or several."""
    if not header:
        raise AttnscopeError("is empty", where=name, hint="expected a row of column names")
    if column not in header:
        hint = suggestion(column, header) or f"name one with {arg('column')}: {', '.join(header)}"
        raise UsageError(f"has no column '{column}'", where=name, hint=hint)
    if twice := [title for title in (column, *_KINDS) if header.count(title) > 1]:
        raise AttnscopeError(
            f"has several columns '{twice[0]}'", where=name, hint="rename all but one of them"
        )


def _row(
    index: int, line_number: int, header: list[str], cells: Any, name: str, column: str
) -> Item:
    if isinstance(cells, csv.Error):
        error = AttnscopeError(f"not valid CSV ({cells})")
        return _failed_item(index, line_number, str(cells).encode(), error)
    raw = "\0".join(cells).encode(errors="surrogateescape")
    if len(cells) != len(header):
        message = f"{len(cells)} cells, but the header has {len(header)}"
        return _failed_item(
            index,
            line_number,
            raw,
            AttnscopeError(message, hint="quote cells that contain the separator"),
        )
    row = dict(zip(header, cells, strict=True))
    try:
        raw.decode()
    except UnicodeDecodeError as e:
        id_text = row.get("id", "").encode(errors="ignore").decode()
        own = id_text if id_text == row.get("id") else None  # it may be what is wrong
        return _failed_item(
            index, line_number, raw, AttnscopeError(f"byte 0x{raw[e.start]:02x} is not UTF-8"), own
        )
    return from_row(index, line_number, name, row, column)


def from_row(index: int, line_number: int, name: str, row: dict[str, Any], column: str) -> Item:
    """Return a row of a table."""
    text = row.pop(column)
    values: dict[str, Any] = {"text": text}
    try:
        for key in _KINDS:
            if key in row:
                values[key] = _typed(row.pop(key), key)
        if not isinstance(text, str):
            raise AttnscopeError(f"{column}: no text")
    except AttnscopeError as e:
        return _failed_item(index, line_number, repr(text).encode(), e, values.get("id"))
    # A table holds more than JSON does, such as times.
    fields = msgspec.to_builtins(row, str_keys=True, enc_hook=str)
    return _text_item(index, line_number, name, values, fields)


def _typed(value: Any, key: str) -> Any:
    """Return a cell of a table in the type of its column; None if it is empty."""
    if isinstance(value, str):  # suits every column
        return value or None
    try:
        return msgspec.convert(value, _KINDS[key])
    except ValueError as e:  # msgspec.ValidationError is one
        raise _wrong(e, key) from e
