"""MPNet (Song et al., 2020), as in all-mpnet-base-v2: BERT without segments, with T5's bias by distance."""

from attnscope.base.model_config import RelativeBias
from attnscope.checkpoints.families.roberta import ROBERTA
from attnscope.checkpoints.families.spec import key

_LAYER = "encoder.layer.{l}"

MPNET = ROBERTA.variant(
    "mpnet",
    {
        "padding_id": 1,  # whatever `pad_token_id` says
        "n_segments": 0,
        "mask": "bidirectional",
        "norm_eps": key("layer_norm_eps", default=1e-12),
        "relative_bias": RelativeBias(),
    },
    without="embed.segments",
    modules={
        "embed.relative_bias": "encoder.relative_attention_bias",
        "blocks.{l}.attention.q": f"{_LAYER}.attention.attn.q",
        "blocks.{l}.attention.k": f"{_LAYER}.attention.attn.k",
        "blocks.{l}.attention.v": f"{_LAYER}.attention.attn.v",
        "blocks.{l}.attention.out": f"{_LAYER}.attention.attn.o",
        "blocks.{l}.norm_attention": f"{_LAYER}.attention.LayerNorm",
    },
    prefixes=("", "mpnet."),
    requires={"relative_attention_num_buckets": 32},
    inert=frozenset({"hidden_dropout_prob", "attention_probs_dropout_prob"}),
)
