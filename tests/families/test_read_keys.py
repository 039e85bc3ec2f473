"""The list of keys that transformers reads is that of its sources, and the script that writes it misses nothing."""

import ast
import json
from pathlib import Path
from textwrap import dedent
from typing import Any

import pytest
import torch
import transformers as hf

from attnscope.checkpoints.families import FAMILIES
from attnscope.checkpoints.families.transformers_keys import DATA, reference_keys
from tests.families.read_keys import (
    agreed_defaults,
    as_data,
    config_fields,
    main,
    names_held,
    names_looked_up,
    read_installed,
)
from tests.helpers.tiny_models import TABLE


def test_the_installed_release_reads_no_key_that_is_not_listed() -> None:
    """Or its own list has to be added: see tests/families/read_keys.py."""
    found = as_data(read_installed(), [hf.__version__])
    written = json.loads(DATA.read_text())
    assert set(found["shared"].split()) <= set(written["shared"].split())
    assert len(found["shared"].split()) > 300
    for family in FAMILIES.values():
        names = set(found["families"][family.name]["names"].split())
        assert len(names) > 50 and names <= reference_keys(family.name).names
        assert (
            set(found["families"][family.name]["classes"].split())
            <= reference_keys(family.name).classes
        )
        defaults = found["families"][family.name]["defaults"]
        assert {name: defaults[name] for name in reference_keys(family.name).defaults} == dict(
            reference_keys(family.name).defaults
        )


def test_releases_from_the_first_supported_one_on_are_in_the_list() -> None:
    releases = reference_keys("bert").releases
    minor = {tuple(map(int, release.split(".")[:2])) for release in releases}
    newest = max(minor)
    assert {(5, n) for n in range(newest[1] + 1)} <= minor


@pytest.mark.parametrize("model_type", FAMILIES)
def test_whatever_a_running_model_asks_its_config_is_listed(
    model_type: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Seen from the other side: names that are looked up while a model is made, saved as JSON, and run."""
    row = next(row for row in TABLE if row.model.config_class.model_type == model_type)
    asked: set[str] = set()
    plain = hf.PreTrainedConfig.__getattribute__

    def recorded(self: Any, name: str) -> Any:
        asked.add(name)
        return plain(self, name)

    monkeypatch.setattr(hf.PreTrainedConfig, "__getattribute__", recorded)
    config = row.model.config_class.from_dict({**row.config, "model_type": model_type})
    for implementation in ("eager", "sdpa") if row.model._supports_sdpa else ("eager",):
        model = row.model._from_config(config, attn_implementation=implementation).eval()
        with torch.no_grad():
            model(torch.arange(7)[None])
    methods = {name for name in asked if callable(getattr(row.model.config_class, name, None))}
    asked = {name for name in asked - methods if not name.startswith("__")}
    assert len(asked) > 20 and asked <= reference_keys(FAMILIES[model_type].name).names


def test_every_key_that_a_family_reads_is_known_to_transformers() -> None:
    """Keys of the older dialects that it converts included: the lists see what our own tables see."""
    for family in FAMILIES.values():
        names = reference_keys(family.name).names
        unseen = {name for name in family.reads if name not in names} - {*family.requires}
        assert unseen <= {
            "rotary_emb_base",
            "rotary_pct",
            "rope_local_base_freq",
            "_sliding_window_pattern",
        }, family


_SOURCE = dedent('''
    class ToyConfig(PreTrainedConfig):
        """Words of `a_docstring` count too, but are no identifiers as a whole."""

        model_type = "toy"
        attribute_map = {"mapped": "target"}
        n_layers: int = 3
        odd: list | None = None
        ranged: float = interval(min=0.0)(default=0.5)

        def __post_init__(self, **kwargs):
            self.derived = kwargs.pop("popped", 1)

    class OldConfig(PreTrainedConfig):
        model_type = "old"

        def __init__(self, width=7, name="x", **kwargs):
            self.width = width

    class Attention(Module):
        def __init__(self, config, layer_idx):
            self.own_attribute = config.read_here
            self.flag = getattr(config, "looked_up", False)
            if "asked_for" in config.inner.text_config:
                cfg = self.config.table["subscripted"]
''')


def test_every_way_to_read_a_key_is_seen() -> None:
    tree = ast.parse(_SOURCE)
    seen = {
        "read_here",
        "looked_up",
        "asked_for",
        "subscripted",
        "popped",
        "mapped",
        "target",
        "n_layers",
        "derived",
    }
    assert seen | {"own_attribute", "layer_idx", "width"} <= set(names_held(tree))
    assert seen | {"attribute_map"} <= set(names_looked_up(tree))
    assert "own_attribute" not in set(names_looked_up(tree))


def test_fields_and_their_defaults_are_read_in_both_styles() -> None:
    tree = ast.parse(_SOURCE)
    assert config_fields(tree, "toy") == {"n_layers": 3, "odd": None, "ranged": 0.5}
    assert config_fields(tree, "old") == {"width": 7, "name": "x"}
    assert config_fields(tree).keys() == {"n_layers", "odd", "ranged", "width", "name"}


def test_a_default_counts_where_all_releases_agree() -> None:
    releases = [
        {"same": 1, "other": 2, "gone": 3, "none": None},
        {"same": 1, "other": 3, "none": None},
    ]
    assert agreed_defaults(releases) == {"same": 1}
    assert agreed_defaults([]) == {}


def test_the_script_reads_wheels(tmp_path: Path, monkeypatch) -> None:  # type: ignore[no-untyped-def]
    import zipfile

    for version, default in (("5.1.0", 3), ("5.2.0", 3), ("4.9.0", 8)):
        source = _SOURCE.replace('"toy"', '"gpt2"').replace("int = 3", f"int = {default}")
        with zipfile.ZipFile(tmp_path / f"transformers-{version}-py3-none-any.whl", "w") as archive:
            archive.writestr("transformers/models/gpt2/configuration_gpt2.py", source)
            archive.writestr("transformers/models/toy/configuration_toy.py", _SOURCE)
            archive.writestr("transformers/masking_utils.py", "getattr(config, 'shared_key')")
            archive.writestr("transformers/trainer.py", "getattr(config, 'not_shared')")
    monkeypatch.setattr("tests.families.read_keys.DATA", tmp_path / "keys.json")
    assert main([str(path) for path in sorted(tmp_path.glob("*.whl"))]) == 0
    found = json.loads((tmp_path / "keys.json").read_text())
    assert found["releases"] == "4.9.0 5.1.0 5.2.0" and found["shared"] == "shared_key"
    assert found["elsewhere"] == "n_layers name odd ranged width"
    assert found["families"]["gpt2"]["defaults"] == {"n_layers": 3, "ranged": 0.5}
    assert "looked_up" in found["families"]["gpt2"]["names"].split()
