"""Roles of heads in plain NumPy, from the weights that eager `transformers` gives: nothing of attnscope's is used.

Which key a row should attend to is read off the token ids here, not taken from the probes.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
import transformers as hf
from tokenizers import Tokenizer

from attnscope.findings.row_statistics import KEY_TOKENS
from attnscope.findings.tokens import Token

NEAR, BLOCKS, FURTHEST = 4, 16, 256
Array = np.ndarray[Any, np.dtype[Any]]


@dataclass
class Seen:
    """A sequence with the weights of every layer and head."""

    ids: list[int]  # token ids
    weights: Array  # (L, H, T, T), float64
    allowed: Array  # (L, T, T), bool
    special: Array  # (T,), bool
    marks: Array  # punctuation, (T,), bool


class Eager:
    """A folder, opened by transformers with eager attention."""

    def __init__(self, folder: Path) -> None:
        self.model: Any = hf.AutoModel.from_pretrained(folder, attn_implementation="eager").eval()
        self.tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
        self.tokenizer.no_truncation()
        self.tokenizer.no_padding()
        self.causal = self.model.config.model_type not in ("bert", "distilbert")

    def text(self, text: str) -> Seen:
        encoded = self.tokenizer.encode(text)
        spelled = [
            text[a:b].strip() or piece
            for (a, b), piece in zip(encoded.offsets, encoded.tokens, strict=True)
        ]
        special = [bool(flag) for flag in encoded.special_tokens_mask]
        marks = [
            KEY_TOKENS["punctuation"](Token(0, w, w, special=s))
            for w, s in zip(spelled, special, strict=True)
        ]
        return self.ids(encoded.ids, special, marks)

    def ids(self, ids: list[int], special: Sequence[bool] = (), marks: Sequence[bool] = ()) -> Seen:
        with torch.inference_mode():
            found = self.model(input_ids=torch.tensor([ids]), output_attentions=True).attentions
        weights = np.stack([one[0].double().numpy() for one in found])
        size, config = len(ids), self.model.config
        apart = np.arange(size)[:, None] - np.arange(size)
        window = getattr(config, "sliding_window", None) or size
        kinds = getattr(config, "layer_types", None) or ["sliding_attention"] * len(weights)
        windows = [window if kind == "sliding_attention" else size for kind in kinds]
        seen = [
            (apart >= 0 if self.causal else apart < size) & (np.abs(apart) < window)
            for window in windows
        ]
        none = np.zeros(size, dtype=bool)
        return Seen(
            ids, weights, np.stack(seen), np.array(special or none), np.array(marks or none)
        )


def _error(values: Callable[[list[int]], Array], count: int) -> Array:
    """The jackknife's standard error over blocks of sequences, each left out in turn."""
    blocks = min(BLOCKS, count)
    left = [values([n for n in range(count) if n % blocks != block]) for block in range(blocks)]
    return np.sqrt((blocks - 1) / blocks * sum((one - sum(left) / blocks) ** 2 for one in left))


def roles(
    texts: Sequence[Seen],
    repeated: Sequence[Seen],
    needles: Sequence[Seen],
    tripled: Sequence[Seen],
) -> dict[str, tuple[Array, Array]]:
    """Value and standard error of every role but copying, (L, H) each."""
    named: dict[str, tuple[Callable[[Any], Array], Sequence[Seen]]] = {
        name: (compute, texts) for name, compute in of_texts().items()
    }
    named |= {
        "duplicate": (_duplicate, repeated), "induction": (_induction, repeated),
        "retrieval": (_retrieval, needles), "second-order": (_second_order, tripled),
    }  # fmt: skip
    return {
        name: (
            compute(sequences),
            _error(lambda kept, c=compute, s=sequences: c([s[n] for n in kept]), len(sequences)),
        )
        for name, (compute, sequences) in named.items()
    }


def of_texts() -> dict[str, Callable[[Sequence[Seen]], Array]]:
    """Each role that is measured on texts, and its values, (L, H), as a function of these."""
    shares = {name: partial(_share, name=name) for name in ON_TEXTS}
    return {**shares, "positional": _positional, "content": _content}


def rows(seen: Seen) -> list[int]:
    return [i for i in range(2, len(seen.ids)) if not seen.special[i]]


def _keys(name: str, seen: Seen, i: int) -> list[int]:
    every = range(len(seen.ids))
    return {
        "previous": [i - 1],
        "next": [i + 1] if i + 1 < len(every) else [],
        "self": [i],
        "first": [0],
        "special": [j for j in every if j and seen.special[j]],
        "punctuation": [j for j in every if j and seen.marks[j]],
        "local": [j for j in every if 2 <= abs(i - j) <= NEAR],
    }[name]


ON_TEXTS = ("previous", "next", "self", "first", "special", "punctuation", "local", "uniform")


def _share(texts: Sequence[Seen], name: str) -> Array:
    total, count = 0.0, 0
    for seen in texts:
        for i in rows(seen):
            row = seen.weights[:, :, i]  # (L, H, T)
            if name == "uniform":
                even = seen.allowed[:, i] / seen.allowed[:, i].sum(-1, keepdims=True)  # (L, T)
                found = np.minimum(row, even[:, None]).sum(-1)
            else:
                found = row[..., _keys(name, seen, i)].sum(-1)
                if name == "first":
                    found = found + 1 - row.sum(-1)  # what a learned sink takes
            total, count = total + found, count + 1
    return np.asarray(total / count)


def _pairs(seen: Seen, layer: int) -> tuple[Array, Array]:
    """Pairs of rows and other tokens that a layer's heads may weigh, and how far apart tokens are, (T, T) each.

    What is further apart than FURTHEST is all of one offset.
    """
    size = len(seen.ids)
    counted = seen.allowed[layer] & ~seen.special[None]
    counted[np.setdiff1d(range(size), rows(seen))] = False
    counted[:, 0] = False
    offset = np.arange(size) - np.arange(size)[:, None]
    return counted, np.where(np.abs(offset) > FURTHEST, FURTHEST + 1, offset)


def _positional(texts: Sequence[Seen]) -> Array:
    every = []
    for layer in range(len(texts[0].weights)):
        pairs = [_pairs(seen, layer) for seen in texts]
        whole = np.concatenate(
            [seen.weights[layer][:, c] for seen, (c, _) in zip(texts, pairs, strict=True)], 1
        )
        offsets = np.concatenate([offset[counted] for counted, offset in pairs])
        groups = [whole[:, offsets == offset] for offset in np.unique(offsets)]
        within = sum(group.var(1) * group.shape[1] for group in groups)
        every.append(1 - within / (whole.var(1) * whole.shape[1]))
    return np.stack(every)


def _content(texts: Sequence[Seen]) -> Array:
    every = []
    for layer in range(len(texts[0].weights)):
        total = 0.0
        for seen in texts:
            counted, offset = _pairs(seen, layer)
            np.fill_diagonal(counted, False)
            weights = seen.weights[layer]
            beyond = weights - predicted(weights, counted, offset)
            total += np.where(counted & (weights >= 1 / 16), np.maximum(beyond, 0.0), 0.0).sum(
                (1, 2)
            )
        every.append(total / sum(len(rows(seen)) for seen in texts))
    return np.stack(every)


def predicted(weights: Array, counted: Array, offset: Array) -> Array:
    """What the offset or the key of a pair says of its weight, whichever is more, (H, T, T).

    Each is the mean of the other pairs and a 0: the own weight leaves the sum, and the 0 takes its place in the count.

    Args:
        weights: Weights of heads, (H, T, T).
        counted: Pairs that count, (T, T), bool.
        offset: The group of each pair by how far apart it is, (T, T).
    """
    value = np.where(counted, weights, 0.0)
    of_offset = np.zeros_like(value)
    for apart in np.unique(offset[counted]):
        pairs = counted & (offset == apart)
        group = value[:, pairs]
        of_offset[:, pairs] = (group.sum(1, keepdims=True) - group) / group.shape[1]
    of_key = (value.sum(1, keepdims=True) - value) / np.maximum(counted.sum(0), 1)
    means: Array = np.maximum(of_offset, of_key)
    return means


def _earlier(seen: Seen, i: int) -> int | None:
    return next((j for j in range(i) if seen.ids[j] == seen.ids[i]), None)


def _at_copies(repeated: Sequence[Seen], after: int) -> Array:
    found = [
        seen.weights[:, :, i, j + after]
        for seen in repeated
        for i in range(len(seen.ids))
        if (j := _earlier(seen, i)) is not None
    ]
    return np.asarray(sum(found) / len(found))


def _duplicate(repeated: Sequence[Seen]) -> Array:
    return _at_copies(repeated, 0)


def _induction(repeated: Sequence[Seen]) -> Array:
    return _at_copies(repeated, 1)


def _second_order(tripled: Sequence[Seen]) -> Array:
    """At tokens that have come twice before: the weight on what followed them the first time."""
    found = []
    for seen in tripled:
        for i in range(len(seen.ids)):
            before = [j for j in range(i) if seen.ids[j] == seen.ids[i] and not seen.special[j]]
            if len(before) == 2:
                found.append(seen.weights[:, :, i, before[0] + 1])
    return np.asarray(sum(found) / len(found))


def _retrieval(needles: Sequence[Seen]) -> Array:
    hits = []
    for seen in needles:
        ids = [one for n, one in enumerate(seen.ids) if not seen.special[n]]
        before = len(seen.ids) - len(ids) if not seen.special[-1] else int(np.argmin(seen.special))
        n = next(n for n in range(len(ids) // 2, 0, -1) if _find(ids, ids[-n:]) is not None)
        start = _find(ids, ids[-n:])
        assert start is not None
        for step in range(n - 1):
            row, key = before + len(ids) - n + step, before + start + step + 1
            hits.append(seen.weights[:, :, row].argmax(-1) == key)
    return np.mean(hits, axis=0)


def _find(ids: list[int], part: list[int]) -> int | None:
    """Where a run of ids is found before the end."""
    return next((j for j in range(len(ids) - len(part)) if ids[j : j + len(part)] == part), None)


def copying(value: Array, output: Array) -> float:
    """Σ λ / Σ |λ| of the whole (D, D) product.

    Args:
        value: Weight of a head's values, (Ev, D).
        output: Its part of the output projection, (D, Ev).
    """
    found = np.linalg.eigvals(output.astype(np.float64) @ value.astype(np.float64))
    return float(found.sum().real / np.abs(found).sum())
