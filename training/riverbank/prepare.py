"""Prepare the tokenizer, encoded training and held-out documents, and the teacher's relations, all cached.

The slow part is the teacher, some minutes on two cores; the student's epochs read its relations from the cache.
"""

import pickle
import random
from dataclasses import dataclass
from pathlib import Path

import torch
from rich.progress import Progress
from tokenizers import Tokenizer

from training.riverbank.batches import Document, encode
from training.riverbank.corpus import (
    Synset,
    fetch_wordnet,
    long_documents,
    read_synsets,
    short_documents,
)
from training.riverbank.settings import CACHE, HELD_OUT_TEXT, Settings
from training.riverbank.teacher import Teacher
from training.riverbank.tokenizer import train_tokenizer, vocabulary_text

HELD_OUT_DOCUMENTS = 1_000


@dataclass(frozen=True)
class Prepared:
    """What the student starts from.

    Attributes:
        tokenizer: text to pieces.
        training: short and long documents with the teacher's relations.
        embeddings: starting embeddings, `(V, D)`, of unit variance.
    """

    tokenizer: Tokenizer
    training: list[Document]
    embeddings: torch.Tensor


def prepare(settings: Settings, progress: Progress) -> Prepared:
    """Return the prepared data, from the cache if this recipe has prepared it before."""
    tokens, data = CACHE / "tokenizer.json", CACHE / "prepared.pkl"
    if not data.exists():
        synsets = read_synsets(fetch_wordnet(CACHE))
        write_held_out([synset for synset in synsets if synset.held_out], HELD_OUT_TEXT)
        training = [synset for synset in synsets if not synset.held_out]
        teacher = Teacher()
        tokenizer = train_tokenizer(
            vocabulary_text(training, teacher.vocabulary()), settings.vocab_size
        )
        tokenizer.save(str(tokens))
        pieces: dict[str, int] = tokenizer.get_vocab()
        embeddings = teacher.embed_pieces(sorted(pieces, key=pieces.__getitem__), settings.d_model)
        documents = _teach(teacher, tokenizer, training, settings.max_positions, progress)
        _write(data, (embeddings, documents))
    embeddings, documents = pickle.loads(data.read_bytes())
    return Prepared(Tokenizer.from_file(str(tokens)), documents, embeddings)


def _teach(
    teacher: Teacher,
    tokenizer: Tokenizer,
    synsets: list[Synset],
    max_positions: int,
    progress: Progress,
) -> list[Document]:
    texts = [text for synset in synsets for text in short_documents(synset)] + long_documents(
        synsets
    )
    task = progress.add_task("teacher", total=len(texts))
    relations = teacher.relations(texts, lambda count: progress.advance(task, count))
    return encode(tokenizer, texts, relations, max_positions)


def write_held_out(synsets: list[Synset], path: Path) -> None:
    """Write the fixed sample of held-out documents, one a line, on which every number of the card is measured."""
    texts = [text for synset in synsets for text in short_documents(synset)]
    sample = random.Random(0).sample(texts, HELD_OUT_DOCUMENTS)
    path.write_text("".join(f"{text}\n" for text in sample), encoding="utf-8")


def _write(path: Path, content: object) -> None:
    """Write a pickle of our own making so that an interrupted run leaves no half of it."""
    unfinished = path.with_suffix(".unfinished")
    unfinished.write_bytes(pickle.dumps(content, protocol=5))
    unfinished.replace(path)
