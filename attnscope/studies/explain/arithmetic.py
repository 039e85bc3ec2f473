"""Attention's arithmetic again in NumPy float64, with checks."""

from typing import Any

import numpy as np

from attnscope.base.model_config import ModelConfig, rotated_pairs
from attnscope.findings.explain import ArithmeticCheck, Part, Step

Numbers = np.ndarray[Any, np.dtype[np.float64]]
EPSILON = {"float32": 2.0**-23, "bfloat16": 2.0**-7, "float16": 2.0**-10}
_ROUNDINGS = 8  # ε of the sum's terms: what a sum in blocks may lose, several times over


def check(
    name: Step,
    formula: str,
    computed: Numbers,
    held: Numbers,
    terms: Numbers,
    dtype: str = "float32",
) -> ArithmeticCheck:
    """Compare a recomputed step with the model's numbers, which it computed in `dtype`.

    Rounding is proportional to `terms`, the sum of the magnitudes of the terms.
    """
    size = float(np.max(terms, initial=0.0))
    difference = float(np.max(np.abs(computed - held), initial=0.0))
    return ArithmeticCheck(
        name, formula, difference, _ROUNDINGS * EPSILON[dtype] * max(size, 2.0**-100)
    )


def norm(config: ModelConfig, x: Numbers, weight: Numbers, bias: Numbers | None) -> Numbers:
    """Apply the configured norm to one vector, (D,).

    LayerNorm (Ba et al., 2016): (x − mean) / √(variance + ε) · weight + bias. RMSNorm (Zhang and Sennrich, 2019):
    x / √(mean of x² + ε) · weight, or · (weight + 1) where the family stores it so.
    """
    if config.norm == "layernorm":
        normed: Numbers = (x - x.mean()) / np.sqrt(x.var() + config.norm_eps) * weight
        return normed if bias is None else normed + bias
    output: Numbers = x / np.sqrt((x**2).mean() + config.norm_eps) * (weight + config.norm_plus_one)
    return output


def softmax(values: Numbers) -> Numbers:
    """Return the softmax of a row; 0 where a value is −inf."""
    powers: Numbers = np.exp(values - values.max())
    powers /= powers.sum()
    return powers


def entropy(weights: Numbers) -> float:
    """Return the entropy of weights in bits."""
    positive = weights[weights > 0]
    return float(-(positive * np.log2(positive)).sum())


def project(x: Numbers, weight: Numbers, bias: Numbers | None) -> tuple[Numbers, Numbers]:
    """Compute W x + b, (E,), and the sum of the magnitudes of its terms, to which rounding is proportional."""
    products = weight @ x
    sizes = np.abs(weight) @ np.abs(x)
    if bias is None:
        return (products, sizes)
    return (products + bias, sizes + np.abs(bias))


def rotate(x: Numbers, cos: Numbers, sin: Numbers, *, interleaved: bool = False) -> Numbers:
    """Rotate the first R dimensions of queries or keys, (…, E), by their positions (Su et al., 2021).

    Cosines and sines are (…, R).
    """
    first, second = rotated_pairs(cos.shape[-1], interleaved=interleaved)
    rotated = np.array(x)
    rotated[..., first] = x[..., first] * cos[..., first] - x[..., second] * sin[..., first]
    rotated[..., second] = x[..., second] * cos[..., second] + x[..., first] * sin[..., second]
    return rotated


def parts(
    q: Numbers,
    k: Numbers,
    lengths: Numbers | None,
    before: tuple[Numbers, Numbers],
    *,
    interleaved: bool = False,
) -> list[Part]:
    """Split q·k into one product per dimension, or per rotated pair of dimensions, by falling magnitude.

    `lengths` are the wavelengths of the rotated pairs, (R / 2,), `before` are query and key before the rotation.
    """
    half = 0 if lengths is None else len(lengths)
    plain = before[0] * before[1]
    terms = []
    first, second = (
        range(2 * half)[side] for side in rotated_pairs(2 * half, interleaved=interleaved)
    )
    for i in range(half):
        dims = [first[i], second[i]]
        product = float((q[dims] * k[dims]).sum())
        unturned = float(plain[dims].sum())
        length = None if lengths is None else float(lengths[i])
        terms.append(Part(dims, q[dims].tolist(), k[dims].tolist(), product, length, unturned))
    for i in range(2 * half, len(q)):
        terms.append(Part([i], [float(q[i])], [float(k[i])], float(q[i] * k[i])))
    return sorted(terms, key=lambda part: -abs(part.product))


def scaled(
    scores: Numbers, scale: float, softcap: float | None, bias: Numbers | None
) -> tuple[Numbers, Numbers | None, Numbers]:
    """Compute the inputs of softmax for a row of scores, (K,), step by step.

    Return scores × scale; the same soft-capped by c · tanh(score / c), in Gemma 2 as in Bello et al. (2016), None
    without a cap; and these plus the bias.
    """
    times_scale = scores * scale
    capped = None if softcap is None else softcap * np.tanh(times_scale / softcap)
    so_far = times_scale if capped is None else capped
    return times_scale, capped, so_far if bias is None else so_far + bias


def exponentials(masked: Numbers, sink: float | None = None) -> tuple[Numbers, float, float]:
    """Compute exp(masked − maximum) of a row that is not fully masked, (K,), the maximum, and the sum.

    The maximum is subtracted so that none overflows. The sink is an extra logit that only the sum contains.
    """
    maximum = float(masked.max() if sink is None else max(masked.max(), sink))
    powers: Numbers = np.exp(masked - maximum)
    return powers, maximum, float(powers.sum() + (0.0 if sink is None else np.exp(sink - maximum)))
