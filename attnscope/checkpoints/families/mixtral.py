"""Mixtral (Jiang et al., 2024): Mistral in which a router chooses two of eight MLPs for every token."""

from dataclasses import replace

from attnscope.checkpoints.families.mistral import MISTRAL
from attnscope.checkpoints.families.rope import rope
from attnscope.checkpoints.families.spec import Stacked, key

# as published, and as transformers 5 names them itself
_OLD = "layers.{l}.block_sparse_moe"
_NEW = "layers.{l}.mlp"
_HALVES = ("gate", "up")

MIXTRAL = replace(
    MISTRAL,
    name="mixtral",
    model_types=("mixtral",),
    config={
        **MISTRAL.config,
        "rope": rope(base=1e6),
        "norm_eps": key("rms_norm_eps", default=1e-5),
        "n_experts": key("num_local_experts"),
        "experts_per_token": key("num_experts_per_tok"),
    },
    modules={
        **{name: entry for name, entry in MISTRAL.modules.items() if ".mlp." not in name},
        "blocks.{l}.mlp.router": (f"{_OLD}.gate", f"{_NEW}.gate"),
        "blocks.{l}.mlp.experts.{x}.gate": (
            f"{_OLD}.experts.{{x}}.w1",
            Stacked(f"{_NEW}.experts.gate_up_proj", "gate", _HALVES),
        ),
        "blocks.{l}.mlp.experts.{x}.up": (
            f"{_OLD}.experts.{{x}}.w3",
            Stacked(f"{_NEW}.experts.gate_up_proj", "up", _HALVES),
        ),
        "blocks.{l}.mlp.experts.{x}.down": (f"{_OLD}.experts.{{x}}.w2", Stacked(f"{_NEW}.experts.down_proj")),
    },
    inert=frozenset("attention_dropout output_router_logits router_aux_loss_coef router_jitter_noise".split()),
)
