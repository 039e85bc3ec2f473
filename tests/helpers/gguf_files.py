"""GGUF files of tiny models, written as llama.cpp's converter writes them, with the library's names and types."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import torch
import transformers as hf

from tests.helpers.tiny_models import raise_weights

LETTERS = ["Ġ", *map(chr, range(ord("A"), ord("A") + 57)), "ab", "abc"]
_SIZES = {
    "vocab_size": 60, "hidden_size": 256, "intermediate_size": 256, "num_hidden_layers": 2, "num_attention_heads": 4,
    "num_key_value_heads": 2, "max_position_embeddings": 48, "bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 0,
}  # fmt: skip
_WIDE = {"attention.key_length": 128, "attention.value_length": 128}
# architecture to the class of transformers, what its config says in addition, and what llama.cpp writes of that
MODELS: dict[str, tuple[type[hf.PreTrainedModel], dict[str, Any], dict[str, Any]]] = {
    "llama": (
        hf.LlamaForCausalLM,
        {"rope_parameters": {"rope_type": "default", "rope_theta": 500.0}, "tie_word_embeddings": True},
        {"rope.freq_base": 500.0, "rope.dimension_count": 64},
    ),
    "qwen2": (hf.Qwen2ForCausalLM, {}, {"rope.freq_base": 10000.0}),
    "qwen3": (hf.Qwen3ForCausalLM, {"head_dim": 128}, {"rope.freq_base": 10000.0, **_WIDE}),
    "gemma2": (
        hf.Gemma2ForCausalLM,
        {"head_dim": 128, "query_pre_attn_scalar": 128, "sliding_window": 5, "attn_logit_softcapping": 2.0},
        {"attention.sliding_window": 5, "attn_logit_softcapping": 2.0, "final_logit_softcapping": 30.0, **_WIDE},
    ),
    "gemma3": (
        hf.Gemma3ForCausalLM,
        {
            "head_dim": 128, "query_pre_attn_scalar": 128, "sliding_window": 5, "num_hidden_layers": 7,
            "rope_parameters": {
                "full_attention": {"rope_type": "linear", "factor": 8.0, "rope_theta": 1e6},
                "sliding_attention": {"rope_type": "default", "rope_theta": 1e4},
            },
        },
        {"attention.sliding_window": 5, "block_count": 7, "rope.freq_base": 1e6, "rope.scaling.type": "linear",
         "rope.scaling.factor": 8.0, **_WIDE},
    ),
    "phi3": (
        hf.Phi3ForCausalLM,
        {"sliding_window": 6,
         "rope_parameters": {"rope_type": "default", "rope_theta": 1e4, "partial_rotary_factor": 0.5}},
        {"attention.sliding_window": 6, "rope.dimension_count": 32, "rope.scaling.original_context_length": 48},
    ),
    "olmo2": (hf.Olmo2ForCausalLM, {}, {"rope.freq_base": 10000.0}),
    "granite": (
        hf.GraniteForCausalLM,
        {"attention_multiplier": 0.25, "embedding_multiplier": 3.0, "residual_multiplier": 0.5, "logits_scaling": 4.0},
        {"attention.scale": 0.25, "embedding_scale": 3.0, "residual_scale": 0.5, "logit_scale": 4.0,
         "rope.dimension_count": 64},
    ),
    "smollm3": (
        hf.SmolLM3ForCausalLM,
        {"num_hidden_layers": 4, "rope_parameters": {"rope_type": "default", "rope_theta": 500.0}},
        {"block_count": 4, "rope.freq_base": 500.0, "rope.dimension_count": 64},
    ),
    "glm4": (
        hf.Glm4ForCausalLM,
        {"head_dim": 64, "attention_bias": True},
        {"rope.freq_base": 10000.0, "rope.dimension_count": 32},
    ),
}  # fmt: skip
# where transformers has another default
_EPSILON = {"phi3": 1e-5, "olmo2": 1e-5, "glm4": 1.5625e-7}
# Of a block: where its two-byte scale and minimum are, and how large they are for numbers of about 0.07 around 0.
_SCALES = {
    "Q2_K": {80: 7e-3, 82: 1e-2}, "Q3_K": {108: 1.5e-3}, "Q4_K": {0: 3e-4, 2: 2.3e-3}, "Q5_K": {0: 1.5e-4, 2: 2.3e-3},
    "Q6_K": {208: 5e-5},
}  # fmt: skip


def write(
    path: Path,
    architecture: str,
    kind: str,
    more: Mapping[str, Any] | None = None,
    tables: Mapping[str, np.ndarray] | None = None,
    config: Mapping[str, Any] | None = None,
) -> hf.PreTrainedModel:
    """Write a random model whose matrices are of one type, and give it with the numbers that the file holds.

    Args:
        path: The file.
        architecture: One of `MODELS`.
        kind: Type of the matrices; vectors are F32.
        more: Metadata to add, or to write instead; None leaves it out.
        tables: Tensors to add.
        config: What the config of transformers says in addition.
    """
    cls, changes, said = MODELS[architecture]
    torch.manual_seed(sum(map(ord, architecture + kind)))
    made = cls.config_class(**{**_SIZES, **changes, **dict(config or {})})
    model = raise_weights(cls._from_config(made, attn_implementation="eager").eval())
    said = _metadata(architecture, said) | dict(more or {})
    writer = gguf.GGUFWriter(path, str(said.pop("general.architecture", architecture)))
    for key, value in said.items():
        if value is not None:
            _add(writer, key, value)
    number = next(n for n, name in gguf.MODEL_ARCH_NAMES.items() if name == architecture)
    names = gguf.get_tensor_name_map(number, made.num_hidden_layers)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            _add_tensor(writer, names, name, parameter, kind, architecture, made)
    for name, table in (tables or {}).items():
        writer.add_tensor(name, table)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return model


def _metadata(architecture: str, said: Mapping[str, Any]) -> dict[str, Any]:
    shared = {
        "context_length": 48, "embedding_length": 256, "block_count": 2, "feed_forward_length": 256,
        "attention.head_count": 4, "attention.head_count_kv": 2, 
        "attention.layer_norm_rms_epsilon": _EPSILON.get(architecture, 1e-6),
    }  # fmt: skip
    model = {f"{architecture}.{key}": value for key, value in {**shared, **said}.items()}
    return model | {
        "tokenizer.ggml.model": "gpt2", "tokenizer.ggml.pre": "gpt-2", "tokenizer.ggml.tokens": LETTERS,
        "tokenizer.ggml.token_type": [1] * len(LETTERS), "tokenizer.ggml.merges": ["a b", "ab c"],
    }  # fmt: skip


def _add(writer: gguf.GGUFWriter, key: str, value: Any) -> None:
    if isinstance(value, bool):
        writer.add_bool(key, value)
    elif isinstance(value, int):
        writer.add_uint32(key, value)
    elif isinstance(value, float):
        writer.add_float32(key, value)
    elif isinstance(value, str):
        writer.add_string(key, value)
    else:
        writer.add_array(key, value)


def _add_tensor(
    writer: gguf.GGUFWriter,
    names: Any,
    name: str,
    parameter: torch.nn.Parameter,
    kind: str,
    architecture: str,
    config: Any,
) -> None:
    """Write a parameter, and leave in it what was written."""
    theirs = names.get_name(name, try_suffixes=(".weight", ".bias"))
    assert theirs is not None, name
    if parameter.ndim == 1:
        values, raw = parameter.numpy().copy(), None
        if architecture.startswith("gemma"):
            values += 1
        parameter.copy_(
            torch.from_numpy(values - 1 if architecture.startswith("gemma") else values)
        )
    else:
        # 0.3 is for narrow models; scores of hundreds leave float32 too few digits
        parameter.mul_(0.25)
        raw = gguf.GGMLQuantizationType[kind]
        values = (
            _random_blocks(parameter.shape, kind)
            if kind in _SCALES
            else gguf.quantize(parameter.numpy(), raw)
        )
        parameter.copy_(torch.from_numpy(gguf.dequantize(values, raw)).view(parameter.shape))
        if kind in ("F32", "F16"):
            raw = None
    heads = {"q_proj": config.num_attention_heads, "k_proj": config.num_key_value_heads}.get(
        name.split(".")[-2]
    )
    # LlamaModel.permute of convert_hf_to_gguf.py
    if architecture in ("llama", "granite", "smollm3") and heads:
        halves = values.reshape(heads, 2, values.shape[0] // heads // 2, *values.shape[1:])
        values = halves.swapaxes(1, 2).reshape(values.shape)
    writer.add_tensor(theirs, np.ascontiguousarray(values), raw_dtype=raw)


def _random_blocks(shape: torch.Size, kind: str) -> np.ndarray:
    """Random blocks of a type that the library cannot make, with scales of a fitting size."""
    numbers, size = gguf.GGML_QUANT_SIZES[gguf.GGMLQuantizationType[kind]]
    random = np.random.default_rng(len(kind) + shape[0])
    blocks = random.integers(0, 256, (shape[0], shape[1] // numbers, size), dtype=np.uint8)
    for place, size in _SCALES[kind].items():
        scales = random.uniform(0.5 * size, 1.5 * size, blocks.shape[:2]).astype(np.float16)
        blocks[..., place : place + 2] = scales[..., None].view(np.uint8)
    return blocks.reshape(shape[0], -1)
