"""A handful of varied sentences on the real models that are installed; `python -m tests.checks.sentences` takes 500."""

from importlib.util import find_spec
from random import Random

import pytest

from attnscope.request.run_config import RunConfig, TextInput
from attnscope.studies.check.measures import worst_differences
from attnscope.studies.check.rounding import FLOOR
from attnscope.studies.check.run import check
from tests.checks.sentences import MODELS, check_sentences
from tests.helpers.draws import drawn
from tests.helpers.unpickling import unpickle_here


# for smollm2, the next test
@pytest.mark.parametrize("name", [name for name in MODELS if name != "smollm2"])
def test_no_sentence_raises_a_false_alarm(name, tmp_path, monkeypatch):
    if find_spec(MODELS[name].package) is None:
        pytest.skip(f"{MODELS[name].package} is not installed")
    unpickle_here(monkeypatch)
    found = list(check_sentences(name, drawn(2), 7, tmp_path))
    assert {one.name for _, one in found} >= {
        "computing in tiles changes nothing",
        "equals eager transformers: output",
    }
    assert [(text, one) for text, one in found if one.verdict == "fail"] == []


def test_a_massive_activation_that_amplifies_rounding_is_no_false_alarm(smollm2, monkeypatch):
    texts = [
        "no " * 11 + "no",
        "Der alte Mann saß am Fluss und las die Zeitung, bis es dunkel wurde.",
    ]
    of_texts = []
    real = worst_differences
    monkeypatch.setattr(
        "attnscope.studies.check.run.worst_differences",
        lambda each: real(of_texts.extend(each) or each),
    )
    report = check(RunConfig(tuple(map(TextInput, texts)), str(smollm2)))
    assert report.passed
    assert len(of_texts) == 2
    assert {one.name for one in report.checks} >= {"computing in tiles changes nothing"}
    for found in of_texts:
        weights = next(
            one for one in found if (one.reference, one.stage) == ("eager transformers", "weights")
        )
        assert weights.limits[0] == FLOOR, "nothing has grown in the first layer"
        assert max(weights.limits) < 0.01, "a bug still shows"


def test_sentences_are_varied():
    random = Random(0)
    for model in MODELS.values():
        texts = [model.draw(random) for _ in range(200)]
        assert len(set(texts)) > 180 and all(text.strip() for text in texts)
