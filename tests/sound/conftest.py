"""Sounds and models that hear them."""

import importlib.util
from collections.abc import Callable
from functools import cache
from pathlib import Path

import pytest
import soundfile

from tests.helpers.tiny_sound import noise, write_tiny_sound
from tests.helpers.whisper_tiny import write_whisper_tiny


@pytest.fixture(scope="session")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """Return the folder of a tiny random model."""
    return cache(lambda name: write_tiny_sound(name, tmp_path_factory.mktemp(name)))


@pytest.fixture(scope="session")
def whisper_tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_whisper_tiny(tmp_path_factory.mktemp("whisper"))


@pytest.fixture(scope="session")
def sound(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two seconds of noise."""
    path = tmp_path_factory.mktemp("sounds") / "noise.wav"
    soundfile.write(path, noise(2), 16_000)
    return path


@pytest.fixture(scope="session")
def speech() -> Path:
    """Ten seconds of Beckett, read aloud."""
    spec = importlib.util.find_spec("moonshine_voice")
    if spec is None or spec.origin is None:
        pytest.skip("needs speech: pip install --no-deps moonshine-voice==0.1.5")
    return Path(spec.origin).parent / "assets" / "beckett.wav"
