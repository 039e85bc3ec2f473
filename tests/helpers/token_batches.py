"""Batches of random tokens, padded on the right."""

from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class Batch:
    """Token ids with what belongs to them."""

    ids: Tensor  # (B, T), int64
    lengths: list[int]  # real tokens of every text
    segments: Tensor | None  # (B, T), int64; None for a model without


def batch(lengths: list[int], *, vocabulary: int, padding: int, segments: int) -> Batch:
    """Random texts of these lengths; the second half of each is its second segment."""
    generator = torch.Generator().manual_seed(sum(lengths))
    longest = max(lengths)
    ids = torch.randint(5, vocabulary, (len(lengths), longest), generator=generator)
    kinds = torch.zeros_like(ids)
    for text, n in enumerate(lengths):
        ids[text, n:] = padding
        kinds[text, n // 2 : n] = segments - 1 if segments else 0
    return Batch(ids, lengths, kinds if segments else None)


INPUTS = {"single": [9], "one token": [1], "padded": [6, 11, 3], "longer than every window": [40]}
