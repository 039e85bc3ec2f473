"""SmolLM3 (Bakouch et al., 2025): Llama in which every fourth layer knows nothing of positions."""

from collections.abc import Mapping
from typing import Any

from attnscope.checkpoints.families.llama import LLAMA
from attnscope.checkpoints.families.reader import ConfigReader
from attnscope.checkpoints.families.rope import rope
from attnscope.checkpoints.families.spec import KV_HEADS, Computed
from attnscope.checkpoints.families.windows import by_layer, layers


def _turned(reader: ConfigReader, done: Mapping[str, Any]) -> tuple[bool, ...]:
    """Read for each layer whether its queries and keys are rotated."""
    listed = reader.get("no_rope_layers", default=None)
    count = layers(reader, done)
    if listed is None:
        every = reader.whole("no_rope_layer_interval", default=4)
        return tuple((layer + 1) % every != 0 for layer in range(count))
    if (
        not isinstance(listed, list)
        or len(listed) < count
        or any(rotated not in (0, 1) for rotated in listed)
    ):
        expected = f"a list of {count} numbers, 1 for rotated layers and 0 for others"
        raise reader.wrong("no_rope_layers", listed, expected)
    return tuple(bool(rotated) for rotated in listed[:count])


SMOLLM3 = LLAMA.variant(
    "smollm3",
    {
        "n_kv_heads": KV_HEADS,
        "rope": rope(base=2000000.0),
        "rope_layers": Computed(_turned, ("no_rope_layers", "no_rope_layer_interval")),
        "windows": Computed(
            lambda reader, done: by_layer(
                lambda _, layer: not done["rope_layers"][layer], switch="use_sliding_window"
            ).rule(reader, done),
            ("layer_types", "sliding_window", "use_sliding_window"),
        ),
    },
    inert=frozenset({"attention_dropout", "max_window_layers", "pretraining_tp"}),
)
