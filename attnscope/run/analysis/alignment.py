"""When each token of a text is heard: dynamic time warping over heads that align the text with sound.

As in Whisper (Radford et al., 2022) and in transformers: weights are standardised over tokens, smoothed over time by a
median, and averaged over heads; a path that only goes forward in both collects the most of them.
"""

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from attnscope.findings.arrays import Matrix

    Places = np.ndarray[Any, np.dtype[np.int64]]


@dataclass(frozen=True)
class WarpPath:
    """The path of a text through a sound."""

    rows: "Places"  # of every step of the path, ascending
    frames: "Places"  # of every step, ascending

    def starts(self) -> "Places":
        """Return the frame in which the path reaches every row, (rows,)."""
        return self.frames[np.diff(self.rows, prepend=-1) > 0]


def align(weights: "np.ndarray[Any, Any]", median_width: int) -> WarpPath:
    """Align rows with frames.

    Args:
        weights: (heads, rows, frames), each row with the weights by which a token is predicted.
        median_width: Frames of the median, odd; 1 for none.
    """
    return warp(-standardised(weights, median_width).mean(axis=0))


def standardised(weights: "np.ndarray[Any, Any]", median_width: int) -> "np.ndarray[Any, Any]":
    """Return weights with mean 0 and deviation 1 over rows, then the median over neighbouring frames; same shape."""
    weights = weights.astype(np.float64)
    deviation = weights.std(axis=-2, keepdims=True)
    # Where all rows weigh a frame the same, as a single row does, it tells nothing.
    centred = (weights - weights.mean(axis=-2, keepdims=True)) / np.where(
        deviation > 0, deviation, 1.0
    )
    margin = median_width // 2
    if centred.shape[-1] <= margin:
        unsmoothed: np.ndarray[Any, Any] = centred
        return unsmoothed
    padded = np.pad(centred, [(0, 0)] * (centred.ndim - 1) + [(margin, margin)], mode="reflect")
    smooth: np.ndarray[Any, Any] = np.median(
        np.lib.stride_tricks.sliding_window_view(padded, median_width, axis=-1), axis=-1
    )
    return smooth


def warp(cost: "Matrix") -> WarpPath:
    """Return the cheapest path from the first cell of (rows, frames) to the last; steps go right, down, or both.

    Diagonals are computed at once: all cells of one depend on the two before. Of equally cheap steps, one in time is
    taken, and sums are kept in float32, as in transformers.
    """
    n_rows, n_frames = cost.shape
    infinite = np.full(n_rows + 1, np.inf, np.float32)
    before, latest = infinite.copy(), infinite.copy()  # sums of the last two diagonals, by row + 1
    before[0] = 0
    steps = np.full((n_rows, n_frames), 2, np.uint8)  # 0: both, 1: down, 2: right
    for diagonal in range(n_rows + n_frames - 1):
        rows = np.arange(max(0, diagonal - n_frames + 1), min(n_rows, diagonal + 1))
        frames = diagonal - rows
        both = before[rows]
        down = latest[rows]
        right = latest[rows + 1]
        step = np.where(
            (both < down) & (both < right), 0, np.where((down < both) & (down < right), 1, 2)
        )
        sums = infinite.copy()
        sums[rows + 1] = cost[rows, frames] + np.choose(step, (both, down, right))
        steps[rows, frames] = step
        before, latest = latest, sums
    row = n_rows - 1
    frame = n_frames - 1
    path = []
    while row >= 0 and frame >= 0:
        path.append((row, frame))
        if row == 0:
            step_taken = 2
        elif frame == 0:
            step_taken = 1
        else:
            step_taken = steps[row, frame]
        row -= step_taken != 2
        frame -= step_taken != 1
    found = np.array(path[::-1], np.int64)
    return WarpPath(found[:, 0], found[:, 1])


# correlation of a row with the mean frame that it reads, from which a head is monotone
_MONOTONE = 0.9
_ROUNDS = 2  # the path is found again by the heads that are strong on the one before
_HEARD = 2 / 3  # of the largest weight on the path: heads above it find the next
_CHOSEN = 3 / 8  # of the largest gain: heads above it are chosen


def alignment_gains(weights: "np.ndarray[Any, Any]", median_width: int) -> "np.ndarray[Any, Any]":
    """Return how well each head times the tokens that rows predict, (heads,): needs no list of heads.

    Many heads go through the sound in order. Some hear the token that is read, others the one that comes next, and only
    these time a text. So the path is first found by the monotone heads that are ahead of the median of all monotone
    ones. A head's gain is its mean standardised weight on the sound of the token that a row predicts, less that on the
    sound of the token before.

    Args:
        weights: Weights of all heads, (heads, rows, frames).
        median_width: See `align`.
    """
    share = weights.sum(axis=-1, dtype=np.float64)  # (heads, rows)
    frames = np.arange(weights.shape[-1])
    centre = (weights @ frames.astype(np.float64)) / np.maximum(share, 1e-12)
    order = np.array(
        [_correlation(of_head, shares) for of_head, shares in zip(centre, share, strict=True)]
    )
    monotone = order >= min(_MONOTONE, float(order.max()))
    ahead = ((centre - np.median(centre[monotone], axis=0)) * share).sum(axis=-1) > 0
    leading = monotone & ahead
    standard = standardised(weights, median_width)
    selected = leading if leading.any() else monotone
    for _ in range(_ROUNDS):
        starts = warp(-standard[selected].mean(axis=0)).starts()[:, None]
        ends = np.maximum(np.append(starts[1:], [[len(frames)]], axis=0), starts + 1)
        within = (frames >= starts) & (frames < ends)  # (rows, frames)
        before = np.concatenate([within[:1], within[:-1]])
        heard = _mean_on(standard, within)
        gains: np.ndarray[Any, Any] = heard - _mean_on(standard, before)
        selected = heard >= _HEARD * heard.max()
    return gains


def choose_alignment_heads(gains: "np.ndarray[Any, Any]") -> list[int]:
    """Return the heads that align best, ascending, by their gains."""
    chosen: list[int] = np.flatnonzero(gains >= _CHOSEN * gains.max()).tolist()
    return chosen


def _mean_on(
    values: "np.ndarray[Any, Any]", cells: "np.ndarray[Any, Any]"
) -> "np.ndarray[Any, Any]":
    mean: np.ndarray[Any, Any] = (values * cells).sum(axis=(-2, -1)) / cells.sum()
    return mean


def _correlation(values: "np.ndarray[Any, Any]", shares: "np.ndarray[Any, Any]") -> float:
    """Return the correlation of values with their place, weighted by shares; 0 if either does not vary."""
    total = shares.sum() or 1.0
    place = np.arange(len(values)) - (np.arange(len(values)) * shares).sum() / total
    centred = values - (values * shares).sum() / total
    spread = np.sqrt((shares * centred**2).sum() * (shares * place**2).sum())
    if spread > 0:
        return float((shares * centred * place).sum() / spread)
    return 0.0
