"""BLOOM (Le Scao et al., 2022): causal, pre-norm, with a bias by distance (ALiBi) and a norm of the embedding."""

from attnscope.checkpoints.families.spec import FOUR_WIDTHS, HEADS, Family, chunks, key, lm_head

_LAYER = "h.{l}"

BLOOM = Family(
    name="bloom",
    config={
        "vocab_size": key("vocab_size"),
        "d_model": key("n_embed", "hidden_size"),
        "n_layers": key("n_layer", "num_hidden_layers"),
        "n_heads": key("n_head", "num_attention_heads"),
        **HEADS,
        "d_mlp": FOUR_WIDTHS,
        "qkv_bias": True,
        "out_bias": True,
        "positions": "alibi",
        "embedding_norm": True,
        "norm_eps": key("layer_norm_epsilon", default=1e-5),
        "activation": "gelu_tanh",
        "mlp_bias": True,
    },
    modules={
        "embed.tokens": "word_embeddings",
        "embed.norm": "word_embeddings_layernorm",
        "blocks.{l}.norm_attention": f"{_LAYER}.input_layernorm",
        **chunks(f"{_LAYER}.self_attention.query_key_value", per_group=True),
        "blocks.{l}.attention.out": f"{_LAYER}.self_attention.dense",
        "blocks.{l}.norm_mlp": f"{_LAYER}.post_attention_layernorm",
        "blocks.{l}.mlp.up": f"{_LAYER}.mlp.dense_h_to_4h",
        "blocks.{l}.mlp.down": f"{_LAYER}.mlp.dense_4h_to_h",
    },
    prefixes=("", "transformer."),
    requires={"apply_residual_connection_post_layernorm": False, "slow_but_exact": False},
    inert=frozenset(
        "attention_dropout hidden_dropout pretraining_tp skip_bias_add skip_bias_add_qkv unk_token_id seq_length "
        "masked_softmax_fusion attention_softmax_in_fp32 bias_dropout_fusion n_inner offset_alibi".split()
    ),
    leftover=(r"(ln_f|lm_head|score|classifier|qa_outputs)\..*",),
    head=lm_head("ln_f"),
)
