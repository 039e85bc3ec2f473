"""Decide what becomes of a config key that a family does not know: ignored where nobody reads it, otherwise refused.

A key is ignored only with evidence: its name does not occur in the sources of transformers that could read it
(`transformers_keys.py`), no other architecture has a field of that name, no part of the name suggests attention, and it
does not look like a misspelling of a known key. A key whose name suggests attention is accepted if its value changes
nothing, such as `sliding_window: null` for a model without windows.
"""

import re
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from attnscope.base.errors import AttnscopeError
from attnscope.base.model_config import ModelConfig
from attnscope.checkpoints.families.reader import ConfigReader, format_json
from attnscope.checkpoints.families.spec import ACTIVATIONS, Family
from attnscope.checkpoints.families.transformers_keys import reference_keys

_MOST = 200  # largest number of unknown keys in a file: each is compared with every key that is read
_LONGEST = 100  # characters of a key's name
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_.-]*")
# Parts of names that have to do with attention, or with what enters or leaves it.
ATTENTION_WORDS = (
    "attn", "atten", "att_", "_att", "attend", "head", "mha", "mqa", "gqa", "mla", "rope", "rotary", "nope", "logn",
    "mask", "window", "norm", "layer", "scal", "pos_", "_pos", "posit", "causal", "direction", "qk", "query", "kv",
    "value_", "block", "quant", "bits", "mult", "alibi", "bias", "cross", "encod", "decod", "sparse", "local",
    "global", "landmark", "register", "slid", "chunk", "stride", "dilat", "sink", "cap", "softmax", "logit", "score",
    "temperat", "recur", "expert", "moe", "router", "gate", "gating", "activ", "mlp", "ffn", "feed", "hidden",
    "residual", "parallel", "segment", "depth", "lora", "adapter", "peft", "draft", "eagle", "specul", "medusa",
    "diffus", "denois", "noise", "mup", "theta", "freq", "ntk", "yarn", "interpol", "group", "relative", "distance",
    "prefix_lm", "memory", "mem_", "token_type", "fusion", "merge", "prun", "skip", "mixer", "conv", "mamba", "ssm",
    "rwkv", "retention", "hyena", "fourier", "hash", "bucket",
)  # fmt: skip
_TOKEN_ID = re.compile(r"\w*_(?:token|start|end)_(?:ids?|index)")  # ids of tokens that are special to a tokenizer
_DROPOUT = re.compile(r"(?:\w+_)?(?:dropout|pdrop)(?:_prob|_rate|_p)?")  # acts in training only


Says = Callable[[Any, ModelConfig, Mapping[str, Any]], bool]


def _is(field: str) -> Says:
    """Tell whether the key holds the value of one of our fields."""
    return lambda value, config, _: type(value) in (int, float) and value == getattr(config, field)


def _off(field: str) -> Says:
    """Tell whether the key switches off what the model does not have."""
    return lambda value, config, _: value is False and not getattr(config, field)


def _activation(value: Any, config: ModelConfig, _: Mapping[str, Any]) -> bool:
    return isinstance(value, str) and ACTIVATIONS.get(value) == config.activation


def _no_windows(value: Any, config: ModelConfig, raw: Mapping[str, Any]) -> bool:
    """Tell whether the key is a number of layers, or a pattern, for windows that are switched off."""
    return not config.windows and raw.get("use_sliding_window") is False and type(value) in (int, type(None))


def _full_attention(value: Any, config: ModelConfig, _: Mapping[str, Any]) -> bool:
    whole = isinstance(value, list) and len(value) == config.n_layers
    return not config.windows and whole and all(kind == "full_attention" for kind in value)


def _positions(value: Any, config: ModelConfig, _: Mapping[str, Any]) -> bool:
    named = {"absolute": "learned", "rope": "rope", "rotary": "rope"}
    return isinstance(value, str) and named.get(value) == config.positions and not config.position_offset


# Keys of other families, and the values that agree with this model; any other value is refused.
_SAYS: Mapping[str, Says] = {
    **dict.fromkeys(("hidden_size", "n_embd", "dim", "d_model", "embedding_size"), _is("d_model")),
    **dict.fromkeys(("num_hidden_layers", "n_layer", "n_layers", "num_layers"), _is("n_layers")),
    **dict.fromkeys(("num_attention_heads", "n_head", "n_heads"), _is("n_heads")),
    **dict.fromkeys(("intermediate_size", "n_inner", "hidden_dim"), _is("d_mlp")),
    **dict.fromkeys(("n_positions", "max_position_embeddings", "block_size"), _is("max_positions")),
    **dict.fromkeys(("layer_norm_eps", "layer_norm_epsilon", "rms_norm_eps", "norm_eps"), _is("norm_eps")),
    **dict.fromkeys(("hidden_act", "hidden_activation", "activation", "activation_function"), _activation),
    "num_key_value_heads": _is("n_kv_heads"),
    "head_dim": _is("d_head"),
    "partial_rotary_factor": lambda value, c, _: type(value) in (int, float) and value == c.rope.fraction,
    **dict.fromkeys(("rope_scaling", "rope_parameters"), lambda value, c, _: value is None and c.rope.scaling is None),
    "position_embedding_type": _positions,
    "is_causal": lambda value, c, _: value is True and c.mask == "causal",
    "use_bidirectional_attention": lambda value, c, _: (value is None or value is False) and c.mask == "causal",
    "attention_bias": lambda value, c, _: isinstance(value, bool) and value == c.qkv_bias == c.out_bias,
    "mlp_bias": lambda value, c, _: isinstance(value, bool) and value == c.mlp_bias,
    **dict.fromkeys(("qk_norm", "use_qk_norm", "qk_layernorm"), _off("qk_norm")),
    "attn_logit_softcapping": lambda value, c, _: value is None and c.softcap is None,
    "sliding_window": lambda value, c, _: value is None and not c.windows,
    "use_sliding_window": _off("windows"),
    "max_window_layers": _no_windows,
    "layer_types": _full_attention,
    "use_mrope": lambda value, c, _: value is False,
    "rope_interleaved": lambda value, c, _: value is False,
    "scale_attn_by_inverse_layer_idx": lambda value, c, _: value is False,
}


def check_unknown(
    family: Family, reader: ConfigReader, config: ModelConfig, known: Iterable[str], others: Iterable[Family]
) -> tuple[str, ...]:
    """Return the keys of a config that are ignored because no code reads them.

    Args:
        family: The family.
        reader: Its config.json.
        config: What is drawn.
        known: Keys that are read, required or known to be inert.
        others: All native families: what one of them reads is never ignored.

    Raises:
        AttnscopeError: A key may change attention.
    """
    known, others = frozenset(known), tuple(others)
    unknown = [name for name in reader.raw if name not in known]
    if len(unknown) > _MOST:
        found = f"{len(unknown)} keys are unknown for family '{family.name}', such as '{_shown(unknown[0])}'"
        raise AttnscopeError(found, where=reader.where, hint=f"expected at most {_MOST} unknown keys")
    ignored = []
    for name in unknown:
        if name in _SAYS and _SAYS[name](reader.raw[name], config, reader.raw):
            continue
        reason = refusal(name, reader.raw[name], family, others)
        if reason is not None:
            found = f"unknown key '{_shown(name)}' for family '{family.name}'"
            raise AttnscopeError(found, where=reader.where, hint=f"{reason}; --ignore-key NAME ignores a key")
        ignored.append(name)
    return tuple(ignored)


def _shown(name: str) -> str:
    return format_json(name)[1:-1]


def refusal(name: str, value: Any, family: Family, others: Iterable[Family]) -> str | None:
    """Return why a key must not be ignored; None where no code reads it."""
    reference = reference_keys(family.name)
    owners = [other.name for other in others if name in other.reads and other is not family]
    if owners:
        return f"this looks like {' or '.join(owners)}"
    elsewhere = set().union(*(other.reads for other in others)) - family.reads
    near = near_miss(name, [*sorted(family.reads), *sorted(elsewhere)])
    if near is not None:
        return f"did you mean '{near}'?"
    dropout = _DROPOUT.fullmatch(name) and type(value) in (int, float)
    if name in reference.names:
        return "it may change attention: transformers' code has a key of this name; --engine transformers supports it"
    if name in reference.elsewhere and not dropout and not _TOKEN_ID.fullmatch(name):
        return "it may change attention: other architectures of transformers have a key of this name"
    word = next((word for word in ATTENTION_WORDS if word in name.lower()), None)
    if word is not None and not dropout:
        return f"it may change attention, so attnscope refuses to ignore it: its name contains '{word}'"
    if not _NAME.fullmatch(name) or len(name) > _LONGEST:
        return "it may change attention, so attnscope refuses to ignore it"
    return None


def near_miss(name: str, read: Iterable[str]) -> str | None:
    """Return the key that a name may be a slip of the pen for: another case or dash, or at most two wrong letters."""
    plain = _plain(name)
    for key in read:
        other = _plain(key)
        most = 2 if min(len(plain), len(other)) > 8 and not _TOKEN_ID.fullmatch(name) else 1
        if abs(len(plain) - len(other)) <= most and edits(plain, other) <= most:
            return key
    return None


def _plain(name: str) -> str:
    return re.sub(r"[^a-z0-9]", "", name.lower())


def edits(first: str, second: str) -> int:
    """Count letters to insert, remove, replace or swap with a neighbour (Damerau, 1964) to make one word the other."""
    rows = [list(range(len(second) + 1))]
    for i, letter in enumerate(first, 1):
        row = [i]
        for j, other in enumerate(second, 1):
            cost = min(rows[-1][j] + 1, row[-1] + 1, rows[-1][j - 1] + (letter != other))
            if i > 1 and j > 1 and letter == second[j - 2] and first[i - 2] == other:
                cost = min(cost, rows[-2][j - 2] + 1)
            row.append(cost)
        rows.append(row)
    return rows[-1][-1]
