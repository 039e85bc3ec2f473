"""What a config.json leaves out has the value that transformers gives it, or is refused: for every key of every family.

No number is typed here. The config class of transformers fills the gap and writes the whole config down again; that
must mean the same to us as the file with the gap.
"""

import json
from typing import Any

import pytest
import transformers as hf

from attnscope.base.errors import AttnscopeError
from attnscope.checkpoints.families import FAMILIES, family_for, read_config
from tests.helpers.published_configs import PUBLISHED

_NAMES = {raw["model_type"]: name for name, raw in PUBLISHED.items()}


def _gaps() -> list[tuple[str, str, str]]:
    """Every key that attention depends on and a published config holds: once left out, once null."""
    return [
        (model_type, key, gap)
        for model_type, name in _NAMES.items()
        for key in sorted(FAMILIES[model_type].reads & PUBLISHED[name].keys())
        for gap in ("left out", "null")
    ]


def _filled_in(raw: dict[str, Any]) -> dict[str, Any]:
    """The same config, with every default of transformers written out."""
    config = hf.CONFIG_MAPPING[raw["model_type"]].from_dict(json.loads(json.dumps(raw)))
    found: dict[str, Any] = json.loads(config.to_json_string(use_diff=False))
    return found


@pytest.mark.parametrize(("model_type", "key", "gap"), _gaps())
def test_a_gap_means_what_transformers_fills_in(model_type: str, key: str, gap: str) -> None:
    raw = dict(PUBLISHED[_NAMES[model_type]])
    if gap == "null":
        raw[key] = None
    else:
        del raw[key]
    family = family_for(raw, "config.json")
    try:
        ours = read_config(family, raw, "config.json")
    except AttnscopeError:
        return  # refused, so that nothing was guessed
    try:
        whole = _filled_in(raw)
    except Exception:  # refused by transformers in one of its many ways
        return
    assert ours == read_config(family, whole, "config.json")


@pytest.mark.parametrize("name", PUBLISHED)
def test_a_published_config_means_what_transformers_makes_of_it(name: str) -> None:
    """Defaults of keys that it does not hold included."""
    family = family_for(PUBLISHED[name], name)
    assert read_config(family, PUBLISHED[name], name) == read_config(
        family, _filled_in(PUBLISHED[name]), name
    )


def test_enough_gaps_are_filled_and_not_refused() -> None:
    """The test above would be empty if everything were refused."""
    filled = 0
    for model_type, key, gap in _gaps():
        raw = {**PUBLISHED[_NAMES[model_type]], key: None}
        if gap == "left out":
            del raw[key]
        try:
            read_config(FAMILIES[model_type], raw, "config.json")
            filled += 1
        except AttnscopeError:
            continue
    assert filled > 80
