"""Attention as three nested loops over Python floats: slow, obvious, and free of everything that it checks."""

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from attnscope.model.inputs import AttentionInputs, AttentionSpec

NAN, INF = math.nan, math.inf


@dataclass(frozen=True)
class Truth:
    """Every stage of a call, float64; fully masked rows are NaN in weights and output, as recorders keep them."""

    scores: Tensor
    scaled: Tensor
    masked: Tensor
    weights: Tensor
    output: Tensor
    fully_masked: Tensor

    @property
    def plain_output(self) -> Tensor:
        """The output as the model itself uses it: 0 where a query may see nothing."""
        return self.output.nan_to_num(0.0)


def slope(head: int, n_heads: int) -> float:
    """ALiBi's slope as its authors' code computes it."""
    if math.log2(n_heads).is_integer():
        start = 2 ** -(2 ** -(math.log2(n_heads) - 3))
        return start * start**head
    power = 2 ** math.floor(math.log2(n_heads))
    return slope(head, power) if head < power else slope(2 * (head - power), 2 * power)


def attention(inputs: AttentionInputs, allowed: Tensor, *, alibi: bool) -> Truth:
    """Every stage of a call.

    Args:
        inputs: Queries, keys, values and rule.
        allowed: (B, Q, K), bool.
        alibi: The rule's bias is ALiBi's.
    """
    q, k, v, spec = inputs.q.tolist(), inputs.k.tolist(), inputs.v.tolist(), inputs.spec
    n_heads, may = inputs.q.shape[1], allowed.tolist()
    group = n_heads // inputs.k.shape[1]
    found: dict[str, list[float]] = {
        name: [] for name in ("scores", "scaled", "masked", "weights", "output")
    }
    fully_masked: list[bool] = []
    for b in range(len(q)):
        for h in range(n_heads):
            for i in range(len(q[b][h])):
                keys, values = k[b][h // group], v[b][h // group]
                scores = [sum(x * y for x, y in zip(q[b][h][i], key, strict=True)) for key in keys]
                scaled = [
                    _scaled(s, spec, slope(h, n_heads) * abs(i - j) if alibi else 0.0)
                    for j, s in enumerate(scores)
                ]
                masked = [s if may[b][i][j] else -INF for j, s in enumerate(scaled)]
                weights = _softmax(masked)
                output = [
                    sum(w * value[e] for w, value in zip(weights, values, strict=True))
                    for e in range(len(values[0]))
                ]
                for name, row in zip(found, (scores, scaled, masked, weights, output), strict=True):
                    found[name] += row
                fully_masked.append(not any(may[b][i]))
    rows = inputs.q.shape[:3]
    tensors = {
        name: torch.tensor(flat, dtype=torch.float64).reshape(*rows, -1)
        for name, flat in found.items()
    }
    return Truth(**tensors, fully_masked=torch.tensor(fully_masked).reshape(rows))


def _scaled(score: float, spec: AttentionSpec, penalty: float) -> float:
    scaled = score * spec.scale
    if spec.softcap is not None:
        scaled = spec.softcap * math.tanh(scaled / spec.softcap)
    return scaled - penalty


def _softmax(row: list[float]) -> list[float]:
    largest = max(row)
    if largest == -INF:
        return [NAN] * len(row)
    powers = [math.exp(x - largest) for x in row]
    return [p / sum(powers) for p in powers]
