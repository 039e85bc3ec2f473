"""Phi-3 (Abdin et al., 2024): Llama whose queries, keys and values, and whose gate and up, are stored as one."""

from dataclasses import replace

from attnscope.checkpoints.families.llama import LLAMA
from attnscope.checkpoints.families.reader import ConfigReader
from attnscope.checkpoints.families.rope import rope
from attnscope.checkpoints.families.spec import Chunk, Computed, key
from attnscope.checkpoints.families.windows import everywhere

_QKV = "layers.{l}.self_attn.qkv_proj"
_MLP = "layers.{l}.mlp.gate_up_proj"
_HALVES = ("gate", "up")

PHI3 = replace(
    LLAMA,
    name="phi3",
    model_types=("phi3",),
    config={
        **LLAMA.config,
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
        **LLAMA.modules,
        "blocks.{l}.attention.q": Chunk(_QKV, "q"),
        "blocks.{l}.attention.k": Chunk(_QKV, "k"),
        "blocks.{l}.attention.v": Chunk(_QKV, "v"),
        "blocks.{l}.mlp.gate": Chunk(_MLP, "gate", _HALVES),
        "blocks.{l}.mlp.up": Chunk(_MLP, "up", _HALVES),
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
