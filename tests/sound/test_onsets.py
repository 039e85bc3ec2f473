"""Starts of words that are moved to onsets of the sound, without a model: the path is off by a known amount."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import soundfile
import soxr

import attnscope
from attnscope.run.analysis.onsets import ONSET_RATE, word_times
from tests.helpers.espeak import say
from tests.helpers.tiny_sound import noise

BURSTS = [(0.4, 0.7), (1.0, 1.2), (1.9, 2.6)]
TEXTS = [" tried", " few", " rememberers"]
SAID = (
    "In summer we walked along rivers and counted seven boats.",
    "Big black dogs bark because people pass by slowly.",
)


def bursts() -> np.ndarray:
    samples = np.random.default_rng(0).normal(size=3 * ONSET_RATE).astype(np.float32) * 1e-4
    for start, end in BURSTS:
        part = slice(round(start * ONSET_RATE), round(end * ONSET_RATE))
        samples[part] += noise(3)[part] + 0.1 * np.sin(np.arange(part.stop - part.start))
    return samples


@pytest.mark.parametrize("off", [-0.2, -0.05, 0.15])
def test_words_start_and_end_with_their_sounds(off: float) -> None:
    times = word_times(bursts(), [start + off for start, _ in BURSTS], TEXTS)
    np.testing.assert_allclose(times, BURSTS, atol=0.03)


def test_words_without_room_stay_in_order() -> None:
    for samples in (
        bursts(),
        np.zeros(ONSET_RATE, np.float32),
        bursts()[:200],
        # fewer places than those of which most are loud
        bursts()[8000:8400],
        bursts()[8000:8700],
        np.zeros(0, np.float32),
    ):
        seconds = len(samples) / ONSET_RATE
        times = word_times(samples, [seconds] * 5, ["a"] * 5)
        assert len(times) == 5
        assert all(0 <= start <= end <= seconds + 0.01 for start, end in times)
        assert sorted(times) == times
    assert word_times(bursts(), [], []) == []


@pytest.mark.parametrize(("gap", "share"), [(10, 0.95), (0, 0.8)])
def test_onsets_of_a_synthesised_sentence_correct_a_path_that_is_off(
    gap: int, share: float
) -> None:
    draw = np.random.default_rng(0)
    errors: list[float] = []
    for sentence in SAID:
        samples, rate, known = say(sentence, gap=gap)
        resampled = soxr.resample(samples, rate, ONSET_RATE)
        off = np.maximum.accumulate(np.array(known) + 0.05 + draw.normal(0, 0.06, len(known)))
        times = word_times(resampled, off.tolist(), sentence.split())
        errors += np.abs(np.array(times)[:, 0] - known).tolist()
    assert (np.array(errors) <= 0.08).mean() >= share


def test_words_have_the_onsets_of_their_sounds_beside_the_path(
    tiny: Callable[[str], Path], tmp_path: Path
) -> None:
    soundfile.write(tmp_path / "bursts.wav", bursts(), ONSET_RATE, subtype="FLOAT")
    report = attnscope.inspect(
        "abc de fg", model=tiny("whisper"), audio=tmp_path / "bursts.wav", layer=0, head=0
    )
    sound = report.data.texts[0].sound
    assert sound is not None
    starts = [word.start for word in sound.words]
    expected = word_times(bursts(), starts, [word.text for word in sound.words])
    np.testing.assert_allclose(
        [(word.onset, word.offset) for word in sound.words], expected, atol=0.006
    )
    assert [word.onset for word in sound.words] != starts
    screen = str(report)
    for word in sound.words:
        assert f"{word.onset:.2f}" in screen and f"{word.start:.2f}" in screen
