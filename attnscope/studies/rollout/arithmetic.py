"""Matrices of token to token in NumPy: rows that sum to 1, their products over layers, and the strongest sources."""

from collections.abc import Iterable, Iterator

import numpy as np

from attnscope.findings.arrays import Array
from attnscope.findings.rollout import COLLAPSED

_FEW = 3  # tokens, of fewer of which nothing is said


def rollouts(layers: Iterable[Array], *, residual: bool) -> Iterator[Array]:
    """Multiply the matrices of layers, (T, T) each, the last one from the left (Abnar and Zuidema, 2020, equation 1).

    With `residual`, each A is 0.5 A + 0.5 I, because a layer's input is added to its output. Yields the product after
    each layer: the share of every token of the input (column) in every token of the layer's output (row).
    """
    product: Array | None = None
    for layer in layers:
        # A row that sums to less than 1, because of a sink or a mask, is divided by its sum, as in the authors' code.
        step = normalized(layer + np.eye(len(layer)) if residual else layer)
        product = step if product is None else step @ product
        yield product


def normalized(matrix: Array) -> Array:
    """Divide every row by its sum; rows of zeros stay."""
    sums = matrix.sum(-1, keepdims=True)
    shares: Array = np.divide(matrix, sums, out=np.zeros_like(matrix), where=sums > 0)
    return shares


def collapsed_on(product: Array) -> int | None:
    """Return the token that nearly all of every token stems from; None if there is none.

    The rows of the next product are averages of these rows, so that it has the same one.
    """
    rows = product[product.any(-1)]
    if len(rows) < _FEW:
        return None
    least = rows.min(0)
    source = int(least.argmax())
    return source if least[source] >= COLLAPSED else None


def strongest(matrix: Array, eligible: Array, count: int) -> tuple[Array, Array]:
    """Return the positions and values of each row's largest shares among eligible keys; ties go to the lower position.

    They are (rows, rank), −1 and NaN if a row has fewer sources.
    """
    ranked = np.where(eligible & (matrix > 0), matrix, -np.inf)
    keys = np.argsort(-ranked, axis=-1, kind="stable")[:, :count]
    values = np.take_along_axis(ranked, keys, -1)
    return np.where(np.isinf(values), -1, keys), np.where(np.isinf(values), np.nan, values)
