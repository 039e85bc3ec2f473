"""Open a GGUF file as a checkpoint of transformers: its config, and the names that its tensors have there.

The metadata are translated to a config.json, which the family then reads as it reads any other.
"""

import re
import struct
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import partial, partialmethod
from math import pi
from pathlib import Path
from typing import Any

from attnscope.base.errors import AttnscopeError
from attnscope.base.files.reading import format_value, open_regular, read_at_most
from attnscope.checkpoints.chat.templates import gguf_templates
from attnscope.checkpoints.folder import Folder
from attnscope.checkpoints.gguf_header import GgufHeader, read_gguf_header
from attnscope.checkpoints.headers import TensorInfo
from attnscope.checkpoints.tokenization.gguf import tokenizer_json

_BLOCK = re.compile(r"blk\.(\d+)\.(.+)")
_OUTSIDE = {"token_embd": "model.embed_tokens", "output_norm": "model.norm", "output": "lm_head"}
_INSIDE = {
    "attn_norm": "input_layernorm", "attn_q": "self_attn.q_proj", "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj", "attn_qkv": "self_attn.qkv_proj", "attn_output": "self_attn.o_proj",
    "attn_q_norm": "self_attn.q_norm", "attn_k_norm": "self_attn.k_norm", "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj", "ffn_up": "mlp.up_proj", "ffn_down": "mlp.down_proj",
}  # fmt: skip
_SANDWICH = {
    "post_attention_norm": "post_attention_layernorm", "ffn_norm": "pre_feedforward_layernorm",
    "post_ffw_norm": "post_feedforward_layernorm",
}  # fmt: skip
_BEHIND = {
    "post_attention_norm": "post_attention_layernorm",
    "post_ffw_norm": "post_feedforward_layernorm",
}
_GLM4 = {
    "post_attention_norm": "post_self_attn_layernorm", "post_ffw_norm": "post_mlp_layernorm",
    "ffn_up": "mlp.gate_up_proj",
}  # fmt: skip
_INERT = frozenset(
    "vocab_size tensor_data_layout rope.scaling.finetuned attention.layer_norm_epsilon".split()
)
_ROPE_TABLES = ("rope_freqs.weight", "rope_factors_long.weight", "rope_factors_short.weight")
_LLAMA3 = {
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 8192,
}
_LONGEST_TABLE = 4096  # numbers


class _Metadata:
    """The metadata of an architecture, and tables of its rotary positions; knows which of them were read."""

    def __init__(self, header: GgufHeader, architecture: str, path: Path) -> None:
        self.values = header.metadata
        self.tensors = header.tensors
        self.architecture = architecture
        self.path = path
        self.seen = set[str]()
        # until it is read
        self.tables = {name: self.tensors[name] for name in _ROPE_TABLES if name in self.tensors}

    def get(
        self, name: str, default: Any = ..., *, value_type: type[Any] | tuple[type[Any], ...]
    ) -> Any:
        """Return a value of this type; one for each layer must be the same for all."""
        self.seen.add(name)
        value = self.values.get(f"{self.architecture}.{name}")
        if (
            isinstance(value, list)
            and value_type is not list
            and value
            and value.count(value[0]) == len(value)
        ):
            value = value[0]
        if value is None and default is not ...:
            return default
        if not isinstance(value, value_type) or (
            isinstance(value, bool) and value_type is not bool
        ):
            message = "is missing" if value is None else f"is {format_value(value)}"
            raise self.wrong(name, message, "attention depends on it")
        return value

    integer = partialmethod(get, value_type=int)
    number = partialmethod(get, value_type=(int, float))

    def require(self, name: str, expected: Any) -> None:
        if self.get(name, expected, value_type=(int, float, bool, str)) != expected:
            value = self.values[f"{self.architecture}.{name}"]
            raise self.wrong(
                name, f"is {format_value(value)}", f"only {format_value(expected)} is supported"
            )

    def wrong(self, name: str, message: str, hint: str) -> AttnscopeError:
        return AttnscopeError(message, where=f"{self.path}: {self.architecture}.{name}", hint=hint)

    def check_unread(self) -> None:
        """Refuse keys of the architecture and tables that nothing read."""
        for table in self.tables:
            hint = "use the model's safetensors version"
            raise AttnscopeError(
                "is not understood: it changes positions", where=f"{self.path}: {table}", hint=hint
            )
        start = f"{self.architecture}."
        for key in self.values:
            name = key.removeprefix(start)
            if key.startswith(start) and name not in self.seen and name not in _INERT:
                raise AttnscopeError(
                    "is not understood", where=f"{self.path}: {key}", hint="it may change attention"
                )


@dataclass(frozen=True)
class _Architecture:
    """How llama.cpp writes the models of one `general.architecture`."""

    # fields of config.json beyond `_shared_config`
    config: Callable[[_Metadata, dict[str, Any]], dict[str, Any]]
    # module within a block to the module of transformers, if it differs from `_INSIDE`
    names: Mapping[str, str] = field(default_factory=dict)
    paired: bool = False
    # offset of the weights of norms: Gemma's are stored with the 1 that transformers adds
    norm_offset: float = 0.0


def open_gguf(path: Path) -> Folder:
    """Read the header of a GGUF file, and derive a config.json and a tokenizer.json."""
    header = read_gguf_header(path)
    name, architecture = _architecture(header.metadata, path)
    metadata = _Metadata(header, name, path)
    config = _shared_config(metadata)
    config |= architecture.config(metadata, config)
    metadata.check_unread()
    tensors = [_renamed(info, architecture, config) for info in header.tensors.values()]
    types = sorted({info.dtype for info in tensors if info.block is not None})
    details: tuple[str, ...] = ()
    if types:
        details = (
            f"GGUF: {', '.join(types)} weights, converted to floating point as they are read",
        )
    tokenizer, notes = tokenizer_json(header.metadata, name, path)
    return Folder(
        path=path,
        config=config,
        tensors={info.name: info for info in tensors if info.name not in _ROPE_TABLES},
        files={path.name: header.stamp.size},
        fingerprint=header.digest.hex()[:16],
        notes=notes,
        details=details,
        stamps={path: header.stamp},
        tokenizer=tokenizer,
        chat=gguf_templates(header.metadata, path),
    )


def _architecture(metadata: Mapping[str, Any], path: Path) -> tuple[str, _Architecture]:
    name = metadata.get("general.architecture")
    file_type = metadata.get("general.type", "model")
    if file_type != "model":
        raise AttnscopeError(
            f"is a GGUF {format_value(file_type)}, not a model",
            where=path,
            hint="pass the model's file",
        )
    parts = metadata.get("split.count", 1)
    if isinstance(parts, int) and parts > 1:
        hint = "merge them with llama.cpp's llama-gguf-split"
        raise AttnscopeError(f"is one of {parts} parts of a model", where=path, hint=hint)
    if not isinstance(name, str) or name not in _ARCHITECTURES:
        hint = f"supported in GGUF files: {', '.join(_ARCHITECTURES)}; use the safetensors version of other models"
        raise AttnscopeError(f"general.architecture is {format_value(name)}", where=path, hint=hint)
    return name, _ARCHITECTURES[name]


def _renamed(
    info: TensorInfo, architecture: _Architecture, config: Mapping[str, Any]
) -> TensorInfo:
    """Return a tensor under its name in transformers, marked to undo llama.cpp's changes."""
    stem, dot, suffix = info.name.rpartition(".")
    match = _BLOCK.fullmatch(stem)
    if match is None:
        name = _OUTSIDE.get(stem)
    else:
        inside = {**_INSIDE, **architecture.names}.get(match[2])
        name = inside and f"model.layers.{match[1]}.{inside}"
    if name is None:
        return info
    heads = {"self_attn.q_proj": "num_attention_heads", "self_attn.k_proj": "num_key_value_heads"}
    which = next((heads[end] for end in heads if architecture.paired and name.endswith(end)), None)
    offset = 0.0
    if "norm" in stem:
        offset = architecture.norm_offset
    return replace(
        info,
        name=name + dot + suffix,
        paired_heads=config[which] if which else 0,
        offset=offset,
    )


def _shared_config(metadata: _Metadata) -> dict[str, Any]:
    words = metadata.tensors.get("token_embd.weight")
    if words is None or len(words.shape) != 2:
        raise AttnscopeError("the tensor 'token_embd.weight' is missing", where=metadata.path)
    width = metadata.integer("embedding_length")
    heads = metadata.integer("attention.head_count")
    if heads < 1 or width < 1:
        raise metadata.wrong("attention.head_count", f"is {heads}", "expected at least 1")
    head_width = metadata.integer("attention.key_length", width // heads)
    for name in (
        "attention.value_length",
        "attention.key_length_swa",
        "attention.value_length_swa",
    ):
        metadata.require(name, head_width)
    metadata.require("attention.causal", True)
    metadata.require("expert_count", 0)
    metadata.require("expert_used_count", 0)
    return {
        "vocab_size": words.shape[0],
        "hidden_size": width,
        "num_hidden_layers": metadata.integer("block_count"),
        "num_attention_heads": heads,
        "num_key_value_heads": metadata.integer("attention.head_count_kv", heads),
        "head_dim": head_width,
        "intermediate_size": metadata.integer("feed_forward_length"),
        "max_position_embeddings": metadata.integer("context_length"),
        "rms_norm_eps": metadata.number("attention.layer_norm_rms_epsilon"),
        "tie_word_embeddings": "output.weight" not in metadata.tensors,
        "bos_token_id": metadata.values.get("tokenizer.ggml.bos_token_id"),
        "eos_token_id": metadata.values.get("tokenizer.ggml.eos_token_id"),
    }


def _whole_rotary(metadata: _Metadata, config: Mapping[str, Any]) -> dict[str, Any]:
    """Return the rotary parameters of an architecture that rotates whole heads."""
    for name in ("rope.dimension_count", "rope.dimension_count_swa"):
        metadata.require(name, config["head_dim"])
    return {"rope_theta": metadata.number("rope.freq_base", 10000.0)} | _rope_scaling(metadata)


def _rope_scaling(metadata: _Metadata) -> dict[str, Any]:
    scaling_type = metadata.get("rope.scaling.type", "none", value_type=str)
    factor = metadata.number("rope.scaling.factor", None)
    original = metadata.integer("rope.scaling.original_context_length", None)
    metadata.require("rope.scaling.attn_factor", 1.0)
    if scaling_type == "none" and factor in (None, 0, 1):
        return {}
    if scaling_type == "linear" and factor:
        return {"rope_scaling": {"rope_type": "linear", "factor": factor}}
    if scaling_type == "yarn" and factor and original:
        return {
            "rope_scaling": {
                "rope_type": "yarn",
                "factor": factor,
                "original_max_position_embeddings": original,
            }
        }
    raise metadata.wrong(
        "rope.scaling.type",
        f"is {scaling_type} with factor {factor}",
        "supported: none, linear, yarn",
    )


def _llama(metadata: _Metadata, config: Mapping[str, Any]) -> dict[str, Any]:
    rotary = _whole_rotary(metadata, config)
    if (table := metadata.tables.pop("rope_freqs.weight", None)) is not None:
        rotary["rope_scaling"] = _llama3_scaling(table, rotary["rope_theta"], config["head_dim"])
    biased = "blk.0.attn_q.bias" in metadata.tensors
    mlp = "blk.0.ffn_up.bias" in metadata.tensors
    return {
        "model_type": "llama",
        "hidden_act": "silu",
        "attention_bias": biased,
        "mlp_bias": mlp,
    } | rotary


def _llama3_scaling(table: TensorInfo, theta: float, width: int) -> dict[str, Any]:
    """Recover the parameters of Llama 3's rotary positions: a GGUF file holds only the factor of each frequency."""
    held = _read_table(table)
    factor = max(held)
    low, high, original = _LLAMA3.values()
    expected = []
    for i in range(0, width if theta > 0 and factor > 0 else 0, 2):
        # Full turns within the original length.
        turns = original / (2 * pi * theta ** (i / width))
        share = min(1.0, max(0.0, (turns - low) / (high - low)))
        expected.append(1 / ((1 - share) / factor + share))
    if len(expected) != len(held) or any(
        abs(a - b) > 1e-4 * b for a, b in zip(held, expected, strict=True)
    ):
        hint = "its factors are not those of Llama 3; use the model's safetensors version"
        raise AttnscopeError("is not understood", where=f"{table.file}: {table.name}", hint=hint)
    return {"rope_type": "llama3", "factor": factor, **_LLAMA3}


def _read_table(info: TensorInfo) -> tuple[float, ...]:
    if info.dtype != "F32" or len(info.shape) != 1 or not 0 < info.shape[0] <= _LONGEST_TABLE:
        message = f"has dtype {info.dtype} and shape {list(info.shape)}; expected F32 and one axis"
        message += f" of 1 to {_LONGEST_TABLE:,} numbers"
        raise AttnscopeError(message, where=f"{info.file}: {info.name}")
    with open_regular(info.file) as (file, _):
        file.seek(info.start)
        data = read_at_most(file, info.end - info.start)
    if len(data) != 4 * info.shape[0]:
        raise AttnscopeError("changed while it was read", where=info.file, hint="run again")
    return struct.unpack(f"<{info.shape[0]}f", data)


def _qwen(metadata: _Metadata, config: Mapping[str, Any], **more: Any) -> dict[str, Any]:
    return {
        "hidden_act": "silu",
        "use_sliding_window": False,
        **more,
        **_whole_rotary(metadata, config),
    }


def _gemma(
    metadata: _Metadata, config: Mapping[str, Any], largest: int, cap: float | None
) -> dict[str, Any]:
    """Return the config fields that Gemma 2 and 3 share; `cap` is llama.cpp's soft-cap of logits, if none is stated.

    The largest model of each family scales scores by the width of all heads.
    """
    heads = config["num_attention_heads"]
    of_all = config["num_hidden_layers"] == largest
    return {
        "hidden_activation": "gelu_pytorch_tanh",
        "query_pre_attn_scalar": config["hidden_size"] / heads if of_all else config["head_dim"],
        "sliding_window": metadata.integer("attention.sliding_window"),
        "final_logit_softcapping": metadata.number("final_logit_softcapping", cap),
    }


def _gemma2(metadata: _Metadata, config: Mapping[str, Any]) -> dict[str, Any]:
    return {
        "model_type": "gemma2",
        "attn_logit_softcapping": metadata.number("attn_logit_softcapping", 50.0),
        **_gemma(metadata, config, 46, 30.0),
        **_whole_rotary(metadata, config),
    }


def _gemma3(metadata: _Metadata, config: Mapping[str, Any]) -> dict[str, Any]:
    pattern = metadata.get("attention.sliding_window_pattern", 6, value_type=(int, list))
    windows: dict[str, Any] = {"sliding_window_pattern": pattern}
    if isinstance(pattern, list):
        windows = {
            "layer_types": [
                "sliding_attention" if slides else "full_attention" for slides in pattern
            ]
        }
    return {
        "model_type": "gemma3_text",
        "rope_local_base_freq": metadata.number("rope.freq_base_swa", 10000.0),
        **_gemma(metadata, config, 62, None),
        **windows,
        **_whole_rotary(metadata, config),
    }


def _olmo2(metadata: _Metadata, config: Mapping[str, Any]) -> dict[str, Any]:
    """OLMo 2 and 3 have one name in llama.cpp; only the latter has windows, and does not stretch their rotary."""
    window = metadata.integer("attention.sliding_window", 0)
    if not window:
        return {"model_type": "olmo2", "hidden_act": "silu", **_whole_rotary(metadata, config)}
    slides = metadata.get("attention.sliding_window_pattern", value_type=list)
    types = ["sliding_attention" if slides_here else "full_attention" for slides_here in slides]
    rotary = _whole_rotary(metadata, config)
    plain = {"rope_type": "default", "rope_theta": rotary["rope_theta"]}
    stretched = plain | rotary.get("rope_scaling", {})
    return {
        "model_type": "olmo3",
        "hidden_act": "silu",
        "sliding_window": window,
        "layer_types": types,
        "rope_parameters": {"full_attention": stretched, "sliding_attention": plain},
    }


def _granite(metadata: _Metadata, config: Mapping[str, Any]) -> dict[str, Any]:
    return {
        "model_type": "granite",
        "hidden_act": "silu",
        "attention_multiplier": metadata.number("attention.scale"),
        "embedding_multiplier": metadata.number("embedding_scale"),
        "residual_multiplier": metadata.number("residual_scale"),
        "logits_scaling": metadata.number("logit_scale"),
        **_whole_rotary(metadata, config),
    }


def _smollm3(metadata: _Metadata, config: Mapping[str, Any]) -> dict[str, Any]:
    return {"model_type": "smollm3", "hidden_act": "silu", **_whole_rotary(metadata, config)}


def _glm4(metadata: _Metadata, config: Mapping[str, Any]) -> dict[str, Any]:
    turned = metadata.integer("rope.dimension_count")
    return {
        "model_type": "glm4",
        "hidden_act": "silu",
        "attention_bias": "blk.0.attn_q.bias" in metadata.tensors,
        "rope_theta": metadata.number("rope.freq_base", 10000.0),
        "partial_rotary_factor": turned / config["head_dim"],
        **_rope_scaling(metadata),
    }


def _phi3(metadata: _Metadata, config: Mapping[str, Any]) -> dict[str, Any]:
    if config["head_dim"] * config["num_attention_heads"] != config["hidden_size"]:
        raise metadata.wrong(
            "attention.key_length", f"is {config['head_dim']}", "expected the width by the heads"
        )
    turned = metadata.integer("rope.dimension_count", config["head_dim"])
    window = metadata.integer("attention.sliding_window", 0)
    original = metadata.integer(
        "rope.scaling.original_context_length", config["max_position_embeddings"]
    )
    return {
        "model_type": "phi3",
        "hidden_act": "silu",
        "rope_theta": metadata.number("rope.freq_base", 10000.0),
        "partial_rotary_factor": turned / config["head_dim"],
        "sliding_window": window or None,
        "original_max_position_embeddings": original,
        **(_longrope(metadata) or _rope_scaling(metadata)),
    }


def _longrope(metadata: _Metadata) -> dict[str, Any]:
    """Return the factors of LongRoPE if the file holds both tables; {} if it holds neither."""
    tables = {
        name: metadata.tables.pop(f"rope_factors_{name}.weight", None) for name in ("short", "long")
    }
    missing = [name for name, table in tables.items() if table is None]
    if len(missing) == 2:
        return {}
    if missing:
        where = f"{metadata.path}: rope_factors_{missing[0]}.weight"
        raise AttnscopeError("is missing", where=where, hint="use the model's safetensors version")
    metadata.require("rope.scaling.type", "longrope")
    metadata.require("rope.scaling.factor", 1.0)
    factors = {
        f"{name}_factor": list(_read_table(table))
        for name, table in tables.items()
        if table is not None
    }
    # llama.cpp uses 1 if the file does not state it.
    factor = metadata.number("rope.scaling.attn_factor", 1.0)
    return {"rope_scaling": {"rope_type": "longrope", "attention_factor": factor, **factors}}


_ARCHITECTURES = {
    "llama": _Architecture(_llama, paired=True),
    "qwen2": _Architecture(partial(_qwen, model_type="qwen2")),
    "qwen3": _Architecture(partial(_qwen, model_type="qwen3", attention_bias=False)),
    "gemma2": _Architecture(_gemma2, _SANDWICH, norm_offset=-1.0),
    "gemma3": _Architecture(_gemma3, _SANDWICH, norm_offset=-1.0),
    "phi3": _Architecture(_phi3, {"ffn_up": "mlp.gate_up_proj"}),
    "olmo2": _Architecture(_olmo2, _BEHIND),
    "granite": _Architecture(_granite, paired=True),
    "smollm3": _Architecture(_smollm3, paired=True),
    "glm4": _Architecture(_glm4, _GLM4),
}
