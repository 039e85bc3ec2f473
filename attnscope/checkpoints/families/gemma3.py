"""Gemma 3, the text model (Kamath et al., 2025): Gemma 2 with normed queries and keys, and two rotaries."""

from attnscope.checkpoints.families.gemma2 import GEMMA2
from attnscope.checkpoints.families.llama import QK_NORMS
from attnscope.checkpoints.families.reader import ConfigReader
from attnscope.checkpoints.families.rope import typed_rope
from attnscope.checkpoints.families.windows import by_layer

_PATTERN = "sliding_window_pattern"


def slides(reader: ConfigReader, layer: int, every: int = 6) -> bool:
    """Tell whether a layer has a window: all but every n-th."""
    every = reader.whole(_PATTERN, default=every)
    if (pattern := reader.get(f"_{_PATTERN}", default=every)) != every:
        # transformers writes this key beside `layer_types`, and does not read it
        raise reader.wrong(f"_{_PATTERN}", pattern, f"{every} where there is no layer_types")
    return (layer + 1) % every != 0


GEMMA3 = GEMMA2.variant(
    "gemma3",
    {
        "softcap": None,
        "windows": by_layer(slides, _PATTERN, f"_{_PATTERN}"),
        "qk_norm": True,
        "rope": typed_rope(
            "full_attention", 1e6, rope_theta="rope_theta", rope_scaling="rope_scaling"
        ),
        "rope_local": typed_rope("sliding_attention", 1e4, rope_theta="rope_local_base_freq"),
    },
    model_type="gemma3_text",
    modules=QK_NORMS,
    requires={"use_bidirectional_attention": False},
    # transformers reads `attn_logit_softcapping`, but does not use it
    inert=frozenset({"attention_dropout", "attn_logit_softcapping", "hidden_act"}),
)
