"""Tokens of a text by its words."""

import re
import unicodedata
from collections.abc import Iterable, Iterator
from typing import Literal

from attnscope.base.errors import AttnscopeError, arg
from attnscope.checkpoints.tokenization.pieces import check_text
from attnscope.findings.tokens import Token

_WORD = re.compile("w+(?:aw+)*|[pa]")


class UnspelledTokenizer:
    """A vocabulary whose ids have no spelling; subclasses make the tokens."""

    n_merges = 0

    def id_of(self, piece: str) -> int | None:
        """Return the id of a token; None if there is none that is spelled so."""
        return None

    def spelled(self, token_id: int) -> tuple[str, str]:
        """Return an id as piece and as text."""
        return f"<{token_id}>", f"<{token_id}>"

    def made_token(self, token_id: int) -> Token:
        """Return the token of an id that a model, not a text, put there."""
        return Token(token_id, *self.spelled(token_id), made=True)

    def ordinary_ids(self) -> list[int]:
        """Return ids that other texts can be made of."""
        return []


class WordTokenizer(UnspelledTokenizer):
    """Words and punctuation marks of given texts; `words` is their sorted set, in the order of the ids."""

    name = "words"

    def __init__(self, texts: Iterable[str], punctuation: Literal["keep", "drop"] = "keep") -> None:
        self._keep = punctuation == "keep"
        self.words = sorted({w for t in texts for w, _, _ in self._words(t)})
        self._ids = {w: i for i, w in enumerate(self.words)}
        self.vocab_size = len(self.words)
        self.notes: list[str] = []

    def id_of(self, piece: str) -> int | None:
        """Return the id of a word; None if there is none."""
        return self._ids.get(piece)

    def spelled(self, token_id: int) -> tuple[str, str]:
        """Return the word of an id as piece and as text; the id itself if it has no word."""
        if token_id < self.vocab_size:
            word = self.words[token_id]
        else:
            word = f"<{token_id}>"
        return word, word

    def ordinary_ids(self) -> list[int]:
        """Return ids of all words."""
        return list(range(self.vocab_size))

    def encode(
        self, text: str, pair: str | None = None, *, where: str = arg("text"), special: bool = True
    ) -> list[Token]:
        """Return the tokens of a text, and of its pair; every word must be in the texts that made the vocabulary."""
        tokens = []
        for segment, segment_text in enumerate((text,) if pair is None else (text, pair)):
            check_text(segment_text, where)
            for word, start, end in self._words(segment_text):
                if word not in self._ids:
                    message = f"the word '{word}' at character {start} is not in the vocabulary"
                    raise AttnscopeError(message, where=where)
                tokens.append(
                    Token(self._ids[word], word, word, start, end, segment=segment, type_id=segment)
                )
        if not tokens:
            raise AttnscopeError(
                "the text has no words", where=where, hint="pass at least one word"
            )
        return tokens

    def _words(self, text: str) -> Iterator[tuple[str, int, int]]:
        """Yield words (letters, marks, digits, apostrophes inside) and any other character, with their spans."""
        shape = "".join(map(_character_class, text))
        for match in _WORD.finditer(shape):
            if self._keep or shape[match.start()] == "w":
                yield text[match.start() : match.end()], match.start(), match.end()


class MissingTokenizer(UnspelledTokenizer):
    """Placeholder for a tokenizer that cannot be used: a model is described, and takes ids; texts raise `error`."""

    name = "none"
    vocab_size = 0

    def __init__(self, error: AttnscopeError) -> None:
        self.error = error
        self.notes = list[str]()
        self.warnings = list[str]()

    def encode(
        self, text: str, pair: str | None = None, *, where: str = arg("text"), special: bool = True
    ) -> list[Token]:
        """Refuse every text."""
        raise self.error

    def special_token(self, token_id: int) -> Token:
        """Return the id as a special token; see spelled."""
        return Token(token_id, *self.spelled(token_id), special=True)

    def ordinary_ids(self) -> list[int]:
        """Refuse: it is unknown which ids are special."""
        raise self.error


def _character_class(c: str) -> str:
    """Return `w` within words, `a` for an apostrophe, a blank between tokens, `p` for the rest."""
    if c.isspace():
        return " "
    if c in "'’":
        return "a"
    if c in "_\u200c\u200d" or unicodedata.category(c)[0] in "LMN":
        return "w"
    return "p"
