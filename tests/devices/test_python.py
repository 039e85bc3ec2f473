"""Python's calls with what the caller has on a GPU: models, masks and devices."""

import numpy as np
import pytest
import torch
import transformers as hf

import attnscope
from attnscope.callbacks import AttentionStatistics
from tests.helpers.tiny_models import TABLE

TOKENS = "the bank of the river".split()


@pytest.fixture
def model() -> hf.PreTrainedModel:
    return next(row for row in TABLE if row.name == "llama").make()


def tokenizer() -> hf.PreTrainedTokenizerFast:
    from tokenizers import Tokenizer, models, pre_tokenizers

    words = {word: n for n, word in enumerate(["[UNK]", *sorted(set(TOKENS))])}
    made = Tokenizer(models.WordLevel(words, unk_token="[UNK]"))
    made.pre_tokenizer = pre_tokenizers.Whitespace()
    return hf.PreTrainedTokenizerFast(tokenizer_object=made, unk_token="[UNK]")


def weights(report: attnscope.InspectResult) -> np.ndarray:
    return np.stack([head.stages["weights"] for head in report.data.texts[0].heads])


@pytest.mark.cuda
def test_a_model_that_is_on_a_gpu_runs_there(gpu: str, model: hf.PreTrainedModel) -> None:
    options = {"tokenizer": tokenizer(), "layer": "all", "head": "all"}
    cpu = attnscope.inspect(" ".join(TOKENS), model=model, **options)
    other = attnscope.inspect(" ".join(TOKENS), model=model.to(gpu), **options)
    assert other.data.provenance.device == gpu
    assert other.data.provenance.fingerprint == cpu.data.provenance.fingerprint
    np.testing.assert_allclose(weights(other), weights(cpu), atol=1e-5)
    assert {parameter.device for parameter in model.parameters()} == {torch.device(gpu)}


@pytest.mark.cuda
def test_a_mask_may_be_on_a_gpu(gpu: str) -> None:
    text, allowed = "the bank", torch.ones(2, 2, dtype=torch.bool).tril()
    masked = attnscope.inspect(text, mask=allowed.to(gpu), layer=0, head=0, device=torch.device(gpu))
    expected = attnscope.inspect(text, mask=allowed, layer=0, head=0, device="cpu")
    np.testing.assert_allclose(weights(masked), weights(expected), atol=1e-5)


@pytest.mark.cuda
def test_functions_of_flexattention_are_evaluated_on_the_gpu(gpu: str) -> None:
    functions = {
        "mask": lambda text, head, query, key: (query >= key) | (head == 1),
        "score_mod": lambda score, text, head, query, key: score - (query - key).abs() * 0.1,
    }
    options = {"layer": "all", "head": "all", **functions}
    cpu, other = (attnscope.inspect(" ".join(TOKENS), device=device, **options) for device in ("cpu", gpu))
    np.testing.assert_allclose(weights(other), weights(cpu), atol=1e-5)


@pytest.mark.cuda
def test_arrays_of_another_program_are_computed_on_the_gpu(gpu: str) -> None:
    draw = np.random.default_rng(0)
    q, k, v = (draw.normal(size=(2, 4, 5, 8)).astype(np.float32) for _ in range(3))
    arrays = attnscope.from_qkv(q, k, v, sinks=draw.normal(size=4).astype(np.float32))
    cpu, other = (attnscope.inspect(qkv=arrays, device=device, layer=0, head="all") for device in ("cpu", gpu))
    assert other.data.provenance.device == gpu
    np.testing.assert_allclose(weights(other), weights(cpu), atol=1e-5)


@pytest.mark.cuda
def test_a_model_is_measured_while_it_is_trained_on_a_gpu(gpu: str, model: hf.PreTrainedModel) -> None:
    compare_statistics(model, gpu)


@pytest.mark.usefixtures("simulated")
def test_a_model_is_measured_while_it_is_trained_on_a_device_without_float64(model: hf.PreTrainedModel) -> None:
    compare_statistics(model, "mps")


def compare_statistics(model: hf.PreTrainedModel, device: str) -> None:
    """Compare what a callback of trainers measures there with what it measures on the CPU."""
    statistics = AttentionStatistics(" ".join(TOKENS), tokenizer=tokenizer())
    cpu, other = statistics.measure(model), statistics.measure(model.to(device))
    assert len(cpu) > 12
    assert other == pytest.approx(cpu, abs=1e-4)
