"""Float32 means float32 on a GPU, whatever the caller of Python or the environment has set."""

import os
import subprocess
import sys
from collections.abc import Callable

import numpy as np
import pytest
import torch

import attnscope
from attnscope.model import matmul
from tests.conftest import SENTENCE

SETTINGS: dict[str, Callable[[], None]] = {
    "high": lambda: torch.set_float32_matmul_precision("high"),
    "medium": lambda: torch.set_float32_matmul_precision("medium"),
    "new": lambda: setattr(torch.backends.cuda.matmul, "fp32_precision", "tf32"),
    "everything": lambda: setattr(torch.backends, "fp32_precision", "tf32"),
}


def settings() -> dict[str, object]:
    """What torch says of its precision, each way to ask; None where it refuses to answer."""
    cuda, cudnn, mkldnn = torch.backends.cuda.matmul, torch.backends.cudnn, torch.backends.mkldnn
    ways: dict[str, Callable[[], object]] = {
        "old": torch.get_float32_matmul_precision,
        "cublas": lambda: cuda.allow_tf32,
        "cudnn": lambda: cudnn.allow_tf32,
        "bfloat16 sums": lambda: cuda.allow_bf16_reduced_precision_reduction,
        "float16 sums": lambda: cuda.allow_fp16_reduced_precision_reduction,
    }
    if hasattr(cuda, "fp32_precision"):
        ways |= {
            f"new {n}": lambda one=one: one.fp32_precision
            for n, one in enumerate((cuda, cudnn.conv, mkldnn.matmul))
        }
    answers: dict[str, object] = {}
    for name, ask in ways.items():
        try:
            answers[name] = ask()
        except RuntimeError:
            answers[name] = None
    return answers


def scores(device: str) -> np.ndarray:
    report = attnscope.inspect(SENTENCE, layer="all", head="all", device=device, stages=["scores"])
    return np.stack([np.nan_to_num(head.stages["scores"]) for head in report.data.texts[0].heads])


@pytest.mark.cuda
def test_onednn_multiplies_nothing_on_a_gpu(gpu: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also where the processor's own products would be faster by it."""
    monkeypatch.setattr(matmul, "_onednn", lambda: True)
    with torch.no_grad():
        assert [
            matmul.uses_onednn(x, x) for x in (torch.ones(2, 2), torch.ones(2, 2, device=gpu))
        ] == [True, False]


@pytest.mark.cuda
@pytest.mark.usefixtures("default_precision")
@pytest.mark.parametrize("name", SETTINGS)
def test_products_are_exact_and_settings_return(gpu: str, name: str) -> None:
    if name in ("new", "everything") and not hasattr(torch.backends.cuda.matmul, "fp32_precision"):
        pytest.skip("this torch has one way to set it")
    expected = scores("cpu")
    SETTINGS[name]()
    before = settings()
    found = scores(gpu)
    assert settings() == before
    np.testing.assert_allclose(found, expected, atol=1e-4)


PROGRAM = """
{imports}
import attnscope
inside = []
def record(*progress):
    import torch
    inside.append(torch.get_float32_matmul_precision())
attnscope.inspect("The bank by the river", progress=record)
import torch
assert inside[-1] == "highest", inside
assert torch.get_float32_matmul_precision() == "high"
assert torch.backends.cuda.matmul.allow_bf16_reduced_precision_reduction
assert torch.backends.cudnn.allow_tf32
"""


@pytest.mark.parametrize("imports", ["", "import torch"])
def test_the_variable_of_containers_is_without_effect_and_kept_for_the_caller(imports: str) -> None:
    environment = {**os.environ, "TORCH_ALLOW_TF32_CUBLAS_OVERRIDE": "1"}
    subprocess.run(
        [sys.executable, "-c", PROGRAM.format(imports=imports)],
        env=environment,
        check=True,
        timeout=60,
    )
