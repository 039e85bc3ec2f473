"""The table: one tiny random transformers model per family and variant, saved as its authors would."""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
import transformers as hf

VOCAB, POSITIONS = 60, 48
_SIZES = {
    "vocab_size": VOCAB, "hidden_size": 24, "num_hidden_layers": 3, "num_attention_heads": 4, "intermediate_size": 40,
    "max_position_embeddings": POSITIONS, "bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 0,
}  # fmt: skip
_GQA = {**_SIZES, "hidden_size": 32, "num_key_value_heads": 2}


@dataclass(frozen=True)
class Row:
    """One row of the parity table."""

    name: str  # family and variant
    model: type[hf.PreTrainedModel]  # class of transformers
    config: dict[str, Any] = field(default_factory=dict)  # what differs from its defaults

    def make(self) -> hf.PreTrainedModel:
        """The model, with weights large enough that every part of the architecture shows."""
        torch.manual_seed(sum(map(ord, self.name)))
        config = self.model.config_class(**self.config)
        return raise_weights(self.model._from_config(config, attn_implementation="eager").eval())

    def save(self, path: Path) -> hf.PreTrainedModel:
        """The same, also written into a folder."""
        model = self.make()
        model.save_pretrained(path)
        return model


def raise_weights(model: hf.PreTrainedModel) -> hf.PreTrainedModel:
    """Init 0.3 for matrices; norms around their neutral value and biases around 0, so that a forgotten one shows.

    At the usual 0.02 even swapped queries and keys pass a comparison of logits. Sinks are as large as large scores.
    """
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if name.endswith("sinks"):
                parameter.normal_(6.0, 3.0)
            elif parameter.ndim >= 2:
                parameter.normal_(0.0, 0.3)
            else:
                parameter.add_(torch.randn_like(parameter) * 0.3)
    return model


def _bert(name: str, model: type[hf.PreTrainedModel], **changes: Any) -> Row:
    return Row(name, model, {**_SIZES, **changes})


def _gqa(name: str, model: type[hf.PreTrainedModel], **changes: Any) -> Row:
    return Row(name, model, {**_GQA, **changes})


def _rope(kind: str, **parameters: Any) -> dict[str, Any]:
    return {"rope_parameters": {"rope_type": kind, "rope_theta": 5000.0, **parameters}}


_DISTIL = {
    "vocab_size": VOCAB,
    "dim": 24,
    "n_layers": 3,
    "n_heads": 4,
    "hidden_dim": 40,
    "max_position_embeddings": POSITIONS,
}
_GPT2 = {"vocab_size": VOCAB, "n_embd": 24, "n_layer": 3, "n_head": 4, "n_positions": POSITIONS,
         "bos_token_id": 1, "eos_token_id": 2}  # fmt: skip
_LLAMA3 = _rope(
    "llama3",
    factor=4.0,
    low_freq_factor=1.0,
    high_freq_factor=4.0,
    original_max_position_embeddings=16,
)
_YARN = _rope("yarn", factor=4.0, original_max_position_embeddings=12)
LONGROPE = _rope("longrope", short_factor=[1.0, 1.5, 2.0, 3.0], long_factor=[4.0, 2.5, 6.0, 8.0])
_SLIDING = {"use_sliding_window": True, "sliding_window": 5, "max_window_layers": 1}
_OSS = {"head_dim": 12, "sliding_window": 4, "num_local_experts": 4, "num_experts_per_tok": 2,
        **_rope("yarn", factor=4.0, original_max_position_embeddings=12, truncate=False)}  # fmt: skip

_MOE = {"num_experts": 4, "num_experts_per_tok": 2}
_GRANITE = {
    "attention_multiplier": 0.4,
    "embedding_multiplier": 3.0,
    "residual_multiplier": 0.6,
    "logits_scaling": 2.0,
}
_MODERN = {"local_attention": 6, "global_attn_every_n_layers": 2}
_T5 = {"vocab_size": VOCAB, "d_model": 24, "d_kv": 6, "d_ff": 40, "num_layers": 3, "num_heads": 4,
       "relative_attention_num_buckets": 8, "relative_attention_max_distance": 10}  # fmt: skip

_MPT = {"vocab_size": VOCAB, "d_model": 24, "n_layers": 3, "n_heads": 4, "max_seq_len": POSITIONS}
_FALCON = {"vocab_size": VOCAB, "hidden_size": 32, "num_hidden_layers": 3, "num_attention_heads": 4,
           "max_position_embeddings": POSITIONS, "ffn_hidden_size": 40, "bos_token_id": 1,
           "eos_token_id": 2}  # fmt: skip
_NEO = {"vocab_size": VOCAB, "hidden_size": 24, "num_layers": 3, "num_heads": 4, "intermediate_size": 40,
        "max_position_embeddings": POSITIONS, "attention_types": [[["global", "local"], 1], [["local"], 1]],
        "window_size": 4, "bos_token_id": 1, "eos_token_id": 2}  # fmt: skip
_DEBERTA = {"relative_attention": True, "position_buckets": 8, "norm_rel_ebd": "layer_norm", "share_att_key": True,
            "pos_att_type": "p2c|c2p", "max_relative_positions": -1, "position_biased_input": False}  # fmt: skip

TABLE = (
    _bert("bert", hf.BertModel),
    _bert("bert with heads", hf.BertForPreTraining),
    _bert("bert decoder", hf.BertLMHeadModel, is_decoder=True),
    _bert("bert relu, one segment", hf.BertModel, hidden_act="relu", type_vocab_size=1, layer_norm_eps=1e-3),
    _bert("roberta", hf.RobertaForMaskedLM, pad_token_id=1, type_vocab_size=1),
    _bert("roberta decoder, other padding", hf.RobertaModel, pad_token_id=4, is_decoder=True),
    Row("distilbert", hf.DistilBertForMaskedLM, _DISTIL),
    Row("distilbert sinusoidal", hf.DistilBertModel, {**_DISTIL, "sinusoidal_pos_embds": True, "activation": "relu"}),
    Row("gpt2", hf.GPT2LMHeadModel, _GPT2),
    Row("gpt2 unscaled, inner width", hf.GPT2Model, {**_GPT2, "scale_attn_weights": False, "n_inner": 36}),
    _bert("gpt_neox", hf.GPTNeoXForCausalLM, hidden_size=32),
    _bert("gpt_neox sequential, no bias", hf.GPTNeoXModel, hidden_size=32, use_parallel_residual=False,
          attention_bias=False, rope_parameters={"rope_theta": 500.0, "partial_rotary_factor": 0.5}),
    _bert("gpt_neox all rotated, linear", hf.GPTNeoXModel, hidden_size=32,
          rope_parameters={"rope_type": "linear", "factor": 2.0, "partial_rotary_factor": 1.0}),
    _gqa("llama", hf.LlamaForCausalLM),
    _gqa("llama one kv head, tied", hf.LlamaForCausalLM, num_key_value_heads=1, tie_word_embeddings=True),
    _gqa("llama ungrouped, biases", hf.LlamaModel, num_key_value_heads=4, attention_bias=True, mlp_bias=True),
    _gqa("llama head_dim", hf.LlamaModel, head_dim=12, rms_norm_eps=1e-2),
    _gqa("llama linear", hf.LlamaModel, **_rope("linear", factor=3.0)),
    _gqa("llama llama3", hf.LlamaModel, **_LLAMA3),
    _gqa("llama yarn", hf.LlamaModel, **_YARN),
    _gqa("llama yarn with every key", hf.LlamaModel, **_rope("yarn", factor=8.0, original_max_position_embeddings=24,
         beta_fast=3.5, beta_slow=0.3, truncate=False, mscale=1.5, mscale_all_dim=0.5)),
    _gqa("mistral", hf.MistralForCausalLM, sliding_window=4),
    _gqa("mistral no window, head_dim", hf.MistralModel, sliding_window=None, head_dim=12),
    _gqa("qwen2", hf.Qwen2ForCausalLM),
    _gqa("qwen2 windows", hf.Qwen2Model, **_SLIDING),
    _gqa("qwen2 layer types", hf.Qwen2Model, use_sliding_window=True, sliding_window=3,
         layer_types=["full_attention", "sliding_attention", "full_attention"]),
    _gqa("qwen3", hf.Qwen3ForCausalLM, head_dim=12),
    _gqa("qwen3 windows, biases", hf.Qwen3Model, head_dim=8, attention_bias=True, **_SLIDING),
    _gqa("gemma2", hf.Gemma2ForCausalLM, head_dim=12, sliding_window=4, query_pre_attn_scalar=20,
         attn_logit_softcapping=2.0),
    _gqa("gemma2 no cap, layer types", hf.Gemma2Model, head_dim=8, sliding_window=3, query_pre_attn_scalar=8,
         attn_logit_softcapping=None, attention_bias=True,
         layer_types=["full_attention", "full_attention", "sliding_attention"]),
    _gqa("gemma3", hf.Gemma3ForCausalLM, head_dim=12, sliding_window=4, query_pre_attn_scalar=20,
         layer_types=["sliding_attention", "full_attention", "sliding_attention"]),
    _gqa("gemma3 full layers stretched", hf.Gemma3TextModel, head_dim=8, sliding_window=3, attention_bias=True,
         layer_types=["full_attention", "full_attention", "sliding_attention"],
         rope_parameters={"full_attention": {"rope_type": "linear", "factor": 3.0, "rope_theta": 900.0},
                          "sliding_attention": {"rope_type": "default", "rope_theta": 70.0}}),
    _gqa("phi3", hf.Phi3ForCausalLM),
    _gqa("phi3 window, part rotated", hf.Phi3Model, sliding_window=4,
         rope_parameters={"rope_type": "default", "rope_theta": 500.0, "partial_rotary_factor": 0.5}),
    _gqa("olmo2", hf.Olmo2ForCausalLM),
    _gqa("olmo2 biases, one kv head", hf.Olmo2Model, attention_bias=True, num_key_value_heads=1),
    _gqa("smollm3", hf.SmolLM3ForCausalLM, no_rope_layer_interval=2),
    _gqa("smollm3 windows, listed layers", hf.SmolLM3Model, no_rope_layers=[0, 1, 0], use_sliding_window=True,
         sliding_window=4, attention_bias=True, mlp_bias=True),
    _gqa("mixtral", hf.MixtralForCausalLM, num_local_experts=4),
    _gqa("mixtral window, three of five", hf.MixtralModel, num_local_experts=5, num_experts_per_tok=3,
         sliding_window=4, head_dim=12, hidden_act="relu"),
    _gqa("gpt_oss", hf.GptOssForCausalLM, **_OSS),
    _gqa("gpt_oss no biases, one of three, other limit", hf.GptOssModel, **{**_OSS, "num_local_experts": 3,
         "num_experts_per_tok": 1, "attention_bias": False, "swiglu_limit": 0.4, "intermediate_size": 32,
         "layer_types": ["full_attention", "sliding_attention", "sliding_attention"],
         **_rope("linear", factor=2.0)}),
    _bert("mpnet", hf.MPNetForMaskedLM, pad_token_id=1),
    _bert("mpnet other padding", hf.MPNetModel, pad_token_id=4, layer_norm_eps=1e-3, hidden_act="relu"),
    Row("bloom", hf.BloomForCausalLM, {"vocab_size": VOCAB, "hidden_size": 24, "n_layer": 3, "n_head": 4}),
    Row("bloom six heads", hf.BloomModel, {"vocab_size": VOCAB, "hidden_size": 24, "n_layer": 3, "n_head": 6}),
    Row("mpt", hf.MptForCausalLM, _MPT),
    Row("mpt six heads", hf.MptModel, {**_MPT, "n_heads": 6, "attn_config": {
        "softmax_scale": 0.7}}),
    Row("falcon", hf.FalconForCausalLM, _FALCON),
    Row("falcon new decoder", hf.FalconModel, {**_FALCON, "new_decoder_architecture": True, "num_kv_heads": 2,
        "bias": True, "rope_parameters": {"rope_type": "linear", "rope_theta": 500.0, "factor": 2.0}}),
    Row("falcon new decoder, one norm", hf.FalconModel, {**_FALCON, "new_decoder_architecture": True,
        "num_kv_heads": 2, "num_ln_in_parallel_attn": 1}),
    Row("falcon sequential, ungrouped", hf.FalconModel, {**_FALCON, "multi_query": False,
        "parallel_attn": False, "bias": True, "activation": "relu"}),
    _bert("deberta_v2", hf.DebertaV2ForMaskedLM, **_DEBERTA),
    _bert("deberta_v2 own projections, no buckets", hf.DebertaV2Model, relative_attention=True, type_vocab_size=2,
          pos_att_type=["c2p", "p2c"], max_relative_positions=7, hidden_act="relu"),
    _bert("deberta_v2 one part, other width", hf.DebertaV2Model, **{**_DEBERTA, "pos_att_type": "p2c"}),
    Row("gpt_neo", hf.GPTNeoForCausalLM, _NEO),
    _gqa("qwen3_moe", hf.Qwen3MoeForCausalLM, head_dim=12, moe_intermediate_size=20, norm_topk_prob=True, **_MOE),
    _gqa("qwen3_moe shares of all experts, windows", hf.Qwen3MoeModel, head_dim=8, moe_intermediate_size=20,
         attention_bias=True, use_sliding_window=True, sliding_window=4, **_MOE),
    _gqa("olmoe", hf.OlmoeForCausalLM, **_MOE),
    _gqa("olmoe shares of the chosen, three of four", hf.OlmoeModel, num_experts=4, num_experts_per_tok=3,
         norm_topk_prob=True, attention_bias=True),
    _gqa("olmo3", hf.Olmo3ForCausalLM, sliding_window=4,
         layer_types=["sliding_attention", "full_attention", "sliding_attention"]),
    _gqa("olmo3 full layers stretched", hf.Olmo3Model, sliding_window=3, attention_bias=True, rope_parameters={
         "full_attention": {"rope_type": "yarn", "factor": 4.0, "rope_theta": 900.0,
                            "original_max_position_embeddings": 12},
         "sliding_attention": {"rope_type": "default", "rope_theta": 70.0}},
         layer_types=["sliding_attention", "full_attention", "full_attention"]),
    _bert("modernbert", hf.ModernBertForMaskedLM, **_MODERN),
    _bert("modernbert biases, layer types", hf.ModernBertModel, norm_bias=True, attention_bias=True, mlp_bias=True,
          hidden_activation="relu", local_attention=4, norm_eps=1e-3,
          layer_types=["sliding_attention", "full_attention", "full_attention"]),
    _gqa("glm", hf.GlmForCausalLM, head_dim=8),
    _gqa("glm all rotated", hf.GlmModel, head_dim=12, attention_bias=False,
         rope_parameters={"rope_type": "linear", "factor": 2.0, "rope_theta": 500.0, "partial_rotary_factor": 1.0}),
    _gqa("glm4", hf.Glm4ForCausalLM, head_dim=8),
    _gqa("granite", hf.GraniteForCausalLM, **_GRANITE),
    _gqa("granite biases", hf.GraniteModel, attention_bias=True, mlp_bias=True, **{**_GRANITE,
         "residual_multiplier": 1.5, "attention_multiplier": 0.1}),
    _gqa("granitemoe", hf.GraniteMoeForCausalLM, num_local_experts=4, **_GRANITE),
    _gqa("cohere", hf.CohereForCausalLM, logit_scale=0.25),
    _gqa("cohere biases, untied", hf.CohereForCausalLM, attention_bias=True, tie_word_embeddings=False,
         num_key_value_heads=4, **_rope("linear", factor=3.0)),
    _gqa("cohere2", hf.Cohere2ForCausalLM, sliding_window=4,
         layer_types=["sliding_attention", "full_attention", "sliding_attention"]),
    Row("t5", hf.T5EncoderModel, _T5),
    Row("t5 gated", hf.T5EncoderModel, {**_T5, "feed_forward_proj": "gated-gelu", "layer_norm_epsilon": 1e-3}),
)  # fmt: skip
