"""Gemma 3, the text model (Kamath et al., 2025): Gemma 2 with normed queries and keys, and two rotaries."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from attnscope.base.model_config import Rope
from attnscope.checkpoints.families.gemma2 import GEMMA2
from attnscope.checkpoints.families.llama import QK_NORMS
from attnscope.checkpoints.families.reader import ConfigReader, whole_number
from attnscope.checkpoints.families.rope import rope
from attnscope.checkpoints.families.spec import Computed
from attnscope.checkpoints.families.windows import by_layer

_PATTERN = "sliding_window_pattern"


def _slides(reader: ConfigReader, layer: int) -> bool:
    every = whole_number(reader, _PATTERN, reader.get(_PATTERN, default=6))
    if (pattern := reader.get(f"_{_PATTERN}", default=every)) != every:
        # transformers writes this key beside `layer_types`, and does not read it
        raise reader.wrong(f"_{_PATTERN}", pattern, f"{every} where there is no layer_types")
    return (layer + 1) % every != 0


def _rotary(layer_type: str, base: float, *older: tuple[str, str]) -> Computed:
    """Read the rotary parameters of layers of one kind: a separate table, or older top-level keys that `rope` knows."""

    def read(reader: ConfigReader, done: Mapping[str, Any]) -> Rope:
        tables = reader.get("rope_parameters", default=None)
        raw = {name: reader.raw.get(key) for key, name in older}
        if tables is not None:
            if not isinstance(tables, dict) or set(tables) != {"full_attention", "sliding_attention"}:
                expected = "a table for full_attention and one for sliding_attention"
                raise reader.wrong("rope_parameters", tables, expected)
            raw["rope_parameters"] = tables[layer_type]
        scaling = raw.get("rope_scaling")
        if isinstance(scaling, dict) and "type" in scaling and "rope_type" not in scaling:
            raise reader.wrong("rope_scaling", scaling, "rope_type: transformers reads no type in this family")
        rotary: Rope = rope(base=base).rule(ConfigReader(raw, reader.where), done)
        if rotary.scaling is not None and not rotary.scaling.truncate:
            raise reader.wrong("truncate", False, "true: transformers reads no other value in this family")
        return rotary

    return Computed(read, ("rope_parameters", *(key for key, _ in older)))


GEMMA3 = replace(
    GEMMA2,
    name="gemma3",
    model_types=("gemma3_text",),
    config={
        **{name: entry for name, entry in GEMMA2.config.items() if name != "softcap"},
        "windows": by_layer(_slides, _PATTERN, f"_{_PATTERN}"),
        "qk_norm": True,
        "rope": _rotary("full_attention", 1e6, ("rope_theta", "rope_theta"), ("rope_scaling", "rope_scaling")),
        "rope_local": _rotary("sliding_attention", 1e4, ("rope_local_base_freq", "rope_theta")),
    },
    modules={
        **GEMMA2.modules,
        **QK_NORMS,
    },
    requires={"use_bidirectional_attention": False},
    # transformers reads `attn_logit_softcapping`, but does not use it
    inert=frozenset({"attention_dropout", "attn_logit_softcapping", "hidden_act"}),
)
