"""A text in; its Tokens out: ids, pieces, readable text and spans, by a tokenizer.json or by the words themselves."""

import re
import unicodedata
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Protocol

import orjson

from attnscope.errors import AttnscopeError
from attnscope.folder.files import MB, read_object
from attnscope.pieces import bytes_of, part_of_character, readable, trimmed
from attnscope.quiet import quietly
from attnscope.report import Token

if TYPE_CHECKING:
    from tokenizers import Encoding

MAX_TEXT = 4 * MB  # characters; forty times a text of 100,000 bytes
MAX_TOKENIZER = 200 * MB
_WORD = re.compile("w+(?:aw+)*|[pa]")


class Tokenizer(Protocol):
    """What turns a text into Tokens.

    Attributes:
        name: What it is called in `info`.
        vocab_size: Number of ids that it knows.
        notes: What was changed about it, for the user to know.
    """

    name: str
    vocab_size: int
    notes: list[str]

    def encode(self, text: str, pair: str | None = None, *, where: str = "TEXT") -> list[Token]:
        """The tokens of a text, or of a text and its pair.

        Args:
            text: The text.
            pair: The second text of a pair.
            where: Where it came from, for errors.

        Raises:
            AttnscopeError: The text is empty, blank, too long, no valid Unicode, or gives no token at all.
        """


class FileTokenizer:
    """A tokenizer.json: see `load_tokenizer`.

    Attributes:
        path: The file.
        name: Kind of its model, such as `WordPiece`.
        vocab_size: Number of ids, added tokens included.
        notes: What was switched off.
        unknown_id: The id that stands for whatever the vocabulary lacks; None where it has none.
    """

    def __init__(self, path: Path, content: dict[str, Any], notes: list[str]) -> None:
        from tokenizers import Tokenizer as RustTokenizer

        self.path, self.notes = path, notes
        self._rust = quietly(lambda: RustTokenizer.from_str(orjson.dumps(content).decode()), path, "cannot be used")
        model = content["model"]
        self._byte_level = "ByteLevel" in _types(content.get("pre_tokenizer"), content.get("decoder"))
        self.name: str = model.get("type") or type(self._rust.model).__name__
        self.vocab_size: int = self._rust.get_vocab_size(with_added_tokens=True)
        named = model.get("unk_token")
        self.unknown_id: int | None = self._rust.token_to_id(named) if isinstance(named, str) else None
        if self.name == "Unigram":
            self.unknown_id = model.get("unk_id")
        added = self._rust.get_added_tokens_decoder()
        self._special = {number for number, token in added.items() if token.special}

    def special(self, number: int) -> Token:
        """The special token of this id, as something other than a text puts it there."""
        piece = self._rust.id_to_token(number) or f"<{number}>"
        return Token(number, piece, piece, special=True)

    def encode(self, text: str, pair: str | None = None, *, where: str = "TEXT") -> list[Token]:
        """As `Tokenizer.encode`; special tokens are added as the file says."""
        texts = (text,) if pair is None else (text, pair)
        for each in texts:
            check_text(each, where)
        encoding = quietly(lambda: self._rust.encode(*texts), self.path, f"fails on {where}")
        self._check_types(encoding, len(texts))
        tokens = list(self._tokens(encoding, texts))
        if not tokens:
            raise AttnscopeError("the text gives no tokens", where=where, hint="give at least one word")
        return tokens

    def _check_types(self, encoding: "Encoding", count: int) -> None:
        """Refuse type ids that a model would be given, and that are neither all 0 nor the number of the text."""
        types, texts = encoding.type_ids, encoding.sequence_ids
        odd = [t for t, s in zip(types, texts, strict=True) if (t >= count if s is None else t != s)]
        if odd and any(types):
            found = f"gives type id {odd[0]} where the number of the text is expected"
            raise AttnscopeError(found, where=self.path, hint="expected 0 in the first text, 1 in its pair")

    def _tokens(self, encoding: "Encoding", texts: tuple[str, ...]) -> Iterator[Token]:
        rows = zip(
            encoding.ids, encoding.tokens, encoding.offsets, encoding.sequence_ids, encoding.special_tokens_mask,
            encoding.type_ids, strict=True,
        )  # fmt: skip
        for number, piece, (start, end), sequence, added, type_id in rows:
            special = bool(added) or number in self._special
            if sequence is None or added:
                yield Token(number, piece, piece, special=special, segment=type_id)
                continue
            shown, first, last = self._readable(piece, texts[sequence], start, end)
            yield Token(number, piece, shown, first, last, special, sequence)

    def _readable(self, piece: str, text: str, start: int, end: int) -> tuple[str, int | None, int | None]:
        """What to show for a token, and its span; no span where it stands for nothing in the text."""
        span = text[start:end]
        if span.strip() and not piece.strip("▁"):
            return piece, None, None  # a prefix that the tokenizer put there borrows its neighbour's span
        if not span:
            raw = bytes_of(piece) if self._byte_level else None
            return readable(raw.decode(errors="replace")) if raw else piece, None, None
        part = part_of_character(piece, self._byte_level) if piece != span else None
        return part or readable(span), *trimmed(text, start, end)


def load_tokenizer(path: Path) -> FileTokenizer:
    """Read a tokenizer.json; truncation, padding and BPE dropout that are stored in it are switched off and noted.

    Raises:
        AttnscopeError: There is no such file, or the `tokenizers` library refuses it.
    """
    content = read_object(path, cap=MAX_TOKENIZER)
    return FileTokenizer(path, content, quietly(lambda: _switch_off(content), path, "cannot be used"))


def _switch_off(content: dict[str, Any]) -> list[str]:
    """Take out of a tokenizer.json what would drop, add or vary tokens; say what that was."""
    notes = []
    for key in ("truncation", "padding"):
        if content.get(key) is not None:
            notes.append(f"tokenizer.json: stored {key} is switched off")
            content[key] = None
    model = content.get("model")
    if isinstance(model, dict) and model.get("dropout") is not None:
        if model["dropout"] != 0:
            notes.append(f"tokenizer.json: stored BPE dropout {model['dropout']} is switched off")
        model["dropout"] = None
    for part in _parts(content.get("post_processor")):
        if part.get("trim_offsets") is True:
            part["trim_offsets"] = False  # spans that cover the white space, trimmed here: ids stay the same
    return notes


def _parts(*roots: Any) -> Iterator[dict[str, Any]]:
    """The components of a tokenizer, those within a Sequence included."""
    for root in roots:
        if isinstance(root, dict):
            yield root
            for key in ("processors", "pretokenizers", "decoders", "normalizers"):
                if isinstance(root.get(key), list):
                    yield from _parts(*root[key])


def _types(*roots: Any) -> set[Any]:
    return {part["type"] for part in _parts(*roots) if isinstance(part.get("type"), str)}


def check_text(text: str, where: str) -> None:
    """Refuse a text before anything expensive or fragile sees it.

    Raises:
        AttnscopeError: It is empty, blank, too long, or holds half a surrogate pair.
    """
    if not text.strip():
        raise AttnscopeError("the text is blank" if text else "the text is empty", where=where, hint="give some words")
    if len(text) > MAX_TEXT:
        raise AttnscopeError(
            f"the text has {len(text):,} characters", where=where, hint=f"at most {MAX_TEXT:,} are read"
        )
    try:
        text.encode()
    except UnicodeEncodeError as e:
        found = f"character {e.start} is half of a surrogate pair (U+{ord(text[e.start]):04X})"
        raise AttnscopeError(found, where=where, hint="give valid UTF-8") from e


class WordTokenizer:
    """Words and punctuation marks of given texts; the vocabulary is their sorted set.

    Attributes:
        name: `words`.
        vocab_size: Number of different words.
        notes: Empty.
    """

    name = "words"

    def __init__(self, texts: Iterable[str], punctuation: Literal["keep", "drop"] = "keep") -> None:
        self._keep = punctuation == "keep"
        self._ids = {w: i for i, w in enumerate(sorted({w for t in texts for w, _, _ in self._words(t)}))}
        self.vocab_size = len(self._ids)
        self.notes: list[str] = []

    def encode(self, text: str, pair: str | None = None, *, where: str = "TEXT") -> list[Token]:
        """As `Tokenizer.encode`; every word must be in the texts that the vocabulary was made from."""
        tokens = []
        for segment, each in enumerate((text,) if pair is None else (text, pair)):
            check_text(each, where)
            for word, start, end in self._words(each):
                if word not in self._ids:
                    raise AttnscopeError(f"the word '{word}' is not in the vocabulary", where=where)
                tokens.append(Token(self._ids[word], word, word, start, end, segment=segment))
        if not tokens:
            raise AttnscopeError("the text holds no words", where=where, hint="give at least one word")
        return tokens

    def _words(self, text: str) -> Iterator[tuple[str, int, int]]:
        """Words with their spans: letters, marks and digits, with apostrophes inside; other characters one by one."""
        shape = "".join(map(_class, text))
        for match in _WORD.finditer(shape):
            if self._keep or shape[match.start()] == "w":
                yield text[match.start() : match.end()], match.start(), match.end()


def _class(c: str) -> str:
    """`w` within words, `a` for an apostrophe, a blank between tokens, `p` for the rest."""
    if c.isspace():
        return " "
    if c in "'’":
        return "a"
    return "w" if c in "_\u200c\u200d" or unicodedata.category(c)[0] in "LMN" else "p"


def as_batch(
    texts: Sequence[Sequence[Token]], pad_id: int = 0, n_segments: int = 2
) -> tuple[list[list[int]], list[list[int]], list[int]]:
    """Ids and segments of several texts, padded on the right to one length.

    Args:
        texts: Tokens of each text.
        pad_id: The id that fills up; no query may attend to it, so any valid id does.
        n_segments: Rows of the model's segment table. Where it has one (RoBERTa), that row stands for both texts.

    Returns:
        Ids (texts, longest), segments (texts, longest), length of each text without padding.
    """
    lengths = [len(tokens) for tokens in texts]
    longest, last = max(lengths, default=0), max(n_segments - 1, 0)
    ids = [[t.id for t in tokens] + [pad_id] * (longest - len(tokens)) for tokens in texts]
    segments = [[min(t.segment, last) for t in tokens] + [0] * (longest - len(tokens)) for tokens in texts]
    return ids, segments, lengths
