"""Qwen2 (Yang et al., 2024): Llama with biases on queries, keys and values, and windows in the upper layers, if any."""

from attnscope.checkpoints.families.llama import LLAMA
from attnscope.checkpoints.families.spec import KV_HEADS
from attnscope.checkpoints.families.windows import by_layer

QWEN_WINDOWS = by_layer(
    lambda reader, layer: layer >= reader.whole("max_window_layers", least=0),
    "max_window_layers",
    switch="use_sliding_window",
)

QWEN2 = LLAMA.variant(
    "qwen2",
    {
        "n_kv_heads": KV_HEADS,
        "windows": QWEN_WINDOWS,
        "qkv_bias": True,
        "out_bias": False,
        "mlp_bias": False,
    },
    requires={"use_mrope": False},
)
