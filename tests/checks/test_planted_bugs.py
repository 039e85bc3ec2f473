"""A bug of each kind, planted in the code that computes attention, makes the check that is meant for it fail."""

import pytest
import torch

from attnscope.checks import check
from attnscope.checks import run as checks_run
from attnscope.config import ModelConfig, RunConfig, TextInput
from attnscope.errors import AttnscopeError
from attnscope.model import attention, native, stack, watch
from attnscope.model.call import Call
from attnscope.model.masks import Bidirectional, Causal

TEXT = "the bank by the river was old"


def outcome(folder, **options):
    report = check(RunConfig((TextInput(TEXT),), str(folder), **options))
    return report, {one.name for one in report.checks if one.verdict == "fail"}


def _softmax_as(change):
    softmax = attention._softmax

    def changed(masked, *more):
        return change(softmax, masked, *more)

    return attention, "_softmax", changed


def _rows_too_light():
    return _softmax_as(lambda f, m, *more: (f(m, *more)[0] * 0.999, f(m, *more)[1]))


def _mass_on_barred_keys():
    return _softmax_as(lambda f, m, *more: f(m.clamp(min=-8.0), *more))


def _softmax_of_base_two():
    return _softmax_as(lambda f, m, *more: f(m * 0.6931, *more))


def _scale_forgotten():
    return attention, "_factors", lambda rule, raw: (1.0, 1.0)


def _wrong_value_head():
    return Call, "group", lambda self, heads: heads % self.k.shape[1]


def _another_output_passed_on():
    attend = watch.attend
    return watch, "attend", lambda *given, **more: attend(*given, **more) * 1.01


def _tiles_cut_short():
    return Causal, "span", lambda self, q0, q1, n_keys: (0, q1 if q0 == 0 else max(1, q1 - 1))


def _future_seen():
    return ModelConfig, "mask_of", lambda self, layer: "bidirectional"


def _padding_seen():
    return native, "padding", lambda *given: Bidirectional()


def _other_rotary():
    table = stack.rotary_table
    return stack, "rotary_table", lambda rope, *more: table(type(rope)(theta=77.0), *more)


def _stage_damaged(stage, value):
    observe = checks_run.observe

    def damaged(*given, **more):
        seen = observe(*given, **more)
        seen[1].stages[stage][0, 2, 3, 1] = value
        return seen

    return checks_run, "observe", damaged


BUGS = {
    "every number is finite": lambda: _stage_damaged("weights", torch.nan),
    "rows sum to 1": _rows_too_light,
    "nothing on keys that are not allowed": _mass_on_barred_keys,
    "masked is scaled where allowed": lambda: _stage_damaged("masked", 0.5),
    "scaled follows from scores": _scale_forgotten,
    "weights are the softmax of masked": _softmax_of_base_two,
    "output is weights·v": _wrong_value_head,
    "what a layer passes on is W·(weights·v)": _another_output_passed_on,
    "tiled equals whole": _tiles_cut_short,
    "a prefix does not see what follows": _future_seen,
    "padding changes nothing": _padding_seen,
    "equals scaled_dot_product_attention": _wrong_value_head,
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
    def overflow(*given):
        raise AttnscopeError("3 scores are not finite", where="L1H2")

    monkeypatch.setattr(checks_run, "observe", overflow)
    report, failed = outcome(folders("llama"))
    assert failed == {"every number is finite"} and "L1H2" in report.checks[0].note


def test_a_projection_that_is_not_called_is_not_judged(folders, monkeypatch):
    monkeypatch.setattr(checks_run, "_projections", lambda *_: [torch.nn.Identity()] * 2)
    report, failed = outcome(folders("llama"))
    (skipped,) = [one for one in report.checks if one.verdict == "skipped"]
    assert not failed and skipped.note == "the output projection is not called once a layer"


def test_other_errors_are_not_swallowed(folders, monkeypatch):
    def fail(*given):
        raise AttnscopeError("no memory")

    monkeypatch.setattr(checks_run, "observe", fail)
    with pytest.raises(AttnscopeError, match="no memory"):
        outcome(folders("llama"))
