"""A tokenizer.json in; what turns texts into Tokens by it, out."""

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from attnscope.errors import AttnscopeError
from attnscope.folder.files import MB, parse_json, read_file
from attnscope.pieces import bytes_of, part_of_character, readable, trimmed
from attnscope.quiet import quietly
from attnscope.report import Token
from attnscope.tokenizerjson import parts, read_tokenizer_json
from attnscope.tokens import check_text

if TYPE_CHECKING:
    from tokenizers import Encoding
    from tokenizers import Tokenizer as RustTokenizer

MAX_TOKENIZER = 200 * MB


class FileTokenizer:
    """A tokenizer.json; truncation, padding and BPE dropout that are stored in it are switched off and noted.

    Args:
        path: The file.
        data: What it holds.

    Attributes:
        path: The file.
        name: Kind of its model, such as `WordPiece`.
        vocab_size: Number of ids, added tokens included.
        pairings: Merges of a BPE, or pieces of a Unigram, where there are many: what the library keeps besides words.
        notes: What was switched off.
        unknown_id: The id that stands for whatever the vocabulary lacks; None where it has none.
    """

    def __init__(self, path: Path, data: bytes) -> None:
        found = read_tokenizer_json(data, path)
        self.path, self.notes = path, found.notes
        self._rust = _made(found.text, path, data)
        if found.unparsed not in (None, self._rust.get_vocab_size(with_added_tokens=False)):
            parse_json(data, str(path))  # refuses a word that stands twice
        content = found.content
        model, splits = content["model"], parts(content.get("pre_tokenizer"), content.get("decoder"))
        self._byte_level = "ByteLevel" in [part.get("type") for part in splits]
        self.name: str = model.get("type") or type(self._rust.model).__name__
        self.vocab_size: int = self._rust.get_vocab_size(with_added_tokens=True)
        self.pairings = self.vocab_size if self.name == "Unigram" else found.merges
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


def _made(text: str, path: Path, data: bytes) -> "RustTokenizer":
    """What the library makes of a tokenizer.json's text; `data` is what the file holds."""
    from tokenizers import Tokenizer as RustTokenizer

    try:
        return quietly(lambda: RustTokenizer.from_str(text), path, "cannot be used")
    except AttnscopeError:
        parse_json(data, str(path))  # says more where it is no JSON
        raise


def load_tokenizer(path: Path) -> FileTokenizer:
    """Read a tokenizer.json.

    Raises:
        AttnscopeError: There is no such file, or the `tokenizers` library refuses it.
    """
    return FileTokenizer(path, read_file(path, cap=MAX_TOKENIZER))
