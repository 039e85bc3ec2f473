"""What a model hears, as plain data: the sound behind tokens, and when each word of it was said."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Annotated

import msgspec

from attnscope.findings.arrays import Floats, Matrix, along


class SoundWord(msgspec.Struct, frozen=True):
    """A word that was said.

    Attributes:
        text: The word with its punctuation.
        onset: Second in the file at which its sound starts.
        offset: Second at which its sound ends.
        start: Second at which the path through attention reaches it, as in transformers.
        end: Second at which the path reaches the next token.
        confidence: Mean probability of its tokens, each after those before it.
        tokens: First token of the word in the text, and the token after its last; null for a word of another window.
    """

    text: str
    onset: float
    offset: float
    start: float
    end: float
    confidence: float
    tokens: tuple[int, int] | None = None


class SoundPath(msgspec.Struct, frozen=True):
    """How a text was aligned with a sound: the cheapest path by dynamic time warping.

    Attributes:
        heads: Layer and head of the heads whose weights were aligned.
        chosen: Whether attnscope chose the heads, because the checkpoint lists none.
        rows: Positions of the tokens whose rows of weights were aligned, each of which predicts the token after it.
        starts: Frame in which the path reaches each of these rows.
        weights: Weights of these rows on the frames of the sound, averaged over the heads.
    """

    heads: list[tuple[int, int]]
    chosen: bool
    rows: Annotated[list[int], along("aligned row", positions="token", ascending=True)]
    starts: Annotated[list[int], along("aligned row", positions="frame")]
    weights: Annotated[Matrix, along("aligned row", "frame")]


class Sound(msgspec.Struct, frozen=True):
    """A sound whose frames are tokens; of a long one, the window that is shown.

    Attributes:
        name: Its file; `audio 0` for one that was in memory.
        seconds: Length of the file.
        start: Second of the file at which the window starts.
        frame: Seconds from one frame to the next.
        levels: Loudest sample of every frame, 0 to 1.
        bands: Frequency bands, each with a token in every frame, band after band; 1 for models of whole frames.
        before: Tokens of the model's own before the frames.
        words: The words of the whole file; empty for a model that writes no text.
        path: How they were aligned with the window; null for a model that writes no text.
        told: Whether the text was given, and not written down by the model.
    """

    name: str
    seconds: float
    start: float
    frame: float
    levels: Annotated[Floats, along("frame", filled=True)]
    bands: int = 1
    before: int = 0
    words: list[SoundWord] = []
    path: SoundPath | None = None
    told: bool = False

    def contradictions(self, lengths: Mapping[str, int]) -> Iterator[tuple[str, str]]:
        """Yield contradictions that axes cannot express; see `axes`."""
        if not self.frame > 0 or self.bands < 1 or self.before < 0:
            yield "frame", "is not above 0, or there are no bands"

    @property
    def n_frames(self) -> int:
        """Number of frames."""
        return len(self.levels)

    def seconds_of(self, frame: int) -> float:
        """Return the second of the file at which a frame starts."""
        return round(self.start + frame * self.frame, 6)

    def tokens_between(self, start: float, end: float) -> list[int]:
        """Return the tokens of the frames that overlap a range of seconds, or have its only second; none outside."""
        first = int((start - self.start) / self.frame + 1e-6)
        last = max(first, int((end - self.start) / self.frame - 1e-6))
        if start >= self.start:
            frames = range(max(0, first), min(self.n_frames, last + 1))
        else:
            frames = range(0)
        return [
            self.before + band * self.n_frames + frame
            for band in range(self.bands)
            for frame in frames
        ]


def frame_name(seconds: float) -> str:
    """Return the name of a frame's token, such as `2.40s`."""
    return f"{seconds:.2f}s"


_LONGEST_LINE = 84  # characters of a subtitle: two lines of 42
_LONGEST_SHOWN = 7.0  # seconds of a subtitle
_PAUSE = 1.0  # seconds of silence that end a subtitle


def subtitles(words: Sequence[SoundWord]) -> Iterator[list[SoundWord]]:
    """Divide words into subtitles: at ends of sentences, at pauses, and where one would be too long."""
    line = list[SoundWord]()
    for word in words:
        text = "".join(entry.text for entry in [*line, word]).strip()
        too_long = len(text) > _LONGEST_LINE or (
            line and word.offset - line[0].onset > _LONGEST_SHOWN
        )
        if line and (
            too_long
            or word.onset - line[-1].offset > _PAUSE
            or line[-1].text.rstrip("\"'”’)")[-1:] in ".?!。？！"
        ):
            yield line
            line = []
        line.append(word)
    if line:
        yield line


def srt_lines(words: Sequence[SoundWord]) -> Iterator[str]:
    """Yield the lines of an .srt file."""
    for number, line in enumerate(subtitles(words), 1):
        yield f"{number}\n{_clock(line[0].onset, ',')} --> {_clock(line[-1].offset, ',')}\n{_spoken(line)}\n\n"


def vtt_lines(words: Sequence[SoundWord]) -> Iterator[str]:
    """Yield the lines of a .vtt file, in which every word has its own time."""
    yield "WEBVTT\n\n"
    for line in subtitles(words):
        yield f"{_clock(line[0].onset, '.')} --> {_clock(line[-1].offset, '.')}\n"
        escaped = [
            word.text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
            for word in line
        ]
        timed = "".join(
            f"<{_clock(word.onset, '.')}>{text}"
            for word, text in zip(line[1:], escaped[1:], strict=True)
        )
        yield f"{escaped[0].lstrip()}{timed}\n\n"


def _spoken(line: Sequence[SoundWord]) -> str:
    return " ".join("".join(word.text for word in line).split())


def _clock(seconds: float, mark: str) -> str:
    """Return a time of subtitles, such as `00:01:02,345`, with the mark before milliseconds."""
    milliseconds = round(seconds * 1000)
    minutes = f"{milliseconds // 3_600_000:02}:{milliseconds // 60_000 % 60:02}"
    return f"{minutes}:{milliseconds // 1000 % 60:02}{mark}{milliseconds % 1000:03}"
