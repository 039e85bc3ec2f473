"""Qwen3-MoE (Yang et al., 2025): Qwen3 in which a router chooses some of many MLPs for every token."""

from collections.abc import Mapping
from typing import Any

from attnscope.checkpoints.families.mixtral import expert_modules
from attnscope.checkpoints.families.qwen3 import QWEN3
from attnscope.checkpoints.families.reader import ConfigReader
from attnscope.checkpoints.families.spec import HEAD_WIDTH, Computed, key
from attnscope.checkpoints.families.windows import everywhere


def _windows(reader: ConfigReader, done: Mapping[str, Any]) -> Any:
    if reader.flag("use_sliding_window", default=False):
        return everywhere(reader, done)
    return ()


QWEN3_MOE = QWEN3.variant(
    "qwen3_moe",
    {
        "n_kv_heads": key("num_key_value_heads"),
        "d_head": key("head_dim", default=HEAD_WIDTH),
        "windows": Computed(_windows, ("sliding_window", "use_sliding_window")),
        "d_mlp": key("moe_intermediate_size"),
        # as published, and as transformers 5 writes it
        "n_experts": key("num_experts", "num_local_experts"),
        "experts_per_token": key("num_experts_per_tok"),
        "experts_share": key("norm_topk_prob", default=False),
    },
    without=".mlp.",
    modules={
        **expert_modules("layers.{l}.mlp", "gate_proj", "up_proj", "down_proj"),
    },
    only={"decoder_sparse_step": 1, "mlp_only_layers": []},
    inert=QWEN3.inert
    | {"intermediate_size", "max_window_layers", "output_router_logits", "router_aux_loss_coef"},
)
