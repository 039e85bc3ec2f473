"""Measure roles of heads as a `transformers` user would: eager attention of one sequence at a time, then NumPy."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

import numpy as np
import torch

Array = np.ndarray[Any, np.dtype[Any]]
NEAR, FURTHEST = 4, 256  # tokens; offsets beyond the second are one


@dataclass
class Sequences:
    """Token ids of every sequence: texts, and random tokens with the rows and keys that roles are about."""

    texts: list[list[int]]
    repeated: list[tuple[list[int], range, range]]
    needles: list[tuple[list[int], range, range]]
    tripled: list[tuple[list[int], range, range]]

    @property
    def all(self) -> list[list[int]]:
        """The ids of every sequence."""
        return [*self.texts, *(ids for ids, *_ in (*self.repeated, *self.needles, *self.tripled))]


@dataclass
class _Texts:
    """Sums over the rows of texts, (L, H) each, and weights by offset."""

    sums: dict[str, Any] = field(default_factory=dict)
    offsets: dict[int, list[Array]] = field(default_factory=dict)
    rows: int = 0

    def add(self, name: str, value: Array) -> None:
        """Add to a sum."""
        self.sums[name] = self.sums.get(name, 0.0) + value


def measure(attend: Callable[[list[int]], Array], given: Sequences) -> dict[str, Array]:
    """Every role that weights of attention show, (L, H) each.

    But for weight on special tokens and punctuation marks, which the texts of a GPT-2 with words as tokens do not have.

    Args:
        attend: Ids to weights, (L, H, T, T), such as Eager(model).
        given: The sequences.
    """
    found = _Texts()
    for ids in given.texts:
        _add_text(found, attend(ids))
    roles = {name: total / found.rows for name, total in found.sums.items()}
    roles |= _by_offset(found)
    copies: dict[str, list[Array]] = {"duplicate": [], "induction": [], "second-order": []}
    for ids, rows, keys in given.repeated:
        weights = attend(ids)
        copies["duplicate"].append(_copies(weights, rows, keys, 0))
        copies["induction"].append(_copies(weights, rows, keys, 1))
    for ids, rows, keys in given.tripled:
        copies["second-order"].append(_copies(attend(ids), rows, keys, 0))
    roles |= {name: np.mean(found, axis=0) for name, found in copies.items()}
    hits = []
    for ids, rows, keys in given.needles:
        weights = attend(ids)
        hits += [weights[:, :, row].argmax(-1) == key for row, key in zip(rows, keys, strict=True)]
    return {**roles, "retrieval": np.mean(hits, axis=0)}


def copying(model: Any) -> Array:
    """Σ λ / Σ |λ| of W_V W_O of every head of a GPT-2, (L, H)."""
    heads = model.config.n_head
    found = []
    for block in model.h:
        # (D, H·E)
        value = block.attn.c_attn.weight.detach().double().numpy()[:, -model.config.n_embd :]
        output = block.attn.c_proj.weight.detach().double().numpy()  # (H·E, D)
        values = output.reshape(heads, -1, len(value)) @ value.T.reshape(
            heads, -1, len(value)
        ).transpose(0, 2, 1)
        # (H, E): those of the (D, D) product that are not 0
        eigenvalues = np.linalg.eigvals(values)
        found.append(eigenvalues.sum(-1).real / np.abs(eigenvalues).sum(-1))
    return np.stack(found)


def _add_text(found: _Texts, weights: Array) -> None:
    size = weights.shape[-1]
    rows = range(2, size)
    found.rows += len(rows)
    apart = np.abs(np.arange(size)[:, None] - np.arange(size))
    found.add("previous", weights.diagonal(-1, 2, 3)[..., 1:].sum(-1))
    found.add("next", weights.diagonal(1, 2, 3)[..., 2:].sum(-1))
    found.add("self", weights.diagonal(0, 2, 3)[..., 2:].sum(-1))
    found.add("first", weights[:, :, 2:, 0].sum(-1))
    found.add("local", (weights * ((apart >= 2) & (apart <= NEAR)))[:, :, 2:].sum((2, 3)))
    for row in rows:
        found.add("uniform", np.minimum(weights[:, :, row, : row + 1], 1 / (row + 1)).sum(-1))
    found.add("content", _beyond_means(weights))
    for offset in range(size - 1):
        # rows from 2 on, keys from 1 on
        same = weights.diagonal(-offset, 2, 3)[..., max(1, 2 - offset) :]
        found.offsets.setdefault(min(offset, FURTHEST + 1), []).append(same)


def _by_offset(found: _Texts) -> dict[str, Array]:
    groups = {offset: np.concatenate(group, -1) for offset, group in found.offsets.items()}
    every = np.concatenate(list(groups.values()), -1)
    within = sum(
        ((group - group.mean(-1, keepdims=True)) ** 2).sum(-1) for group in groups.values()
    )
    return {"positional": 1 - within / ((every - every.mean(-1, keepdims=True)) ** 2).sum(-1)}


def _beyond_means(weights: Array) -> Array:
    """Weights of 1/16 or more on other words, beyond the means of their offset and of their key, (L, H)."""
    size = weights.shape[-1]
    offset = np.arange(size)[:, None] - np.arange(size)
    pairs = np.tril(np.ones((size, size), dtype=bool), -1)
    pairs[:2], pairs[:, 0] = False, False
    weights = weights * pairs
    by_offset, count = np.zeros_like(weights), np.ones((size, size))
    for place in np.unique(np.minimum(offset[pairs], FURTHEST + 1)):
        here = pairs & (np.minimum(offset, FURTHEST + 1) == place)
        by_offset[:, :, here], count[here] = weights[:, :, here].sum(-1, keepdims=True), here.sum()
    of_key, n_key = weights.sum(2, keepdims=True), np.maximum(pairs.sum(0), 1)
    predicted = np.maximum((by_offset - weights) / count, (of_key - weights) / n_key)
    return np.asarray((np.maximum(weights - predicted, 0.0) * (weights >= 1 / 16)).sum((2, 3)))


def _copies(weights: Array, rows: range, keys: range, shift: int) -> Array:
    pairs = zip(rows, keys, strict=True)
    return np.mean([weights[:, :, row, key + shift] for row, key in pairs], axis=0)


class Eager:
    """A causal model of transformers whose weights are asked for."""

    def __init__(self, folder: str) -> None:
        self.model = _load(folder, "eager")

    @torch.inference_mode()
    def __call__(self, ids: list[int]) -> Array:
        """Weights of one sequence, (L, H, T, T)."""
        found = self.model(
            input_ids=torch.tensor([ids]), output_attentions=True, use_cache=False
        ).attentions
        return torch.stack(found)[:, 0].numpy()


class Sdpa:
    """The same model without any attention output, over the same sequences, eight at a time."""

    def __init__(self, folder: str) -> None:
        self.model = _load(folder, "sdpa")

    @torch.inference_mode()
    def run(self, sequences: Sequence[list[int]], at_once: int = 8) -> None:
        """A forward pass for every eight sequences of similar length, padded on the right."""
        order = sorted(sequences, key=len)
        for first, last in pairwise([*range(0, len(order), at_once), len(order)]):
            some = order[first:last]
            longest = max(map(len, some))
            ids = torch.tensor([[*one, *[0] * (longest - len(one))] for one in some])
            mask = torch.tensor([[1] * len(one) + [0] * (longest - len(one)) for one in some])
            padded = bool((mask == 0).any())
            self.model(input_ids=ids, attention_mask=mask if padded else None, use_cache=False)


def _load(folder: str, attention: str) -> Any:
    from transformers import AutoModel

    return AutoModel.from_pretrained(folder, attn_implementation=attention).eval()
