"""Read what plug-ins of vLLM save of a request: names and settings in their layouts become ours. Never imports torch.

vllm-lens (`output_qk`): `attn_q` and `attn_k`, (layers, tokens, heads, width) each, with `qk_layers` and `qk_meta` as
JSON. vLLM-Hook of IBM (`save_to_disk`): `qk.safetensors` with a `qk.json` beside it that describes its tensors,
(tokens, heads · width) or (requests, tokens, heads · width) each. Queries and keys of both are rotated already.
"""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from attnscope.base.errors import AttnscopeError
from attnscope.base.files.reading import MB, as_object, read_json
from attnscope.engines.arrays.stored import StoredArray

_MAX_SIDECAR = 16 * MB
_WRITE = "write the file again with the plug-in"


def translate_lens(
    stored: Mapping[str, StoredArray], texts: Mapping[str, Any], path: Path
) -> dict[str, Any]:
    """Return the arrays and settings of vllm-lens under our names; `texts` are `qk_layers` and `qk_meta`, parsed."""
    layers = texts.get("qk_layers")
    settings = texts.get("qk_meta")
    if (
        not isinstance(layers, list)
        or not isinstance(settings, list)
        or len(layers) != len(settings)
    ):
        raise AttnscopeError(
            "qk_layers and qk_meta are not lists of one length", where=path, hint=_WRITE
        )
    others = sorted(stored.keys() - {"attn_q", "attn_k", "qk_layers", "qk_meta", "tokens", "text"})
    if others or "attn_k" not in stored:
        raise AttnscopeError(
            f"holds {others[0]}" if others else "has no attn_k", where=path, hint=_WRITE
        )
    translated: dict[str, Any] = {"q": stored["attn_q"], "k": stored["attn_k"], "layers": layers}
    translated["layout"] = "layers,tokens,heads,width"
    for layer, meta in zip(layers, settings, strict=True):
        translated |= {
            f"layer.{layer}.{name}": value for name, value in _lens_settings(meta, path).items()
        }
    return translated


def _lens_settings(meta: Any, path: Path) -> dict[str, Any]:
    """Return the settings of a layer that vLLM gave its kernel."""
    where = f"{path}: qk_meta"
    for name in ("alibi_slopes", "use_alibi_sqrt"):
        if as_object(meta, where).get(name):
            hint = "give the bias as a mask instead, with layer.N.q and layer.N.k"
            raise AttnscopeError(f"{name} is set, which is not read", where=where, hint=hint)
    left, right = meta.get("sliding_window") or (-1, -1)
    if right > 0:
        raise AttnscopeError(
            f"sliding_window reaches {right} tokens ahead", where=where, hint=_WRITE
        )
    settings = {
        "scale": meta.get("scale"),
        "softcap": meta.get("logits_soft_cap") or None,
        "sinks": meta.get("sinks"),
    }
    settings["window"] = left + 1 if left >= 0 else None  # ours counts the query's own token
    return {name: value for name, value in settings.items() if value is not None}


def translate_hook(stored: Mapping[str, StoredArray], path: Path) -> dict[str, Any]:
    """Return the arrays and settings of vLLM-Hook under our names, as the JSON file beside them says."""
    sidecar = path.with_suffix(".json")
    about = as_object(read_json(sidecar, cap=_MAX_SIDECAR), str(sidecar))
    try:
        config = about["config"]
        entries = about["layer_order"]
        heads = int(config["num_attention_heads"])
        groups = int(config["num_key_value_heads"])
        width = int(config["head_dim"])
        scale = float(config["attention_multiplier"])
        translated: dict[str, Any] = {"scale": scale}
        for entry in entries:
            if entry.get("hookq_mode", about.get("hookq_mode")) != "all_tokens":
                hint = "capture with hookq_mode all_tokens"
                raise AttnscopeError(
                    "holds the queries of last tokens alone", where=path, hint=hint
                )
            for letter, count in (("q", heads), ("k", groups)):
                array = stored[entry[f"key_{letter}"]]
                shape = (*array.shape[:-1], count, width)
                if array.shape[-1] != count * width or len(shape) not in (3, 4):
                    message = f"has shape {list(array.shape)}, which is not that of {count} heads, {width} wide each"
                    raise AttnscopeError(message, where=f"{path}: {array.name}", hint=_WRITE)
                translated[f"layer.{int(entry['layer_num'])}.{letter}"] = replace(
                    array, shape=shape
                )
        lengths = about.get("k_full_lens", about.get("k_seq_lens", about.get("seq_lens")))
        requests = len(lengths or [1])
    except (KeyError, TypeError, ValueError) as e:
        raise AttnscopeError(
            f"does not describe its tensors ({e})", where=sidecar, hint=_WRITE
        ) from e
    if about.get("tp_shard"):
        raise AttnscopeError(
            "holds the heads of one GPU of several", where=path, hint="capture on one GPU"
        )
    if about.get("compact_all_tokens"):
        if requests > 1:
            raise AttnscopeError(
                f"holds {requests} requests", where=path, hint="capture one request at a time"
            )
        return {**translated, "layout": "tokens,heads,width"}
    if about.get("q_seq_lens", lengths) != lengths:
        raise AttnscopeError(
            "holds steps of decoding", where=path, hint="capture with hooks_on prefill"
        )
    return {**translated, "layout": "batch,tokens,heads,width", "lengths": lengths}
