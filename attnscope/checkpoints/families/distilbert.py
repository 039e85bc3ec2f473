"""DistilBERT (Sanh et al., 2019): BERT with half the layers and no segments."""

from attnscope.checkpoints.families.spec import (
    HEADS,
    Family,
    Head,
    Outside,
    activation,
    copy_of,
    key,
)

_LAYER = "transformer.layer.{l}"

DISTILBERT = Family(
    name="distilbert",
    config={
        "vocab_size": key("vocab_size"),
        "d_model": key("dim"),
        "n_layers": key("n_layers"),
        "n_heads": key("n_heads"),
        **HEADS,
        "d_mlp": key("hidden_dim"),
        "max_positions": key("max_position_embeddings"),
        "mask": "bidirectional",
        "qkv_bias": True,
        "out_bias": True,
        # `sinusoidal_pos_embds` says only how the table was first filled; it is stored.
        "positions": "learned",
        "embedding_norm": True,
        "norm_eps": 1e-12,
        "norm_order": "post",
        "activation": activation("activation"),
        "mlp_bias": True,
    },
    modules={
        "embed.tokens": "embeddings.word_embeddings",
        "embed.positions": "embeddings.position_embeddings",
        "embed.norm": "embeddings.LayerNorm",
        "blocks.{l}.attention.q": f"{_LAYER}.attention.q_lin",
        "blocks.{l}.attention.k": f"{_LAYER}.attention.k_lin",
        "blocks.{l}.attention.v": f"{_LAYER}.attention.v_lin",
        "blocks.{l}.attention.out": f"{_LAYER}.attention.out_lin",
        "blocks.{l}.norm_attention": f"{_LAYER}.sa_layer_norm",
        "blocks.{l}.mlp.up": f"{_LAYER}.ffn.lin1",
        "blocks.{l}.mlp.down": f"{_LAYER}.ffn.lin2",
        "blocks.{l}.norm_mlp": f"{_LAYER}.output_layer_norm",
    },
    prefixes=("", "distilbert."),
    inert=frozenset(
        "dropout attention_dropout qa_dropout seq_classif_dropout sinusoidal_pos_embds tie_weights_".split()
    ),
    leftover=(
        r"embeddings\.position_ids",
        r"(vocab_transform|vocab_layer_norm|vocab_projector|pre_classifier|classifier|qa_outputs)\..*",
    ),
    head=Head(
        {
            "head": Outside("vocab_projector"),
            "head.transform": Outside("vocab_transform"),
            "head.transform_norm": Outside("vocab_layer_norm"),
            "head.decoder": Outside("vocab_projector"),
        },
        {"transform": copy_of("activation")},
    ),
)
