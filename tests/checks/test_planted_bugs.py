"""A bug of each kind, planted in the code that computes attention, makes the check that is meant for it fail."""

from dataclasses import replace

import pytest
import torch

from attnscope.base.errors import AttnscopeError, NotFinite
from attnscope.base.model_config import ModelConfig
from attnscope.engines.native import NativeEngine
from attnscope.model import batch, hooks, stack, tile_stages
from attnscope.model.inputs import AttentionInputs
from attnscope.request.masks.terms import Bidirectional, Causal
from attnscope.request.run_config import TextInput
from attnscope.studies.check import run as checks_run
from attnscope.studies.check.run import check
from tests.helpers.requests import requested

TEXT = "the bank by the river was old"


def outcome(folder, **options):
    report = check(requested((TextInput(TEXT),), str(folder), **options))
    return report, {one.name for one in report.checks if one.verdict == "fail"}


def _softmax_as(change):
    softmax = tile_stages._softmax

    def changed(masked, *more):
        return change(softmax, masked, *more)

    return tile_stages, "_softmax", changed


def _rows_too_light():
    return _softmax_as(lambda f, m, *more: (f(m, *more)[0] * 0.999, f(m, *more)[1]))


def _mass_on_barred_keys():
    return _softmax_as(lambda f, m, *more: f(m.clamp(min=-8.0), *more))


def _softmax_of_base_two():
    return _softmax_as(lambda f, m, *more: f(m * 0.6931, *more))


def _scale_forgotten():
    return tile_stages, "_factors", lambda spec, needs_scores: (1.0, 1.0)


def _wrong_value_head():
    return AttentionInputs, "group", lambda self, heads: heads % self.k.shape[1]


def _another_output_passed_on():
    attend = hooks.attend
    return hooks, "attend", lambda *given, **more: attend(*given, **more) * 1.01


def _tiles_cut_short():
    return Causal, "key_range", lambda self, q0, q1, n_keys: (0, q1 if q0 == 0 else max(1, q1 - 1))


def _future_seen():
    return ModelConfig, "mask_of", lambda self, layer: "bidirectional"


def _padding_seen():
    return batch, "padding_mask", lambda *given, **options: Bidirectional()


def _other_rotary():
    table = stack.rotary_tables
    return stack, "rotary_tables", lambda rope, *more: table(type(rope)(theta=77.0), *more)


def _stage_damaged(stage, value):
    observe = checks_run.record_stages

    def damaged(*given, **more):
        seen = observe(*given, **more)
        seen[1].stages[stage][0, 2, 3, 1] = value
        return seen

    return checks_run, "record_stages", damaged


def _scale_of_the_model_off():
    spec = stack.AttentionSpec
    return stack, "AttentionSpec", lambda scale, *more, **named: spec(scale * 1.05, *more, **named)


def _two_heads_of_the_last_layer_swapped():
    attend = hooks.attend

    def changed(inputs, *more, **named):
        if inputs.layer == 1:
            inputs = replace(inputs, q=inputs.q[:, [1, 0, *range(2, inputs.q.shape[1])]])
        return attend(inputs, *more, **named)

    return hooks, "attend", changed


_OFF, _SWAPPED = _scale_of_the_model_off, _two_heads_of_the_last_layer_swapped


@pytest.mark.parametrize(
    ("name", "dtype", "bug"),
    [
        *(
            (name, "bfloat16", bug)
            for name in ("llama", "bert", "gpt2", "qwen3")
            for bug in (_OFF, _SWAPPED)
        ),
        *(("llama", dtype, bug) for dtype in ("float16", "float32") for bug in (_OFF, _SWAPPED)),
        ("minilm", "bfloat16", _OFF),
    ],
)
def test_limits_of_every_type_can_fail(folders, minilm, monkeypatch, name, bug, dtype):
    """Both bugs keep every law: only the comparison with transformers shows them."""
    monkeypatch.setattr(*bug())
    failed = outcome(minilm if name == "minilm" else folders(name), dtype=dtype)[1]
    assert "equals eager transformers: scaled" in failed
    assert all(one.startswith("equals eager transformers: ") for one in failed)


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_a_real_model_passes_in_16_bits(minilm, dtype):
    report, failed = outcome(minilm, dtype=dtype)
    assert report.passed and not failed
    weights = next(one for one in report.differences if one.stage == "weights")
    assert max(weights.limits) < (0.05 if dtype == "bfloat16" else 0.01)


BUGS = {
    "every number is finite": lambda: _stage_damaged("weights", torch.nan),
    "rows sum to 1": _rows_too_light,
    "nothing on keys that are not allowed": _mass_on_barred_keys,
    "masked is scaled where allowed": lambda: _stage_damaged("masked", 0.5),
    "scaled follows from scores": _scale_forgotten,
    "weights are the softmax of masked": _softmax_of_base_two,
    "output is weights·v": _wrong_value_head,
    "the output of attention is W·(weights·v)": _another_output_passed_on,
    "computing in tiles changes nothing": _tiles_cut_short,
    "a prefix does not see what follows": _future_seen,
    "padding changes nothing": _padding_seen,
    "equals PyTorch's SDPA": _wrong_value_head,
    "equals eager transformers: scores": _other_rotary,
    "equals eager transformers: scaled": _scale_forgotten,
    "equals eager transformers: masked": _future_seen,
    "equals eager transformers: weights": _softmax_of_base_two,
    "equals eager transformers: output": _wrong_value_head,
}


@pytest.mark.parametrize("name", BUGS)
def test_the_check_for_it_fails(folders, monkeypatch, name):
    # padding shows only where nothing else hides what comes later
    folder = folders("bert" if name == "padding changes nothing" else "llama")
    monkeypatch.setattr(*BUGS[name]())
    report, failed = outcome(folder)
    assert name in failed
    assert not report.passed


def test_without_a_bug_every_check_of_the_table_passes(folders):
    report, failed = outcome(folders("llama"))
    assert report.passed and not failed
    assert {one.name for one in report.checks} == BUGS.keys()


@pytest.mark.parametrize("engine", ["native", "transformers"])
def test_a_forgotten_sink_shows(folders, monkeypatch, engine):
    monkeypatch.setattr(*_softmax_as(lambda f, m, s, *more: f(m, None, *more)))
    failed = outcome(folders("gpt_oss"), engine=engine)[1]
    assert {"weights are the softmax of masked", "equals eager transformers: weights"} <= failed


def test_scores_that_overflow_are_a_failed_check(folders, monkeypatch):
    def overflow(*given, **more):
        raise NotFinite("3 scores are not finite", where="L1H2")

    monkeypatch.setattr(checks_run, "record_stages", overflow)
    report, failed = outcome(folders("llama"))
    assert failed == {"every number is finite"} and "L1H2" in report.checks[0].note


def test_a_projection_that_is_not_called_is_not_judged(folders, monkeypatch):
    monkeypatch.setattr(NativeEngine, "output_projections", lambda *_: [torch.nn.Identity()] * 2)
    report, failed = outcome(folders("llama"))
    (skipped,) = [one for one in report.checks if one.verdict == "skipped"]
    assert (
        not failed and skipped.note == "the output projection is not called exactly once per layer"
    )


def test_other_errors_are_not_swallowed(folders, monkeypatch):
    def fail(*given, **more):
        raise AttnscopeError("no memory")

    monkeypatch.setattr(checks_run, "record_stages", fail)
    with pytest.raises(AttnscopeError, match="no memory"):
        outcome(folders("llama"))
