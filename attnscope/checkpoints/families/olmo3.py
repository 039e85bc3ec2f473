"""OLMo 3 (Ai2, 2025): OLMo 2 in which three of four layers have a window."""

from attnscope.checkpoints.families.olmo2 import OLMO2
from attnscope.checkpoints.families.rope import typed_rope
from attnscope.checkpoints.families.windows import by_layer

OLMO3 = OLMO2.variant(
    "olmo3",
    {
        "windows": by_layer(lambda _, layer: (layer + 1) % 4 != 0),
        "rope": typed_rope(
            "full_attention", 5e5, rope_theta="rope_theta", rope_scaling="rope_scaling"
        ),
        # As in transformers 5, a rope_theta at the top level is that of the layers without a window alone.
        "rope_local": typed_rope("sliding_attention", 5e5),
    },
)
