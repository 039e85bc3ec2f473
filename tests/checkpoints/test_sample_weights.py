"""The shipped weights are measured again: neither `metrics.json` nor the card can drift from them."""

import json
import sys
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from transformers import BertForMaskedLM

ROOT = Path(__file__).parent.parents[1]
sys.path.insert(0, str(ROOT))  # the recipe isn't part of the installed package

from training.riverbank.attention import MASKS, load, piece_attention  # noqa: E402
from training.riverbank.card import render  # noqa: E402
from training.riverbank.disambiguation import read_sentences  # noqa: E402
from training.riverbank.evaluate import README_SENTENCE, evaluate, held_out_texts  # noqa: E402
from training.riverbank.settings import SENTENCES, WEIGHTS  # noqa: E402


def stored() -> dict[str, Any]:
    found: dict[str, Any] = json.loads((WEIGHTS / "metrics.json").read_text(encoding="utf-8"))
    return found


@cache
def measured() -> dict[str, Any]:
    return evaluate(WEIGHTS)


def config() -> dict[str, Any]:
    found: dict[str, Any] = json.loads((WEIGHTS / "config.json").read_text(encoding="utf-8"))
    return found


def test_card_says_what_the_metrics_say() -> None:
    assert (WEIGHTS / "README.md").read_text(encoding="utf-8") == render(stored(), WEIGHTS)


def test_folder_is_small_and_the_model_is_large_enough() -> None:
    assert sum(path.stat().st_size for path in WEIGHTS.iterdir()) <= 8_000_000
    assert config()["vocab_size"] <= 10_000
    assert config()["num_hidden_layers"] >= 2 and config()["num_attention_heads"] >= 4
    assert config()["max_position_embeddings"] >= 64
    assert config()["attnscope"] == {"trained_masks": list(MASKS)}


def test_file_holds_finite_model_weights_and_nothing_else() -> None:
    for name, tensor in load_file(WEIGHTS / "model.safetensors").items():
        assert name.startswith(("bert.embeddings.", "bert.encoder.layer.", "cls.predictions."))
        assert tensor.dtype == torch.float16
        assert torch.isfinite(tensor).all()


def test_language_numbers() -> None:
    now, then = measured()["language"], stored()["language"]
    assert now["masked_accuracy"] == pytest.approx(then["masked_accuracy"], abs=0.002)
    assert now["causal_perplexity"] == pytest.approx(then["causal_perplexity"], rel=0.01)


def test_model_beats_unigram_and_bigram() -> None:
    now, base = measured()["language"], stored()["training"]["baselines"]
    assert now["masked_accuracy"] > max(
        base["unigram_masked_accuracy"], base["bigram_masked_accuracy"]
    )
    assert now["causal_perplexity"] < min(base["unigram_perplexity"], base["bigram_perplexity"])


@pytest.mark.parametrize("mask", MASKS)
def test_disambiguation_numbers(mask: str) -> None:
    now, then = measured()["disambiguation"][mask], stored()["disambiguation"][mask]
    assert now["head"] == then["head"]
    for half in ("dev", "held-out"):
        # near ties may fall otherwise on another processor
        one_sentence = 1 / now[half]["sentences"] + 1e-3
        for key in ("cue_first", "auto", "random", "nearest"):
            assert now[half][key] == pytest.approx(then[half][key], abs=one_sentence)


@pytest.mark.parametrize("mask", MASKS)
def test_cue_comes_first_far_more_often_than_by_baselines(mask: str) -> None:
    held_out = measured()["disambiguation"][mask]["held-out"]
    assert held_out["cue_first"] >= max(held_out["random"], held_out["nearest"]) + 0.15


def test_bank_draws_on_river() -> None:
    now, then = measured()["readme_sentence"], stored()["readme_sentence"]
    assert now["bidirectional"]["river_first"] == then["bidirectional"]["river_first"] != []
    assert {mask: now[mask]["auto"] for mask in MASKS} == {
        mask: then[mask]["auto"] for mask in MASKS
    }


@pytest.mark.parametrize("mask", MASKS)
def test_roles_of_heads(mask: str) -> None:
    now, then = measured()["roles"][mask], stored()["roles"][mask]
    assert now.keys() == then.keys()
    for head, shares in then.items():
        for place, share in shares.items():
            assert now[head][place] == (
                share if place == "role" else pytest.approx(share, abs=0.005)
            )


def test_first_screen_shows_words_only() -> None:
    assert load(WEIGHTS).tokenizer.encode(README_SENTENCE).tokens == [
        "the",
        "bank",
        "by",
        "the",
        "river",
    ]


@pytest.mark.parametrize("mask", MASKS)
def test_both_masks_are_those_of_transformers(mask: str) -> None:
    ours = load(WEIGHTS)
    ids = ours.tokenizer.encode("They met on the bank of the river.").ids
    theirs = BertForMaskedLM.from_pretrained(
        WEIGHTS, attn_implementation="eager", dtype=torch.float32, is_decoder=mask == "causal"
    ).eval()
    with torch.no_grad():
        plain = torch.cat(theirs(torch.tensor([ids]), output_attentions=True).attentions)
    assert torch.allclose(plain, piece_attention(ours.student, ids, mask), atol=1e-5)


def test_sentences_are_whole() -> None:
    sentences = read_sentences(SENTENCES)
    halves = [
        {sentence.word for sentence in sentences if sentence.half == half}
        for half in ("dev", "held-out")
    ]
    assert len(sentences) >= 80 and not halves[0] & halves[1]
    texts = set(held_out_texts())
    for sentence in sentences:
        assert len(sentence.others) >= 2
        assert sentence.text not in texts
