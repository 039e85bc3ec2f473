"""Mixtral (Jiang et al., 2024): Mistral in which a router chooses two of eight MLPs for every token."""

from attnscope.checkpoints.families.mistral import MISTRAL
from attnscope.checkpoints.families.rope import rope
from attnscope.checkpoints.families.spec import HALVES, Entry, Stacked, key

_STACKED = "layers.{l}.mlp"  # where transformers 5 has the experts, all in one tensor


def expert_modules(block: str, gate: str, up: str, down: str) -> dict[str, Entry]:
    """Return the modules of a router and of experts, which have tensors of their own in `block`, or are stacked."""
    expert = f"{block}.experts.{{x}}"
    return {
        "blocks.{l}.mlp.router": (f"{block}.gate", f"{_STACKED}.gate"),
        "blocks.{l}.mlp.experts.{x}.gate": (
            f"{expert}.{gate}",
            Stacked(f"{_STACKED}.experts.gate_up_proj", "gate", HALVES),
        ),
        "blocks.{l}.mlp.experts.{x}.up": (
            f"{expert}.{up}",
            Stacked(f"{_STACKED}.experts.gate_up_proj", "up", HALVES),
        ),
        "blocks.{l}.mlp.experts.{x}.down": (
            f"{expert}.{down}",
            Stacked(f"{_STACKED}.experts.down_proj"),
        ),
    }


MIXTRAL = MISTRAL.variant(
    "mixtral",
    {
        "rope": rope(base=1e6),
        "norm_eps": key("rms_norm_eps", default=1e-5),
        "n_experts": key("num_local_experts"),
        "experts_per_token": key("num_experts_per_tok"),
    },
    without=".mlp.",
    modules={
        **expert_modules("layers.{l}.block_sparse_moe", "w1", "w3", "w2"),
    },
    inert=frozenset(
        "attention_dropout output_router_logits router_aux_loss_coef router_jitter_noise".split()
    ),
)
