"""BERT (Devlin et al., 2019): bidirectional, post-norm, learned positions, segments."""

from attnscope.checkpoints.families.spec import (
    HEADS,
    SIZES,
    Computed,
    Family,
    Head,
    Outside,
    activation,
    copy_of,
    key,
)

_LAYER = "encoder.layer.{l}"
_HEAD = "cls.predictions"

BERT = Family(
    name="bert",
    config={
        **SIZES,
        **HEADS,
        "mask": Computed(
            lambda reader, _: (
                "causal" if reader.flag("is_decoder", default=False) else "bidirectional"
            ),
            ("is_decoder",),
        ),
        "qkv_bias": True,
        "out_bias": True,
        "positions": "learned",
        "n_segments": key("type_vocab_size", default=2),
        "embedding_norm": True,
        "norm_eps": key("layer_norm_eps", default=1e-12),
        "norm_order": "post",
        "activation": activation("hidden_act"),
        "mlp_bias": True,
    },
    modules={
        "embed.tokens": "embeddings.word_embeddings",
        "embed.positions": "embeddings.position_embeddings",
        "embed.segments": "embeddings.token_type_embeddings",
        "embed.norm": "embeddings.LayerNorm",
        "blocks.{l}.attention.q": f"{_LAYER}.attention.self.query",
        "blocks.{l}.attention.k": f"{_LAYER}.attention.self.key",
        "blocks.{l}.attention.v": f"{_LAYER}.attention.self.value",
        "blocks.{l}.attention.out": f"{_LAYER}.attention.output.dense",
        "blocks.{l}.norm_attention": f"{_LAYER}.attention.output.LayerNorm",
        "blocks.{l}.mlp.up": f"{_LAYER}.intermediate.dense",
        "blocks.{l}.mlp.down": f"{_LAYER}.output.dense",
        "blocks.{l}.norm_mlp": f"{_LAYER}.output.LayerNorm",
    },
    prefixes=("", "bert."),
    requires={"position_embedding_type": "absolute", "directionality": "bidi"},
    inert=frozenset(
        "hidden_dropout_prob attention_probs_dropout_prob classifier_dropout pooler_fc_size pooler_num_attention_heads "
        "pooler_num_fc_layers pooler_size_per_head pooler_type".split()
    ),
    leftover=(r"embeddings\.position_ids", r"(pooler|cls|classifier|qa_outputs)\..*"),
    head=Head(
        {
            "head": (Outside(f"{_HEAD}.decoder"), Outside(_HEAD)),
            "head.transform": Outside(f"{_HEAD}.transform.dense"),
            "head.transform_norm": Outside(f"{_HEAD}.transform.LayerNorm"),
            "head.decoder": Outside(f"{_HEAD}.decoder"),
        },
        {"transform": copy_of("activation")},
    ),
)
