"""config.json in, Rope out: both dialects of Hugging Face's rotary parameters."""

from collections.abc import Mapping
from typing import Any

from attnscope.config import Rope, RopeScaling
from attnscope.families.spec import Computed, Reader

_SCALING_KEYS = {
    "linear": {"factor"},
    "llama3": {"factor", "original_max_position_embeddings", "low_freq_factor", "high_freq_factor"},
    "yarn": {
        "factor", "original_max_position_embeddings", "beta_fast", "beta_slow", "attention_factor", "mscale",
        "mscale_all_dim", "truncate",
    },
}  # fmt: skip
_BASE_KEYS = {"rope_theta", "partial_rotary_factor", "rope_type", "type"}


def rope(*, theta: tuple[str, ...] = ("rope_theta",), fraction: tuple[str, ...] = (), full: float = 1.0) -> Computed:
    """Reads `rope_parameters`, or the older top-level keys with `rope_scaling`.

    Args:
        theta: Top-level names of the base in the older dialect.
        fraction: Top-level names of the rotated share of the head in the older dialect.
        full: The share where nothing says.
    """

    def read(reader: Reader, done: Mapping[str, Any]) -> Rope:
        table = dict(reader.get("rope_parameters", "rope_scaling", default={}))
        base = table.get("rope_theta", reader.number(*theta, default=10000.0))
        share = table.get("partial_rotary_factor", reader.number(*fraction, default=full) if fraction else full)
        for name, value in (("rope_theta", base), ("partial_rotary_factor", share)):
            _positive(reader, name, value)
        return Rope(theta=float(base), fraction=float(share), scaling=_scaling(reader, table, done))

    return Computed(read)


def _positive(reader: Reader, name: str, value: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not value > 0:
        raise reader.wrong(name, value, "a number above 0")
    return float(value)


def _scaling(reader: Reader, table: Mapping[str, Any], done: Mapping[str, Any]) -> RopeScaling | None:
    kind = table.get("rope_type", table.get("type", "default"))
    if kind != "default" and kind not in _SCALING_KEYS:
        raise reader.wrong("rope_type", kind, "one of default, " + ", ".join(_SCALING_KEYS))
    unknown = [k for k in table if k not in _BASE_KEYS | _SCALING_KEYS.get(kind, set())]
    if unknown:
        raise reader.wrong(f"rope key '{unknown[0]}'", table[unknown[0]], f"only keys of rope_type '{kind}'")
    if kind == "default":
        return None
    given = {k: v for k, v in table.items() if k not in _BASE_KEYS and v is not None}
    numbers = {k: _positive(reader, k, v) for k, v in given.items() if k != "truncate"}
    original = numbers.pop(
        "original_max_position_embeddings", reader.number("original_max_position_embeddings", default=None)
    )
    if original is None:
        original = done["max_positions"]
    mscale, mscale_all = numbers.pop("mscale", None), numbers.pop("mscale_all_dim", None)
    if "attention_factor" not in numbers and mscale and mscale_all:
        numbers["attention_factor"] = _mscale(numbers["factor"], mscale) / _mscale(numbers["factor"], mscale_all)
    return RopeScaling(
        kind=kind, original_max_positions=int(original), truncate=bool(given.get("truncate", True)), **numbers
    )


def _mscale(factor: float, mscale: float) -> float:
    """YaRN's temperature, 0.1·m·ln(factor) + 1 (Peng et al., 2023, eq. 22)."""
    from math import log

    return 0.1 * mscale * log(factor) + 1.0 if factor > 1 else 1.0
