"""`doctor` gives the same verdicts on a model that is on a GPU, wherever its batch is."""

import os

import pytest
import torch

import attnscope
from attnscope.base.errors import UsageError
from tests.devices.test_attend import moved
from tests.doctor.bugs import Arguments, model
from tests.doctor.sound import batches

NAMES = ("qwen2, flattened", "llama, prefix", "gemma3, padded right with labels", "bert, collator that masks")
MORE = (
    "qwen2, 4-D mask", "gpt2, padded left with positions", "gpt_oss, padded right with labels", "t5",
    "llama, batch of a tokenizer",
)  # fmt: skip
CASES = (*NAMES, *MORE) if int(os.environ.get("ATTNSCOPE_EXAMPLES", 60)) > 60 else NAMES


def verdicts(arguments: Arguments) -> dict[str, str]:
    result = attnscope.doctor(**{**arguments, "attn": ["eager"]})
    assert all(backend.ran for backend in result.data.backends)
    assert result.data.device == str(arguments["model"].device)
    return {check.name: check.verdict for check in result.checks}


@pytest.mark.cuda
@pytest.mark.usefixtures("default_precision")
@pytest.mark.parametrize("name", CASES)
def test_a_model_on_a_gpu_gets_the_verdicts_of_the_cpu(gpu: str, name: str) -> None:
    """Also if the caller multiplies with less precision, as for training: a rounded product is not a wrong mask."""
    arguments = next(arguments for case, arguments in batches() if case == name)
    expected = verdicts(arguments)
    torch.set_float32_matmul_precision("high")
    on_gpu = {**arguments, "model": arguments["model"].to(gpu)}
    batch_is_there = {**on_gpu, "batch": moved(dict(arguments.get("batch") or {}), torch.device(gpu)) or None}
    assert verdicts(on_gpu if name.startswith(("qwen2", "gemma3")) else batch_is_there) == expected
    assert torch.get_float32_matmul_precision() == "high"


@pytest.mark.usefixtures("simulated")
def test_a_device_without_float64_is_refused() -> None:
    with pytest.raises(UsageError, match=r"float64, which the device 'mps:0' lacks.*device='cpu'"):
        attnscope.doctor(model("llama").to("mps"))
