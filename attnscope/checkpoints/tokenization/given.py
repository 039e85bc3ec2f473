"""The tokens of given arrays: they come with the arrays, so that nothing is tokenized. Never imports torch."""

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from attnscope.base.errors import AttnscopeError, arg
from attnscope.checkpoints.tokenization.pieces import readable_piece, trim_span
from attnscope.checkpoints.tokenization.word_tokenizer import UnspelledTokenizer
from attnscope.findings.tokens import Token

_SPACES = {"Ġ": " ", "▁": " ", "Ċ": "\n"}  # how tokenizers spell white space
_FORM = "a list of strings, of ids, or of objects such as {text, id, special}"


class GivenTokens(UnspelledTokenizer):
    """A tokenizer that has the tokens of each text already, by the text's origin."""

    name = "given"

    def __init__(self, texts: Mapping[str, Sequence[Token]]) -> None:
        self._texts = {where: list(tokens) for where, tokens in texts.items()}
        self.vocab_size = 1 + max(token.id for tokens in texts.values() for token in tokens)
        self.notes: list[str] = []

    def encode(
        self, text: str, pair: str | None = None, *, where: str = arg("text"), special: bool = True
    ) -> list[Token]:
        """Return the tokens of a text by its origin."""
        if where not in self._texts:
            hint = "leave the text out: its tokens come with the arrays"
            raise AttnscopeError("is not a text of the given arrays", where=where, hint=hint)
        return list(self._texts[where])


def make_texts(
    values: Any, ranges: Sequence[tuple[int, int]], where: str, written: Any
) -> list[tuple[str, list[Token]]]:
    """Return every text with its tokens; `ranges` are its first row in the arrays, and the row after its last.

    `values` are strings, ids, or objects with the fields of a Token: one for every row, or a list of them for every
    text; None for positions alone. Spans in them refer to the `written` texts; without these, tokens are joined.
    """
    counts = [end - start for start, end in ranges]
    if values is None:
        tokens = [[Token(n, f"t{n}", f"t{n}") for n in range(count)] for count in counts]
    else:
        tokens = [
            [_token(value, n, where) for n, value in enumerate(text)]
            for text in _by_text(values, counts, where)
        ]
    if written is None:
        return [join_tokens(text_tokens) for text_tokens in tokens]
    texts = [written] if isinstance(written, str) else written
    if (
        not isinstance(texts, list | tuple)
        or len(texts) != len(counts)
        or not all(isinstance(t, str) for t in texts)
    ):
        raise AttnscopeError(
            f"{written!r:.60} is not {len(counts)} texts",
            where="text",
            hint="give one for each text",
        )
    return list(zip(texts, tokens, strict=True))


def _by_text(values: Any, counts: Sequence[int], where: str) -> list[Sequence[Any]]:
    listed = values.tolist() if hasattr(values, "tolist") else values
    if isinstance(listed, str) or not isinstance(listed, Sequence):
        raise AttnscopeError(
            f"{type(values).__name__} is no list of tokens", where=where, hint=f"expected {_FORM}"
        )
    nested = bool(listed) and all(isinstance(item, list | tuple) for item in listed)
    starts = [sum(counts[:n]) for n in range(len(counts))]
    texts: list[Sequence[Any]] = list(listed) if nested else [listed]
    if not nested and len(listed) == sum(counts):
        texts = [listed[start : start + count] for start, count in zip(starts, counts, strict=True)]
    if [len(text) for text in texts] != list(counts):
        sizes = list(map(len, texts)), counts
        token_counts, row_counts = (
            f"{part[0]}" if len(part) == 1 else f"{part[:8]}" for part in sizes
        )
        hint = "give one for every row of the arrays; a layout names another order of axes"
        raise AttnscopeError(f"{token_counts} tokens for {row_counts} rows", where=where, hint=hint)
    return texts


def _token(value: Any, index: int, where: str) -> Token:
    if isinstance(value, Token):
        return value
    if isinstance(value, bytes):
        value = value.decode(errors="replace")
    if isinstance(value, str):
        mark = value[:1]
        return Token(index, value, value.replace(mark, _SPACES[mark]) if mark in _SPACES else value)
    if type(value) is int and 0 <= value < 1 << 62:
        return Token(value, str(value), str(value))
    if isinstance(value, dict):
        try:
            text = str(value.get("text", value.get("piece", "")))
            return msgspec.convert({"id": index, "piece": text, "text": text, **value}, Token)
        except msgspec.ValidationError as e:
            raise AttnscopeError(
                f"token {index}: {e}", where=where, hint=f"expected {_FORM}"
            ) from e
    raise AttnscopeError(f"token {index} is {value!r:.40}", where=where, hint=f"expected {_FORM}")


def join_tokens(tokens: list[Token], *, apart: bool = False) -> tuple[str, list[Token]]:
    """Return the text of tokens, and the tokens with their places in it.

    Words are a blank apart, unless the spelling of a token says where blanks are. Special tokens cover no text.

    Args:
        apart: Whether every token is a word of its own, such as one that was drawn at random.
    """
    spaced = any(token.piece[:1] in _SPACES or token.piece[:1].isspace() for token in tokens)
    text = ""
    placed = []
    for token in tokens:
        spelling = token.text
        if token.special and token.start is None:
            placed.append(token)
            continue
        if spelling.startswith("##") and len(spelling) > 2:
            spelling = spelling[2:]
        elif text and (
            not spaced or (apart and not text[-1].isspace() and not spelling[:1].isspace())
        ):
            text += " "
        start, end = trim_span(spelling, 0, len(spelling))
        if spelling:
            offsets = {"start": len(text) + start, "end": len(text) + end}
        else:
            offsets = {}
        shown_text = readable_piece(spelling) if spelling else token.piece or "∅"
        placed.append(msgspec.structs.replace(token, text=shown_text, **offsets))
        text += spelling
    return text if text.strip() else " ".join(token.text for token in tokens), placed
