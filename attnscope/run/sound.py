"""Hear a sound window by window: what was said, and when, by the heads that align text with sound."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from dataclasses import replace as replace_fields
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from msgspec.structs import replace

from attnscope.base.files.sound import open_sound
from attnscope.checkpoints.source import ModelSource
from attnscope.findings.sound import Sound, SoundPath, SoundWord
from attnscope.request.media import MediaText
from attnscope.request.run_config import RunConfig, TextInput
from attnscope.request.selection import AUTO
from attnscope.run.analysis.alignment import align, alignment_gains, choose_alignment_heads
from attnscope.run.analysis.onsets import ONSET_RATE, word_times
from attnscope.run.analysis.speech import speech_words
from attnscope.run.rendering import read_media

if TYPE_CHECKING:
    from torch import Tensor

    from attnscope.engines.protocol import Engine
    from attnscope.findings.arrays import Array
    from attnscope.model.tile import Recorder

    # runs the whole model on a request, with recorders for the engine by layer; returns both, and final hidden states
    Recorders = Mapping[int, Sequence[Recorder]]
    Observe = Callable[[RunConfig, Callable[[Engine], Recorders]], tuple[Engine, Recorders, Tensor]]
Progress = Callable[[str, int, int], None]


def hear(
    run: RunConfig, source: ModelSource, observe: "Observe", on_progress: Progress
) -> RunConfig:
    """Return a run whose sounds have their words, and of long sounds the window with the second that is named."""
    return replace(
        run, texts=tuple(_heard(run, source, observe, on_progress, text) for text in run.texts)
    )


def _heard(
    run: RunConfig, source: ModelSource, observe: "Observe", on_progress: Progress, text: TextInput
) -> TextInput:
    if text.read is None or text.read.sound is None:
        return text
    second = next(
        (s for s in (run.query, run.key) if s is not None and s.seconds() is not None), None
    )
    named = None if second is None else second.seconds()
    if text.read.speech is None:
        if named is None or named < (text.read.next_start or np.inf):
            return text
        return _at(text, source, named)
    words: list[SoundWord] = []
    shown = text
    for window in windows(text, source):
        assert window.read is not None and window.read.sound is not None
        sound = window.read.sound
        on_progress("hearing", int(sound.start), int(sound.seconds) + 1)
        of_window, path = aligned(run, observe, window)
        is_shown = window is text or (named is not None and named >= sound.start)
        if is_shown:
            words = [replace(word, tokens=None) for word in words]
            shown = replace(window, read=_with_sound(window.read, path=path))
        if is_shown:
            words += of_window
        else:
            words += [replace(word, tokens=None) for word in of_window]
    assert shown.read is not None
    return replace(shown, read=_with_sound(shown.read, words=words))


def windows(text: TextInput, source: ModelSource) -> Iterator[TextInput]:
    """Yield a text whose sound has been read, then the further windows of the sound, each read when it is wanted."""
    while True:
        yield text
        assert text.read is not None
        if text.read.next_start is None:
            return
        text = _at(text, source, text.read.next_start)


def _at(text: TextInput, source: ModelSource, second: float) -> TextInput:
    """Return the window of a text's sound that starts at, or for a model without a text, holds a second."""
    (medium,) = text.media
    return read_media(
        replace(text, text="", read=None, media=(replace(medium, start=second),)), source
    )


def _with_sound(media_text: MediaText, **values: Any) -> MediaText:
    assert media_text.sound is not None
    return replace_fields(media_text, sound=replace(media_text.sound, **values))


@dataclass(frozen=True)
class RecordedHeads:
    """What a pass over one window gave."""

    engine: "Engine"
    hidden: "Tensor"  # final hidden states, (1, tokens, D)
    heads: list[tuple[int, int]]  # layer and head of the recorded heads, in order
    # of these heads, in the rows that predict what was said, on the sound: (heads, rows, frames)
    weights: "Array"


def record_heads(
    run: RunConfig, observe: "Observe", text: TextInput, heads: Sequence[tuple[int, int]] = ()
) -> RecordedHeads:
    """Run one window and record some heads, or all of them."""
    import torch

    from attnscope.model.recorders.matrices import MatrixRecorder

    assert text.read is not None and text.read.sound is not None and text.read.speech is not None
    frames = range(text.read.sound.n_frames)
    rows = range(text.read.speech.prompt - 1, len(text.read.tokens))
    listed = sorted(heads)

    def recorders_of(engine: "Engine") -> "Recorders":
        if not listed:
            listed.extend(
                (layer, head) for layer in engine.layers for head in range(engine.sizes[1])
            )
        of_layers = {
            layer: [head for of, head in listed if of == layer] for layer in sorted(dict(listed))
        }
        return {
            layer: [MatrixRecorder(("weights",), some, rows, frames)]
            for layer, some in of_layers.items()
        }

    window = replace(run, texts=(text,), layer=AUTO, head=AUTO, query=None, key=None, words=False)
    engine, recorders, hidden = observe(window, recorders_of)
    recorded = [
        recorder for (recorder,) in recorders.values() if isinstance(recorder, MatrixRecorder)
    ]
    weights: Array = (
        torch.cat([recorder.compute()["weights"][0] for recorder in recorded]).cpu().numpy()
    )
    return RecordedHeads(engine, hidden, listed, weights)


def aligned(
    run: RunConfig, observe: "Observe", text: TextInput
) -> tuple[list[SoundWord], SoundPath]:
    """Return the words of one window and the path that times them."""
    import torch

    assert text.read is not None and text.read.sound is not None and text.read.speech is not None
    speech = text.read.speech
    sound = text.read.sound
    tokens = text.read.tokens
    recorded = record_heads(run, observe, text, speech.heads)
    heads = recorded.heads
    weights = recorded.weights
    if not speech.heads:
        places = choose_alignment_heads(alignment_gains(weights, speech.median_width))
        heads = [heads[place] for place in places]
        weights = weights[places]
    starts = align(weights, speech.median_width).starts()
    ends = [*starts.tolist(), sound.n_frames]
    rows = range(speech.prompt - 1, len(tokens))
    logits = recorded.engine.logits(recorded.hidden[0, rows.start :])
    ids = torch.tensor(
        [*(token.id for token in tokens[speech.prompt :]), speech.end], device=logits.device
    )
    probabilities = torch.softmax(logits, -1).gather(1, ids[:, None])[:, 0].tolist()
    words = speech_words(
        text.read.text,
        tokens,
        speech.prompt,
        lambda position: sound.seconds_of(ends[position - speech.prompt]),
        lambda position: sound.seconds_of(ends[position - speech.prompt + 1]),
        lambda position: probabilities[position - speech.prompt],
    )
    mean = weights.mean(axis=0, dtype=np.float64).astype(np.float32)
    path = SoundPath(heads, not speech.heads, list(rows), starts.tolist(), mean)
    return _with_onsets(words, sound), path


def _with_onsets(words: list[SoundWord], sound: Sound) -> list[SoundWord]:
    """Return words with the times of their sounds, which the path's are near."""
    samples = open_sound(Path(sound.name)).read(
        ONSET_RATE, sound.start, sound.n_frames * sound.frame
    )
    near = [word.start - sound.start for word in words]
    times = word_times(samples, near, [word.text for word in words])
    return [
        replace(word, onset=round(sound.start + onset, 2), offset=round(sound.start + offset, 2))
        for word, (onset, offset) in zip(words, times, strict=True)
    ]
