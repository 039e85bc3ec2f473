"""`doctor` gives the same verdicts on a model that is on a GPU, wherever its batch is."""

import os
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import attnscope
from attnscope.base.errors import AttnscopeError, UsageError
from attnscope.engines.transformers.backends import FLEX, with_settings_kept
from attnscope.studies.doctor import arithmetic, run
from attnscope.studies.doctor.any_tokenizer import SpecialIds
from attnscope.studies.doctor.batches import read_batch
from attnscope.studies.doctor.positions import _used
from tests.devices.test_attend import moved
from tests.doctor.bugs import Arguments, block_mask, ids, model, pack, t5
from tests.doctor.sound import batches
from tests.helpers.tiny_models import LONGROPE

NAMES = (
    "qwen2, flattened", "llama, prefix", "gemma3, padded right with labels", "bert, collator that masks", "t5",
    "llama, boolean 4-D mask under sdpa", "a module of one's own, float32",
)  # fmt: skip
MORE = (
    "qwen2, 4-D mask", "gpt2, padded left with positions", "gpt_oss, padded right with labels",
    "llama, batch of a tokenizer", "a module of one's own, bfloat16",
)  # fmt: skip
CASES = (*NAMES, *MORE) if int(os.environ.get("ATTNSCOPE_EXAMPLES", 60)) > 60 else NAMES


def verdicts(arguments: Arguments) -> dict[str, str]:
    attn = arguments.get("attn", ["own" if "call" in arguments else "eager"])
    result = attnscope.doctor(**{**arguments, "attn": attn})
    assert all(backend.ran for backend in result.data.backends)
    assert result.data.device == str(next(arguments["model"].parameters()).device)
    return {check.name: check.verdict for check in result.checks}


def only(monkeypatch: pytest.MonkeyPatch, *names: str) -> None:
    """Leave these checks, and that of dropout, which verdicts depend on."""
    monkeypatch.setattr(
        run, "CHECKS", [check for check in run.CHECKS if check.name in (*names, "dropout")]
    )


@pytest.mark.cuda
@pytest.mark.usefixtures("default_precision")
@pytest.mark.parametrize("name", CASES)
def test_a_model_on_a_gpu_gets_the_verdicts_of_the_cpu(gpu: str, name: str) -> None:
    """Also if the caller multiplies with less precision, as for training: a rounded product is not a wrong mask."""
    arguments = next(arguments for case, arguments in batches() if case == name)
    expected = verdicts(arguments)
    torch.set_float32_matmul_precision("high")
    on_gpu = {**arguments, "model": arguments["model"].to(gpu)}
    batch_is_there = {
        **on_gpu,
        "batch": moved(dict(arguments.get("batch") or {}), torch.device(gpu)) or None,
    }
    assert verdicts(on_gpu if name.startswith(("qwen2", "gemma3")) else batch_is_there) == expected
    assert torch.get_float32_matmul_precision() == "high"


@pytest.mark.cuda
def test_a_model_in_bfloat16_gets_the_verdicts_of_the_cpu(gpu: str) -> None:
    expected = verdicts({"model": model("llama").bfloat16()})
    assert verdicts({"model": model("llama").bfloat16().to(gpu)}) == expected


@pytest.mark.cuda
def test_a_boolean_mask_of_a_model_in_bfloat16_may_be_on_the_gpu(
    gpu: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    only(monkeypatch, "backend")
    tokens, _, documents = pack()
    batch = {"input_ids": tokens, "attention_mask": block_mask(documents) == 0}
    expected = verdicts({"model": model("llama").bfloat16(), "batch": batch, "attn": ["sdpa"]})
    there = moved(batch, torch.device(gpu))
    assert (
        verdicts({"model": model("llama").bfloat16().to(gpu), "batch": there, "attn": ["sdpa"]})
        == expected
    )


@pytest.mark.cuda
def test_the_tokens_of_a_decoder_may_be_on_the_gpu(
    gpu: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    only(monkeypatch, "future")
    batch = {"input_ids": ids(1, 7), "decoder_input_ids": ids(1, 6)}
    expected = verdicts({"model": t5(), "batch": batch})
    assert verdicts({"model": t5().to(gpu), "batch": moved(batch, torch.device(gpu))}) == expected


@pytest.mark.cuda
def test_what_a_query_should_see_is_known_where_the_batch_is(gpu: str) -> None:
    tokens, positions, _ = pack()
    batch = {"input_ids": tokens, "position_ids": positions}
    seen = []
    for device in ("cpu", gpu):
        read = read_batch(moved(batch, torch.device(device)), SpecialIds(), prefix=2)
        seen.append(read.expected(causal=True, window=4))
        assert seen[-1].device == torch.device(device)
    assert torch.equal(seen[0], seen[1].cpu())


@pytest.mark.parametrize("device", ["cpu", "cuda:1"])
def test_only_a_copy_on_the_host_has_to_fit_into_its_memory(
    device: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(arithmetic, "memory_bound", lambda most: SimpleNamespace(size=0))
    subject = SimpleNamespace(model=nn.Linear(2, 2).bfloat16(), device=torch.device(device))
    exam: Any = SimpleNamespace(_reference={}, subject=subject)
    if device == "cpu":
        with pytest.raises(AttnscopeError, match="more than there is"):
            arithmetic._float32(exam)
    else:
        assert next(arithmetic._float32(exam).parameters()).dtype == torch.float32


@pytest.mark.cuda
@pytest.mark.parametrize("on_gpu", ["input_ids", "attention_mask position_ids cu_seq_lens_q"])
def test_parts_of_a_batch_may_be_on_different_devices(
    gpu: str, on_gpu: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The model and the documents that the caller states are on others as well."""
    only(monkeypatch, "packed_documents", "mask_4d")
    tokens, positions, documents = pack()
    given = {
        "input_ids": tokens,
        "attention_mask": torch.ones_like(tokens),
        "position_ids": positions,
    }
    batch = {**given, "cu_seq_lens_q": torch.tensor([0, 6, 11, 18])}
    blocks = {"input_ids": tokens, "attention_mask": block_mask(documents)}
    for parts, more in ((batch, {}), (blocks, {}), (given, {"documents": documents})):
        there = {
            name: part.to(gpu) if name in on_gpu.split() else part for name, part in parts.items()
        }
        expected = verdicts({"model": model("llama"), "batch": parts, **more})
        assert verdicts({"model": model("llama").to(gpu), "batch": there, **more}) == expected


@pytest.mark.cuda
def test_a_checkpoint_is_examined_on_the_gpu(
    gpu: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    only(monkeypatch, "future")
    model("llama").save_pretrained(tmp_path)
    result = attnscope.doctor(str(tmp_path), attn=["eager"], device=gpu)
    assert result.data.device == gpu
    assert [check.verdict for check in result.checks] == ["ok", "ok"]


@pytest.mark.cuda
def test_a_loss_on_the_gpu_that_shifts_no_labels_is_found(
    gpu: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Losses of transformers move labels themselves; this one does not."""
    only(monkeypatch, "labels")
    made, tokens = model("llama").to(gpu), ids(2, 9)
    made.loss_function = lambda logits, labels, **more: nn.functional.cross_entropy(
        logits.flatten(0, 1), labels.flatten()
    )
    assert (
        verdicts({"model": made, "batch": {"input_ids": tokens, "labels": tokens}})["labels"]
        == "wrong"
    )


class Turned(nn.Module):
    """Frequencies that a module changes in its forward pass, as LongRoPE does for long texts."""

    def __init__(self, factor: float) -> None:
        super().__init__()
        self.factor = factor
        self.register_buffer("inv_freq", torch.tensor([1.0, 0.5, 0.25]))

    def forward(self, x: Tensor, positions: Tensor) -> tuple[Tensor, Tensor]:
        if not self.factor:
            raise TypeError("a module of anyone has another signature")
        angles = positions[..., None] * self.inv_freq * self.factor + x
        return torch.cat((angles, angles), -1).cos(), torch.cat((angles, angles), -1).sin()


@pytest.mark.cuda
@pytest.mark.parametrize("factor", [0.5, 1.0, 0.0])
def test_frequencies_are_read_from_a_module_on_the_gpu(gpu: str, factor: float) -> None:
    module = Turned(factor).to(gpu)
    used, scale = _used(SimpleNamespace(), module, None, module.inv_freq, 64)
    torch.testing.assert_close(used, (factor or 1) * torch.tensor([1.0, 0.5, 0.25]))  # on the CPU
    assert scale == 1


@pytest.mark.cuda
def test_longrope_is_examined_on_the_gpu(gpu: str, monkeypatch: pytest.MonkeyPatch) -> None:
    only(monkeypatch, "rope_scaling")
    made = model(
        "phi3", original_max_position_embeddings=12, max_position_embeddings=48, **LONGROPE
    )
    batch = {"input_ids": torch.arange(5, 25)[None]}
    assert verdicts({"model": made.to(gpu), "batch": batch}) == {
        "rope_scaling": "ok",
        "dropout": "ok",
    }


def test_random_numbers_of_the_models_gpu_are_left_as_they_were(
    simulated: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    kept: list[int] = []
    # Undone before the simulation ends, which puts back what it found.
    with monkeypatch.context() as patch:
        patch.setattr(
            "torch.cuda.get_rng_state", lambda device: kept.append(device) or torch.get_rng_state()
        )
        for device, expected in (("cpu", []), (simulated, [1])):
            kept.clear()
            with with_settings_kept(nn.Linear(2, 2).to(device)):
                pass
            assert kept == expected


@pytest.mark.parametrize(("device", "noted"), [("cpu", True), ("cuda", False)])
def test_flexattention_is_not_compiled_on_a_cpu_and_says_so(device: str, noted: bool) -> None:
    subject = SimpleNamespace(
        core=None, backend=FLEX, device=torch.device(device), under=lambda name: nullcontext()
    )
    exam: Any = SimpleNamespace(subject=subject, rows=[], names=None, backends=[], refused={})
    (listed,) = run._choose_backends(exam, [FLEX])
    assert listed.ran
    assert (listed.note is not None) == noted


def test_a_model_without_weights_is_refused() -> None:
    with pytest.raises(UsageError, match="on the device 'meta'"):
        attnscope.doctor(model("llama").to("meta"))


@pytest.mark.usefixtures("simulated")
def test_a_device_without_float64_is_refused() -> None:
    with pytest.raises(UsageError, match=r"float64, which the device 'mps:0' lacks.*device='cpu'"):
        attnscope.doctor(model("llama").to("mps"))
