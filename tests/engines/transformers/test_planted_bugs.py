"""A fault in how a call of transformers is read must show against eager transformers."""

from dataclasses import replace

import pytest

from attnscope.engines.transformers import interface
from tests.engines.transformers.test_architectures import check_against_eager
from tests.helpers.transformers_runs import run


def _swapped(inputs):
    return replace(inputs, q=inputs.q.roll(1, dims=1))


def _unscaled(inputs):
    return replace(inputs, spec=replace(inputs.spec, scale=1.0))


def _uncapped(inputs):
    return replace(inputs, spec=replace(inputs.spec, softcap=None))


def _without_sinks(inputs):
    return replace(inputs, spec=replace(inputs.spec, sinks=None))


def _without_bias(inputs):
    return replace(inputs, spec=replace(inputs.spec, bias=None))


@pytest.mark.parametrize(
    ("name", "part", "bug"),
    [
        ("llama", None, _swapped),
        ("granite", None, _unscaled),
        ("gemma2", None, _uncapped),
        ("gpt_oss", None, _without_sinks),
        ("t5", "encoder", _without_bias),
    ],
    ids=["heads in another order", "no scale", "no soft-cap", "no sinks", "no position bias"],
)
def test_a_planted_bug_differs_from_eager_attention(folders, monkeypatch, name, part, bug):
    monkeypatch.setattr(
        interface, "AttentionInputs", lambda *given, **named: bug(_CALL(*given, **named))
    )
    report = run(folders(name), part=part)
    with pytest.raises(AssertionError, match="Not equal"):
        check_against_eager(folders(name), report, part)


_CALL = interface.AttentionInputs


def test_a_tensor_that_nobody_knows_is_refused(folders, monkeypatch):
    run_attention = interface.AttentionCapture.run_attention

    def more(self, module, q, k, v, mask, given):
        return run_attention(self, module, q, k, v, mask, {**given, "gate": q})

    monkeypatch.setattr(interface.AttentionCapture, "run_attention", more)
    with pytest.raises(Exception, match="layer 0 passes a tensor 'gate' to its attention"):
        run(folders("llama"))
