"""Read rotary parameters in both of Hugging Face's dialects."""

from collections.abc import Mapping
from math import log
from typing import Any

from attnscope.base.model_config import Rope, RopeScaling
from attnscope.checkpoints.families.reader import ConfigReader, positive_number, whole_number
from attnscope.checkpoints.families.spec import Computed

_TABLES = ("rope_parameters", "rope_scaling")
_REQUIRED_KEYS = {
    "default": (),
    "linear": ("factor",),
    "llama3": ("factor", "low_freq_factor", "high_freq_factor"),
    "yarn": ("factor",),
    "longrope": ("short_factor", "long_factor"),
}
_OPTIONAL_KEYS = {
    "llama3": ("original_max_position_embeddings",),
    "yarn": ("original_max_position_embeddings", "beta_fast", "beta_slow", "attention_factor", "mscale",
             "mscale_all_dim", "truncate"),
    "longrope": ("factor", "original_max_position_embeddings", "attention_factor"),
}  # fmt: skip


def rope(
    *,
    theta: str = "rope_theta",
    fraction: str | None = None,
    full: float = 1.0,
    base: float = 10000.0,
    unread: tuple[str, ...] = (),
    longrope: str | None = None,
    interleaved: bool = False,
) -> Computed:
    """Read `rope_parameters`, or the older top-level keys with `rope_scaling`.

    Args:
        fraction: Name of the rotated share of the head in the older dialect; without, all of it is rotated.
        full: Share of each head that is rotated, if config.json does not state it.
        base: Base of the frequencies, if config.json does not state it.
        unread: Names from the table that may also be at the top level, where transformers does not read them: they
            must agree with the other keys.
        longrope: Name of the top-level key with the length that LongRoPE was trained on; without, there is no LongRoPE.
            If there is, transformers takes `su` and `yarn` for it, too.
        interleaved: The numbers of a rotated pair are neighbours.
    """

    def read(reader: ConfigReader, done: Mapping[str, Any]) -> Rope:
        table = reader.get(*_TABLES, default={})
        if not isinstance(table, dict):
            raise reader.wrong(reader.given(_TABLES) or "", table, "an object")
        # null means absent, except for `truncate`, where transformers treats it as false
        parameters = {
            name: value for name, value in table.items() if value is not None or name == "truncate"
        }
        turns = _table_or_top_level(reader, parameters, "rope_theta", theta, base)
        share = _table_or_top_level(reader, parameters, "partial_rotary_factor", fraction, full)
        if share > 1 or (not fraction and share != 1):
            raise reader.wrong(
                "partial_rotary_factor", share, "at most 1" if fraction else "1 in this family"
            )
        older_keys = {"rope_theta": turns, "partial_rotary_factor": share}
        for name in unread:
            if (repeated := reader.get(name, default=older_keys[name])) != older_keys[name]:
                raise reader.wrong(
                    name, repeated, f"{older_keys[name]}, which transformers takes from other keys"
                )
        rope_type = parameters.get("rope_type", parameters.get("type", "default"))
        supported_types = [name for name in _REQUIRED_KEYS if longrope or name != "longrope"]
        if longrope is not None and rope_type in ("su", "yarn"):
            rope_type = "longrope"
        elif not isinstance(rope_type, str) or rope_type not in supported_types:
            raise reader.wrong("rope_type", rope_type, "one of " + ", ".join(supported_types))
        scaling: RopeScaling | None
        if longrope is not None and rope_type == "longrope":
            scaling = _longrope(reader, parameters, done, longrope)
        else:
            scaling = _scaling(reader, parameters, rope_type, done)
        return Rope(float(turns), float(share), scaling, interleaved)

    names = [name for name in (fraction, longrope) if name is not None]
    return Computed(read, (*_TABLES, theta, *names, *unread))


def typed_rope(layer_type: str, base: float, **older: str) -> Computed:
    """Read the rotary parameters of layers of one kind: a separate table, or older top-level keys that `rope` knows."""

    def read(reader: ConfigReader, done: Mapping[str, Any]) -> Rope:
        tables = reader.get("rope_parameters", default=None)
        raw = {name: reader.raw.get(key) for name, key in older.items()}
        if tables is not None:
            if not isinstance(tables, dict) or set(tables) != {
                "full_attention",
                "sliding_attention",
            }:
                expected = "a table for full_attention and one for sliding_attention"
                raise reader.wrong("rope_parameters", tables, expected)
            raw["rope_parameters"] = tables[layer_type]
        scaling = raw.get("rope_scaling")
        if isinstance(scaling, dict) and "type" in scaling and "rope_type" not in scaling:
            raise reader.wrong(
                "rope_scaling", scaling, "rope_type: transformers reads no type in this family"
            )
        rotary: Rope = rope(base=base).rule(ConfigReader(raw, reader.where), done)
        if rotary.scaling is not None and not rotary.scaling.truncate:
            raise reader.wrong(
                "truncate", False, "true: transformers reads no other value in this family"
            )
        return rotary

    return Computed(read, ("rope_parameters", *older.values()))


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


def _parameters(reader: ConfigReader, table: Mapping[str, Any], rope_type: str) -> dict[str, Any]:
    """Return a table's keys other than base, share and type; refuse unknown and missing ones."""
    known_keys = (*_REQUIRED_KEYS[rope_type], *_OPTIONAL_KEYS.get(rope_type, ()))
    others = ("rope_theta", "partial_rotary_factor", "rope_type", "type")
    parameters = {name: value for name, value in table.items() if name not in others}
    for name in parameters.keys() - known_keys:
        raise reader.wrong(
            f"the rotary key '{name}'", parameters[name], f"only keys of rope_type '{rope_type}'"
        )
    for name in _REQUIRED_KEYS[rope_type]:
        if name not in parameters:
            expected = "a list of numbers" if rope_type == "longrope" else "a number"
            raise reader.wrong(
                f"the rotary key '{name}'", None, f"{expected} for rope_type '{rope_type}'"
            )
    return parameters


def _longrope(
    reader: ConfigReader, table: Mapping[str, Any], done: Mapping[str, Any], original: str
) -> RopeScaling:
    """Read LongRoPE's parameters; the length trained on is at the top level, and one in the table must be the same."""
    parameters = _parameters(reader, table, "longrope")
    name = "original_max_position_embeddings"
    length = reader.whole(original)
    if parameters.pop(name, length) != length:
        raise reader.wrong(f"the rotary key '{name}'", table[name], f"the {length} of '{original}'")
    factors = {
        length_name: parameters.pop(f"{length_name}_factor") for length_name in ("short", "long")
    }
    for length_name, listed in factors.items():
        if not isinstance(listed, list):
            raise reader.wrong(f"{length_name}_factor", listed, "a list of numbers")
    numbers: dict[str, Any] = {
        key: float(positive_number(reader, key, value)) for key, value in parameters.items()
    }
    return RopeScaling(
        kind="longrope",
        factor=numbers.pop("factor", done["max_positions"] / length),
        original_max_positions=length,
        short_factors=tuple(
            float(positive_number(reader, "short_factor", factor)) for factor in factors["short"]
        ),
        long_factors=tuple(
            float(positive_number(reader, "long_factor", factor)) for factor in factors["long"]
        ),
        **numbers,
    )


def _scaling(
    reader: ConfigReader, table: Mapping[str, Any], rope_type: str, done: Mapping[str, Any]
) -> RopeScaling | None:
    parameters = _parameters(reader, table, rope_type)
    if rope_type == "default":
        return None
    truncate = parameters.pop("truncate", True)
    if not isinstance(truncate, bool):
        raise reader.wrong("truncate", truncate, "true or false")
    original = parameters.pop("original_max_position_embeddings", done["max_positions"])
    numbers: dict[str, Any] = {
        name: float(positive_number(reader, name, value)) for name, value in parameters.items()
    }
    mscale = numbers.pop("mscale", None)
    mscale_all = numbers.pop("mscale_all_dim", None)
    if mscale and mscale_all:
        factor = temperature(numbers["factor"], mscale) / temperature(numbers["factor"], mscale_all)
        numbers.setdefault("attention_factor", factor)
    return RopeScaling(
        kind=rope_type,  # type: ignore[arg-type]  # one of the keys above
        original_max_positions=whole_number(reader, "original_max_position_embeddings", original),
        truncate=truncate,
        **numbers,
    )


def temperature(factor: float, mscale: float) -> float:
    """Return 0.1·m·ln(factor) + 1 (Peng et al., 2023, equation 22)."""
    if factor > 1:
        return 0.1 * mscale * log(factor) + 1.0
    return 1.0
