"""Tokenize with a model of SentencePiece (tokenizer.model), which its own library reads and applies."""

import re
from functools import partial
from pathlib import Path

from attnscope.base.errors import SENTENCEPIECE, AttnscopeError
from attnscope.base.files.reading import identify_bytes
from attnscope.checkpoints.tokenization.hugging_face import Encoded, FileTokenizer
from attnscope.checkpoints.tokenization.rust import call_rust

_TIKTOKEN = re.compile(rb"[A-Za-z0-9+/]+=* \d+\r?\n")  # a piece in base 64, and its rank
# Field 3 of the model, with its own field 3 (normalizer_spec.add_dummy_prefix) as 0 or 1. In the format of Protocol
# Buffers, a message that is appended to another one replaces its fields.
_PREFIX = {False: b"\x1a\x02\x18\x00", True: b"\x1a\x02\x18\x01"}
_SPACE = "▁"


class PieceModel:
    """A model of SentencePiece.

    A space is put before a text if `prefix` says so, or, if it is None, the model. `control` are pieces that no text
    spells, such as `<s>`.
    """

    def __init__(self, data: bytes, path: Path, prefix: bool | None) -> None:
        if wrong := identify_bytes(data):
            raise AttnscopeError(
                f"is {wrong[0]}, not a SentencePiece model", where=path, hint=wrong[1]
            )
        if _TIKTOKEN.match(data):
            hint = "download tokenizer.json, which lies beside the weights of the same model in Hugging Face layout"
            message = "is a vocabulary of tiktoken, which lacks the rules that split a text"
            raise AttnscopeError(message, where=path, hint=hint)
        SENTENCEPIECE.require("reading it", path)
        from sentencepiece import SentencePieceProcessor

        def load(model: bytes) -> SentencePieceProcessor:
            return call_rust(
                partial(SentencePieceProcessor, model_proto=model), path, "cannot be used"
            )

        def vocabulary() -> list[str]:
            return [
                self._spaced.id_to_piece(piece_id)
                for piece_id in range(self._spaced.get_piece_size())
            ]

        self.path = path
        try:
            self._spaced = load(data if prefix is None else data + _PREFIX[prefix])
            self._plain = load(data + _PREFIX[False])
            pieces: list[str] = call_rust(vocabulary, path, "cannot be used")
        except AttnscopeError as e:
            # The library names a line of its source.
            hint = "download it again"
            raise AttnscopeError(
                "is not a SentencePiece model, or damaged", where=path, hint=hint
            ) from e
        self.vocab = {piece: piece_id for piece_id, piece in enumerate(pieces)}
        self.control = [
            piece for piece_id, piece in enumerate(pieces) if self._spaced.is_control(piece_id)
        ]

    def split(self, text: str, *, prefix: bool) -> list[tuple[int, int, int]]:
        """Return id, start and end of every piece.

        A piece that is a part of a character covers all of it, an added space covers nothing. `prefix` puts a space
        before the text, if the model does so at all.
        """
        model = self._spaced if prefix else self._plain
        encoding = call_rust(
            lambda: model.encode(text, return_type="offset_mapping"), self.path, "fails"
        )
        pieces = list[tuple[int, int, int]]()
        following = 0
        rows = zip(encoding["ids"], encoding["pieces"], encoding["offsets"], strict=True)
        # Only the last part of a character covers it.
        for piece_id, piece, (start, end) in reversed(list(rows)):
            following = end if start < end or piece == _SPACE else following
            pieces.append((piece_id, start, following))
        return pieces[::-1]


class SentencePieceTokenizer(FileTokenizer):
    """Special tokens as a tokenizer.json has them, with SentencePiece for the text between them.

    The tokenizer.json makes one token of everything between two special tokens. A space is put before each of them
    (`spaced` is `always`), or only before the `first` of a text.
    """

    def __init__(self, data: bytes, pieces: PieceModel, spaced: str) -> None:
        super().__init__(pieces.path, data)
        self.name = "SentencePiece"
        self.n_merges = self.vocab_size
        self._pieces = pieces
        self._spaced = spaced

    def _encode(self, texts: tuple[str, ...], where: str, *, special: bool) -> Encoded:
        split = Encoded([], [], [], [], [], [])
        encoded = super()._encode(texts, where, special=special)
        for token_id, token, sequence, special, type_id, (start, end) in zip(*encoded, strict=True):
            span = "" if sequence is None else texts[sequence][start:end]
            pieces = [(token_id, token, (start, end))]
            if span and not (
                token_id in self._added and self._added[token_id].strip() == span.strip()
            ):
                at_start = start == 0 and not span.startswith((" ", _SPACE))
                inner = self._pieces.split(span, prefix=self._spaced == "always" or at_start)
                pieces = [(n, self._piece(n), (start + a, start + b)) for n, a, b in inner]
            for n, piece, offsets in pieces:
                split.ids.append(n)
                split.tokens.append(piece)
                split.sequence_ids.append(sequence)
                split.special_tokens_mask.append(special)
                split.type_ids.append(type_id)
                split.offsets.append(offsets)
        return split
