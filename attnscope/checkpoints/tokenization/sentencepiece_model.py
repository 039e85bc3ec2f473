"""Read a tokenizer.model of SentencePiece: its pieces, and what it does to a text before it looks for them.

The file is one message in the wire format of Protocol Buffers, of which four kinds of fields occur
(https://protobuf.dev/programming-guides/encoding/). Names and numbers of the fields are those of
https://github.com/google/sentencepiece/blob/master/src/sentencepiece_model.proto.
"""

import re
import struct
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from attnscope.base.errors import AttnscopeError
from attnscope.base.files.reading import identify_bytes

NORMAL, UNKNOWN, CONTROL, USER_DEFINED, UNUSED, BYTE = range(1, 7)  # SentencePiece.Type
UNIGRAM, BPE, WORD, CHAR = range(1, 5)  # TrainerSpec.ModelType
_TIKTOKEN = re.compile(rb"[A-Za-z0-9+/]+=* \d+\r?\n")  # a piece in base 64, and its rank
_LONGEST = 10  # largest size of a variable-length integer, in bytes
_Field = int | bytes


@dataclass(frozen=True)
class SentencePieceModel:
    """What a tokenizer.model holds.

    Attributes:
        pieces: Every piece with its score and kind; its place is its id.
        algorithm: UNIGRAM, BPE, WORD or CHAR.
        byte_fallback: What no piece covers becomes its bytes.
        normalizer: Name of the rules that change characters; `identity` for none.
        add_dummy_prefix: A space is put before a text.
        remove_extra_whitespaces: Runs of spaces become one.
        keeps_characters: There are no rules that change characters.
    """

    pieces: list[tuple[str, float, int]]
    algorithm: int
    byte_fallback: bool
    normalizer: str
    add_dummy_prefix: bool
    remove_extra_whitespaces: bool
    keeps_characters: bool


def read_sentencepiece(data: bytes, path: Path) -> SentencePieceModel:
    """Read the bytes of a tokenizer.model.

    Args:
        data: The bytes.
        path: The file, for errors.

    Raises:
        AttnscopeError: They are something else, or damaged.
    """
    if wrong := identify_bytes(data):
        raise AttnscopeError(f"is {wrong[0]}, not a SentencePiece model", where=path, hint=wrong[1])
    if _TIKTOKEN.match(data):
        hint = "download tokenizer.json, which lies beside the weights of the same model in Hugging Face layout"
        raise AttnscopeError(
            "is a vocabulary of tiktoken, which lacks the rules that split a text", where=path, hint=hint
        )
    try:
        return _model(data)
    except (ValueError, LookupError, TypeError, struct.error) as e:
        hint = "download it again"
        raise AttnscopeError("is not a SentencePiece model, or damaged", where=path, hint=hint) from e


def _model(data: bytes) -> SentencePieceModel:
    pieces, trainer, normalizer = [], dict[int, _Field](), dict[int, _Field]()
    for number, value in _fields(data):
        if number == 1:
            pieces.append(_piece(dict(_fields(_as_bytes(value)))))
        elif number == 2:
            trainer |= _fields(_as_bytes(value))
        elif number == 3:
            normalizer |= _fields(_as_bytes(value))
    if not pieces:
        raise ValueError("no pieces")
    return SentencePieceModel(
        pieces,
        algorithm=_as_int(trainer.get(3, UNIGRAM)),
        byte_fallback=bool(trainer.get(35, 0)),
        normalizer=_as_bytes(normalizer.get(1, b"")).decode() or "identity",
        add_dummy_prefix=bool(normalizer.get(3, 1)),
        remove_extra_whitespaces=bool(normalizer.get(4, 1)),
        keeps_characters=not normalizer.get(2),
    )


def _piece(fields: dict[int, _Field]) -> tuple[str, float, int]:
    (score,) = struct.unpack("<f", _as_bytes(fields.get(2, b"\0\0\0\0")))
    return _as_bytes(fields[1]).decode(), score, _as_int(fields.get(3, NORMAL))


def _as_bytes(value: _Field) -> bytes:
    if not isinstance(value, bytes):
        raise TypeError
    return value


def _as_int(value: _Field) -> int:
    if not isinstance(value, int):
        raise TypeError
    return value


def _fields(data: bytes) -> Iterator[tuple[int, _Field]]:
    """Yield the fields of a message: number, and an integer or bytes.

    Raises:
        ValueError: It ends within a field, or has a kind of field that occurs nowhere.
        IndexError: Likewise.
    """
    place = 0
    while place < len(data):
        key, place = _varint(data, place)
        number, kind = key >> 3, key & 7
        if kind == 0:
            value, place = _varint(data, place)
            yield number, value
            continue
        if kind == 2:
            size, place = _varint(data, place)
        elif kind in (1, 5):
            size = 8 if kind == 1 else 4
        else:
            raise ValueError(f"wire type {kind}")
        if place + size > len(data):
            raise ValueError("truncated")
        yield number, data[place : place + size]
        place += size


def _varint(data: bytes, place: int) -> tuple[int, int]:
    """Return an integer of seven bits a byte, lowest first, and the place after it."""
    value = 0
    for shift in range(0, 7 * _LONGEST, 7):
        byte = data[place]
        place += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, place
    raise ValueError("an integer of more than ten bytes")
