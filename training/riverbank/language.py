"""Measure masked-token accuracy and causal perplexity on held-out documents, and the same of n-gram baselines.

The masked positions are drawn once from a fixed seed, so that every model and baseline is asked the same questions.
Documents are cut at the model's last position. The first piece of a document is given, not predicted: there is no
start token.
"""

import random
from collections import Counter
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import torch
from numpy.typing import NDArray
from torch.nn import functional

from training.riverbank.attention import Model, allowed

MASK_ID = 2
MASKED_SHARE = 0.15
DISCOUNT = 0.75
Ids = list[int]


def masked_positions(documents: list[Ids]) -> list[list[int]]:
    """For each document, the positions to hide: 15 %, at least one."""
    draw = random.Random(0)
    return [
        sorted(draw.sample(range(len(ids)), max(1, round(MASKED_SHARE * len(ids)))))
        for ids in documents
    ]


@torch.no_grad()
def language_numbers(model: Model, documents: list[Ids]) -> dict[str, float]:
    """Accuracy of the masked pieces (bidirectional) and perplexity of the next piece (causal)."""
    right = asked = predicted = 0
    nats = 0.0
    by_length: dict[int, list[tuple[Ids, list[int]]]] = {}
    for ids, places in zip(documents, masked_positions(documents), strict=True):
        by_length.setdefault(len(ids), []).append((ids, places))
    for length, group in by_length.items():  # in one pass without padding
        shown = torch.tensor([ids for ids, _ in group])
        hidden = torch.zeros_like(shown, dtype=torch.bool)
        for row, (_, places) in zip(hidden, group, strict=True):
            row[places] = True
        masked = shown.masked_fill(hidden, MASK_ID)
        found = model.student.bert(
            masked, attention_mask=allowed(length, "bidirectional")
        ).last_hidden_state
        logits = model.student.cls(found[hidden])  # of the masked pieces alone
        right += int((logits.argmax(-1) == shown[hidden]).sum())
        asked += int(hidden.sum())
        logits = model.student(shown, attention_mask=allowed(length, "causal")).logits[:, :-1]
        nats += float(
            functional.cross_entropy(logits.flatten(0, 1), shown[:, 1:].flatten(), reduction="sum")
        )
        predicted += shown[:, 1:].numel()
    return {"masked_accuracy": right / asked, "causal_perplexity": float(np.exp(nats / predicted))}


@dataclass(frozen=True)
class Ngrams:
    """Counts of the training documents.

    Attributes:
        single: how often each piece occurs, `(V,)`.
        pairs: how often each pair of neighbours occurs.
        starts: how often each piece has a right neighbour.
        kinds: how many different right neighbours each piece has.
    """

    single: NDArray[np.int64]
    pairs: Counter[tuple[int, int]]
    starts: Counter[int]
    kinds: Counter[int]


def count_ngrams(documents: list[Ids], vocab_size: int) -> Ngrams:
    """Count pieces and pairs."""
    single = np.bincount(
        np.concatenate([np.asarray(ids) for ids in documents]), minlength=vocab_size
    )
    pairs = Counter(pair for ids in documents for pair in pairwise(ids))
    starts: Counter[int] = Counter()
    for (left, _), count in pairs.items():
        starts[left] += count
    return Ngrams(single, pairs, starts, Counter(left for left, _ in pairs))


def baseline_numbers(ngrams: Ngrams, documents: list[Ids]) -> dict[str, float]:
    """Unigram and bigram numbers on the same questions; the bigram guesses a masked piece from its true left one."""
    share = (ngrams.single + 1) / (ngrams.single + 1).sum()
    frequent = int(ngrams.single.argmax())
    follower: dict[int, int] = {}
    for (left, piece), _ in sorted(ngrams.pairs.items(), key=lambda item: item[1]):
        follower[left] = piece
    hidden = zip(documents, masked_positions(documents), strict=True)
    asked = [(ids, place) for ids, places in hidden for place in places]
    alone = sum(ids[place] == frequent for ids, place in asked)
    paired = sum(
        ids[place] == (follower.get(ids[place - 1], frequent) if place else frequent)
        for ids, place in asked
    )
    following = [pair for ids in documents for pair in pairwise(ids)]
    single_nats = -np.mean([np.log(share[piece]) for _, piece in following])
    pair_nats = -np.mean([np.log(bigram(ngrams, share, left, piece)) for left, piece in following])
    return {
        "unigram_masked_accuracy": alone / len(asked),
        "bigram_masked_accuracy": paired / len(asked),
        "unigram_perplexity": float(np.exp(single_nats)),
        "bigram_perplexity": float(np.exp(pair_nats)),
    }


def bigram(ngrams: Ngrams, share: NDArray[np.float64], left: int, piece: int) -> float:
    """Absolute discounting (Ney et al., 1994): counted pairs less 0.75, the rest by the unigram."""
    total = ngrams.starts[left]
    if not total:
        return float(share[piece])
    kept = max(ngrams.pairs[left, piece] - DISCOUNT, 0.0) / total
    return kept + DISCOUNT * ngrams.kinds[left] / total * float(share[piece])
