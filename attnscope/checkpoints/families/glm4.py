"""GLM-4 (Zeng et al., 2024): Llama that rotates neighbours in half of each head; in 2025 with norms behind, too."""

from attnscope.checkpoints.families.llama import LLAMA
from attnscope.checkpoints.families.phi3 import GATE_UP
from attnscope.checkpoints.families.rope import rope
from attnscope.checkpoints.families.spec import key

_LAYER = "layers.{l}"

GLM = LLAMA.variant(
    "glm",
    {
        "n_kv_heads": key("num_key_value_heads"),
        "d_head": key("head_dim"),
        "qkv_bias": key("attention_bias", default=True),
        "out_bias": False,
        "rope": rope(fraction="partial_rotary_factor", full=0.5, interleaved=True),
        "norm_eps": key("rms_norm_eps", default=1.5625e-07),
        "mlp_bias": False,
    },
    GATE_UP,
)

GLM4 = GLM.variant(
    "glm4",
    {"norm_order": "sandwich"},
    modules={
        "blocks.{l}.norm_attention_out": f"{_LAYER}.post_self_attn_layernorm",
        "blocks.{l}.norm_mlp_out": f"{_LAYER}.post_mlp_layernorm",
    },
)
