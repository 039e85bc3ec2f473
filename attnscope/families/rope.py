"""Read rotary parameters in both of Hugging Face's dialects."""

from collections.abc import Mapping
from math import log
from typing import Any

from attnscope.config import Rope, RopeScaling
from attnscope.families.reader import ConfigReader, positive_number, whole_number
from attnscope.families.spec import Computed

_TABLES = ("rope_parameters", "rope_scaling")
_REQUIRED_KEYS = {
    "default": (),
    "linear": ("factor",),
    "llama3": ("factor", "low_freq_factor", "high_freq_factor"),
    "yarn": ("factor",),
}
_OPTIONAL_KEYS = {
    "llama3": ("original_max_position_embeddings",),
    "yarn": ("original_max_position_embeddings", "beta_fast", "beta_slow", "attention_factor", "mscale",
             "mscale_all_dim", "truncate"),
}  # fmt: skip


def rope(
    *,
    theta: str = "rope_theta",
    fraction: str | None = None,
    full: float = 1.0,
    base: float = 10000.0,
    unread: tuple[str, ...] = (),
) -> Computed:
    """Read `rope_parameters`, or the older top-level keys with `rope_scaling`.

    Args:
        theta: Name of the base in the older dialect.
        fraction: Name of the rotated share of the head in the older dialect; without, all of it is rotated.
        full: The share where nothing says.
        base: The base where nothing says.
        unread: Names from the table that may be at the top level, too, where transformers does not read them: they
            must repeat what the other keys say.
    """

    def read(reader: ConfigReader, done: Mapping[str, Any]) -> Rope:
        table = reader.get(*_TABLES, default={})
        if not isinstance(table, dict):
            raise reader.wrong(reader.given(_TABLES) or "", table, "an object")
        # null is the same as nothing, but for `truncate`, where transformers takes it for false
        given = {name: value for name, value in table.items() if value is not None or name == "truncate"}
        turns = _table_or_top_level(reader, given, "rope_theta", theta, base)
        share = _table_or_top_level(reader, given, "partial_rotary_factor", fraction, full)
        if share > 1 or (not fraction and share != 1):
            raise reader.wrong("partial_rotary_factor", share, "at most 1" if fraction else "1 in this family")
        found = {"rope_theta": turns, "partial_rotary_factor": share}
        for name in unread:
            if (repeated := reader.get(name, default=found[name])) != found[name]:
                raise reader.wrong(name, repeated, f"{found[name]}, which transformers takes from other keys")
        return Rope(theta=float(turns), fraction=float(share), scaling=_scaling(reader, given, done))

    return Computed(read, (*_TABLES, theta, *([fraction] if fraction else []), *unread))


def _table_or_top_level(
    reader: ConfigReader, table: Mapping[str, Any], name: str, older: str | None, default: float
) -> float:
    """Read a number from the table, or from the top level under its older name; in both, it must be the same."""
    outside = reader.number(older, default=None) if older else None
    if name not in table:
        return default if outside is None else outside
    inside = positive_number(reader, name, table[name])
    if outside is not None and outside != inside:
        raise reader.wrong(older or "", outside, f"the {inside} of the rotary parameters' {name}")
    return inside


def _scaling(reader: ConfigReader, table: Mapping[str, Any], done: Mapping[str, Any]) -> RopeScaling | None:
    kind = table.get("rope_type", table.get("type", "default"))
    if not isinstance(kind, str) or kind not in _REQUIRED_KEYS:
        raise reader.wrong("rope_type", kind, "one of " + ", ".join(_REQUIRED_KEYS))
    known = (*_REQUIRED_KEYS[kind], *_OPTIONAL_KEYS.get(kind, ()))
    rest = {k: v for k, v in table.items() if k not in ("rope_theta", "partial_rotary_factor", "rope_type", "type")}
    for name in rest.keys() - known:
        raise reader.wrong(f"the rotary key '{name}'", rest[name], f"only keys of rope_type '{kind}'")
    for name in _REQUIRED_KEYS[kind]:
        if name not in rest:
            raise reader.wrong(f"the rotary key '{name}'", None, f"a number for rope_type '{kind}'")
    if kind == "default":
        return None
    truncate = rest.pop("truncate", True)
    if not isinstance(truncate, bool):
        raise reader.wrong("truncate", truncate, "true or false")
    original = rest.pop("original_max_position_embeddings", done["max_positions"])
    numbers = {name: float(positive_number(reader, name, value)) for name, value in rest.items()}
    _apply_mscale(numbers)
    return RopeScaling(
        kind=kind,  # type: ignore[arg-type]  # one of the keys above
        original_max_positions=whole_number(reader, "original_max_position_embeddings", original),
        truncate=truncate,
        **numbers,
    )


def _apply_mscale(numbers: dict[str, float]) -> None:
    """Turn YaRN's `mscale` and `mscale_all_dim`, where both are given, into the attention factor that they mean."""
    mscale, mscale_all = numbers.pop("mscale", None), numbers.pop("mscale_all_dim", None)
    if mscale and mscale_all:
        factor = numbers["factor"]
        numbers.setdefault("attention_factor", _temperature(factor, mscale) / _temperature(factor, mscale_all))


def _temperature(factor: float, mscale: float) -> float:
    """0.1·m·ln(factor) + 1 (Peng et al., 2023, equation 22)."""
    return 0.1 * mscale * log(factor) + 1.0 if factor > 1 else 1.0
