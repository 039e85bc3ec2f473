"""Python's calls with what the caller has on a GPU: models, masks and devices."""

from pathlib import Path

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
    masked = attnscope.inspect(
        text, mask=allowed.to(gpu), layer=0, head=0, device=torch.device(gpu)
    )
    expected = attnscope.inspect(text, mask=allowed, layer=0, head=0, device="cpu")
    np.testing.assert_allclose(weights(masked), weights(expected), atol=1e-5)


@pytest.mark.cuda
@pytest.mark.parametrize(("layer", "head"), [("all", "all"), (1, [0, 2])])
def test_functions_of_flexattention_are_evaluated_on_the_gpu(
    gpu: str, layer: object, head: object
) -> None:
    functions = {
        "mask": lambda text, head, query, key: (query >= key + text) | (head == 1),
        "score_mod": lambda score, text, head, query, key: (
            score - (query - key).abs() * 0.1 * (head + text)
        ),
    }
    options = {"layer": layer, "head": head, **functions}
    cpu, other = (
        attnscope.inspect(" ".join(TOKENS), device=device, **options) for device in ("cpu", gpu)
    )
    np.testing.assert_allclose(weights(other), weights(cpu), atol=1e-5)


@pytest.mark.cuda
@pytest.mark.parametrize(
    "more", [{"cu_seqlens": [0, 2, 5]}, {}], ids=["packed texts", "the last queries"]
)
def test_arrays_of_another_program_are_computed_on_the_gpu(
    gpu: str, more: dict[str, object]
) -> None:
    draw = np.random.default_rng(0)
    q, k, v = (draw.normal(size=(2, 4, 5, 8)).astype(np.float32) for _ in range(3))
    q = q if more else q[:, :, 2:]
    arrays = attnscope.from_qkv(q, k, v, sinks=draw.normal(size=4).astype(np.float32), **more)
    cpu, other = (
        attnscope.inspect(qkv=arrays, device=device, layer=0, head="all") for device in ("cpu", gpu)
    )
    assert other.data.provenance.device == gpu
    assert len(other.data.texts) == (2 if more else 1)
    np.testing.assert_allclose(weights(other), weights(cpu), atol=1e-5)


@pytest.mark.cuda
def test_a_function_of_a_long_text_is_evaluated_on_the_gpu(gpu: str) -> None:
    """Which keys each run of rows may see is found there as well."""
    q, k = torch.randn(2, 1, 600, 4, generator=torch.Generator().manual_seed(0))
    mask = lambda text, head, query, key: (query >= key) & (query - key < 40 + text + head)  # noqa: E731
    reports = [attnscope.from_qkv(q, k, mask=mask, device=device) for device in ("cpu", gpu)]
    cpu, other = (report.data.texts[0].heads[0].rows.entropy for report in reports)
    np.testing.assert_allclose(other, cpu, atol=1e-5)
    assert max(cpu) < np.log2(41)


@pytest.mark.cuda
@pytest.mark.parametrize("name", ["llama", "gpt2"])
def test_positions_that_are_given_are_those_of_the_gpu(gpu: str, name: str, tmp_path: Path) -> None:
    next(row for row in TABLE if row.name == name).make().save_pretrained(tmp_path)
    given = {
        "input_ids": [[4, 9, 5, 6]],
        "position_ids": [[3, 4, 9, 1]],
        "layer": "all",
        "head": "all",
    }
    cpu, other = (
        attnscope.inspect(model=str(tmp_path), device=device, **given) for device in ("cpu", gpu)
    )
    np.testing.assert_allclose(weights(other), weights(cpu), atol=1e-5)


@pytest.mark.cuda
@pytest.mark.parametrize(
    "more",
    [
        {
            "mask": lambda text, head, query, key: query >= key + text,
            "score_mod": lambda score, text, head, query, key: score - head - text,
        },
        {
            "mask": torch.linspace(-1, 1, 100).view(4, 5, 5),
            "rope": {"theta": 100.0, "interleaved": True},
        },
        {"output": torch.ones(4, 5, 8), "sinks": torch.ones(4)},
        {"cu_seqlens": torch.tensor([0, 2, 5]), "layout": "htd"},
    ],
    ids=["functions", "bias and rotation", "output", "packed texts"],
)
def test_arrays_that_are_on_a_gpu_are_those_of_the_cpu(gpu: str, more: dict[str, object]) -> None:
    generator, found = torch.Generator().manual_seed(0), []
    arrays = {**dict(zip("qkv", torch.randn(3, 4, 5, 8, generator=generator), strict=True)), **more}
    for device in ("cpu", gpu):
        there = {
            name: x.to(device) if isinstance(x, torch.Tensor) else x for name, x in arrays.items()
        }
        report = attnscope.from_qkv(**there, device=device, stages=["weights", "output"])
        found.append([head.stages for text in report.data.texts for head in text.heads])
    for cpu, other in zip(*found, strict=True):
        for stage, numbers in cpu.items():
            np.testing.assert_allclose(other[stage], numbers, atol=1e-5)


@pytest.mark.cuda
def test_weights_that_are_on_a_gpu_are_those_of_the_cpu(gpu: str) -> None:
    given = torch.randn(2, 4, 5, 5, generator=torch.Generator().manual_seed(0)).softmax(-1)
    reports = [attnscope.from_weights(given.to(device), device=device) for device in ("cpu", gpu)]
    cpu, other = ([head.rows.entropy for head in report.data.texts[0].heads] for report in reports)
    assert len(cpu) == 8
    np.testing.assert_allclose(other, cpu, atol=1e-5)


@pytest.mark.cuda
def test_a_model_is_measured_while_it_is_trained_on_a_gpu(
    gpu: str, model: hf.PreTrainedModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The random numbers that training draws there next are not those of dropout meanwhile."""
    original, kept = torch.cuda.get_rng_state, list[torch.device]()
    # Undone before the simulation ends, which puts back what it found.
    with monkeypatch.context() as patch:
        patch.setattr(
            "torch.cuda.get_rng_state", lambda device: kept.append(device) or original(device)
        )
        compare_statistics(model, gpu)
    assert kept == [torch.device(gpu)]


@pytest.mark.usefixtures("simulated")
def test_a_model_is_measured_while_it_is_trained_on_a_device_without_float64(
    model: hf.PreTrainedModel,
) -> None:
    compare_statistics(model, "mps")


def compare_statistics(model: hf.PreTrainedModel, device: str) -> None:
    """Compare what a callback of trainers measures there with what it measures on the CPU."""
    statistics = AttentionStatistics(" ".join(TOKENS), tokenizer=tokenizer())
    cpu, other = statistics.measure(model), statistics.measure(model.to(device))
    assert len(cpu) > 12
    assert other == pytest.approx(cpu, abs=1e-4)
