"""The native parameter names, as a checkpoint of a TOML stack holds them."""

from attnscope.checkpoints.families.spec import Family, Head

_ATTENTION = ("q", "k", "v", "out", "q_norm", "k_norm")
_MLP = ("up", "gate", "down")
_BLOCK = (
    *("attention", *(f"attention.{name}" for name in _ATTENTION)),
    *("norm_attention", "norm_attention_out", "norm_mlp", "norm_mlp_out"),
    *("mlp.router", *(f"mlp.{name}" for name in _MLP), *(f"mlp.experts.{{x}}.{name}" for name in _MLP)),
)
_NAMES = ("embed.tokens", "embed.positions", "embed.segments", "embed.norm", *(f"blocks.{{l}}.{n}" for n in _BLOCK))

_HEAD = ("head", "head.norm", "head.transform", "head.transform_norm", "head.decoder")

NATIVE_LAYOUT = Family(
    name="config",
    model_types=(),
    config={},
    modules={name: name for name in _NAMES},
    head=Head({name: name for name in _HEAD}),
)
