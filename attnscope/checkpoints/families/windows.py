"""Read the sliding window of every layer."""

from collections.abc import Callable, Mapping
from typing import Any

from attnscope.base.errors import AttnscopeError
from attnscope.checkpoints.families.reader import REQUIRED, ConfigReader, format_json
from attnscope.checkpoints.families.spec import Computed

_MOST_LAYERS = 100_000  # a config must not be able to request a list of arbitrary length

Windows = tuple[int | None, ...]


def everywhere(reader: ConfigReader, done: Mapping[str, Any]) -> Windows:
    """Return the same window in every layer, or none if `sliding_window` is null (Mistral)."""
    window = _window_size(reader)
    if window is None:
        return ()
    return (window,) * layers(reader, done)


def _window_size(reader: ConfigReader) -> int | None:
    """Return `sliding_window`; null is no window, while a key that is left out has the default of its family."""
    if reader.raw.get("sliding_window", REQUIRED) is None:
        return None
    return reader.whole("sliding_window")


def layers(reader: ConfigReader, done: Mapping[str, Any]) -> int:
    """Return the number of layers, once it is one that a list can be made for."""
    if done["n_layers"] > _MOST_LAYERS:
        raise reader.wrong("num_hidden_layers", done["n_layers"], f"at most {_MOST_LAYERS:,}")
    return int(done["n_layers"])


def by_layer(
    slides: Callable[[ConfigReader, int], bool], *names: str, switch: str | None = None
) -> Computed:
    """Return windows where `layer_types` says `sliding_attention`, or without that key `slides`.

    Without the key `switch`, or with false under it, no layer has a window.
    """

    def read(reader: ConfigReader, done: Mapping[str, Any]) -> Windows:
        types = reader.get("layer_types", default=None)
        off = switch is not None and not reader.flag(switch, default=False)
        if types is not None:
            if not isinstance(types, list) or len(types) != done["n_layers"]:
                raise reader.wrong(
                    "layer_types", types, f"a list of {done['n_layers']} words, one per layer"
                )
            for layer, layer_type in enumerate(types):
                if layer_type not in ("sliding_attention", "full_attention"):
                    hint = "expected sliding_attention or full_attention"
                    raise AttnscopeError(
                        f"layer_types[{layer}] is {format_json(layer_type)}",
                        where=reader.where,
                        hint=hint,
                    )
            sliding = [layer_type == "sliding_attention" for layer_type in types]
        else:
            if off:
                sliding = []
            else:
                sliding = [slides(reader, layer) for layer in range(layers(reader, done))]
        if not any(sliding):
            return ()
        if off:
            raise reader.wrong(str(switch), False, "true, since layer_types has sliding_attention")
        window = _window_size(reader)
        if window is None:
            raise reader.wrong("sliding_window", None, f"a window for layer {sliding.index(True)}")
        return tuple(window if slides_here else None for slides_here in sliding)

    return Computed(read, ("layer_types", "sliding_window", *names, *([switch] if switch else [])))
