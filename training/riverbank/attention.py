"""Compute attention under either mask with `transformers`, and sum it over words."""

from dataclasses import dataclass
from pathlib import Path

import torch
from tokenizers import Encoding, Tokenizer
from transformers import BertForMaskedLM

MASKS = ("bidirectional", "causal")


@dataclass(frozen=True)
class Model:
    """A checkpoint in float32, and its tokenizer."""

    tokenizer: Tokenizer
    student: BertForMaskedLM


@dataclass(frozen=True)
class Words:
    """A text's attention between words.

    Attributes:
        words: the words in lower case; punctuation marks are words too.
        weights: `(L, H, W, W)`: the mean over a query word's pieces of the sum over a key word's pieces.
    """

    words: list[str]
    weights: torch.Tensor


def load(folder: Path) -> Model:
    """Load a checkpoint with eager attention, which is the only kind that returns its weights."""
    student = BertForMaskedLM.from_pretrained(
        folder, attn_implementation="eager", dtype=torch.float32
    )
    return Model(Tokenizer.from_file(str(folder / "tokenizer.json")), student.train(False))


def allowed(size: int, mask: str) -> torch.Tensor:
    """Which keys each query may see, as the float bias that `transformers` adds: `(1, 1, T, T)`."""
    seen = torch.ones(size, size, dtype=torch.bool)
    seen = seen.tril() if mask == "causal" else seen
    return torch.zeros(1, 1, size, size).masked_fill(~seen, torch.finfo(torch.float32).min)


@torch.no_grad()
def batch_attention(student: BertForMaskedLM, ids: list[list[int]], mask: str) -> torch.Tensor:
    """Attention weights of every head over texts of one length: `(N, L, H, T, T)`."""
    out = student.bert(
        torch.tensor(ids), attention_mask=allowed(len(ids[0]), mask), output_attentions=True
    )
    return torch.stack(out.attentions, 1)


def piece_attention(student: BertForMaskedLM, ids: list[int], mask: str) -> torch.Tensor:
    """Attention weights of every head over one text: `(L, H, T, T)`."""
    return batch_attention(student, [ids], mask)[0]


def word_attention(model: Model, text: str, mask: str) -> Words:
    """Attention between the words of a text."""
    encoding = model.tokenizer.encode(text)
    weights = piece_attention(model.student, encoding.ids, mask)
    member = membership(encoding)  # (W, T)
    mean = member / member.sum(1, keepdim=True)
    return Words(word_list(encoding, text), mean @ weights @ member.T)


def membership(encoding: Encoding) -> torch.Tensor:
    """1 where a piece belongs to a word: `(W, T)`."""
    word_of = torch.tensor(encoding.word_ids)
    return (torch.arange(int(word_of.max()) + 1)[:, None] == word_of).float()


def word_list(encoding: Encoding, text: str) -> list[str]:
    """The words of an encoded text, in lower case."""
    spans: dict[int | None, tuple[int, int]] = {}
    for word, (start, end) in zip(encoding.word_ids, encoding.offsets, strict=True):
        spans[word] = (spans.get(word, (start, end))[0], end)
    return [text[start:end].lower() for start, end in spans.values()]
