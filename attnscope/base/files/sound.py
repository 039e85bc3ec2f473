"""Read sound files as samples of one channel, at the rate that a model takes."""

import struct
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from attnscope.base.errors import AUDIO, AttnscopeError
from attnscope.base.files.reading import open_regular

if TYPE_CHECKING:
    import numpy as np

    Samples = np.ndarray[Any, np.dtype[np.float32]]

ENDINGS = (".wav", ".flac", ".ogg")
# seconds around a part, so that the filter of the resampler sees what is beyond its edges
_MARGIN = 0.05
# bytes of a page of .ogg at most; the fifth behind its name has 4 on the page that ends a stream
_OGG_PAGE = 65_307
_STREAMED = (0, 0xFFFFFFFF)  # sizes in the header of a .wav whose writer did not know its length


@dataclass(frozen=True)
class SoundFile:
    """A sound file, of which any part can be read."""

    path: Path
    rate: int  # samples of each channel a second
    n_samples: int  # of each channel
    notes: tuple[str, ...] = ()  # what is not heard as the file has it

    @property
    def seconds(self) -> float:
        """Length of the file."""
        return self.n_samples / self.rate

    def read(self, rate: int, start: float = 0.0, seconds: float | None = None) -> "Samples":
        """Return the mean of the channels from `start` on, at a rate in samples a second, (samples,).

        Args:
            seconds: Length of the part; None for the rest of the file. Less is returned where the file ends.
        """
        import numpy as np
        import soundfile

        if seconds is None:
            length = max(0.0, self.seconds - start)
        else:
            length = min(seconds, max(0.0, self.seconds - start))
        first_sample = max(0, round((start - _MARGIN) * self.rate))
        last_sample = min(self.n_samples, round((start + length + _MARGIN) * self.rate))
        try:
            with soundfile.SoundFile(self.path) as file:
                file.seek(first_sample)
                channels = file.read(last_sample - first_sample, dtype="float32", always_2d=True)
        except (soundfile.SoundFileError, OSError) as e:
            raise _unreadable(self.path, e) from e
        if len(channels) < last_sample - first_sample:
            ends = (first_sample + len(channels)) / self.rate
            message = f"ends after {ends:.2f} of {self.seconds:.2f} s"
            raise AttnscopeError(message, where=self.path, hint="copy or download the file again")
        samples = channels.mean(axis=1, dtype=np.float32)
        if not np.isfinite(samples).all():
            raise AttnscopeError("has samples that are no finite numbers", where=self.path)
        if rate != self.rate:
            import soxr

            samples = soxr.resample(samples, self.rate, rate)
        skipped = round(start * rate) - round(first_sample / self.rate * rate)
        part: Samples = samples[skipped : skipped + round(length * rate)]
        return part


def open_sound(path: Path) -> SoundFile:
    """Open a .wav, .flac or .ogg file."""
    if path.suffix.lower() not in ENDINGS:
        what = f"'{path.suffix}'" if path.suffix else "a name without extension"
        hint = f"convert it: ffmpeg -i {path.name} {path.stem}.wav"
        raise AttnscopeError(
            f"sound is read from {', '.join(ENDINGS)}, not from {what}", where=path, hint=hint
        )
    AUDIO.require("reading sound", path)
    import soundfile

    with open_regular(path) as (file, status):
        header = file.read(12)
        file.seek(max(0, status.st_size - _OGG_PAGE))
        tail = file.read()
    if not status.st_size:
        raise AttnscopeError("is empty", where=path)
    try:
        info = soundfile.info(path)
    except (soundfile.SoundFileError, OSError) as e:
        raise _unreadable(path, e) from e
    if not info.frames:
        raise AttnscopeError("has no samples", where=path)
    notes = []
    if info.channels > 1:
        notes.append(f"the mean of {info.channels} channels is heard")
    if missing := _missing_bytes(header, status.st_size):
        notes.append(
            f"{path.name} is cut off: the last {missing:,} bytes that its header promises are missing"
        )
    last_page = tail.rfind(b"OggS")
    if header[:4] == b"OggS" and not any(
        flags & 4 for flags in tail[last_page + 5 : last_page + 6]
    ):
        notes.append(f"{path.name} is cut off: the page that ends it is missing")
    return SoundFile(path, info.samplerate, info.frames, tuple(notes))


def _missing_bytes(header: bytes, size: int) -> int:
    """Return how many bytes a .wav file lacks of those that its header promises; 0 for none, and other formats."""
    if header[:4] != b"RIFF" or len(header) < 12:
        return 0
    (promised,) = struct.unpack("<I", header[4:8])
    # some writers leave out a byte that only pads the last chunk
    return 0 if promised in _STREAMED or promised + 7 <= size else promised + 8 - size


def _unreadable(path: Path, error: Exception) -> AttnscopeError:
    reason = str(getattr(error, "error_string", error)).rstrip(".")
    hint = f"convert it: ffmpeg -i {path.name} {path.stem}-converted.wav"
    return AttnscopeError(
        f"cannot be read as {path.suffix[1:].lower()} ({reason})", where=path, hint=hint
    )
