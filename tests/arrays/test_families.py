"""Queries, keys and values of every native family, saved by the engine of transformers and read back."""

import numpy as np
import pytest
from msgspec.structs import replace

import attnscope
from attnscope.checkpoints.families import FAMILIES
from attnscope.request.run_config import RunConfig
from attnscope.request.selection import ALL
from attnscope.run.session import inspect
from tests.arrays.captured import capture, numbers, save, text_of
from tests.explanation.test_families import save as save_model
from tests.helpers.reference_stages import uses_interface
from tests.helpers.tiny_models import TABLE

WORDS = "w7 w21 w9 w40 w9 w33 w12 w8 w50 w7 w21 w14 w30"


def rows():
    """One model of every family, with the most of what scores go through: soft-caps, sinks and windows."""
    found = {}
    for row in TABLE:
        kind = row.model.config_class.model_type
        if kind in FAMILIES and kind not in found and uses_interface(row.model):
            found[kind] = row
    return found


def made(row, tmp_path):
    save_model(row, tmp_path / "model")
    run = replace(text_of(WORDS), model=str(tmp_path / "model"))
    report, kept = capture(run)
    from attnscope.engines.opening import open_native

    config = open_native(run, run.texts).config
    masks = {layer: config.mask_of(layer) for layer in kept}
    return run, report, kept, masks


def test_every_native_family_that_the_engine_of_transformers_runs_is_here():
    assert set(rows()) == set(FAMILIES) - {
        row.model.config_class.model_type for row in TABLE if not uses_interface(row.model)
    }


@pytest.mark.parametrize("row", rows().values(), ids=lambda row: row.name)
def test_saved_and_read_back_the_report_has_the_same_bits(row, tmp_path):
    run, report, kept, masks = made(row, tmp_path)
    save(tmp_path / "qkv.safetensors", kept, report, masks)
    found = attnscope.inspect(
        qkv=tmp_path / "qkv.safetensors", layer="all", head="all", stages=run.stages, predict=False
    ).data
    assert [text.tokens for text in found.texts] == [text.tokens for text in report.texts]
    expected, there = numbers(report.texts[0]), numbers(found.texts[0])
    assert len(expected) >= 20 and expected.keys() == there.keys()
    for name, array in expected.items():
        np.testing.assert_array_equal(there[name], array, err_msg=name)
    for mine, theirs in zip(found.texts[0].heads, report.texts[0].heads, strict=True):
        assert (mine.scale, mine.softcap, mine.fully_masked) == (
            theirs.scale,
            theirs.softcap,
            theirs.fully_masked,
        )
    native = inspect(RunConfig(run.texts, model=run.model, layer=ALL, head=ALL, stages=run.stages))
    for mine, theirs in zip(found.texts[0].heads, native.texts[0].heads, strict=True):
        np.testing.assert_allclose(mine.stages["weights"], theirs.stages["weights"], atol=1e-5)
