"""Words of a sound: their times and confidence, against transformers, and in a speech of known times."""

import json
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import soundfile
import torch
import transformers
from transformers.models.whisper.generation_whisper import _dynamic_time_warping, _median_filter

import attnscope
from attnscope.findings.sound import SoundWord, subtitles
from attnscope.findings.tokens import Token
from attnscope.run.analysis.speech import speech_words
from attnscope.views.axes import Axis
from attnscope.views.page.rendering import DRAWN
from attnscope.views.parts import SoundMap
from attnscope.views.spans import Span
from tests.helpers.espeak import say
from tests.helpers.tiny_sound import ALIGNMENT_HEADS, noise
from tests.helpers.whisper_tiny import ALIGNMENT_HEADS as ALIGNMENT

FRAME = 0.02


def heard(model: Path, sound: Path, text: str | None = None, **arguments: Any) -> Any:
    return attnscope.inspect(text, model=model, audio=sound, layer=0, head=0, **arguments)


def told(result: Any) -> dict[str, Any]:
    """Return the sound of a result's first text, as its JSON has it."""
    sound: dict[str, Any] = json.loads(result.to_json())["texts"][0]["sound"]
    return sound


def reference(folder: Path, sound: Path, ids: list[int]) -> Any:
    model = transformers.WhisperForConditionalGeneration.from_pretrained(
        folder, attn_implementation="eager"
    )
    samples, rate = soundfile.read(sound, dtype="float32")
    extractor = transformers.AutoFeatureExtractor.from_pretrained(folder)
    features = extractor(samples, sampling_rate=rate, return_tensors="pt").input_features
    with torch.inference_mode():
        return model(features, decoder_input_ids=torch.tensor([ids]), output_attentions=True)


def test_times_and_confidence_follow_from_the_heads_of_the_generation_config(
    tiny: Callable[[str], Path], sound: Path
) -> None:
    result = heard(tiny("whisper"), sound, "abc de")
    found = told(result)
    ids = [token.id for token in result.texts[0].tokens]
    output = reference(tiny("whisper"), sound, ids)
    prompt = len(ids) - len(" abc de")
    assert found["path"]["rows"] == [*range(prompt - 1, len(ids))]
    assert (found["path"]["heads"], found["path"]["chosen"]) == (ALIGNMENT_HEADS, False)
    weights = torch.stack(
        [output.cross_attentions[layer][0, head] for layer, head in ALIGNMENT_HEADS]
    )
    weights = weights[:, prompt - 1 :, :100]
    np.testing.assert_allclose(found["path"]["weights"], weights.mean(0), atol=1e-5)
    standard = (weights - weights.mean(-2, keepdim=True)) / weights.std(
        -2, keepdim=True, unbiased=False
    )
    rows, frames = _dynamic_time_warping(
        -_median_filter(standard[None], 7)[0].mean(0).double().numpy()
    )
    starts = frames[np.diff(rows, prepend=-1) > 0]
    assert found["path"]["starts"] == starts.tolist()
    of_text = torch.softmax(output.logits[0, prompt - 1 : -1], -1).gather(
        1, torch.tensor(ids[prompt:])[:, None]
    )[:, 0]
    words = found["words"]
    assert [word["text"] for word in words] == [" abc", " de"]
    for word, (first, end) in zip(words, [(0, 4), (4, 7)], strict=True):
        assert word["tokens"] == [prompt + first, prompt + end]
        assert word["start"] == pytest.approx(starts[first] * FRAME)
        assert word["end"] == pytest.approx(starts[end] * FRAME)
        assert 0 <= word["onset"] <= word["offset"] <= 2
        assert word["confidence"] == pytest.approx(of_text[first:end].mean().item(), abs=1e-5)


def test_every_window_of_a_long_sound_gives_words(
    tiny: Callable[[str], Path], tmp_path: Path
) -> None:
    soundfile.write(tmp_path / "long.wav", noise(8), 16_000)
    first, last = (
        told(heard(tiny("whisper"), tmp_path / "long.wav", key=key)) for key in (None, "7.9s")
    )
    without_places = [
        [{**word, "tokens": None} for word in sound["words"]] for sound in (first, last)
    ]
    assert without_places[0] == without_places[1]
    starts = [word["start"] for word in first["words"]]
    assert starts == sorted(starts)
    assert first["start"] == 0 and last["start"] > 3
    assert starts[-1] > 5
    of_window = [word["start"] for word in last["words"] if word["tokens"] is not None]
    assert of_window and min(of_window) >= last["start"]


def test_words_are_divided_as_in_whisper() -> None:
    pieces = [
        ("<|sot|>", True),
        ("<|0.00|>", True),
        (' "', False),
        ("Well", False),
        (",", False),
        (" it", False),
    ]
    pieces += [
        ("'s", False),
        (" un", False),
        ("be", False),
        ("liev", False),
        ("able", False),
        ('."', False),
    ]
    text, tokens = "", []
    for piece, special in pieces:
        span = (
            {}
            if special
            else {"start": len(text) + piece.startswith(" "), "end": len(text) + len(piece)}
        )
        text += "" if special else piece
        tokens.append(Token(0, piece, piece, special=special, **span))
    words = speech_words(
        text, tokens, 1, float, lambda position: position + 1.0, lambda position: position / 10
    )
    assert [word.text for word in words] == [' "Well,', " it's", ' unbelievable."']
    assert [(word.start, word.end) for word in words] == [(2, 5), (5, 7), (7, 12)]
    assert [(word.onset, word.offset) for word in words] == [(2, 5), (5, 7), (7, 12)]
    assert words[1].confidence == pytest.approx((0.5 + 0.6) / 2)


def test_characters_of_several_tokens_are_one_piece_and_japanese_is_not_joined() -> None:
    tokens = [
        Token(0, "<|ja|>", "<|ja|>", special=True),
        Token(1, "a", "<E6 9C>", 0, 1),
        Token(2, "b", "<AC>", 0, 1),
        Token(3, "c", "屋", 1, 2),
        Token(4, "d", "。", 2, 3),
    ]
    words = speech_words("本屋。", tokens, 1, float, float, lambda position: 1.0)
    assert [(word.text, word.tokens) for word in words] == [("本", (1, 3)), ("屋。", (3, 5))]


def test_subtitles_end_with_sentences_pauses_and_lengths() -> None:
    said = [
        (" One", 0, 1),
        (" two.", 1, 2),
        (" Three", 2, 3),
        (" four", 5, 6),
        *((" word", n, n + 1) for n in range(6, 20)),
    ]
    words = [SoundWord(text, onset, offset, 0.0, 0.0, 1.0) for text, onset, offset in said]
    lines = list(subtitles(words))
    assert ["".join(word.text for word in line) for line in lines[:2]] == [" One two.", " Three"]
    assert all(line[-1].offset - line[0].onset <= 7 for line in lines)
    assert [word for line in lines for word in line] == words


def test_subtitles_have_the_words_and_times_of_the_report(
    tiny: Callable[[str], Path], sound: Path, tmp_path: Path
) -> None:
    result = heard(tiny("whisper"), sound, "abc de")
    words = told(result)["words"]
    result.save(tmp_path / "words.srt")
    result.save(tmp_path / "words.vtt")
    number, times, text, *_ = (tmp_path / "words.srt").read_text().splitlines()
    assert (number, text) == ("1", "abc de")
    assert times == f"00:00:0{words[0]['onset']:.3f} --> 00:00:0{words[-1]['offset']:.3f}".replace(
        ".", ","
    )
    vtt = (tmp_path / "words.vtt").read_text()
    assert vtt.startswith("WEBVTT\n\n")
    assert re.findall(r"<00:00:0([0-9.]+)>", vtt) == [f"{words[1]['onset']:.3f}"]


def test_the_screen_has_words_first_then_the_map(tiny: Callable[[str], Path], sound: Path) -> None:
    screen = str(heard(tiny("whisper"), sound, "abc de"))
    places = [screen.index(part) for part in ("2 words", "━ is the path", "L0H0")]
    assert places == sorted(places)


@pytest.mark.exhaustive
def test_words_equal_those_of_transformers_but_for_its_shift_by_a_token(
    whisper_tiny: Path, speech: Path
) -> None:
    """Transformers 5 gives each token the time of the row that reads it, not of the row that predicts it."""
    found = told(heard(whisper_tiny, speech))
    model = transformers.WhisperForConditionalGeneration.from_pretrained(
        whisper_tiny, attn_implementation="eager"
    )
    processor = transformers.WhisperProcessor.from_pretrained(whisper_tiny)
    samples, rate = soundfile.read(speech, dtype="float32")
    features = processor(
        samples, sampling_rate=rate, return_tensors="pt", return_attention_mask=True
    )
    result = model.generate(**features, return_timestamps=True, return_token_timestamps=True)
    ids, theirs = result["sequences"][0].tolist(), result["token_timestamps"][0].tolist()
    starts = np.array(found["path"]["starts"]) * FRAME
    assert len(starts) == len(ids) + 1
    # theirs[k] is when row k is reached, which predicts token k + 1; their last is a copy
    differences = np.abs(starts[1:-1] - theirs[:-1])
    assert np.median(differences) < 1e-6
    assert (differences <= FRAME + 1e-6).all(), differences
    text = "".join(word["text"] for word in found["words"])
    assert text == processor.decode(ids, skip_special_tokens=True)


SAID = (  # none of them had a part in choosing the constants of onsets
    "A strong wind broke the garden fence.",
    "Most people forget names very quickly.",
    "Our train stopped outside a quiet village.",
    "They found a silver coin under the carpet.",
)


VOICES = (("en-us", 150), ("en-gb", 170), ("en-gb-scotland", 130), ("en-us", 190))
OF_VOICES = (  # each is said by every other voice
    "The old farmer drove his tractor across the muddy field.",
    "Seven quiet students finished their difficult exam early.",
    "My sister never drinks coffee after lunch.",
    "Heavy rain flooded several streets near the station.",
    "Please remember to close every window before leaving.",
    "Our neighbours built a small wooden house last summer.",
)


def times_of_said(
    model: Any, path: Path, sentence: str, voice: str, words_a_minute: int, gap: int
) -> list[tuple[float, float]]:
    """Return of every word of known time how late its onset and its start are."""
    samples, rate, starts = say(sentence, voice, words_a_minute, gap)
    silence = np.zeros(rate // 2, np.float32)
    soundfile.write(path, np.concatenate([silence, samples]), rate)
    found = told(model.inspect(sentence, audio=path, layer=0, head=0))["words"]
    assert [word["text"].strip() for word in found] == sentence.split()
    return [
        (word["onset"] - second - 0.5, word["start"] - second - 0.5)
        for word, second in zip(found, starts, strict=True)
        if second is not None
    ]


@pytest.mark.exhaustive
@pytest.mark.parametrize(
    ("sentences", "voices", "gap", "share"),
    [
        (SAID, (("en-us", 140),), 10, 1.0),
        (SAID, (("en-us", 140),), 0, 0.75),
        (OF_VOICES, VOICES, 0, 0.85),
    ],
)
def test_words_of_synthesised_speech_start_when_they_were_said(
    whisper_tiny: Path,
    tmp_path: Path,
    sentences: tuple[str, ...],
    voices: tuple[tuple[str, int], ...],
    gap: int,
    share: float,
) -> None:
    """How exact whisper-tiny.en is, with pauses between words and without; docs/sound.md has numbers."""
    late: list[tuple[float, float]] = []
    with attnscope.open_model(whisper_tiny) as model:
        for number, sentence in enumerate(sentences):
            for voice, speed in voices[number % 2 :: 2] or voices:
                late += times_of_said(model, tmp_path / "said.wav", sentence, voice, speed, gap)
    onsets, starts = np.abs(late).T
    assert (onsets <= 0.08).mean() >= share
    assert (onsets <= 0.08).mean() > (starts <= 0.08).mean()
    assert onsets.max() <= 0.4


@pytest.mark.exhaustive
def test_heads_that_align_are_those_that_the_authors_list(whisper_tiny: Path, speech: Path) -> None:
    roles = attnscope.heads(model=whisper_tiny, audio=speech, role="align")
    found = json.loads(roles.to_json())
    values = np.array(found["roles"][0]["values"], dtype=float)
    first = {divmod(int(place), 6) for place in np.argsort(-values.ravel())[:8]}
    assert first == set(ALIGNMENT)
    listed = ", ".join(f"[{layer}, {head}]" for layer, head in ALIGNMENT)
    assert found["notes"] == [
        f'for generation_config.json: "alignment_heads": [{listed}]',
        "the checkpoint lists the same heads",
    ]


def test_a_checkpoint_without_a_list_gets_heads_that_are_chosen(
    tiny: Callable[[str], Path], sound: Path, tmp_path: Path
) -> None:
    folder = tmp_path / "model"
    shutil.copytree(tiny("whisper"), folder)
    config = json.loads((folder / "generation_config.json").read_text())
    del config["alignment_heads"]
    (folder / "generation_config.json").write_text(json.dumps(config))
    path = told(heard(folder, sound, "abc de"))["path"]
    assert path["chosen"] and path["heads"]
    roles = json.loads(attnscope.heads(folder, "abc de", audio=sound, role="align").to_json())
    values = np.array(roles["roles"][0]["values"], dtype=float)
    above = [[int(n) for n in place] for place in np.argwhere(values >= values.max() * 3 / 8)]
    assert path["heads"] == above
    assert roles["notes"][1] == "the checkpoint lists none"


def test_what_does_not_fit_a_sound_is_one_line(
    tiny: Callable[[str], Path], sound: Path, tmp_path: Path
) -> None:
    soundfile.write(tmp_path / "long.wav", noise(31), 16_000)
    calls: dict[str, Callable[[], Any]] = {
        "frames of a sound attend to each other": lambda: heard(tiny("wav2vec2"), sound, "abc"),
        "takes no text": lambda: attnscope.inspect("abc", model=tiny("wav2vec2")),
        "aligned with 30 s": lambda: heard(tiny("whisper"), tmp_path / "long.wav", "abc"),
        "is measured on speech": lambda: attnscope.heads("riverbank", "abc", role="align"),
        "align a text with sound": lambda: attnscope.heads(
            model=tiny("wav2vec2"), audio=sound, role="align"
        ),
        "'9.0s' is not in the text": lambda: heard(tiny("wav2vec2"), sound, key="9.0s"),
        "takes texts alone": lambda: attnscope.inspect(model="riverbank", audio=sound),
    }
    for message, call in calls.items():
        with pytest.raises(attnscope.AttnscopeError, match=message):
            call()


@pytest.mark.parametrize("ending", ["svg", "txt"])
def test_files_that_are_read_have_the_words_and_the_map(
    tiny: Callable[[str], Path], sound: Path, tmp_path: Path, ending: str
) -> None:
    result = heard(tiny("whisper"), sound, "abc de")
    result.save(tmp_path / f"words.{ending}")
    written = (tmp_path / f"words.{ending}").read_text()
    assert "2 words" in written and ("seconds" in written or "over seconds" in written)
    assert ("<polyline" in written) == (ending == "svg")


def test_the_map_of_a_page_sums_neighbouring_frames_and_keeps_the_path() -> None:
    weights = np.random.default_rng(0).random((2, 400)).astype(np.float32)
    rows = Axis("token", [0, 1], [Span("a"), Span("b")], [False, False], 2)
    drawn = SoundMap(
        "weights",
        "",
        rows,
        weights,
        [n / 50 for n in range(401)],
        np.linspace(0, 1, 400).tolist(),
        [0, 300],
    )
    kept: list[Any] = []
    container: Any = SimpleNamespace(exact=lambda matrix: kept.append(matrix))
    ((node,),) = [DRAWN[SoundMap](drawn, container)]
    (panel,) = node["panels"]
    np.testing.assert_allclose(
        kept[0][:, :-1], weights[:, :399].reshape(2, 133, 3).sum(-1), rtol=1e-5
    )
    assert [label for label, _ in panel["columns"]["labels"]][:3] == ["0.00 s", "0.06 s", "0.12 s"]
    assert panel["path"] == [[0, 100], [100, 400 / 3]]
    assert panel["levels"][-1] == 1 and len(panel["levels"]) == 134
