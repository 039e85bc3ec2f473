"""Tokenize text with a tokenizer.json."""

import re
from collections.abc import Iterator, Sequence
from contextlib import suppress
from functools import cache, partial
from operator import attrgetter
from pathlib import Path
from typing import NamedTuple

from attnscope.base.errors import AttnscopeError, arg
from attnscope.base.files.reading import MB, parse_json, read_file
from attnscope.checkpoints.tokenization.growth import NormalizerGrowth, steps_of
from attnscope.checkpoints.tokenization.pieces import (
    are_disjoint,
    byte_fragment,
    check_text,
    overlapping,
    piece_bytes,
    readable_piece,
    trim_span,
)
from attnscope.checkpoints.tokenization.rust import call_rust
from attnscope.checkpoints.tokenization.tokenizer_json import components, read_tokenizer_json
from attnscope.findings.tokens import MASKS, Token

MAX_TOKENIZER = 200 * MB


class Encoded(NamedTuple):
    """Tokens of a text or pair, as the library describes them: one entry per token in every list."""

    ids: list[int]
    tokens: list[str]
    sequence_ids: list[int | None]
    special_tokens_mask: list[int]
    type_ids: list[int]
    offsets: list[tuple[int, int]]


class FileTokenizer:
    """A tokenizer.json; truncation, padding and BPE dropout that are stored in it are switched off and noted.

    Attributes:
        name: Kind of its model, such as `WordPiece`.
        vocab_size: Number of ids, added tokens included.
        n_merges: Merges of a BPE, or pieces of a Unigram, where there are many: kept by the library beyond words.
    """

    def __init__(self, path: Path, data: bytes) -> None:
        file = read_tokenizer_json(data, path)
        self.path = path
        self.notes = file.notes
        self.warnings: list[str] = []
        self._growth = NormalizerGrowth(steps_of(file.content.get("normalizer")), path)
        added_tokens = file.content.get("added_tokens")
        for token in added_tokens if isinstance(added_tokens, list) else []:
            self._growth.check(str(token.get("content")) if isinstance(token, dict) else "")
        from tokenizers import Tokenizer as RustTokenizer

        try:
            self._rust = call_rust(
                lambda: RustTokenizer.from_str(file.text), path, "cannot be used"
            )
        except AttnscopeError:
            # Gives a better message if the file is not JSON.
            parse_json(data, str(path))
            raise
        if file.unparsed not in (None, self._rust.get_vocab_size(with_added_tokens=False)):
            # Parsing the whole file refuses a duplicate word.
            parse_json(data, str(path))
        content = file.content
        model = content["model"]
        splits = components(content.get("pre_tokenizer"), content.get("decoder"))
        self._byte_level = "ByteLevel" in [part.get("type") for part in splits]
        self.name: str = model.get("type") or type(self._rust.model).__name__
        self.vocab_size: int = self._rust.get_vocab_size(with_added_tokens=True)
        self.n_merges = self.vocab_size if self.name == "Unigram" else file.merges
        unknown_token = model.get("unk_token")
        self.unknown_id: int | None = (
            self._rust.token_to_id(unknown_token) if isinstance(unknown_token, str) else None
        )
        if self.name == "Unigram":
            self.unknown_id = model.get("unk_id")
        self._marks = [
            model.get(key) or "" for key in ("continuing_subword_prefix", "end_of_word_suffix")
        ]
        added = self._rust.get_added_tokens_decoder()
        self._added = {token_id: token.content for token_id, token in added.items()}
        self._special = {token_id for token_id, token in added.items() if token.special}
        # An unknown word is still a word, and so is one to be predicted.
        masks = {self._rust.token_to_id(spelling) for spelling in MASKS}
        self._special_in_text = self._special - masks - {self.unknown_id}
        self._ahead: dict[tuple[tuple[str, ...], bool], Encoded] = {}
        self._fragment = cache(partial(byte_fragment, byte_level=self._byte_level))
        self._own = cache(self._spelled_out)

    def special_token(self, token_id: int) -> Token:
        """Return the special token of an id, as a template inserts it."""
        piece = self._piece(token_id)
        return Token(token_id, piece, piece, special=True)

    def _piece(self, token_id: int) -> str:
        """Return the piece of an id, even of a row that only pads the embedding."""
        return self._rust.id_to_token(token_id) or f"<{token_id}>"

    def spelled(self, token_id: int) -> tuple[str, str]:
        """Return the piece of an id, and its text, including a leading blank."""
        piece = self._piece(token_id)
        if token_id in self._special or self._rust.id_to_token(token_id) is None:
            return piece, piece
        fragment = byte_fragment(piece, self._byte_level)
        return piece, self._own(piece) if fragment is None else fragment

    def made_token(self, token_id: int) -> Token:
        """Return the token of an id that a model, not a text, put there."""
        piece, spelled = self.spelled(token_id)
        return Token(
            token_id,
            piece,
            readable_piece(spelled),
            special=token_id in self._special_in_text,
            made=True,
        )

    def ordinary_ids(self) -> list[int]:
        """Return ids that are neither special nor for unknown words, sorted."""
        known_ids = set(self._rust.get_vocab(with_added_tokens=True).values())
        return sorted(known_ids - self._special - {self.unknown_id})

    def id_of(self, piece: str) -> int | None:
        """Return the id of a token; None if there is none that is spelled so."""
        token_id: int | None = self._rust.token_to_id(piece)
        return token_id

    def encode(
        self, text: str, pair: str | None = None, *, where: str = arg("text"), special: bool = True
    ) -> list[Token]:
        """Return the tokens of a text, or of it and its pair; with `special`, with the file's special tokens."""
        texts = (text,) if pair is None else (text, pair)
        for segment in texts:
            check_text(segment, where)
            self._growth.check(segment)
        try:
            encoding = self._encode(texts, where, special=special)
        except AttnscopeError as e:
            if (unknown := self._unknown_word(texts, where)) is None:
                raise
            raise unknown from e
        tokens = list(self._tokens(encoding, self._sequences(encoding, len(texts)), texts))
        if not tokens:
            raise AttnscopeError(
                "the text has no tokens", where=where, hint="pass at least one word"
            )
        return tokens

    def encode_ahead(
        self, texts: Sequence[tuple[str, str | None]], *, special: bool = True
    ) -> None:
        """Encode texts and their pairs at once, for the calls of `encode` that follow: these take the result.

        A text that is refused, or on which the library fails, is left to its own call, which says why.
        """
        self._ahead.clear()
        batch = []
        for text, pair in texts:
            segments = (text,) if pair is None else (text, pair)
            with suppress(AttnscopeError):
                for segment in segments:
                    check_text(segment, "")
                    self._growth.check(segment)
                batch.append(segments)
        with suppress(AttnscopeError):
            encodings = self._encode_batch(batch, "", special=special)
            self._ahead = {
                (segments, special): encoded
                for segments, encoded in zip(batch, encodings, strict=True)
            }

    def _encode(self, texts: tuple[str, ...], where: str, *, special: bool) -> Encoded:
        if (texts, special) in self._ahead:
            return self._ahead.pop((texts, special))
        # A batch of one: unlike `encode`, it releases the GIL, for the thread that waits for signals.
        (encoded,) = self._encode_batch([texts], where, special=special)
        return encoded

    def _encode_batch(
        self, batch: Sequence[tuple[str, ...]], where: str, *, special: bool
    ) -> list[Encoded]:
        inputs = [texts[0] if len(texts) == 1 else texts for texts in batch]
        encodings = call_rust(
            lambda: self._rust.encode_batch(inputs, add_special_tokens=special),
            self.path,
            f"fails on {where}",
        )
        fields = attrgetter(*Encoded._fields)
        return [Encoded(*fields(encoding)) for encoding in encodings]

    def _sequences(self, encoding: Encoded, count: int) -> list[int | None]:
        """Return the number of the text that each token belongs to; None for one that the tokenizer added.

        A post-processor after a template counts the template's own tokens as texts: the number of the only text is
        known all the same, those of two are not.
        """
        sequence_rows = zip(encoding.sequence_ids, encoding.special_tokens_mask, strict=True)
        if count == 1:
            return [
                None if added or text_index is None else 0 for text_index, added in sequence_rows
            ]
        numbers = [None if added else text_index for text_index, added in sequence_rows]
        if [text_index for text_index in numbers if text_index is not None and text_index >= count]:
            message = "its post-processor does not tell which of the two texts a token belongs to"
            raise AttnscopeError(
                message, where=self.path, hint=f"remove {arg('pair')}, or put the template last"
            )
        return numbers

    def _unknown_word(self, texts: tuple[str, ...], where: str) -> AttnscopeError | None:
        """Build the error that names the first unknown word, if the vocabulary has no token for unknown words."""
        if self.unknown_id is not None:
            return None
        for index, text in enumerate(texts):
            try:
                start, end = call_rust(
                    partial(self._first_unknown, text), self.path, f"fails on {where}"
                ) or (0, 0)
            except AttnscopeError:
                # The tokenizer is damaged after all.
                return None
            if start < end:
                which = " of the pair" if index else ""
                message = f"the word '{text[start:end]}' at character {start}{which} is not in the vocabulary"
                hint = f"use words from {self.path}: it has no token for unknown words"
                return AttnscopeError(message, where=where, hint=hint)
        return None

    def _first_unknown(self, text: str) -> tuple[int, int] | None:
        """Return start and end of the first word that the model has no token for, outside of added tokens."""
        from tokenizers import PreTokenizedString

        added = [
            re.escape(token.content) for token in self._rust.get_added_tokens_decoder().values()
        ]
        pattern = re.compile("|".join(sorted(added, key=len, reverse=True)) or "(?!)")
        edges = [0, *(edge for match in pattern.finditer(text) for edge in match.span()), len(text)]
        for part_start, part_end in zip(edges[::2], edges[1::2], strict=True):
            words = PreTokenizedString(text[part_start:part_end])
            if self._rust.normalizer is not None:
                words.normalize(self._rust.normalizer.normalize)
            if self._rust.pre_tokenizer is not None:
                self._rust.pre_tokenizer.pre_tokenize(words)
            for word, (start, end), _ in words.get_splits(
                offset_referential="original", offset_type="char"
            ):
                try:
                    self._rust.model.tokenize(word)
                except Exception:
                    # The library raises nothing more specific.
                    return trim_span(text, part_start + start, part_start + end)
        return None

    def _tokens(
        self, encoding: Encoded, sequences: list[int | None], texts: tuple[str, ...]
    ) -> Iterator[Token]:
        rows = zip(
            encoding.ids, encoding.tokens, sequences, encoding.special_tokens_mask, encoding.type_ids,
            self._readable(encoding, sequences, texts), strict=True,
        )  # fmt: skip
        segment = 0
        for token_id, piece, sequence, added, type_id, (shown_text, span) in rows:
            special = bool(added) or token_id in self._special_in_text
            # An added token belongs to the text before it.
            segment = segment if sequence is None else sequence
            start, end = span or (None, None)
            unknown = token_id == self.unknown_id and sequence is not None
            if (
                unknown
                and span is not None
                and texts[segment][start:end] == self._rust.id_to_token(token_id)
            ):
                # The user wrote the spelling of the unknown token.
                unknown = False
            yield Token(token_id, piece, shown_text, start, end, special, segment, type_id, unknown)

    def _readable(
        self, encoding: Encoded, sequences: list[int | None], texts: tuple[str, ...]
    ) -> list[tuple[str, tuple[int, int] | None]]:
        """Return the shown text of every token, and its span; no span if it covers no text.

        A token shows its span as it is written. Where tokens share a character, as bytes of it or as what a normalizer
        makes of it, each shows its own piece.
        """
        spans, disjoint = self._spans(encoding, sequences, texts)
        shared = [False] * len(spans) if disjoint else overlapping(spans)
        readable: list[tuple[str, tuple[int, int] | None]] = []
        for piece, sequence, span, several in zip(
            encoding.tokens, sequences, spans, shared, strict=True
        ):
            if sequence is None:
                readable.append((piece, None))
                continue
            source_text = "" if span is None else texts[sequence][span[1] : span[2]]
            part = self._fragment(piece) if several or piece != source_text else None
            if part is None and source_text and not several and not source_text.isspace():
                shown_text = source_text  # without white space around it already
            else:
                shown_text = readable_piece(
                    part or (source_text if source_text and not several else self._own(piece))
                )
            readable.append((shown_text, None if span is None else span[1:]))
        return readable

    def _spans(
        self, encoding: Encoded, sequences: list[int | None], texts: tuple[str, ...]
    ) -> tuple[list[tuple[int, int, int] | None], bool]:
        """Return the text and the characters, without surrounding white space, that every token covers.

        None for a token that covers none. Such a one may be given the span of the character that it was put
        before: a space that the tokenizer adds to a text. Also returns whether no two tokens share a character.
        """
        spans = [
            None
            if sequence is None or start == end
            else (sequence, *trim_span(texts[sequence], start, end))
            for (start, end), sequence in zip(encoding.offsets, sequences, strict=True)
        ]
        if are_disjoint(spans):
            return spans, True
        # Pieces of white space may be given the span of another character.
        spaces = []
        for piece, span in zip(encoding.tokens, spans, strict=True):
            if span is None:
                source_text = piece
            else:
                source_text = texts[span[0]][span[1] : span[2]]
            own = self._own(piece)
            spaces.append(source_text not in (piece, own) and not own.strip())
        taken = overlapping(
            spans, [None if space else span for span, space in zip(spans, spaces, strict=True)]
        )
        kept_spans = [
            None if space and other else span
            for span, space, other in zip(spans, spaces, taken, strict=True)
        ]
        return kept_spans, False

    def _spelled_out(self, piece: str) -> str:
        """Return the text of a piece: its bytes, or itself without marks of word starts and continuations."""
        raw = piece_bytes(piece) if self._byte_level else None
        if raw is not None:
            return raw.decode(errors="replace")
        inner = piece.removeprefix(self._marks[0]).removesuffix(self._marks[1]) or piece
        return inner.replace("▁", " ")


def load_tokenizer(path: Path) -> FileTokenizer:
    """Read a tokenizer.json."""
    return FileTokenizer(path, read_file(path, cap=MAX_TOKENIZER))
