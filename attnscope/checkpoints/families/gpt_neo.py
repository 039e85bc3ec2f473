"""GPT-Neo (Black et al., 2021): GPT-2 whose scores are not scaled, with windows in every second layer."""

from collections.abc import Mapping
from typing import Any

from attnscope.checkpoints.families.reader import ConfigReader, whole_number
from attnscope.checkpoints.families.spec import (
    FOUR_WIDTHS,
    HEADS,
    Computed,
    Family,
    activation,
    key,
    lm_head,
)
from attnscope.checkpoints.families.windows import Windows, layers

_LAYER = "h.{l}"
_ATTENTION = "h.{l}.attn.attention"
_TYPES = "attention_types"
_LAYERS = "attention_layers"


def _windows(reader: ConfigReader, done: Mapping[str, Any]) -> Windows:
    """Return the window of local layers, which are listed as runs: `[[["global", "local"], 12]]`."""
    runs = reader.get(_TYPES)
    count = layers(reader, done)
    kinds: list[Any] = []
    for run in runs if isinstance(runs, list) else [None]:
        if not (isinstance(run, list) and len(run) == 2 and isinstance(run[0], list)):
            raise reader.wrong(_TYPES, runs, 'lists such as [["global", "local"], 12]')
        kinds += run[0] * min(whole_number(reader, _TYPES, run[1]), count + 1)
    if len(kinds) != count or any(layer_type not in ("global", "local") for layer_type in kinds):
        raise reader.wrong(_TYPES, runs, f"global or local for each of {count} layers")
    if reader.get(_LAYERS, default=kinds) != kinds:
        raise reader.wrong(_LAYERS, reader.raw[_LAYERS], f"the layers of '{_TYPES}'")
    if "local" not in kinds:
        return ()
    size = reader.whole("window_size", default=256)
    return tuple(size if layer_type == "local" else None for layer_type in kinds)


GPT_NEO = Family(
    name="gpt_neo",
    config={
        "vocab_size": key("vocab_size"),
        "d_model": key("hidden_size"),
        "n_layers": key("num_layers"),
        "n_heads": key("num_heads"),
        **HEADS,
        "d_mlp": key("intermediate_size", default=FOUR_WIDTHS),
        "max_positions": key("max_position_embeddings"),
        "windows": Computed(_windows, (_TYPES, _LAYERS, "window_size")),
        "scale": 1.0,
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
        **{f"blocks.{{l}}.attention.{part}": f"{_ATTENTION}.{part}_proj" for part in "qkv"},
        "blocks.{l}.attention.out": f"{_ATTENTION}.out_proj",
        "blocks.{l}.norm_mlp": f"{_LAYER}.ln_2",
        "blocks.{l}.mlp.up": f"{_LAYER}.mlp.c_fc",
        "blocks.{l}.mlp.down": f"{_LAYER}.mlp.c_proj",
    },
    prefixes=("", "transformer."),
    inert=frozenset(
        "attention_dropout resid_dropout embed_dropout classifier_dropout summary_activation summary_first_dropout "
        "summary_proj_to_labels summary_type summary_use_proj gradient_checkpointing".split()
    ),
    leftover=(
        r"h\.\d+\.attn\.attention\.(masked_)?bias",
        r"(ln_f|lm_head|score|classifier|qa_outputs)\..*",
    ),
    head=lm_head("ln_f"),
)
