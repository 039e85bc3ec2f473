"""Arrays and JSON in one block of bytes, as pages hold them: exact float32, or numbers that say how they were rounded.

The block is the length of a header (uint32), the header (JSON), and the arrays. Values are little-endian, and the bytes
of all numbers of a width are stored plane by plane, which compresses better: first the lowest byte of every number of
all arrays, and so on. `web/src/data.ts` reads it.
"""

import zlib
from collections.abc import Mapping
from typing import Any

import numpy as np

from attnscope.findings.arrays import Matrix

Array = np.ndarray[Any, Any]
Reference = dict[str, Any]
# Level of zlib: 9 is 1 % smaller, and takes seven times as long.
_LEVEL = 6
_MISSING = {1: 0xFF, 2: 0xFFFF}
_SMALLEST = 128
_LARGEST_RANK = 160
_OVERSAMPLED = 8
# Largest mean distance, in steps of float32, of a prediction that is worth a correction.
_CLOSE = 1 << 16
_LN2_HIGH = float.fromhex("0x1.62e42fee00000p-1")
_LN2_LOW = float.fromhex("0x1.a39ef35793c76p-33")
_LOG2_E = float.fromhex("0x1.71547652b82fep+0")
_LOWEST_EXPONENT = -700.0
_COMPUTED_FROM = {"scaled": ("scores",), "masked": ("scaled", "scores"), "weights": ("masked",)}


class Container:
    """Collects arrays; the header names each by its reference."""

    def __init__(self) -> None:
        # planes of bytes by width of a number, and how many numbers there are
        self._planes: dict[int, list[list[bytes]]] = {}
        self._counts: dict[int, int] = {}
        self._entries: list[dict[str, Any]] = []

    def add(self, array: Array) -> Reference:
        """Keep an array as it is."""
        plain = np.ascontiguousarray(array, dtype=array.dtype.newbyteorder("<"))
        width = plain.dtype.itemsize
        planes = self._planes.setdefault(width, [[] for _ in range(width)])
        for n, plane in enumerate(plain.reshape(-1).view(np.uint8).reshape(-1, width).T):
            planes[n].append(plane.tobytes())
        start = self._counts.get(width, 0)
        self._counts[width] = start + plain.size
        self._entries.append({"o": start, "t": plain.dtype.str[1:], "s": list(array.shape)})
        return {"@": len(self._entries) - 1}

    def exact(self, array: Array) -> Reference:
        """Keep float32 numbers exactly."""
        return self.add(np.asarray(array, dtype=np.float32))

    def rounded(self, array: Array, decimals: int) -> Reference:
        """Keep numbers from 0 on, rounded to `decimals`; NaN stays missing."""
        steps = np.rint(np.asarray(array, dtype=np.float64) * 10.0**decimals)
        is_finite = np.isfinite(steps)
        largest = float(steps[is_finite].max(initial=0.0))
        if float(steps[is_finite].min(initial=0.0)) < 0 or largest >= _MISSING[2]:
            return self.exact(array)
        size = 1 if largest < _MISSING[1] else 2
        packed = np.where(is_finite, steps, _MISSING[size]).astype(f"u{size}")
        return self.add(packed) | {"decimals": decimals, "missing": _MISSING[size]}

    def falling(self, array: Array, decimals: int) -> Reference:
        """Keep numbers that fall along the first axis, rounded, as differences from the previous one."""
        steps = np.rint(np.asarray(array, dtype=np.float64) * 10.0**decimals)
        falls = np.concatenate([steps[:1], steps[:-1] - steps[1:]])
        if (
            not steps.size
            or not np.isfinite(steps).all()
            or falls.min() < 0
            or falls.max() >= _MISSING[2]
        ):
            return self.rounded(array, decimals)
        return self.add(falls.astype(np.uint16)) | {
            "decimals": decimals,
            "missing": -1,
            "falls": True,
        }

    def picture(self, pixels: Array) -> Reference:
        """Keep a picture, (height, width, 3), uint8: each row as its differences from the row above, modulo 256."""
        above = np.zeros_like(pixels[:1])
        return self.add(np.diff(np.asarray(pixels, dtype=np.uint8), axis=0, prepend=above))

    def roots(self, shares: Array) -> Reference:
        """Keep shares from 0 to 1 by their root, rounded to a step of 1/255: small ones are as exact as large ones."""
        return self.add(np.rint(255 * np.sqrt(np.clip(shares, 0.0, 1.0))).astype(np.uint8))

    def product(self, matrix: Matrix) -> Reference:
        """Keep a matrix exactly: as a product of two narrow ones and a correction if it has a low rank.

        Scores are a product of queries and keys, so that their rank is the width of a head: kept like this, they take
        a third of the bytes.
        """
        factors = _factors(matrix)
        if factors is None:
            return self.exact(matrix)
        left, right = factors
        predicted = np.zeros(matrix.shape)
        # The page multiplies in this order, without fused operations.
        for a, b in zip(left.T, right.T, strict=True):
            predicted += np.multiply.outer(a.astype(np.float64), b.astype(np.float64))
        correction = self._correction(matrix, predicted.astype(np.float32))
        if correction is None:
            return self.exact(matrix)
        return {"product": [self.exact(left), self.exact(right)], "d": correction}

    def stages(self, stages: Mapping[str, Matrix], *, scale: float | None) -> dict[str, Reference]:
        """Keep the stages of a head exactly, each as a correction of the prediction from the previous stage.

        Args:
            stages: Stage to matrix, (rows, columns).
            scale: Factor from scores to scaled scores; None if there is more between them.
        """
        references: dict[str, Reference] = {}
        for name, matrix in stages.items():
            references[name] = self._stage(name, stages, references, scale) or (
                self.product(matrix) if name == "scores" else self.exact(matrix)
            )
        return references

    def _stage(
        self,
        name: str,
        stages: Mapping[str, Matrix],
        references: Mapping[str, Reference],
        scale: float | None,
    ) -> Reference | None:
        matrix = np.asarray(stages[name], dtype=np.float32)
        of = next(
            (
                n
                for n in _COMPUTED_FROM.get(name, ())
                if n in references and stages[n].shape == matrix.shape
            ),
            None,
        )
        if of is None or not matrix.size:
            return None
        before = np.asarray(stages[of], dtype=np.float32)
        if of == "scores":
            if scale is None:
                return None
            before = (before.astype(np.float64) * scale).astype(np.float32)
        node: Reference = {"of": of, "how": "weights" if name == "weights" else "scaled"}
        if of == "scores":
            node["scale"] = scale
        predicted = softmax(before) if name == "weights" else before
        if name == "masked":
            allowed = ~np.isneginf(matrix)
            node["allowed"] = None if allowed.all() else self.add(np.packbits(allowed.reshape(-1)))
            predicted = np.where(allowed, predicted, -np.inf).astype(np.float32)
        correction = self._correction(matrix, predicted)
        if correction is None:
            return None
        return node | {"d": correction}

    def _correction(self, matrix: Matrix, predicted: Matrix) -> Reference | str | None:
        """Return the correction of the bits of a prediction; `none` for no correction, None if it is too large."""
        bits = np.where(
            np.isnan(predicted), 0, np.ascontiguousarray(predicted).view(np.int32)
        ).astype(np.int64)
        distance = (
            np.ascontiguousarray(matrix, dtype=np.float32).view(np.int32).astype(np.int64) - bits
        )
        is_known = ~np.isnan(matrix)
        if float(np.abs(distance[is_known]).mean() if is_known.any() else 0.0) > _CLOSE:
            return None
        if not distance.any():
            return "none"
        # The sign last, so that small steps both ways are small.
        folded = (distance << 1) ^ (distance >> 63)
        size = next((size for size in (1, 2, 4) if not int(folded.max()) >> 8 * size), None)
        if size is None:
            return None
        return self.add(folded.astype(f"u{size}"))

    def packed(self, header: Mapping[str, Any]) -> bytes:
        """Return all of it, compressed."""
        import msgspec

        widths = sorted(self._planes)
        counts = [[width, self._counts[width]] for width in widths]
        header_bytes = msgspec.json.encode(
            {**header, "arrays": self._entries, "counts": counts},
            enc_hook=lambda value: value.item(),
        )
        planes = [part for width in widths for plane in self._planes[width] for part in plane]
        block = b"".join([len(header_bytes).to_bytes(4, "little"), header_bytes, *planes])
        return zlib.compress(block, _LEVEL)


def _factors(matrix: Matrix) -> tuple[Matrix, Matrix] | None:
    """Return two narrow matrices, (rows, rank) and (columns, rank), with nearly this product; None if there are none.

    The range is found by random projections (Halko, Martinsson and Tropp, 2011).
    """
    if min(matrix.shape) < _SMALLEST or not np.isfinite(matrix).all():
        return None
    exact = matrix.astype(np.float64)
    width = min(min(matrix.shape) // 2, _LARGEST_RANK)
    random_matrix = np.random.default_rng(0).standard_normal(
        (matrix.shape[1], width + _OVERSAMPLED)
    )
    basis, _ = np.linalg.qr(exact @ random_matrix)
    u, sizes, v = np.linalg.svd(basis.T @ exact, full_matrices=False)
    rank = int((sizes > 3e-6 * sizes[0]).sum()) if sizes.size and sizes[0] else 0
    if not 0 < rank < width:
        return None
    share = np.sqrt(sizes[:rank])
    left = (basis @ u[:, :rank]) * share
    right = v[:rank].T * share
    return left.astype(np.float32), right.astype(np.float32)


def softmax(masked: Matrix) -> Matrix:
    """Return the softmax of every row as float32 code computes it, in an order that a page repeats."""
    exact = masked.astype(np.float32)
    with np.errstate(invalid="ignore"):
        shifted = exact - exact.max(axis=1, keepdims=True)
        powers = _exponential(shifted.astype(np.float64)).astype(np.float32)
        # Sums are made by cumsum, which adds in order.
        totals = np.cumsum(powers.astype(np.float64), axis=1)[:, -1:].astype(np.float32)
        weights: Matrix = powers * (np.float32(1.0) / totals)
    return weights


def _exponential(values: Array) -> Array:
    """Return e^x, for x of at most 0; very small results are 0."""
    small = ~(values >= _LOWEST_EXPONENT)
    x = np.where(small, 0.0, values)
    k = np.floor(x * _LOG2_E + 0.5)
    r = (x - k * _LN2_HIGH) - k * _LN2_LOW
    factorials = np.cumprod(np.arange(1.0, 14.0))
    total = np.full_like(r, 1.0 / factorials[-1])
    for factorial in factorials[-2::-1]:
        total = total * r + 1.0 / factorial
    total = total * r + 1.0
    powers = np.where(small, 0.0, np.ldexp(total, k.astype(np.int64)))
    return np.where(np.isnan(values), np.nan, powers)
