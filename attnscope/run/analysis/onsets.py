"""Where words start in a sound: the times of an alignment, moved to onsets of the sound near them.

Attention says which word is heard, but only roughly when. So all words of a window are placed at once, where the
spectrum changes, near their time on the path, with lengths that fit their letters, and without a pause inside.
"""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from attnscope.findings.arrays import Floats, Matrix

ONSET_RATE = 16_000  # samples a second
_HOP = 160  # samples between places at which a word may start: 10 ms
_WINDOW = 400  # samples of which each place has a spectrum
_BANDS = 40
_FLOOR = 1e-5  # of the largest energy of a band: what is below it is not heard
_SIDE = 6  # places before and after an onset whose spectra are compared
_REACH = 30  # places that a start is moved by at most
_EARLIER = 8  # places by which speech starts before the path reaches its word
_DEVIATION = 6  # of that, in places
_FAR = 9.0  # largest cost of a distance
_CHANGE = 0.5  # weight of a change of the spectrum
_LENGTHS = 0.2  # deviation of the logarithm of a word's length from that of its letters
_CLOSURE = 7  # silent places that sounds such as t and k have inside a word
_PAUSE = 2.0  # weight of each silent place in a word beyond them
_SILENT = 1 / 50  # of the loudest place
_NOISE = 3  # times the level of the quietest tenth
_STEADY = 5  # places of which most are loud, or silent


def word_times(
    samples: "Floats", starts: Sequence[float], texts: Sequence[str]
) -> list[tuple[float, float]]:
    """Return start and end of each word in seconds; a word ends where its last sound does.

    Args:
        starts: Seconds at which the alignment starts the words, ascending.
        texts: The words, whose letters say how long each should be.
    """
    energies = band_energies(samples)
    if not starts or len(energies) < 2:
        return [(start, start) for start in starts]
    loud = loud_places(samples)
    places = _placed(
        loud,
        np.log(changes(energies) + 0.01),
        [start * ONSET_RATE / _HOP for start in starts],
        _letters(texts),
    )
    ends = [*places[1:], len(loud)]
    times = []
    for start, end in zip(places, ends, strict=True):
        heard = np.flatnonzero(loud[start:end])
        last = start + int(heard[-1]) + 1 if len(heard) else end
        times.append((start * _HOP / ONSET_RATE, last * _HOP / ONSET_RATE))
    return times


def band_energies(samples: "Floats") -> "Matrix":
    """Return the logarithm of the energy in bands of the mel scale around every place, (places, bands)."""
    count = len(samples) // _HOP
    windows = np.lib.stride_tricks.sliding_window_view(np.pad(samples, _WINDOW // 2), _WINDOW)[
        ::_HOP
    ][:count]
    power = np.abs(np.fft.rfft(windows * np.hanning(_WINDOW))) ** 2
    mel = np.log1p(np.fft.rfftfreq(_WINDOW, 1 / ONSET_RATE) / 700)
    edges = np.linspace(mel[1], mel[-1], _BANDS + 2)[:, None]
    rising = (mel - edges[:-2]) / (edges[1] - edges[0])
    bands = power @ np.maximum(0, np.minimum(rising, 2 - rising)).T
    logarithms: Matrix = np.log10(np.maximum(bands / (bands.max(initial=0) or 1), _FLOOR))
    return logarithms


def changes(energies: "Matrix") -> "np.ndarray[Any, Any]":
    """Return how far the mean spectra after and before each place are apart, (places,)."""
    sums = np.concatenate([np.zeros((1, energies.shape[1])), energies.cumsum(axis=0)])
    frame = np.arange(1, len(energies))[:, None]
    start = np.maximum(0, frame - _SIDE)
    last = np.minimum(len(energies), frame + _SIDE)
    means = [(sums[b] - sums[a])[:, 0] / (b - a) for a, b in ((start, frame), (frame, last))]
    distances = np.sqrt(((means[1] - means[0]) ** 2).mean(axis=-1))
    return np.concatenate([[0.0], distances])


def loud_places(samples: "Floats") -> "np.ndarray[Any, np.dtype[np.bool_]]":
    """Return whether there is sound at every place, (places,)."""
    count = len(samples) // _HOP
    padded = np.pad(samples, _HOP // 2)
    windows = np.lib.stride_tricks.sliding_window_view(padded, 2 * _HOP)[::_HOP][:count]
    level = np.sqrt((windows.astype(np.float64) ** 2).mean(axis=-1))
    loud = level > max(
        _SILENT * level.max(), min(_NOISE * np.quantile(level, 0.1), level.max() / 10)
    )
    middle = _STEADY // 2
    # not "same", which is as long as the longer of both
    return np.convolve(loud, np.ones(_STEADY))[middle : middle + count] > _STEADY / 2


def _letters(texts: Sequence[str]) -> "np.ndarray[Any, Any]":
    return np.array([1 + sum(character.isalnum() for character in text) for text in texts], float)


def _placed(
    loud: "np.ndarray[Any, Any]",
    change: "np.ndarray[Any, Any]",
    near: Sequence[float],
    letters: "np.ndarray[Any, Any]",
) -> list[int]:
    """Return the place of each word: the best of all, by dynamic programming over the places near each."""
    sounding = np.concatenate([[0], loud.cumsum()])
    pauses = _pauses(loud).cumsum()
    count = len(loud)
    heard = [
        _next_loud(loud, round(a), round(b)) for a, b in zip(near, [*near[1:], count], strict=True)
    ]
    candidates = [
        np.arange(
            max(0, min(place, count) - _REACH), max(1, min(max(place + _REACH, following), count))
        )
        for place, following in zip(heard, [*heard[1:], count], strict=True)
    ]
    first = max(0, heard[0] - _EARLIER)
    expected = np.maximum(1, (sounding[-1] - sounding[first]) * letters / letters.sum())

    def fit(length: "np.ndarray[Any, Any]", word: int) -> "np.ndarray[Any, Any]":
        deviation: np.ndarray[Any, Any] = (
            np.log(np.maximum(length, 0.1) / expected[word]) / _LENGTHS
        )
        return -(deviation**2) / 2

    value = np.zeros(0)
    back = []
    for word, places in enumerate(candidates):
        apart = ((places - heard[word] + _EARLIER) / _DEVIATION) ** 2 / 2
        own = _CHANGE * change[places] - np.minimum(apart, _FAR)
        if not word:
            value = own
            continue
        start = candidates[word - 1][:, None]
        end = places[None]
        inside = np.maximum(0, pauses[np.maximum(end - 1, 0)] - pauses[start])
        step = fit(sounding[end] - sounding[start], word - 1) - _PAUSE * inside
        total = value[:, None] + np.where(end > start, step, -np.inf)
        # words that the path starts together near an end of the sound may have no room
        total = np.where(np.isfinite(total), total, -1e9)
        back.append(total.argmax(axis=0))
        value = total.max(axis=0) + own
    start = candidates[-1]
    value = value + fit(sounding[-1] - sounding[start], -1) - _PAUSE * (pauses[-1] - pauses[start])
    index = int(value.argmax())
    placed = [int(start[index])]
    for choice, places in zip(reversed(back), reversed(candidates[:-1]), strict=True):
        index = int(choice[index])
        placed.append(int(places[index]))
    ordered: list[int] = np.maximum.accumulate(placed[::-1]).tolist()
    return ordered


def _next_loud(loud: "np.ndarray[Any, Any]", start: int, end: int) -> int:
    """Return the first place from `start` on that is loud; `start` if all before `end` are silent."""
    found = np.flatnonzero(loud[start:end])
    return start + int(found[0]) if len(found) else start


def _pauses(loud: "np.ndarray[Any, Any]") -> "np.ndarray[Any, Any]":
    """Return how much longer than a closure the silence is that ends at each place, (places,)."""
    lengths = np.zeros(len(loud))
    silent = 0
    for frame, sounds in enumerate(loud):
        if sounds:
            lengths[frame] = max(0, silent - _CLOSURE)
        silent = 0 if sounds else silent + 1
    return lengths
