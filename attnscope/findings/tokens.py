"""A token of a text, as plain data."""

import re
import unicodedata
from collections.abc import Iterable, Sequence
from contextlib import suppress
from typing import Literal, get_args

import msgspec

# Tokens that a ranking may exclude, because most heads attend to them.
LeftOut = Literal["special tokens", "first token"]
LEFT_OUT: tuple[LeftOut, ...] = get_args(LeftOut)


class Token(msgspec.Struct, frozen=True):
    """One token of a text.

    Attributes:
        id: The vocabulary id that the model was given.
        piece: The tokenizer's own spelling, such as `Ġriver` or `##ing`.
        text: The readable piece: the text it covers, or what the piece spells if it covers none
            or for part of a character.
        start: First character of the token in its text; None for a token that covers no text.
        end: End of the token, exclusive.
        special: A token that the tokenizer added (such as `[CLS]`), or a special token that the user wrote, which has a
            span; never the mask token, which stands for a word.
        segment: 0, or 1 for the second text of a pair; `start` and `end` refer to that text.
        type_id: The segment id that the model was given, if it has a segment table.
        made: Whether the model generated it (`--generate`).
        unknown: The tokenizer has no piece for this text, and gave the model its token for unknown words.
    """

    id: int
    piece: str
    text: str
    start: int | None = None
    end: int | None = None
    special: bool = False
    segment: int = 0
    type_id: int = 0
    unknown: bool = False
    made: bool = False


# Spellings of the token that stands for a word to be predicted. It is a word of the text, though vocabularies list it as
# special: people ask what it reads, while heads rest on special tokens.
MASKS = ("[MASK]", "<mask>")
# Fills up a text to the length of the longest.
PADDING = Token(0, "(padding)", "(pad)", special=True)
# Ideographs are written without spaces between words.
_IDEOGRAPH = "[\u3400-\u9fff\uf900-\ufaff\U00020000-\U0003ffff]"
# Zero-width (non-)joiners are part of a word, as in Persian.
_JOINERS = "\u200c\u200d"
# The form in which pieces.byte_fragment shows bytes.
_BYTES = "<([89A-F][0-9A-F](?: [89A-F][0-9A-F])*)>"
# Bytes of the longest character in UTF-8.
_LONGEST_CHARACTER = 4
# This is compiled on use, because that takes milliseconds.
_WORD = rf"{_IDEOGRAPH}|(?:(?!{_IDEOGRAPH})\S)+"


def unknown_words(text: str, tokens: Sequence[Token], segment: int = 0) -> tuple[list[str], int]:
    """Return the words that the tokenizer does not know fully, and the number of words.

    A word is a run of characters between white space, or one ideograph.
    """
    unknown = [token for token in tokens if token.unknown and token.segment == segment]
    places = [
        (token.start, token.end)
        for token in unknown
        if token.start is not None and token.end is not None
    ]
    words = list[str]()
    count = 0
    reached = 0
    for word in re.finditer(_WORD, text):
        count += 1
        while reached < len(places) and places[reached][1] <= word.start():
            reached += 1
        if reached < len(places) and places[reached][0] < word.end():
            words.append(word[0])
    return words, count


def describe_unknown(
    texts: Iterable[tuple[str, str | None, Sequence[Token]]],
) -> tuple[str, list[str]]:
    """Count and name the words of texts that the tokenizer does not know; empty if it knows all."""
    segments = [
        (text or "", tokens, segment)
        for *both, tokens in texts
        if any([token.unknown for token in tokens])
        for segment, text in enumerate(both)
    ]
    if not segments:
        return "", []
    words = [unknown_words(*segment) for segment in segments]
    unknown = [word for of_segment, _ in words for word in of_segment]
    count = sum(word_count for _, word_count in words)
    if not unknown:
        return "", []
    share = (
        f"{len(unknown)} of {count} word{'s' * (count > 1)} {'is' if len(unknown) == 1 else 'are'}"
    )
    return f"{share} unknown to the tokenizer", list(dict.fromkeys(unknown))


# marks of a blank before the word that a piece begins
BEGINS_WORD = ("Ġ", "▁")
# prefix of a piece that continues a word: WordPiece's own, written for other tokenizers, too
CONTINUES = "##"


def continues(tokens: Sequence[Token], position: int) -> bool:
    """Tell whether a token continues the word of the token before it, without a blank or mark between them."""
    token = tokens[position]
    if token.special or not token.text:
        return False
    # a piece of a WordPiece vocabulary
    if token.piece.startswith(CONTINUES) and not token.text.startswith(CONTINUES):
        return True
    before = tokens[position - 1] if position else None
    if before is None or before.special or not before.text:
        return False
    if (
        token.start is None
        or before.start is None
        or before.end is None
        or before.segment != token.segment
    ):
        return False
    # Both spell bytes of one character, or what a normalizer makes of it.
    if before.start <= token.start < before.end:
        return True
    if before.end != token.start:
        return False
    edge = (_character(tokens, position - 1, -1), _character(tokens, position, 1))
    return all(map(_is_in_word, edge)) and re.search(_IDEOGRAPH, "".join(edge)) is None


def _is_in_word(character: str) -> bool:
    """Tell whether a character is a letter, a digit, a combining mark, or an invisible joiner."""
    return character.isalnum() or character in _JOINERS or unicodedata.category(character)[0] == "M"


def _character(tokens: Sequence[Token], position: int, step: Literal[1, -1]) -> str:
    """Return the first character of a token (step 1), or the last one (step -1).

    One that several tokens spell as bytes is put together from them.
    """
    raw = b""
    while 0 <= position < len(tokens) and len(raw) < _LONGEST_CHARACTER:
        here = _edge_bytes(tokens[position], step)
        if not here:
            break
        raw = raw + here if step > 0 else here + raw
        for length in range(1, _LONGEST_CHARACTER + 1):
            with suppress(UnicodeDecodeError):
                return (raw[:length] if step > 0 else raw[-length:]).decode()
        position += step
    if not raw:
        return tokens[position].text[0 if step > 0 else -1]
    return "\ufffd"


def _edge_bytes(token: Token, step: Literal[1, -1]) -> bytes:
    """Return the bytes of a partial character, spelled as `<F0 9F>`, at the start or end of a token; else none."""
    if token.text[0 if step > 0 else -1] != "<>"[step < 0] or token.text in token.piece:
        return b""
    if step > 0:
        match = re.match(_BYTES, token.text)
    else:
        match = re.search(rf"{_BYTES}$", token.text)
    return bytes.fromhex(match[1]) if match else b""


def spell_piece(tokens: Sequence[Token], position: int) -> str:
    """Spell a token by its text, else its piece, marked if it continues a word."""
    token = tokens[position]
    mark = CONTINUES if continues(tokens, position) else ""
    return mark + (token.text or token.piece)


def spell_word(tokens: Sequence[Token], word: Sequence[int]) -> str:
    """Spell a word from its tokens; characters split over tokens are joined."""
    try:
        return b"".join(map(_as_bytes, (tokens[position] for position in word))).decode()
    except UnicodeError:
        # The first or last bytes of a character are not among the tokens.
        return "".join(tokens[position].text or tokens[position].piece for position in word)


def _as_bytes(token: Token) -> bytes:
    text = token.text or token.piece
    if text in token.piece:
        return text.encode()
    parts = re.split(_BYTES, text)
    return b"".join(bytes.fromhex(part) if n % 2 else part.encode() for n, part in enumerate(parts))


def group_words(tokens: Sequence[Token], positions: Sequence[int]) -> list[list[int]]:
    """Group ascending positions by the words of their tokens."""
    words: list[list[int]] = []
    for position in positions:
        if words and words[-1][-1] == position - 1 and continues(tokens, position):
            words[-1].append(position)
        else:
            words.append([position])
    return words
