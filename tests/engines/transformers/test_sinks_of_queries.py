"""Inkling 2 has a sink for every head and query, and lets each token attend to what earlier layers gave for it."""

from pathlib import Path

import numpy as np
import pytest
import torch
import transformers as hf

import attnscope
from attnscope.engines.transformers import interface
from tests.families.census import build, text_class, watch_attention
from tests.helpers.architectures import write_tokenizer

TEXT = "the bank by the river was old"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("inkling2")
    kind = text_class(hf.CONFIG_MAPPING["inkling2_text"])
    build("inkling2_text", kind).save_pretrained(path)
    write_tokenizer(path)
    return path


def eager_weights(folder: Path, ids: list[int]) -> list[np.ndarray]:
    """The weights of every layer, (H, T, T), whose rows sum to 1 minus the sink's weight."""
    model = hf.AutoModelForCausalLM.from_pretrained(folder, attn_implementation="eager").eval()
    return [weights[0].numpy() for weights in watch_attention(model, torch.tensor([ids])).weights]


def test_weights_and_sinks_are_those_of_eager_attention(folder: Path) -> None:
    report = attnscope.inspect(TEXT, model=folder, layer="all", head="all", stages=("weights",))
    text = report.data.texts[0]
    expected = eager_weights(folder, [token.id for token in text.tokens])
    for head in text.heads:
        theirs = expected[head.layer][head.head]
        np.testing.assert_allclose(head.stages["weights"], theirs, rtol=0, atol=1e-5)
        np.testing.assert_allclose(head.rows.sink, 1 - theirs.sum(-1), rtol=0, atol=1e-5)
    assert max(float(np.ptp(head.rows.sink)) for head in text.heads) > 0.01
    assert (
        "each token also attends to what earlier layers gave for it, which is not shown"
        in report.data.provenance.notes
    )


def test_an_explained_row_has_the_logit_of_its_sink(folder: Path) -> None:
    explanation = attnscope.explain(TEXT, model=folder, layer=1, head=2, query="river").data
    theirs = eager_weights(folder, [token.id for token in explanation.tokens])[1][2, 4]
    assert explanation.sink.weight == pytest.approx(1 - theirs.sum(), abs=1e-5)
    own = list(explanation.keys).index(4)
    logit = np.log(1 - theirs.sum()) - np.log(theirs[4]) + explanation.row.masked[own]
    assert explanation.sink.logit == pytest.approx(logit, abs=1e-3)


def test_a_sink_of_another_query_would_show(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    spec = interface.AttentionCapture._spec

    def shifted(self, q, k, mask, more, layer):
        if more.get("sinks") is not None:
            more = {**more, "sinks": more["sinks"].roll(1, 2)}
        return spec(self, q, k, mask, more, layer)

    monkeypatch.setattr(interface.AttentionCapture, "_spec", shifted)
    assert not attnscope.check(TEXT, model=folder).passed
