"""Handle a config key that a family does not know: ignore it if no code reads it, otherwise refuse it.

A key is ignored only with evidence: its name does not occur in the sources of transformers that could read it
(`transformers_keys.py`), no other architecture has a field of that name, no part of the name suggests attention, and it
does not look like a misspelling of a known key.
"""

import re
from collections.abc import Collection, Iterable
from typing import Any

from attnscope.base.errors import AttnscopeError, arg
from attnscope.checkpoints.families.reader import ConfigReader, format_json
from attnscope.checkpoints.families.spec import Family
from attnscope.checkpoints.families.transformers_keys import reference_keys

# largest number of unknown keys in a file: each is compared with every key that is read
_MOST = 200
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
# ids of tokens that are special to a tokenizer
_TOKEN_ID = re.compile(r"\w*_(?:token|start|end)_(?:ids?|index)")
_DROPOUT = re.compile(r"(?:\w+_)?(?:dropout|pdrop)(?:_prob|_rate|_p)?")  # acts in training only


def check_unknown(
    family: Family, reader: ConfigReader, known_keys: Iterable[str], families: Collection[Family]
) -> tuple[str, ...]:
    """Return the keys of a config, other than known ones, that are ignored because no code reads them."""
    known_keys = frozenset(known_keys)
    unknown = [name for name in reader.raw if name not in known_keys]
    if len(unknown) > _MOST:
        message = f"{len(unknown)} keys are unknown for family '{family.name}', such as '{_shown(unknown[0])}'"
        raise AttnscopeError(
            message, where=reader.where, hint=f"expected at most {_MOST} unknown keys"
        )
    ignored = []
    for name in unknown:
        reason = refusal(name, reader.raw[name], family, families)
        if reason is not None:
            message = f"unknown key '{_shown(name)}' for family '{family.name}'"
            hint = f"{reason}; {arg('ignore_key', placeholder='NAME')} ignores a key"
            raise AttnscopeError(message, where=reader.where, hint=hint)
        ignored.append(name)
    return tuple(ignored)


def _shown(name: str) -> str:
    return format_json(name)[1:-1]


def refusal(name: str, value: Any, family: Family, families: Collection[Family]) -> str | None:
    """Return why a key must not be ignored; None if no code reads it."""
    reference = reference_keys(family.name)
    owners = [other.name for other in families if name in other.reads and other is not family]
    if owners:
        return f"this looks like {' or '.join(owners)}"
    elsewhere = set().union(*(other.reads for other in families)) - family.reads
    near = near_miss(name, [*sorted(family.reads), *sorted(elsewhere)])
    if near is not None:
        return f"did you mean '{near}'?"
    dropout = _DROPOUT.fullmatch(name) and type(value) in (int, float)
    if name in reference.names:
        supported = f"{arg('engine', 'transformers')} supports it"
        return f"it may change attention: transformers' code has a key of this name; {supported}"
    if name in reference.elsewhere and not dropout and not _TOKEN_ID.fullmatch(name):
        return (
            "it may change attention: other architectures of transformers have a key of this name"
        )
    word = next((word for word in ATTENTION_WORDS if word in name.lower()), None)
    if word is not None and not dropout:
        return f"it may change attention, so it is not ignored unasked: its name contains '{word}'"
    if not _NAME.fullmatch(name) or len(name) > _LONGEST:
        return "it may change attention, so it is not ignored unasked"
    return None


def near_miss(name: str, read: Iterable[str]) -> str | None:
    """Return the key that a name may misspell: another case or dash, or some wrong letters."""
    # A fifth of a millisecond, only paid for unknown keys.
    from difflib import get_close_matches

    keys = {_plain(key): key for key in read}
    short = len(_plain(name)) <= 4  # one other letter of `bias` is a quarter of it
    if _TOKEN_ID.fullmatch(name):
        cutoff = 0.9
    elif short:
        cutoff = 0.75
    else:
        cutoff = 0.8
    near = get_close_matches(_plain(name), keys, n=1, cutoff=cutoff)
    return keys[near[0]] if near else None


def _plain(name: str) -> str:
    return re.sub(r"[^a-z0-9]", "", name.lower())
