"""Granite (IBM, 2024): Llama with a factor on embeddings, scores, what layers add, and logits; also with experts."""

from attnscope.checkpoints.families.llama import LLAMA
from attnscope.checkpoints.families.mixtral import MIXTRAL
from attnscope.checkpoints.families.spec import HALVES, KV_HEADS, Computed, Stacked, key, lm_head

_MOE = "layers.{l}.block_sparse_moe"
_LOGITS = "logits_scaling"

GRANITE = LLAMA.variant(
    "granite",
    {
        "n_kv_heads": KV_HEADS,
        "scale": key("attention_multiplier", default=1.0),
        "embedding_scale": key("embedding_multiplier", default=1.0),
        "residual_scale": key("residual_multiplier", default=1.0),
    },
    head=lm_head(
        "norm",
        scale=Computed(lambda reader, _: 1 / reader.number(_LOGITS, default=1.0), (_LOGITS,)),
    ),
)

GRANITE_MOE = GRANITE.variant(
    "granitemoe",
    {
        "mlp_bias": False,
        "n_experts": MIXTRAL.config["n_experts"],
        "experts_per_token": MIXTRAL.config["experts_per_token"],
    },
    without=".mlp.",
    modules={
        "blocks.{l}.mlp.router": (f"{_MOE}.router.layer", f"{_MOE}.router"),
        **{
            f"blocks.{{l}}.mlp.experts.{{x}}.{half}": (
                Stacked(f"{_MOE}.input_linear.weight", half, HALVES),
                Stacked(f"{_MOE}.experts.gate_up_proj", half, HALVES),
            )
            for half in HALVES
        },
        "blocks.{l}.mlp.experts.{x}.down": (
            Stacked(f"{_MOE}.output_linear.weight"),
            Stacked(f"{_MOE}.experts.down_proj"),
        ),
    },
    inert=MIXTRAL.inert,
)
