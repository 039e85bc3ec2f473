"""Sound files: every rate and width is heard as it was made, and what cannot be read is one line."""

import re
from pathlib import Path

import numpy as np
import pytest
import soundfile

from attnscope.base.errors import AttnscopeError
from attnscope.base.files.sound import open_sound

RATE = 16_000


def tone(rate: int, seconds: float = 2.0, pitch: float = 440.0) -> np.ndarray:
    return 0.5 * np.sin(2 * np.pi * pitch * np.arange(round(rate * seconds)) / rate)


@pytest.mark.parametrize("rate", [8_000, 11_025, 16_000, 22_050, 44_100, 48_000])
@pytest.mark.parametrize("subtype", ["PCM_16", "PCM_24", "FLOAT"])
def test_a_tone_is_the_same_tone_at_the_rate_of_the_model(
    tmp_path: Path, rate: int, subtype: str
) -> None:
    soundfile.write(tmp_path / "tone.wav", tone(rate), rate, subtype=subtype)
    heard = open_sound(tmp_path / "tone.wav").read(RATE)
    assert heard.dtype == np.float32
    assert len(heard) == 2 * RATE
    # a filter needs what is before and after
    np.testing.assert_allclose(heard[300:-300], tone(RATE)[300:-300], atol=2e-4)


@pytest.mark.parametrize("rate", [8_000, 16_000, 48_000])
def test_a_part_is_what_the_whole_has_there(tmp_path: Path, rate: int) -> None:
    soundfile.write(tmp_path / "tone.wav", tone(rate), rate)
    file = open_sound(tmp_path / "tone.wav")
    part = file.read(RATE, 0.5, 0.75)
    np.testing.assert_allclose(part, file.read(RATE)[RATE // 2 : RATE // 2 + 12_000], atol=1e-5)
    assert len(file.read(RATE, 1.5, 30)) == RATE // 2


def test_channels_are_averaged(tmp_path: Path) -> None:
    soundfile.write(
        tmp_path / "two.flac", np.stack([tone(RATE), tone(RATE, pitch=300)], axis=1), RATE
    )
    file = open_sound(tmp_path / "two.flac")
    np.testing.assert_allclose(file.read(RATE), (tone(RATE) + tone(RATE, pitch=300)) / 2, atol=1e-4)
    assert file.notes == ("the mean of 2 channels is heard",)


def test_a_wav_that_is_cut_off_says_how_much_is_missing(tmp_path: Path) -> None:
    soundfile.write(tmp_path / "tone.wav", tone(RATE), RATE, subtype="PCM_16")
    whole = (tmp_path / "tone.wav").read_bytes()
    (tmp_path / "cut.wav").write_bytes(whole[:-20_000])
    file = open_sound(tmp_path / "cut.wav")
    assert file.n_samples == 22_000
    assert file.notes == (
        "cut.wav is cut off: the last 20,000 bytes that its header promises are missing",
    )
    assert open_sound(tmp_path / "tone.wav").notes == ()


def test_an_ogg_that_is_cut_off_between_pages_says_so(tmp_path: Path) -> None:
    """Its pages before are whole, so that nothing else tells."""
    noise = np.random.default_rng(0).normal(0, 0.1, 4 * RATE)
    soundfile.write(tmp_path / "noise.ogg", noise, RATE)
    assert open_sound(tmp_path / "noise.ogg").notes == ()
    whole = (tmp_path / "noise.ogg").read_bytes()
    pages = [match.start() for match in re.finditer(b"OggS", whole)]
    for end in (pages[-1], (pages[-2] + pages[-1]) // 2):
        (tmp_path / "cut.ogg").write_bytes(whole[:end])
        file = open_sound(tmp_path / "cut.ogg")
        assert file.notes == ("cut.ogg is cut off: the page that ends it is missing",)
        assert 0 < file.n_samples < 4 * RATE


@pytest.mark.parametrize("ending", ["flac", "ogg"])
def test_a_compressed_file_that_is_cut_off_is_refused(tmp_path: Path, ending: str) -> None:
    soundfile.write(tmp_path / f"tone.{ending}", tone(RATE), RATE)
    whole = (tmp_path / f"tone.{ending}").read_bytes()
    (tmp_path / f"cut.{ending}").write_bytes(whole[: len(whole) // 2])
    with pytest.raises(AttnscopeError, match=r"cannot be read as|ends after"):
        open_sound(tmp_path / f"cut.{ending}").read(RATE)


def test_what_is_no_sound_is_one_line_that_says_what_to_do(tmp_path: Path) -> None:
    soundfile.write(tmp_path / "none.wav", np.zeros(0), RATE)
    soundfile.write(tmp_path / "nan.wav", np.full(10, np.nan), RATE, subtype="FLOAT")
    (tmp_path / "empty.wav").touch()
    (tmp_path / "text.wav").write_text("no sound at all")
    errors = {}
    for name in ("none.wav", "nan.wav", "empty.wav", "text.wav", "talk.mp3", "missing.wav"):
        with pytest.raises(AttnscopeError) as raised:
            open_sound(tmp_path / name).read(RATE)
        errors[name] = str(raised.value).removeprefix(str(tmp_path / name))
    assert errors == {
        "none.wav": ": has no samples",
        "nan.wav": ": has samples that are no finite numbers",
        "empty.wav": ": is empty",
        "text.wav": ": cannot be read as wav (Format not recognised); "
        "convert it: ffmpeg -i text.wav text-converted.wav",
        "talk.mp3": ": sound is read from .wav, .flac, .ogg, not from '.mp3'; convert it: ffmpeg -i talk.mp3 talk.wav",
        "missing.wav": ": no such file",
    }
