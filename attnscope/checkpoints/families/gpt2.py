"""GPT-2 (Radford et al., 2019): causal, pre-norm, learned positions, fused q, k, v stored transposed."""

from attnscope.checkpoints.families.spec import (
    HEADS,
    Computed,
    Family,
    activation,
    chunks,
    key,
    lm_head,
)

_LAYER = "h.{l}"

GPT2 = Family(
    name="gpt2",
    config={
        "vocab_size": key("vocab_size"),
        "d_model": key("n_embd"),
        "n_layers": key("n_layer"),
        "n_heads": key("n_head"),
        **HEADS,
        "d_mlp": Computed(
            lambda reader, done: reader.number("n_inner", default=4 * done["d_model"]), ("n_inner",)
        ),
        "max_positions": key("n_positions"),
        "scale": Computed(
            lambda reader, _: None if reader.flag("scale_attn_weights", default=True) else 1.0,
            ("scale_attn_weights",),
        ),
        "qkv_bias": True,
        "out_bias": True,
        "positions": "learned",
        "norm_eps": key("layer_norm_epsilon", default=1e-5),
        "activation": activation("activation_function", "gelu_new"),
        "mlp_bias": True,
    },
    modules={
        "embed.tokens": "wte",
        "embed.positions": "wpe",
        "blocks.{l}.norm_attention": f"{_LAYER}.ln_1",
        **chunks(f"{_LAYER}.attn.c_attn"),
        "blocks.{l}.attention.out": f"{_LAYER}.attn.c_proj",
        "blocks.{l}.norm_mlp": f"{_LAYER}.ln_2",
        "blocks.{l}.mlp.up": f"{_LAYER}.mlp.c_fc",
        "blocks.{l}.mlp.down": f"{_LAYER}.mlp.c_proj",
    },
    prefixes=("", "transformer."),
    transposed=frozenset({"q", "k", "v", "out", "up", "down"}),
    requires={"scale_attn_by_inverse_layer_idx": False},
    inert=frozenset(
        "attn_pdrop embd_pdrop resid_pdrop reorder_and_upcast_attn summary_activation summary_first_dropout "
        "summary_proj_to_labels summary_type summary_use_proj summary_hidden_size classifier_dropout n_ctx".split()
    ),
    leftover=(
        r"h\.\d+\.attn\.(masked_)?bias",
        r"(ln_f|lm_head|multiple_choice_head|score|classifier|qa_outputs)\..*",
    ),
    head=lm_head("ln_f"),
)
