"""What a model predicts: the tokens and probabilities of transformers, at the places where they mean something."""

import re

import msgspec
import pytest
import torch
import transformers as hf

import attnscope
from attnscope.base.errors import AttnscopeError
from attnscope.checkpoints.samples import samples_folder
from attnscope.findings.codec import from_json, to_json
from attnscope.findings.predictions import Prediction

TEXT = "She sat by the [MASK] of the river and [MASK]"
PLAIN = "She sat by the bank of the"
SAMPLE = samples_folder("sample_weights") / "riverbank"


@pytest.fixture(scope="module")
def riverbank() -> attnscope.OpenModel:
    return attnscope.open_model("riverbank")


def _same(found: Prediction, logits: torch.Tensor) -> None:
    share, ids = logits.double().softmax(-1).topk(5)
    assert [token.id for token in found.tokens] == ids.tolist()
    assert [token.probability for token in found.tokens] == pytest.approx(share.tolist(), abs=1e-6)
    assert [token.logit for token in found.tokens] == pytest.approx(logits[ids].tolist(), abs=1e-4)


def test_every_mask_token_is_predicted_as_transformers_does(riverbank: attnscope.OpenModel) -> None:
    report = riverbank.inspect(TEXT)
    model = hf.BertForMaskedLM.from_pretrained(SAMPLE, dtype=torch.float32).eval()
    with torch.inference_mode():
        logits = model(torch.tensor([[token.id for token in report.tokens]])).logits[0]
    places = [i for i, token in enumerate(report.tokens) if token.piece == "[MASK]"]
    assert len(places) == 2
    assert [(one.kind, one.position) for one in report.predictions] == [
        ("masked", place) for place in places
    ]
    for one in report.predictions:
        _same(one, logits[one.position])


def test_under_a_causal_mask_that_it_was_trained_under_the_next_token_is(
    riverbank: attnscope.OpenModel,
) -> None:
    report = riverbank.inspect(PLAIN, mask="causal")
    (found,) = report.predictions
    model = hf.BertLMHeadModel.from_pretrained(SAMPLE, is_decoder=True, dtype=torch.float32).eval()
    with torch.inference_mode():
        logits = model(torch.tensor([[token.id for token in report.tokens]])).logits[0]
    assert (found.kind, found.position) == (
        "next",
        max(i for i, t in enumerate(report.tokens) if not t.special),
    )
    _same(found, logits[found.position])


def _close(ours: list[Prediction], theirs: list[Prediction]) -> None:
    assert [(one.kind, one.position) for one in ours] == [
        (one.kind, one.position) for one in theirs
    ]
    for one, other in zip(ours, theirs, strict=True):
        assert [token.id for token in one.tokens] == [token.id for token in other.tokens]
        expected = [token.logit for token in other.tokens]
        assert [token.logit for token in one.tokens] == pytest.approx(expected, abs=1e-4)


def test_texts_side_by_side_predict_what_each_predicts_alone(
    riverbank: attnscope.OpenModel,
) -> None:
    together = riverbank.inspect([TEXT, "A [MASK] day"])
    for text, alone in zip(together.texts, (TEXT, "A [MASK] day"), strict=True):
        _close(text.predictions, riverbank.inspect(alone).predictions)


def test_when_nothing_is_predicted(riverbank: attnscope.OpenModel) -> None:
    assert riverbank.inspect(PLAIN).predictions == []  # no mask token
    assert riverbank.inspect(TEXT, layer=0).predictions == []  # the other layers do not run
    assert riverbank.inspect(TEXT, predict=False).predictions == []
    assert riverbank.inspect([TEXT] * 9).texts[0].predictions == []  # many texts
    assert attnscope.inspect("Life is short", config="life-is-short").predictions == []  # no head
    with pytest.raises(AttnscopeError, match="has no output head"):
        attnscope.inspect("Life is short", config="life-is-short", predict=True)
    with pytest.raises(AttnscopeError, match="the text has no mask token to predict"):
        riverbank.inspect(PLAIN, predict=True)


def test_predictions_are_the_same_whatever_is_shown_and_whoever_runs_the_model(
    riverbank: attnscope.OpenModel,
) -> None:
    whole = riverbank.inspect(TEXT).predictions
    for changes in (
        {"layer": 0, "predict": True},
        {"layer": "mean", "head": 1},
        {"layer": "all", "head": 0},
        {"mask": "causal", "what_if": "same-scores"},
    ):
        _close(riverbank.inspect(TEXT, **changes).predictions, whole)
    live = hf.BertForMaskedLM.from_pretrained(SAMPLE, dtype=torch.float32)
    _close(
        attnscope.inspect(TEXT, model=live, tokenizer=SAMPLE / "tokenizer.json").predictions, whole
    )
    _close(attnscope.inspect(TEXT, engine="transformers").predictions, whole)


def test_what_a_screen_says_is_what_was_found(riverbank: attnscope.OpenModel) -> None:
    report = riverbank.inspect(TEXT, top=0, stages=[])
    shown = report.text(width=100)
    # a bar of a share stands behind it
    rows = [re.sub("[█-▏]+", "", line).split()[:4] for line in shown.splitlines()]
    for one in report.predictions:
        assert f"prediction in place of {one.position} [MASK]" in shown
        for token in one.tokens:
            share = "<0.1" if token.probability < 0.0005 else f"{100 * token.probability:.1f}"
            assert [token.text, share, "%", f"{token.logit:.2f}"] in rows
    asked = riverbank.inspect(TEXT, mask="window:3", what_if="same-scores", top=0, stages=[]).text(
        width=100
    )
    assert "[MASK], under the model's own mask" in asked


def test_a_report_keeps_them_and_refuses_places_that_are_not_there(
    riverbank: attnscope.OpenModel,
) -> None:
    report = riverbank.inspect(TEXT).data
    (text,) = report.texts
    assert from_json(to_json(report)).texts[0].predictions == text.predictions
    beyond = msgspec.structs.replace(text.predictions[0], position=99)
    wrong = msgspec.structs.replace(
        report, texts=[msgspec.structs.replace(text, predictions=[beyond])]
    )
    with pytest.raises(
        AttnscopeError, match=r"texts\[0\].predictions\[\d\].position has a position of \d+ or more"
    ):
        from_json(to_json(wrong))
