"""Phi-3 (Abdin et al., 2024): Llama whose queries, keys and values, and whose gate and up, are stored as one."""

from dataclasses import replace

from attnscope.families.llama import LLAMA
from attnscope.families.reader import ConfigReader
from attnscope.families.rope import rope
from attnscope.families.spec import Chunk, Computed, key
from attnscope.families.windows import everywhere

_QKV, _MLP = "layers.{l}.self_attn.qkv_proj", "layers.{l}.mlp.gate_up_proj"
_HALVES = ("gate", "up")

PHI3 = replace(
    LLAMA,
    name="phi3",
    model_types=("phi3",),
    config={
        **LLAMA.config,
        "windows": Computed(
            lambda reader, done: everywhere(ConfigReader({"sliding_window": None, **reader.raw}, reader.where), done),
            ("sliding_window",),
        ),
        "qkv_bias": False,
        "norm_eps": key("rms_norm_eps", default=1e-5),
        "mlp_bias": False,
        "rope": rope(fraction="partial_rotary_factor"),
    },
    modules={
        **LLAMA.modules,
        "blocks.{l}.attention.q": Chunk(_QKV, "q"),
        "blocks.{l}.attention.k": Chunk(_QKV, "k"),
        "blocks.{l}.attention.v": Chunk(_QKV, "v"),
        "blocks.{l}.mlp.gate": Chunk(_MLP, "gate", _HALVES),
        "blocks.{l}.mlp.up": Chunk(_MLP, "up", _HALVES),
    },
    requires={"attention_bias": False},
    # `original_max_position_embeddings` says where long factors start, and those are refused
    inert=frozenset("attention_dropout embd_pdrop resid_pdrop original_max_position_embeddings".split()),
)
