"""gpt-oss (OpenAI, 2025): Llama with a sink in every head, alternating windows, and experts with a clamped gate."""

from collections.abc import Mapping
from typing import Any

from attnscope.base.model_config import Rope
from attnscope.checkpoints.families.llama import LLAMA
from attnscope.checkpoints.families.reader import ConfigReader
from attnscope.checkpoints.families.rope import rope
from attnscope.checkpoints.families.spec import HALVES, Computed, Stacked, key
from attnscope.checkpoints.families.windows import by_layer

_ROPE = rope(base=150000.0)
_MLP = "layers.{l}.mlp"


def _rotary(reader: ConfigReader, done: Mapping[str, Any]) -> Rope:
    table = reader.get("rope_parameters", "rope_scaling")
    if not table:
        # Transformers has a default scaling if there is none.
        raise reader.wrong(
            reader.given(_ROPE.names) or "", table, "the rotary parameters, with their rope_type"
        )
    rotary: Rope = _ROPE.rule(reader, done)
    return rotary


GPT_OSS = LLAMA.variant(
    "gpt_oss",
    {
        "n_kv_heads": key("num_key_value_heads"),
        "d_head": key("head_dim"),
        "windows": by_layer(lambda _, layer: layer % 2 == 0),
        "sinks": True,
        "qkv_bias": key("attention_bias", default=True),
        "rope": Computed(_rotary, _ROPE.names),
        "norm_eps": key("rms_norm_eps", default=1e-5),
        "norm_wide": True,
        # x·σ(1.702 x)
        "activation": "quick_gelu",
        "glu_limit": key("swiglu_limit", default=7.0),
        "glu_plus_one": True,
        "mlp_bias": True,
        "n_experts": key("num_local_experts"),
        "experts_per_token": key("num_experts_per_tok"),
        "router_bias": True,
    },
    without=".mlp.",
    modules={
        "blocks.{l}.attention": "layers.{l}.self_attn",
        "blocks.{l}.mlp.router": f"{_MLP}.router",
        "blocks.{l}.mlp.experts.{x}.gate": Stacked(f"{_MLP}.experts.gate_up_proj", "gate", HALVES, True, True),
        "blocks.{l}.mlp.experts.{x}.up": Stacked(f"{_MLP}.experts.gate_up_proj", "up", HALVES, True, True),
        "blocks.{l}.mlp.experts.{x}.down": Stacked(f"{_MLP}.experts.down_proj", transposed=True),
    },
    requires={"swiglu_alpha": 1.702},
    inert=frozenset("attention_dropout experts_per_token hidden_act initial_context_length output_router_logits "
                    "router_aux_loss_coef".split()),
)  # fmt: skip
