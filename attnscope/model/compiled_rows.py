"""Loops over rows of scores, compiled by Numba: one pass does what a chain of operators does in several.

A row of scores stays in the first cache while its maximum, its softmax, its entropy and its largest entries are found.
Operators of torch and NumPy read and write the whole tile for each of these. The loops release the interpreter's lock,
so threads run them side by side. `row_summary` loads this module where a layer is large enough to be worth it.

The result of a row depends, to the last bit, neither on the rows beside it nor on keys behind the last one that it may
see: sums are those of blocks of a fixed length.
"""

from collections.abc import Callable
from math import log
from typing import Any

import numba
import numpy as np
from numba import types
from numba.extending import intrinsic

CHUNK = 32  # scores that share a maximum; the largest are looked for among these, which are fewer than scores
BLOCK = 256  # scores that are summed at a time; the last ones of a row are filled up with −inf

_F, _I = np.float32, np.int32
_U = np.uint64  # of places: a signed one may be negative, and testing for that takes time
_NOTHING = _F(-np.inf)
_ONE_OVER_LOG_2 = _F(1.4426950408889634)
_LOG_2_HIGH, _LOG_2_LOW = _F(0.693359375), _F(-2.12194440e-4)  # their sum is log 2; the first has few digits
_ROUND = _F(12582912.0)  # 1.5 · 2^23: added to a small float32, it leaves no digits behind the point
_MANTISSA = np.int32(23)  # bits of a float32 below its exponent
_SMALLEST = _F(-87.0)  # x for which e^x is surely a normal float32; below it, e^x counts as 0
# of e^r − 1 − r, divided by r², for |r| ≤ log(2) / 2, highest power first (Cephes Math Library, expf)
_P = tuple(
    _F(x)
    for x in (1.9875691500e-4, 1.3981999507e-3, 8.3334519073e-3, 4.1665795894e-2, 1.6666665459e-1, 5.0000001201e-1)
)
_IN_ANY_ORDER = {"nnan", "nsz", "reassoc", "contract"}  # sums and maxima of several numbers at a time; no NaN gets here


def _compile(signature: str, fastmath: Any = False) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Compile a function now, or take its machine code from Numba's cache."""

    def decorate(function: Callable[..., Any]) -> Callable[..., Any]:
        compiled: Callable[..., Any]
        try:
            compiled = numba.njit(signature, nogil=True, cache=True, fastmath=fastmath)(function)
        except Exception:  # no folder to write to, a full disk, a spoilt file: a broken cache must not stop a run
            compiled = numba.njit(signature, nogil=True, fastmath=fastmath)(function)
        return compiled

    return decorate


def _larger_number(_context: Any, _a: Any, _b: Any) -> Any:
    def generate(_target: Any, builder: Any, _signature: Any, numbers: Any) -> Any:
        flags = ("nnan", "nsz")
        return builder.select(builder.fcmp_ordered(">", *numbers, flags=flags), *numbers, flags=flags)

    return types.float32(types.float32, types.float32), generate


_larger: Any = intrinsic(_larger_number)  # `max` of two numbers, in a form that LLVM vectorises


@_compile("float32(float32)", {"contract", "nsz", "nnan"})
def _exp(x: Any) -> Any:
    """Return e^x for −87 ≤ x ≤ 0, to about two units in the last place: 2^n · e^r with n = round(x / log 2)."""
    n = _F(x * _ONE_OVER_LOG_2) + _ROUND
    exponent = np.int32(np.float32(n).view(np.int32) << _MANTISSA)
    n -= _ROUND
    r = x - n * _LOG_2_HIGH
    r -= n * _LOG_2_LOW
    p = _P[0]
    p = p * r + _P[1]
    p = p * r + _P[2]
    p = p * r + _P[3]
    p = p * r + _P[4]
    p = p * r + _P[5]
    p = p * (r * r) + r + _F(1)
    return np.int32(np.float32(p).view(np.int32) + exponent).view(np.float32)


@_compile("void(float32[::1], float32[::1], uint64)", _IN_ANY_ORDER)
def _chunk_maxima(row: Any, maxima: Any, length: Any) -> None:
    for chunk in range(_U(maxima.size)):
        begin = chunk * length
        largest = _NOTHING
        for i in range(min(length, _U(row.size) - begin)):
            largest = _larger(largest, row[begin + i])
        maxima[chunk] = largest


@_compile("UniTuple(float32, 2)(float32[::1], float32[::1], float32)", _IN_ANY_ORDER)
def _powers_of_block(row: Any, powers: Any, largest: Any) -> Any:
    total, weighted = _F(0), _F(0)
    for i in range(row.size):
        below = max(row[i] - largest, _SMALLEST)
        power = _exp(below)
        power = power if below > _SMALLEST else _F(0)
        powers[i] = power
        total += power
        weighted += power * below
    return total, weighted


@_compile("UniTuple(float32, 2)(float32[::1], float32[::1], float32, float32[:, ::1])")
def _powers(row: Any, powers: Any, largest: Any, block: Any) -> Any:
    """Write e^(s − largest) of every score; return their sum, and that of their products with s − largest.

    Args:
        row: The scores.
        powers: Receives the powers.
        largest: The largest score.
        block: Memory to work in, (2, BLOCK).
    """
    total, weighted = _F(0), _F(0)
    for begin in range(0, row.size, BLOCK):
        end = begin + BLOCK
        if end <= row.size:
            sums = _powers_of_block(row[begin:end], powers[begin:end], largest)
        else:
            rest = row.size - begin
            block[0] = _NOTHING
            block[0, :rest] = row[begin:]
            sums = _powers_of_block(block[0], block[1], largest)
            powers[begin:] = block[1, :rest]
        total += sums[0]
        weighted += sums[1]
    return total, weighted


@_compile("void(float32[::1], float32[::1], uint64, int64[::1], float32[::1])", _IN_ANY_ORDER)
def _strongest(row: Any, maxima: Any, length: Any, places: Any, values: Any) -> None:
    """Find the largest entries of one row; overwrite the maximum of each chunk by that of what is left in it."""
    places[:] = -1
    values[:] = _NOTHING
    size, chunks = _U(row.size), _U(maxima.size)
    last, found = -_NOTHING, _U(0)  # the entry found last: its value, and the place behind it
    for n in range(_U(values.size)):
        value = _NOTHING
        for i in range(chunks):
            value = _larger(value, maxima[i])
        if value == _NOTHING:
            return
        # the first place that holds it, as a minimum over all: a processor cannot predict where a search ends
        first: Any = _I(chunks)
        for i in range(chunks):
            first = min(first, _I(i) if maxima[i] == value else _I(chunks))
        chunk = _U(first)
        begin = chunk * length
        count = min(length, size - begin)
        start = _I(found - begin) if value == last and found > begin else _I(0)  # behind an equal one in the same chunk
        first = _I(count)
        for i in range(count):
            first = min(first, _I(i) if row[begin + i] == value and _I(i) >= start else _I(count))
        left = _NOTHING
        for i in range(count):
            one = row[begin + i]
            left = _larger(left, one if one < value or (one == value and _I(i) > first) else _NOTHING)
        maxima[chunk] = left
        last, found = value, begin + _U(first) + _U(1)
        places[n], values[n] = begin + _U(first), value


@_compile("void(float32[:, ::1], float32[:, ::1], float32[::1], int64[:, ::1], float32[:, ::1])", _IN_ANY_ORDER)
def softmax(masked: Any, weights: Any, entropy: Any, places: Any, strongest: Any) -> None:
    """Compute the softmax of every row, its entropy, and its largest weights.

    These are ranked by their scores, which order them as weights do, and also order those that have become 0.

    Args:
        masked: Scores, (n, size); −inf where a key is not allowed, otherwise finite.
        weights: Receives the softmax, (n, size); 0 in a row without an allowed key.
        entropy: Receives −Σ w log₂ w, in bits, (n,); 0 in such a row.
        places: Receives places of the largest weights in order, the first of equals first, (n, count), where count
            may be 0; −1 where fewer keys are allowed.
        strongest: Receives these weights, (n, count); 0 where fewer keys are allowed.
    """
    maxima = np.empty(-(-masked.shape[1] // CHUNK), np.float32)
    block = np.empty((2, BLOCK), np.float32)
    for i in range(len(masked)):
        row, shares = masked[i], weights[i]
        _chunk_maxima(row, maxima, _U(CHUNK))
        largest = _NOTHING
        for one in maxima:
            largest = _larger(largest, one)
        if largest == _NOTHING:
            shares[:] = _F(0)
            entropy[i] = _F(0)
        else:
            total, weighted = _powers(row, shares, largest, block)
            inverse = _F(1) / total
            for j in range(row.size):
                shares[j] *= inverse
            # log w = (s − largest) − log Σ
            entropy[i] = max(_F(0), (log(total) - weighted * inverse) * _ONE_OVER_LOG_2)
        _strongest(row, maxima, _U(CHUNK), places[i], strongest[i])
        for j in range(places.shape[1]):
            strongest[i, j] = shares[places[i, j]] if places[i, j] >= 0 else _F(0)
