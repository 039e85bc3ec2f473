"""Phi-3 (Abdin et al., 2024): Llama whose queries, keys and values, and whose gate and up, are stored as one."""

from attnscope.checkpoints.families.llama import LLAMA
from attnscope.checkpoints.families.reader import ConfigReader
from attnscope.checkpoints.families.rope import rope
from attnscope.checkpoints.families.spec import HALVES, Computed, chunks, key
from attnscope.checkpoints.families.windows import everywhere

GATE_UP = chunks("layers.{l}.mlp.gate_up_proj", "mlp", HALVES)

PHI3 = LLAMA.variant(
    "phi3",
    {
        "windows": Computed(
            lambda reader, done: everywhere(
                ConfigReader({"sliding_window": None, **reader.raw}, reader.where), done
            ),
            ("sliding_window",),
        ),
        "qkv_bias": False,
        "norm_eps": key("rms_norm_eps", default=1e-5),
        "mlp_bias": False,
        "rope": rope(fraction="partial_rotary_factor", longrope="original_max_position_embeddings"),
    },
    modules={
        **chunks("layers.{l}.self_attn.qkv_proj"),
        **GATE_UP,
    },
    # The last two are of Phi-4-mini: every layer has full attention, and positions are not interpolated.
    requires={
        "attention_bias": False,
        "mlp_bias": False,
        "full_attn_mod": 1,
        "interpolate_factor": 1,
    },
    inert=frozenset("attention_dropout embd_pdrop lm_head_bias resid_pdrop".split()),
    upstreamed=True,
)
