"""OLMo 2 (Walsh et al., 2025): Llama that norms the outputs of attention and MLP, and whole queries and keys."""

from attnscope.checkpoints.families.llama import LLAMA, QK_NORMS
from attnscope.checkpoints.families.spec import key

OLMO2 = LLAMA.variant(
    "olmo2",
    {
        "norm_eps": key("rms_norm_eps", default=1e-5),
        "mlp_bias": False,
        "qk_norm": "whole",
        "norm_order": "output",
        "norm_wide": True,
    },
    without="norm",
    modules={
        **QK_NORMS,
        "blocks.{l}.norm_attention_out": "layers.{l}.post_attention_layernorm",
        "blocks.{l}.norm_mlp_out": "layers.{l}.post_feedforward_layernorm",
    },
)
