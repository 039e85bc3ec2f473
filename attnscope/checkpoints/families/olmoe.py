"""OLMoE (Muennighoff et al., 2024): Llama with experts, and an RMSNorm on whole queries and keys."""

from attnscope.checkpoints.families.llama import LLAMA
from attnscope.checkpoints.families.qwen3_moe import QWEN3_MOE
from attnscope.checkpoints.families.spec import KV_HEADS, key

OLMOE = LLAMA.variant(
    "olmoe",
    {
        "n_kv_heads": KV_HEADS,
        "norm_eps": key("rms_norm_eps", default=1e-5),
        "mlp_bias": False,
        "qk_norm": "whole",
        **{
            name: QWEN3_MOE.config[name]
            for name in ("n_experts", "experts_per_token", "experts_share")
        },
    },
    modules=QWEN3_MOE.modules,
    without=".mlp.",
    only={"clip_qkv": None},
    inert=frozenset({"attention_dropout", "output_router_logits", "router_aux_loss_coef"}),
)
