"""A fault in how a call of transformers is read must show against eager transformers."""

from dataclasses import replace

import pytest

from attnscope.hosted import interface
from tests.hosted.running import run
from tests.hosted.test_architectures import check_against_eager


def _swapped(call):
    return replace(call, q=call.q.roll(1, dims=1))


def _unscaled(call):
    return replace(call, rule=replace(call.rule, scale=1.0))


def _uncapped(call):
    return replace(call, rule=replace(call.rule, softcap=None))


def _without_sinks(call):
    return replace(call, rule=replace(call.rule, sinks=None))


def _without_bias(call):
    return replace(call, rule=replace(call.rule, bias=None))


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
def test_it_shows(folders, monkeypatch, name, part, bug):
    monkeypatch.setattr(interface, "Call", lambda *given: bug(_CALL(*given)))
    report = run(folders(name), part=part)
    with pytest.raises(AssertionError, match="Not equal"):
        check_against_eager(folders(name), report, part)


_CALL = interface.Call


def test_a_tensor_that_nobody_knows_is_refused(folders, monkeypatch):
    take = interface.Session.take

    def more(self, module, q, k, v, mask, given):
        return take(self, module, q, k, v, mask, {**given, "gate": q})

    monkeypatch.setattr(interface.Session, "take", more)
    with pytest.raises(Exception, match="layer 0 hands a tensor 'gate' to its attention"):
        run(folders("llama"))
