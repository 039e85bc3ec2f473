"""Qwen3 (Yang et al., 2025): Llama with a head width of its own, and an RMSNorm on each head's queries and keys."""

from attnscope.checkpoints.families.llama import LLAMA, QK_NORMS
from attnscope.checkpoints.families.qwen2 import QWEN_WINDOWS
from attnscope.checkpoints.families.spec import KV_HEADS, key

QWEN3 = LLAMA.variant(
    "qwen3",
    {
        "n_kv_heads": KV_HEADS,
        "d_head": key("head_dim"),
        "windows": QWEN_WINDOWS,
        "qk_norm": True,
        "mlp_bias": False,
    },
    modules=QK_NORMS,
)
