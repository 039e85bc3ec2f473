"""A walk over a sound: its loudness and seconds above the frames, and no source in its padding."""

import re
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import soundfile

from attnscope.cli import main
from tests.explore.headless import walk_without_terminal

FRAME = 320  # samples of a frame of wav2vec2


def test_the_loudness_of_every_frame_is_above_the_matrix(
    tiny: Callable[[str], Path], sound: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    screens = walk_without_terminal(monkeypatch, "home")
    model = str(tiny("wav2vec2"))
    assert main(["explore", "--audio", str(sound), "-m", model, "--layer", "1", "--head", "0"]) == 0
    lines = screens[0]
    (first, last) = map(int, re.findall(r"keys (\d+)–(\d+)", "\n".join(lines))[0])
    row = next(n for n, line in enumerate(lines) if re.search(r"│ *sound ", line))
    start = lines[row].index("sound ") + len("sound ")
    samples = soundfile.read(sound, dtype="float32")[0]
    levels = np.array([np.abs(samples[n * FRAME :][:FRAME]).max() for n in range(last + 1)])
    every = [np.abs(samples[n : n + FRAME]).max() for n in range(0, len(samples) - 80, FRAME)]
    eighths = np.maximum(1, np.round(8 * levels[first:] / max(every))).astype(int)
    shown = lines[row][start : start + last - first + 1]
    drawn = np.array([" ▁▂▃▄▅▆▇█".index(mark) for mark in shown])
    assert np.abs(drawn - np.where(levels[first:] < 0.02 * max(every), 0, eighths)).max() <= 1
    assert len(set(drawn.tolist())) > 3
    ticks = lines[row + 1][start:]
    for match in re.finditer(r"\d+\.\d", ticks[: last - first]):
        assert abs((first + match.start()) * FRAME / 16_000 - float(match[0])) <= 0.021


@pytest.mark.parametrize("name", ["whisper", "moonshine"])
def test_a_walk_through_words_of_a_sound_has_no_source_in_its_padding(
    tiny: Callable[[str], Path], sound: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    screens = walk_without_terminal(monkeypatch, "end", "space", "]")
    assert main(["explore", "a b", "--audio", str(sound), "-m", str(tiny(name))]) == 0
    sources = re.findall(r"← +(\d+) [\d.]+s", "\n".join(screens[0]))
    count = len(soundfile.read(sound)[0]) // FRAME
    assert sources and max(map(int, sources)) <= count
