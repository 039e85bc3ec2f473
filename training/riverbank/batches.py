"""Make padded batches of encoded documents, with everything that the two objectives and the teacher need.

A batch holds documents of like length, so little of it is padding. Its order depends on the seed and the epoch
alone: a run that restarts from a checkpoint sees the same batches as one that never stopped.
"""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from tokenizers import Tokenizer

Bytes = NDArray[np.uint8]


@dataclass(frozen=True)
class Document:
    """One encoded text.

    Attributes:
        ids: piece ids.
        words: for each piece, the number of its word.
        relation: word-to-word relations as the teacher stores them, or an empty matrix.
    """

    ids: NDArray[np.int16]
    words: NDArray[np.int16]
    relation: Bytes


@dataclass(frozen=True)
class Batch:
    """Padded documents.

    Attributes:
        ids: `(B, T)`, padded with 0.
        words: `(B, T)`, the number of each piece's word, padded with -1.
        cosine: `(B, T, T)`, the teacher's relation of the words of two pieces.
    """

    ids: torch.Tensor
    words: torch.Tensor
    cosine: torch.Tensor


def encode(
    tokenizer: Tokenizer, texts: list[str], relations: list[Bytes], max_pieces: int
) -> list[Document]:
    """Encode texts, cut after the last piece that has a position."""
    documents = []
    for encoding, relation in zip(tokenizer.encode_batch(texts), relations, strict=True):
        ids = np.asarray(encoding.ids[:max_pieces], np.int16)
        words = np.asarray(encoding.word_ids[:max_pieces], np.int16)
        kept = int(words.max()) + 1
        documents.append(Document(ids, words, relation[:kept, :kept]))
    return documents


def piece_counts(documents: list[Document], vocab_size: int) -> NDArray[np.int64]:
    """How often each piece occurs."""
    return np.bincount(
        np.concatenate([document.ids for document in documents]), minlength=vocab_size
    )


def epoch(documents: list[Document], tokens: int, seed: int, number: int) -> Iterator[list[int]]:
    """Batches of one pass over the documents, as lists of indices, of about `tokens` pieces each."""
    draw = np.random.default_rng((seed, number))
    lengths = np.array([len(document.ids) for document in documents])
    order = np.argsort(lengths + draw.uniform(0, 4, len(documents)), kind="stable")
    groups: list[list[int]] = [[]]
    for index in order.tolist():
        if groups[-1] and (len(groups[-1]) + 1) * int(lengths[index]) > tokens:
            groups.append([])
        groups[-1].append(index)
    for group in draw.permutation(len(groups)).tolist():
        yield groups[group]


def collate(documents: list[Document]) -> Batch:
    """Pad documents to the longest of them and spread word relations over pieces."""
    size, longest = len(documents), max(len(document.ids) for document in documents)
    ids = np.zeros((size, longest), np.int64)
    words = np.full((size, longest), -1, np.int64)
    cosine = np.zeros((size, longest, longest), np.float32)
    for row, document in enumerate(documents):
        count = len(document.ids)
        ids[row, :count], words[row, :count] = document.ids, document.words
        cosine[row, :count, :count] = (
            document.relation[document.words[:, None], document.words[None]] / 127.5 - 1
        )
    return Batch(torch.from_numpy(ids), torch.from_numpy(words), torch.from_numpy(cosine))
