"""Measure how often an ambiguous word attends most to its cue, over a list of sentences.

For a head, a sentence counts when, of all words but the ambiguous word itself (function words and punctuation too;
there are no special tokens), the cue has the largest attention weight in the ambiguous word's row. Weights are
summed over the pieces of a key word and averaged over the pieces of the query word. Under the causal mask only
sentences whose cue stands before the ambiguous word count, and baselines choose among the content words before it.
"""

import tomllib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from training.riverbank.attention import Model, Words, word_attention

HALVES = ("dev", "held-out")


@dataclass(frozen=True)
class Sentence:
    """One line of the list: see the head of `disambiguation.toml`."""

    half: str
    text: str
    word: str
    cue: str
    others: tuple[str, ...]


def read_sentences(path: Path) -> list[Sentence]:
    """Read the list."""
    listed = tomllib.loads(path.read_text(encoding="utf-8"))["sentence"]
    return [Sentence(**{**entry, "others": tuple(entry["others"])}) for entry in listed]


def counts_under(sentence: Sentence, found: Words, mask: str) -> bool:
    """Whether a sentence can count under a mask."""
    return mask == "bidirectional" or found.words.index(sentence.cue) < found.words.index(
        sentence.word
    )


def hits(sentence: Sentence, found: Words) -> torch.Tensor:
    """1 for each head whose top contributor of the ambiguous word is the cue: `(L, H)`."""
    query, cue = found.words.index(sentence.word), found.words.index(sentence.cue)
    row = found.weights[:, :, query].clone()  # (L, H, W)
    row[:, :, query] = -1
    return (row.argmax(-1) == cue).float()


def baselines(sentence: Sentence, found: Words, mask: str) -> tuple[float, float]:
    """The chance that a random, and that the nearest, other content word is the cue (a tie shares it)."""
    query = found.words.index(sentence.word)
    places = [
        place for place, word in enumerate(found.words) if word in (sentence.cue, *sentence.others)
    ]
    places = [place for place in places if mask == "bidirectional" or place < query]
    nearest = min(abs(place - query) for place in places)
    tied = [place for place in places if abs(place - query) == nearest]
    return 1 / len(places), (found.words.index(sentence.cue) in tied) / len(tied)


def auto_head(found: Words) -> tuple[int, int]:
    """The head whose rows give the most weight to tokens other than themselves and the first."""
    others = found.weights.clone()
    others.diagonal(dim1=-2, dim2=-1).zero_()
    others[..., 0] = 0
    best = int(others.sum((-2, -1)).argmax())
    return best // others.shape[1], best % others.shape[1]


def head_name(layer: int, head: int) -> str:
    """`L3H0`."""
    return f"L{layer}H{head}"


def score_half(model: Model, sentences: Sequence[Sentence], mask: str) -> dict[str, Any]:
    """Scores of every head, of the head `auto` would choose for each sentence, and of the baselines."""
    heads, auto, random, nearest = [], [], [], []
    for sentence in sentences:
        found = word_attention(model, sentence.text, mask)
        if counts_under(sentence, found, mask):
            heads.append(hits(sentence, found))
            auto.append(float(heads[-1][auto_head(found)]))
            by_chance, by_place = baselines(sentence, found, mask)
            random.append(by_chance)
            nearest.append(by_place)
    size = len(heads)
    return {
        "sentences": size,
        "heads": torch.stack(heads).mean(0),
        "auto": sum(auto) / size,
        "random": sum(random) / size,
        "nearest": sum(nearest) / size,
    }


def disambiguation(model: Model, sentences: Sequence[Sentence], mask: str) -> dict[str, Any]:
    """Choose the best head on the first half and score it on the second: what the card reports."""
    halves = {
        half: score_half(model, [s for s in sentences if s.half == half], mask) for half in HALVES
    }
    table = halves["dev"]["heads"]
    layer, head = divmod(int(table.argmax()), table.shape[1])
    report: dict[str, Any] = {"head": head_name(layer, head)}
    for half, found in halves.items():
        numbers = {key: round(found[key], 4) for key in ("auto", "random", "nearest")}
        report[half] = {
            "sentences": found["sentences"],
            "cue_first": round(float(found["heads"][layer, head]), 4),
            **numbers,
        }
    return report
