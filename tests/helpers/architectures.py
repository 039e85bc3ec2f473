"""The table: tiny random checkpoints of many architectures, each as its authors would save it, with a tokenizer."""

import json
from pathlib import Path
from typing import Any

import torch
import transformers as hf

from tests.helpers.tiny_models import TABLE, raise_weights

WORDS = [
    "<pad>",
    "<s>",
    "</s>",
    "<unk>",
    *"the bank by river was old and we sat on it all day while water ran".split(),
]
_SIZES = {
    "vocab_size": 60, "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 40,
    "max_position_embeddings": 48, "bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 0,
}  # fmt: skip
_GQA = {**_SIZES, "num_key_value_heads": 2}
_WIDE = {**_GQA, "head_dim": 8}
_SMALL = {**_SIZES, "embedding_size": 16}
_SPECIAL = {"cls_token_id": 1, "sep_token_id": 2}
_HALVES = {
    "vocab_size": 60, "d_model": 32, "encoder_layers": 2, "decoder_layers": 3, "encoder_attention_heads": 4,
    "decoder_attention_heads": 2, "encoder_ffn_dim": 40, "decoder_ffn_dim": 40, "max_position_embeddings": 48,
    "bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 0, "decoder_start_token_id": 2, "forced_eos_token_id": 2,
}  # fmt: skip
_IDS = {"bos_token_id": 1, "eos_token_id": 2}
_T5 = {"vocab_size": 60, "d_model": 32, "d_kv": 8, "num_layers": 2, "num_heads": 4, "d_ff": 40, "eos_token_id": 2,
       "pad_token_id": 0, "decoder_start_token_id": 0}  # fmt: skip
_LATENT = {
    "num_key_value_heads": 4, "q_lora_rank": 8, "kv_lora_rank": 8, "qk_rope_head_dim": 4, "qk_nope_head_dim": 4,
    "v_head_dim": 6, "n_routed_experts": 4, "n_group": 2, "topk_group": 1, "num_experts_per_tok": 2,
    "moe_intermediate_size": 8,
}  # fmt: skip

ONE_PART: dict[str, dict[str, Any]] = {
    "bert": _SIZES,
    "roberta": {**_SIZES, "pad_token_id": 1},
    "albert": _SMALL,
    "distilbert": {"vocab_size": 60, "dim": 32, "n_layers": 2, "n_heads": 4, "hidden_dim": 40, "pad_token_id": 0},
    "electra": _SMALL,
    "mobilebert": {**_SMALL, "intra_bottleneck_size": 32},
    "modernbert": {**_SIZES, **_SPECIAL, "local_attention": 6, "global_attn_every_n_layers": 2},
    "gpt2": {"vocab_size": 60, "n_embd": 32, "n_layer": 2, "n_head": 4, "n_positions": 48, **_IDS},
    "gpt_neox": _SIZES,
    "opt": {"vocab_size": 60, "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "ffn_dim": 40,
            "word_embed_proj_dim": 32, "max_position_embeddings": 48, "pad_token_id": 0, **_IDS},
    "phi3": {**_GQA, "sliding_window": 4},
    "llama": _GQA,
    "mistral": {**_GQA, "sliding_window": 3},
    "mixtral": {**_GQA, "num_local_experts": 4},
    "qwen2": _GQA,
    "qwen3": _WIDE,
    "qwen3_moe": {**_WIDE, "num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 16},
    "gemma2": {**_WIDE, "sliding_window": 3, "attn_logit_softcapping": 2.0, "query_pre_attn_scalar": 20},
    "gemma3_text": {**_WIDE, "sliding_window": 3, "layer_types": ["sliding_attention", "full_attention"]},
    "gpt_oss": {**_WIDE, "num_local_experts": 4, "num_experts_per_tok": 2, "sliding_window": 3,
                "max_position_embeddings": 131072},
    "olmo2": _GQA,
    "smollm3": _GQA,
    "cohere": _GQA,
    "granite": {**_GQA, "attention_multiplier": 0.3},
    "deepseek_v3": {**_SIZES, **_LATENT},
    "llama4_text": {**_WIDE, "intermediate_size_mlp": 40, "num_local_experts": 2, "attention_chunk_size": 4},
}  # fmt: skip
TWO_PARTS: dict[str, dict[str, Any]] = {
    "t5": _T5,
    "bart": _HALVES,
    "marian": _HALVES,
    "pegasus": _HALVES,
}
NO_TEXT: dict[str, dict[str, Any]] = {
    "vit": {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 40,
            "image_size": 16, "patch_size": 4},
    "whisper": {"vocab_size": 60, "d_model": 32, "encoder_layers": 1, "decoder_layers": 1, "num_mel_bins": 8,
                "encoder_attention_heads": 4, "decoder_attention_heads": 4, "encoder_ffn_dim": 40,
                "decoder_ffn_dim": 40, "max_source_positions": 20, "max_target_positions": 20, **_IDS,
                "pad_token_id": 0, "decoder_start_token_id": 2},
}  # fmt: skip
NO_TABLE: dict[str, dict[str, Any]] = {
    "canine": {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 40,
               "max_position_embeddings": 48, "local_transformer_stride": 8},
    "blip_2_qformer": {**_SIZES, "encoder_hidden_size": 32},
}  # fmt: skip


def make(model_type: str, config: dict[str, Any]) -> hf.PreTrainedModel:
    """A model of this architecture, with weights large enough that every part of it shows."""
    torch.manual_seed(sum(map(ord, model_type)))
    made = hf.AutoModel.from_config(
        hf.CONFIG_MAPPING[model_type](**config), attn_implementation="eager"
    )
    return raise_weights(made.eval())


def save(path: Path, model: hf.PreTrainedModel) -> Path:
    """A folder of this model, with a tokenizer of a few words."""
    model.save_pretrained(path)
    write_tokenizer(path)
    return path


def save_gpt2(path: Path) -> tuple[str, Any]:
    """Save a tiny GPT-2 with a tokenizer; return its folder, and the same model of transformers."""
    (row,) = (row for row in TABLE if row.name == "gpt2")
    model = row.save(path)
    write_tokenizer(path)
    return str(path), model


def write_tokenizer(path: Path) -> None:
    special = [
        {"id": i, "content": w, "special": True, "single_word": False, "lstrip": False, "rstrip": False,
         "normalized": False}
        for i, w in enumerate(WORDS[:4])
    ]  # fmt: skip
    template = [
        {"Sequence": {"id": "A", "type_id": 0}},
        {"SpecialToken": {"id": "</s>", "type_id": 0}},
    ]
    content = {
        "version": "1.0", "truncation": None, "padding": None, "added_tokens": special, "normalizer": None,
        "pre_tokenizer": {"type": "Whitespace"}, "decoder": None,
        "post_processor": {
            "type": "TemplateProcessing", "single": template, "pair": template,
            "special_tokens": {"</s>": {"id": "</s>", "ids": [2], "tokens": ["</s>"]}},
        },
        "model": {"type": "WordLevel", "vocab": {w: i for i, w in enumerate(WORDS)}, "unk_token": "<unk>"},
    }  # fmt: skip
    (path / "tokenizer.json").write_text(json.dumps(content))
