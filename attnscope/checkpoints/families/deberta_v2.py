"""DeBERTa v2 and v3 (He et al., 2021): BERT whose scores also compare content with distances."""

from collections.abc import Mapping
from typing import Any

from attnscope.base.model_config import Disentangled
from attnscope.checkpoints.families.bert import BERT
from attnscope.checkpoints.families.reader import ConfigReader
from attnscope.checkpoints.families.spec import HEAD_WIDTH, Computed, key

_TYPES = "pos_att_type"
_SPAN = "max_relative_positions"
_BUCKETS = "position_buckets"
_NORM = "norm_rel_ebd"
_KEYS = ("relative_attention", _SPAN, _BUCKETS, _NORM, "share_att_key", "embedding_size", _TYPES)
_SELF = "encoder.layer.{l}.attention.self"
_ABSOLUTE = "position_biased_input"


def _types(reader: ConfigReader) -> set[str]:
    """Return the kinds of scores besides content with content: `c2p`, `p2c`."""
    types = reader.get(_TYPES, default=[])
    if isinstance(types, str):
        types = [part.strip() for part in types.lower().split("|")]
    if not isinstance(types, list) or not {"c2p", "p2c"}.issuperset(types):
        raise reader.wrong(_TYPES, types, "c2p and p2c")
    return set(types)


def _disentangled(reader: ConfigReader, done: Mapping[str, Any]) -> Disentangled | None:
    if reader.get("embedding_size", default=done["d_model"]) != done["d_model"]:
        raise reader.wrong(
            "embedding_size",
            reader.raw["embedding_size"],
            f"the {done['d_model']} of 'hidden_size'",
        )
    norm = reader.get(_NORM, default="none")
    types = _types(reader)
    if norm not in ("none", "layer_norm"):
        raise reader.wrong(_NORM, norm, "none or layer_norm")
    if not reader.flag("relative_attention", default=False) or not types:
        return None
    span, buckets = (reader.whole(name, default=-1, least=-1) for name in (_SPAN, _BUCKETS))
    span = span if span > 0 else done["max_positions"]
    logarithmic = buckets > 0
    shared = reader.flag("share_att_key", default=False)
    furthest, rows = (span, buckets) if logarithmic else (None, span)
    return Disentangled(
        rows, furthest, "c2p" in types, "p2c" in types, shared, norm == "layer_norm"
    )


DEBERTA_V2 = BERT.variant(
    "deberta_v2",
    {
        "d_head": key("attention_head_size", default=HEAD_WIDTH),
        "mask": "bidirectional",
        "scale": Computed(
            lambda reader, done: (done["d_head"] * (1 + len(_types(reader)))) ** -0.5, (_TYPES,)
        ),
        "positions": Computed(
            lambda reader, _: ("none", "learned")[reader.flag(_ABSOLUTE, default=True)],
            (_ABSOLUTE,),
        ),
        "disentangled": Computed(_disentangled, _KEYS),
        "n_segments": key("type_vocab_size", default=0),
        "norm_eps": key("layer_norm_eps", default=1e-7),
    },
    model_type="deberta-v2",
    modules={
        **{
            f"blocks.{{l}}.attention.{part[0]}": f"{_SELF}.{part}_proj"
            for part in ("query", "key", "value")
        },
        "embed.distances": "encoder.rel_embeddings",
        "embed.distances_norm": "encoder.LayerNorm",
        "blocks.{l}.attention.distance_k": f"{_SELF}.pos_key_proj",
        "blocks.{l}.attention.distance_q": f"{_SELF}.pos_query_proj",
    },
    prefixes=("", "deberta."),
    requires={"conv_kernel_size": 0},
    inert=BERT.inert
    | {
        "pooler_dropout",
        "pooler_hidden_act",
        "pooler_hidden_size",
        "legacy",
        "conv_act",
        "conv_groups",
    },
    leftover=(
        r"embeddings\.position_(ids|embeddings\.weight)",
        *BERT.leftover,
        r"(lm|mask)_predictions\..*",
    ),
)
