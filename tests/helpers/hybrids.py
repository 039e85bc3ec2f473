"""Tiny random models whose layers differ: in some, tokens read each other by something else than attention."""

from pathlib import Path
from typing import Any

import torch
import transformers as hf

from tests.helpers.architectures import write_tokenizer
from tests.helpers.tiny_models import raise_weights

_IDS = {"bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 0}
SIZES = {
    "vocab_size": 60, "hidden_size": 32, "num_hidden_layers": 4, "num_attention_heads": 4, "num_key_value_heads": 2,
    "intermediate_size": 40, "max_position_embeddings": 64, "tie_word_embeddings": False, **_IDS,
}  # fmt: skip
_MOE = {
    "num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 16, "shared_expert_intermediate_size": 16,
}  # fmt: skip
_DELTA = {
    "linear_num_value_heads": 4, "linear_num_key_heads": 2, "linear_key_head_dim": 8, "linear_value_head_dim": 8,
    "linear_conv_kernel_dim": 3,
}  # fmt: skip
_LATENT = {
    "num_key_value_heads": 4, "q_lora_rank": 8, "kv_lora_rank": 8, "qk_rope_head_dim": 4, "qk_nope_head_dim": 4,
    "v_head_dim": 6, "n_routed_experts": 4, "n_group": 2, "topk_group": 1, "num_experts_per_tok": 2,
    "moe_intermediate_size": 8,
}  # fmt: skip
_LINEAR_FULL = ["linear_attention", "full_attention"] * 2
_MAMBA = {"mamba_d_state": 8, "mamba_d_conv": 3, "mamba_expand": 2, "mamba_d_head": 16, "mamba_n_heads": 4,
          "mamba_n_groups": 1, "mamba_chunk_size": 4}  # fmt: skip
_INDEXER = {"index_n_heads": 8, "index_head_dim": 8, "index_topk": 2}

# model_type → its config
HYBRIDS: dict[str, dict[str, Any]] = {
    "qwen3_next": {**SIZES, **_MOE, **_DELTA, "head_dim": 8, "layer_types": _LINEAR_FULL},
    "qwen3_5_text": {**SIZES, **_DELTA, "head_dim": 8, "layer_types": _LINEAR_FULL},
    "kimi_linear": {**SIZES, **_LATENT, "num_experts": 4, "layer_types": _LINEAR_FULL,
                    "linear_attn_config": {"num_heads": 4, "head_dim": 8, "short_conv_kernel_size": 3,
                                           "kda_layers": [1, 3], "full_attn_layers": [2, 4]}},
    "olmo_hybrid": {**SIZES, **_DELTA, "layer_types": _LINEAR_FULL},
    "nemotron_h": {**SIZES, "head_dim": 8,
                   "layers_block_type": ["linear_attention", "full_attention", "mlp", "full_attention"],
                   "mamba_num_heads": 4, "mamba_head_dim": 16, "ssm_state_size": 8, "conv_kernel": 3, "n_groups": 1,
                   "chunk_size": 4},
    "falcon_h1": {**SIZES, **_MAMBA, "head_dim": 8, "mamba_d_ssm": 64},
    "granitemoehybrid": {**SIZES, **_MAMBA, "num_local_experts": 4, "num_experts_per_tok": 2,
                         "shared_intermediate_size": 16, "layer_types": ["mamba", "attention"] * 2},
    "jamba": {**SIZES, "attn_layer_period": 2, "attn_layer_offset": 1, "expert_layer_period": 2,
              "expert_layer_offset": 1, "num_experts": 4, "mamba_d_state": 8, "mamba_d_conv": 3, "mamba_dt_rank": 4,
              "use_mamba_kernels": False},
    "bamba": {**SIZES, **_MAMBA, "attn_layer_indices": [1, 3]},
    "zamba": {**SIZES, "num_hidden_layers": 6, "num_key_value_heads": 4, "attention_hidden_size": 64,
              "attention_head_dim": 16, "attn_layer_period": 3, "attn_layer_offset": 2, "n_mamba_heads": 2,
              "mamba_d_state": 8, "mamba_d_conv": 3, "mamba_dt_rank": 4, "use_mamba_kernels": False},
    "zamba2": {**SIZES, "num_hidden_layers": 6, "num_key_value_heads": 4, "mamba_d_state": 8, "mamba_d_conv": 3,
               "n_mamba_heads": 4, "mamba_ngroups": 1, "chunk_size": 4, "num_mem_blocks": 1,
               "layers_block_type": ["mamba", "mamba", "hybrid", "mamba", "mamba", "hybrid"],
               "use_mamba_kernels": False},
    "lfm2": {**SIZES, "layer_types": ["conv", "full_attention"] * 2},
    "minimax": {**SIZES, "head_dim": 8, "num_local_experts": 4, "num_experts_per_tok": 2, "block_size": 4,
                "layer_types": _LINEAR_FULL},
    "recurrent_gemma": {**SIZES, "head_dim": 8, "lru_width": 32, "attention_window_size": 5,
                        "block_types": ["recurrent", "attention"]},
    "mamba": {**SIZES, "hidden_size": 16, "num_hidden_layers": 2, "state_size": 4, "expand": 2, "conv_kernel": 3},
    "falcon_mamba": {**SIZES, "hidden_size": 16, "num_hidden_layers": 2, "state_size": 4, "expand": 2},
    "mamba2": {**SIZES, "num_hidden_layers": 2, "state_size": 8, "head_dim": 16, "num_heads": 4, "n_groups": 2,
               "expand": 2, "chunk_size": 4},
    "xlstm": {**SIZES, "num_hidden_layers": 2, "num_heads": 4},
    "rwkv": {**SIZES, "hidden_size": 16, "attention_hidden_size": 16, "num_hidden_layers": 2, "context_length": 512},
    "deepseek_v32": {**SIZES, **_LATENT, **_INDEXER, "first_k_dense_replace": 1},
    "glm_moe_dsa": {**SIZES, **_LATENT, **_INDEXER, "first_k_dense_replace": 1},
}  # fmt: skip


def make_hybrid(model_type: str, **changes: Any) -> hf.PreTrainedModel:
    """Return a model of this type that predicts tokens, with weights large enough that every part of it shows."""
    torch.manual_seed(sum(map(ord, model_type)))
    config = hf.CONFIG_MAPPING[model_type](**{**HYBRIDS[model_type], **changes})
    made = hf.AutoModelForCausalLM.from_config(config, attn_implementation="eager")
    return raise_weights(made.eval())


def with_long_states(model: hf.PreTrainedModel) -> hf.PreTrainedModel:
    """Return a model whose states fade over many tokens, as those of trained ones do, not over one or two."""
    for name, parameter in model.named_parameters():
        if name.endswith(("A_log", "recurrent_param")):
            parameter.data -= 4
        if name.endswith("fgate_preact.bias"):
            parameter.data += 4
        if name.endswith("igate_preact.bias"):
            parameter.data += 4
    return model


def make_mamba() -> hf.PreTrainedModel:
    """Return the Mamba of docs/hybrids.md and its picture."""
    return with_long_states(make_hybrid("mamba", num_hidden_layers=4, hidden_size=32))


def save_hybrid(path: Path, model: hf.PreTrainedModel) -> Path:
    """Save a folder of the model, with a tokenizer of a few words."""
    model.save_pretrained(path)
    write_tokenizer(path)
    return path
