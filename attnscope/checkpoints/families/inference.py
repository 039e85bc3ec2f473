"""Find the family of a config.json that has no `model_type`: the only one that its keys and tensors fit."""

import re
from collections.abc import Iterable, Mapping
from functools import cache
from typing import Any

from attnscope.base.errors import AttnscopeError
from attnscope.base.model_config import ModelConfig
from attnscope.checkpoints.families.config_reader import read_config
from attnscope.checkpoints.families.names import check_counts, find_prefix, their_name
from attnscope.checkpoints.families.spec import Family
from attnscope.checkpoints.families.transformers_keys import reference_keys

Shapes = Mapping[str, tuple[int, ...]]


def fitting_families(
    families: Iterable[Family], raw: Mapping[str, Any], where: str, shapes: Shapes | None
) -> list[Family]:
    """Return the families that a config.json and its tensors fit.

    If `architectures` names classes, they alone decide. Otherwise a family fits if it reads the whole file without a
    default for a missing key and without a key to ignore, and if its names account for all tensors.
    """
    families = tuple(families)
    architectures = raw.get("architectures")
    if isinstance(architectures, list) and architectures:
        return [
            family
            for family in families
            if reference_keys(family.name).classes.issuperset(map(str, architectures))
        ]
    return [family for family in families if _fits(family, families, raw, where, shapes)]


def _fits(
    family: Family,
    families: tuple[Family, ...],
    raw: Mapping[str, Any],
    where: str,
    shapes: Shapes | None,
) -> bool:
    try:
        reading = read_config(family, raw, where, families)
        if shapes is not None:
            check_counts(family, reading.config, shapes, where)
    except AttnscopeError:
        return False
    fits = not reading.ignored and not reading.filled
    return fits and (shapes is None or _accounts_for(family, reading.config, shapes, where))


def _accounts_for(family: Family, config: ModelConfig, shapes: Shapes, where: str) -> bool:
    """Tell whether every module has a tensor in the first block, and every tensor belongs to one or is a leftover."""
    prefix = find_prefix(family, shapes, where)
    names = {name.removeprefix(prefix) for name in shapes}
    leftover = re.compile("|".join(f"(?:{pattern})" for pattern in family.leftover) or "(?!)")
    unused = {name for name in names if not leftover.fullmatch(name)}
    biased = False
    for parameter, entry in family.modules.items():
        modules = [
            their_name(their_module)
            for their_module in (entry if isinstance(entry, tuple) else (entry,))
        ]
        matching = {
            name for name in names for module in modules if _pattern(module).fullmatch(name)
        }
        if not matching:
            return False
        unused -= matching
        biased = biased or (
            parameter == "blocks.{l}.attention.q"
            and any(name.endswith(".bias") for name in matching)
        )
    return not unused and biased == config.qkv_bias


@cache
def _pattern(module: str) -> re.Pattern[str]:
    """Return the tensors of a module, in any layer and expert."""
    escaped = re.escape(module).replace(r"\{l\}", r"\d+").replace(r"\{x\}", r"\d+")
    return re.compile(escaped + r"(?:[._](?:weight|bias|gamma|beta|sinks))?")
