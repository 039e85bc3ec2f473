"""RoBERTa (Liu et al., 2019): BERT whose positions are counted from the padding token's id on."""

from dataclasses import replace

from attnscope.checkpoints.families.bert import BERT
from attnscope.checkpoints.families.spec import Computed, Head, Outside, key

ROBERTA = replace(
    BERT,
    name="roberta",
    config={
        "padding_id": key("pad_token_id"),
        "position_offset": Computed(lambda _, done: done["padding_id"] + 1),
        **BERT.config,
        "max_positions": Computed(
            lambda reader, done: reader.number("max_position_embeddings") - done["position_offset"],
            ("max_position_embeddings",),
        ),
        "n_segments": key("type_vocab_size"),
    },
    prefixes=("", "roberta."),
    requires={"position_embedding_type": "absolute"},
    inert=frozenset({"hidden_dropout_prob", "attention_probs_dropout_prob", "classifier_dropout"}),
    leftover=(r"embeddings\.position_ids", r"(pooler|lm_head|classifier|qa_outputs)\..*"),
    head=Head(
        {
            "head": (Outside("lm_head.decoder"), Outside("lm_head")),
            "head.transform": Outside("lm_head.dense"),
            "head.transform_norm": Outside("lm_head.layer_norm"),
            "head.decoder": Outside("lm_head.decoder"),
        },
        {"transform": "gelu"},
    ),
)
