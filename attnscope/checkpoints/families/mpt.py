"""MPT (MosaicML, 2023): causal, pre-norm, with a bias by distance (ALiBi), and without any bias vector."""

from collections.abc import Mapping
from typing import Any

from attnscope.checkpoints.families.config_reader import COMMON_INERT, COMMON_REQUIRES
from attnscope.checkpoints.families.reader import ConfigReader, format_json, positive_number
from attnscope.checkpoints.families.spec import (
    FOUR_WIDTHS,
    HEADS,
    Computed,
    Family,
    chunks,
    key,
    lm_head,
)

_LAYER = "blocks.{l}"
_NESTED = "attn_config"
_SCALE = "softmax_scale"
_REQUIRED = {
    **{"attn_type": "multihead_attention", "prefix_lm": False, "qk_ln": False},
    **{"alibi": True, "alibi_bias_max": 8, "clip_qkv": None},
}
_UNREAD = ("attn_pdrop", "attn_impl", "attn_uses_sequence_id", *COMMON_INERT, *COMMON_REQUIRES)


def _scale(reader: ConfigReader, _: Mapping[str, Any]) -> float | None:
    """Return the factor on scores in the nested table of attention, or None, and refuse other keys of the table."""
    table = reader.get(_NESTED, default={})
    if not isinstance(table, dict):
        raise reader.wrong(_NESTED, table, "an object")
    nested = ConfigReader(table, f"{reader.where}: {_NESTED}")
    for name, value in _REQUIRED.items():
        if (held := nested.get(name, default=value)) != value:
            raise nested.wrong(
                name, held, f"{format_json(value)}, the one value that family 'mpt' supports"
            )
    for name in table.keys() - {*_REQUIRED, _SCALE, *_UNREAD}:
        raise nested.wrong(name, table[name], f"only {', '.join((_SCALE, *_REQUIRED))}")
    scale = table.get(_SCALE)
    if scale is None:
        return None
    return float(positive_number(nested, _SCALE, scale))


MPT = Family(
    name="mpt",
    config={
        "vocab_size": key("vocab_size"),
        "d_model": key("d_model"),
        "n_layers": key("n_layers"),
        "n_heads": key("n_heads"),
        **HEADS,
        "d_mlp": FOUR_WIDTHS,
        "max_positions": key("max_seq_len"),
        "scale": Computed(_scale, (_NESTED,)),
        "positions": "alibi",
        "norm_eps": key("layer_norm_epsilon", default=1e-5),
        "norm_bias": False,
    },
    modules={
        "embed.tokens": "wte",
        "blocks.{l}.norm_attention": f"{_LAYER}.norm_1",
        **chunks(f"{_LAYER}.attn.Wqkv"),
        "blocks.{l}.attention.out": f"{_LAYER}.attn.out_proj",
        "blocks.{l}.norm_mlp": f"{_LAYER}.norm_2",
        "blocks.{l}.mlp.up": f"{_LAYER}.ffn.up_proj",
        "blocks.{l}.mlp.down": f"{_LAYER}.ffn.down_proj",
    },
    prefixes=("", "transformer."),
    requires={"expansion_ratio": 4, "no_bias": True, "logit_scale": None},
    inert=frozenset(
        "emb_pdrop resid_pdrop embedding_fraction init_config init_device learned_pos_emb norm_type tokenizer_name "
        "verbose".split()
    ),
    leftover=(r"(norm_f|lm_head|score|classifier|qa_outputs)\..*",),
    head=lm_head("norm_f"),
)
