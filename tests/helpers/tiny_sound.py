"""Tiny random models that take sound, as folders of transformers, and sounds for them."""

from pathlib import Path
from typing import Any

import numpy as np
import torch
from tokenizers import AddedToken, Tokenizer, decoders, pre_tokenizers
from tokenizers.models import BPE

SEED = 0
_SIZES = {
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "intermediate_size": 48,
}
_CONVS = {
    "conv_dim": [16] * 7,
    "feat_extract_norm": "group",
    "num_conv_pos_embeddings": 16,
    "num_conv_pos_embedding_groups": 4,
}


def tiny_whisper(hf: Any) -> tuple[Any, Any]:
    config = hf.WhisperConfig(
        vocab_size=300, num_mel_bins=16, d_model=32, encoder_layers=2, decoder_layers=2, encoder_attention_heads=4,
        decoder_attention_heads=4, encoder_ffn_dim=48, decoder_ffn_dim=48, max_source_positions=150,
        max_target_positions=64, pad_token_id=0, bos_token_id=1, eos_token_id=2, decoder_start_token_id=1,
        suppress_tokens=None, begin_suppress_tokens=None, max_length=None,
    )  # fmt: skip
    return hf.WhisperForConditionalGeneration, config


def tiny_moonshine(hf: Any) -> tuple[Any, Any]:
    config = hf.MoonshineConfig(
        vocab_size=300, hidden_size=32, intermediate_size=48, encoder_num_hidden_layers=2, decoder_num_hidden_layers=2,
        encoder_num_attention_heads=4, decoder_num_attention_heads=4, bos_token_id=1, eos_token_id=2,
        decoder_start_token_id=1, pad_token_id=2, max_position_embeddings=64,
    )  # fmt: skip
    return hf.MoonshineForConditionalGeneration, config


def tiny_wav2vec2(hf: Any) -> tuple[Any, Any]:
    return hf.Wav2Vec2Model, hf.Wav2Vec2Config(**_SIZES, **_CONVS)


def tiny_hubert(hf: Any) -> tuple[Any, Any]:
    return hf.HubertModel, hf.HubertConfig(**_SIZES, **_CONVS)


def tiny_ast(hf: Any) -> tuple[Any, Any]:
    return hf.ASTModel, hf.ASTConfig(**_SIZES, max_length=64, num_mel_bins=32)


def tiny_qwen2_audio(hf: Any) -> tuple[Any, Any]:
    tower = {
        "d_model": 32, "encoder_layers": 2, "encoder_attention_heads": 4, "encoder_ffn_dim": 48, "num_mel_bins": 16,
        "max_source_positions": 150,
    }  # fmt: skip
    text = {**_SIZES, "num_key_value_heads": 2, "vocab_size": 300, "model_type": "qwen2"}
    config = hf.Qwen2AudioConfig(
        audio_config={**tower, "model_type": "qwen2_audio_encoder"}, text_config=text
    )
    return hf.Qwen2AudioForConditionalGeneration, config


MODELS = {
    "whisper": tiny_whisper,
    "moonshine": tiny_moonshine,
    "wav2vec2": tiny_wav2vec2,
    "hubert": tiny_hubert,
    "ast": tiny_ast,
    "qwen2_audio": tiny_qwen2_audio,
}


def extractor(hf: Any, name: str) -> Any:
    """Return the feature extractor of a tiny model."""
    if name in ("whisper", "qwen2_audio"):
        return hf.WhisperFeatureExtractor(feature_size=16, chunk_length=3)
    if name == "ast":
        return hf.ASTFeatureExtractor(max_length=64, num_mel_bins=32)
    return hf.Wav2Vec2FeatureExtractor(do_normalize=name != "moonshine")


NO_TIMES = 259  # id of Whisper's token that forbids marks of time; those follow it
ALIGNMENT_HEADS = [[0, 1], [1, 2]]


def write_tiny_sound(name: str, folder: Path) -> Path:
    """Write a tiny model with large random weights, its feature extractor, and its tokenizer if it writes text."""
    import transformers as hf

    torch.manual_seed(SEED)
    model_class, config = MODELS[name](hf)
    model = model_class(config).eval()
    for parameter in model.parameters():
        if parameter.ndim == 2:
            torch.nn.init.normal_(parameter, std=0.3)
    if name == "whisper":
        model.generation_config = hf.GenerationConfig(
            alignment_heads=ALIGNMENT_HEADS, no_timestamps_token_id=NO_TIMES, is_multilingual=False, max_length=20,
            bos_token_id=1, eos_token_id=2, pad_token_id=0, decoder_start_token_id=1, max_initial_timestamp_index=20,
            return_timestamps=False,
        )  # fmt: skip
    model.save_pretrained(folder)
    extractor(hf, name).save_pretrained(folder)
    if config.is_encoder_decoder:
        byte_tokenizer().save(str(folder / "tokenizer.json"))
    return folder


def byte_tokenizer() -> Tokenizer:
    """Return a tokenizer whose tokens are bytes, special tokens, and marks of time for what is left of 300 ids."""
    pieces = sorted(pre_tokenizers.ByteLevel.alphabet())
    pieces = ["<pad>", "<s>", "</s>", *pieces]
    tokenizer = Tokenizer(BPE({piece: n for n, piece in enumerate(pieces)}, []))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens(
        [AddedToken(name, special=True) for name in ("<pad>", "<s>", "</s>", "<|notimestamps|>")]
    )
    assert tokenizer.token_to_id("<|notimestamps|>") == NO_TIMES
    return tokenizer


def noise(seconds: float, rate: int = 16_000, seed: int = 0) -> "np.ndarray[Any, Any]":
    """Return noise whose loudness changes, float32."""
    count = round(seconds * rate)
    loudness = 0.3 * np.abs(np.sin(np.arange(count) / rate * 4))
    samples: np.ndarray[Any, Any] = (
        np.random.default_rng(seed).normal(size=count) * loudness
    ).astype(np.float32)
    return samples.clip(-1, 1)
