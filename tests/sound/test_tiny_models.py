"""Attention over frames of tiny random models equals the eager attention of transformers."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import soundfile
import torch
import transformers

import attnscope
from attnscope.cli import main

Tiny = Callable[[str], Path]


def eager(folder: Path, sound: Path, **inputs: Any) -> Any:
    model = transformers.AutoModel.from_pretrained(folder, attn_implementation="eager")
    extractor = transformers.AutoFeatureExtractor.from_pretrained(folder)
    samples, rate = soundfile.read(sound, dtype="float32")
    features = extractor(samples, sampling_rate=rate, return_tensors="pt")
    if hasattr(model, "audio_tower"):
        model = model.audio_tower
        features = {"input_features": features["input_features"]}
    with torch.inference_mode():
        return model(**features, **inputs, output_attentions=True)


def shown(folder: Path, sound: Path, **arguments: Any) -> attnscope.InspectResult:
    every = {"layer": "all", "head": "all", "query": slice(None), "key": slice(None)}
    return attnscope.inspect(
        None, model=folder, audio=sound, stages="weights", **(every | arguments)
    )


@pytest.mark.parametrize("n_samples", [16_000, 16_200, 48_000])
def test_padding_is_hidden_from_frames_where_the_whole_model_hides_it(
    tiny: Tiny, tmp_path: Path, n_samples: int
) -> None:
    samples = np.random.default_rng(0).normal(size=n_samples) * 0.1
    soundfile.write(tmp_path / "x.wav", samples, 16_000, subtype="FLOAT")
    folder = tiny("qwen2_audio")
    found = shown(folder, tmp_path / "x.wav")
    model = transformers.Qwen2AudioForConditionalGeneration.from_pretrained(
        folder, attn_implementation="eager"
    )
    kept: list[torch.Tensor] = []
    for layer in model.model.audio_tower.layers:
        layer.self_attn.register_forward_hook(lambda *call: kept.append(call[-1][1][0]))
    heard = transformers.WhisperFeatureExtractor.from_pretrained(folder)(
        samples.astype(np.float32),
        sampling_rate=16_000,
        return_tensors="pt",
        return_attention_mask=True,
    )
    model.model.config.audio_token_id = 7
    frames = (int(heard.attention_mask.sum()) - 1) // 2 + 1
    ids = torch.tensor([[5, *[7] * ((frames - 2) // 2 + 1), 6]])
    with torch.no_grad():
        model(
            input_ids=ids,
            attention_mask=torch.ones_like(ids),
            input_features=heard.input_features,
            feature_attention_mask=heard.attention_mask,
        )
    shape = found.weights.shape
    expected = np.stack([layer.numpy() for layer in kept])[..., : shape[-2], : shape[-1]]
    np.testing.assert_allclose(found.weights, expected, atol=1e-6)
    assert any("hidden from every frame" in note for note in found.data.texts[0].notes) == (
        n_samples < 48_000
    )


@pytest.mark.parametrize("name", ["wav2vec2", "hubert", "ast"])
def test_frames_of_an_encoder(tiny: Tiny, sound: Path, name: str) -> None:
    weights = shown(tiny(name), sound).weights
    expected = np.stack([layer[0].numpy() for layer in eager(tiny(name), sound).attentions])
    n_heard = weights.shape[-1]
    np.testing.assert_allclose(weights, expected[..., :n_heard, :n_heard], atol=1e-5)
    assert np.ptp(weights) > 0.05
    assert n_heard == {"wav2vec2": 99, "hubert": 99, "ast": 2 + 2 * 5}[name]


@pytest.mark.parametrize("name", ["whisper", "moonshine"])
def test_the_parts_of_a_model_that_writes(tiny: Tiny, sound: Path, name: str) -> None:
    crossing = shown(tiny(name), sound)
    ids = torch.tensor([[token.id for token in crossing.texts[0].tokens]])
    result = eager(tiny(name), sound, decoder_input_ids=ids)
    n_heard = crossing.weights.shape[-1]
    for part, of_part in (
        ("cross", "cross_attentions"),
        ("decoder", "decoder_attentions"),
        ("encoder", None),
    ):
        weights = (
            crossing.weights if part == "cross" else shown(tiny(name), sound, part=part).weights
        )
        expected = result.encoder_attentions if of_part is None else result[of_part]
        stacked = np.stack([layer[0].numpy() for layer in expected])
        np.testing.assert_allclose(
            weights, stacked[..., : weights.shape[-2], : weights.shape[-1]], atol=1e-5
        )
        assert weights.shape[-1] == (len(ids[0]) if part == "decoder" else n_heard)
    assert n_heard == {"whisper": 100, "moonshine": 82}[name]


def test_frames_are_named_by_their_seconds(tiny: Tiny, sound: Path) -> None:
    one = shown(tiny("wav2vec2"), sound, layer=0, head=0, query="0.5s", key="1.0s-1.1s").texts[0]
    names = [token.text for token in one.tokens]
    assert names[:3] == ["0.00s", "0.02s", "0.04s"]
    assert [names[row] for row in one.queries] == ["0.50s"]
    assert [names[column] for column in one.keys] == ["1.00s", "1.02s", "1.04s", "1.06s", "1.08s"]
    bands = shown(tiny("ast"), sound, layer=0, head=0, key="0.2s").texts[0]
    assert [bands.tokens[column].text for column in bands.keys] == ["0.20s/0", "0.20s/1"]


def test_a_later_window_is_read_where_a_second_names_it(tiny: Tiny, tmp_path: Path) -> None:
    from tests.helpers.tiny_sound import noise

    samples = noise(8)
    soundfile.write(tmp_path / "long.wav", samples, 16_000, subtype="FLOAT")
    soundfile.write(tmp_path / "window.wav", samples[6 * 16_000 :], 16_000, subtype="FLOAT")
    later = shown(tiny("whisper"), tmp_path / "long.wav", part="encoder", query="7.5s")
    alone = shown(tiny("whisper"), tmp_path / "window.wav", part="encoder", query="1.5s")
    assert later.texts[0].tokens[0].text == "6.00s"
    np.testing.assert_allclose(later.weights, alone.weights, atol=1e-6)


def test_frames_of_a_short_sound_read_padding_which_the_screen_and_the_page_allow_for(
    tiny: Tiny, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    sound = tmp_path / "short.wav"
    soundfile.write(sound, np.random.default_rng(0).normal(size=1600) * 0.1, 16_000)
    assert shown(tiny("whisper"), sound, part="encoder").weights.sum(-1).max() < 0.9
    for name, options in (("qwen2_audio", []), ("whisper", ["--part", "encoder"])):
        command = ["run", "--audio", str(sound), "--model", str(tiny(name)), *options]
        capsys.readouterr()
        assert main(command) == 0
        said = " ".join(capsys.readouterr().out.split())
        assert ("each row sums to 1 with the padding" in said) == (name == "whisper")
        assert "are cut" not in said
        assert main([*command, "-o", str(tmp_path / f"{name}.html"), "--quiet"]) == 0
