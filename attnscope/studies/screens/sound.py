"""What a model heard: words with their times, and weights over seconds with the sound above them."""

from collections.abc import Iterator, Sequence

import numpy as np

from attnscope.findings.heads import Pooled
from attnscope.findings.run import TextReport
from attnscope.findings.sound import Sound, frame_name, subtitles
from attnscope.studies.screens.stages import row_sum
from attnscope.views.axes import Axis, token_axis
from attnscope.views.numbers import number_text
from attnscope.views.parts import GAP, Column, SoundMap, Table, ViewPart, paragraph
from attnscope.views.settings import DisplaySettings
from attnscope.views.spans import Span, Spans, headed, ours, token_span, untrusted

_MOST_WORDS = 60  # words that have a line each; of more, subtitles are listed
_MOST_LINES = 200


def sound_of_keys(text: TextReport) -> Sound | None:
    """Return the sound whose frames are the keys of a text; None if they are tokens of a text, or several bands."""
    sound = text.sound
    if sound is None or sound.bands > 1 or len(text.sources) != sound.before + sound.n_frames:
        return None
    if text.sources[sound.before].piece == frame_name(sound.seconds_of(0)):
        return sound
    return None


def head_map(text: TextReport, pooled: Pooled, sound: Sound) -> SoundMap:
    """Return the map of a head over seconds."""
    starts = pooled.keys[:-1]
    levels = np.maximum.reduceat(sound.levels, starts)
    seconds = [sound.seconds_of(frame) for frame in pooled.keys]
    rows = token_axis("query", text.tokens, pooled.queries[:-1])
    of_rows = "queries"
    if pooled.queries[-1] > len(rows.positions):
        of_rows = "runs of queries"
    sums = "each row sums to 1 with the padding"
    if not text.context:
        sums = row_sum(pooled.weights, is_heard=True)
    meaning = f"of {of_rows}, on seconds; {sums}"
    return SoundMap("weights", meaning, rows, pooled.weights, seconds, levels.tolist())


def present_sound(text: TextReport, sound: Sound, settings: DisplaySettings) -> Iterator[ViewPart]:
    """Present the words of a sound, then the path through their weights."""
    if sound.path is None:
        return
    yield GAP
    if not sound.words:
        yield paragraph(headed("words", "  none: the model wrote nothing down"))
        return
    if len(sound.words) <= _MOST_WORDS:
        caption = "  in seconds: onset and offset of its sound; start and end by attention, as in transformers"
        yield paragraph(headed(f"{len(sound.words)} word{'s' * (len(sound.words) > 1)}", caption))
        yield _words(sound, settings)
    else:
        yield from _lines(sound, settings)
    yield GAP
    yield path_map(text, sound)
    yield paragraph(ours(_described(sound), "caption"), remark=True)


def _words(sound: Sound, settings: DisplaySettings) -> Table:
    columns = [
        *(
            Column(name, [f"{getattr(word, name):.2f}" for word in sound.words])
            for name in ("onset", "offset", "start", "end")
        ),
        Column(
            "confidence", [number_text(word.confidence, settings.precision) for word in sound.words]
        ),
    ]
    labels: list[Spans] = [(Span(word.text.strip(), "", "token"),) for word in sound.words]
    bars = [word.confidence for word in sound.words]
    return Table("word", columns, labels=labels, bars=bars, measured=len(columns) - 1)


def _lines(sound: Sound, settings: DisplaySettings) -> Iterator[ViewPart]:
    lines = list(subtitles(sound.words))
    more = settings.named(
        "-o words.srt, .vtt or .json", "report.to_json()", "; {} has all words with their times"
    )
    caption = f"  in {len(lines)} lines, with the second at which each starts{more}"
    yield paragraph(headed(f"{len(sound.words):,} words", caption))
    shown = lines if not settings.brief else lines[:_MOST_LINES]
    for line in shown:
        text = "".join(word.text for word in line).strip()
        yield paragraph((Span(f"{line[0].onset:>8.2f}  ", "dim"), *untrusted(text)))
    if len(shown) < len(lines):
        yield paragraph(ours(f"not shown: {len(lines) - len(shown)} lines", "caption"), remark=True)


def path_map(text: TextReport, sound: Sound) -> SoundMap:
    """Return the weights that align a text with a sound, a row for every token that they predict, and the path."""
    path = sound.path
    assert path is not None
    end = len(text.tokens)
    positions = [row + 1 for row in path.rows]
    names = [token_span(text.tokens, p) if p < end else Span("(end)") for p in positions]
    special = [p == end or text.tokens[p].special for p in positions]
    rows = Axis("token", positions, names, special, len(positions))
    seconds = [sound.seconds_of(frame) for frame in range(sound.n_frames + 1)]
    meaning = "by which each token was predicted, on seconds; ━ is the path that times it"
    return SoundMap(
        "weights", meaning, rows, path.weights, seconds, sound.levels.tolist(), path.starts
    )


def _described(sound: Sound) -> str:
    assert sound.path is not None
    heads = spelled_heads(sound.path.heads)
    whose = "of the generation config"
    if sound.path.chosen:
        whose = "chosen by attnscope, as the checkpoint lists none"
    return f"mean of {len(sound.path.heads)} alignment heads, {whose}: {heads}"


def spelled_heads(heads: Sequence[tuple[int, int]]) -> str:
    """Write heads as one text."""
    return ", ".join(f"L{layer}H{head}" for layer, head in heads)
