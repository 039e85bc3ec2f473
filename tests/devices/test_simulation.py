"""A simulated device refuses what CUDA and MPS refuse, and counts what they would do."""

import gc
import pickle
from collections.abc import Callable

import numpy as np
import pytest
import torch
from torch import Tensor

from tests.devices.simulation import counts, memory, simulated_devices

pytestmark = pytest.mark.usefixtures("simulated")
GPU = "cuda:1"


def on_gpu(*shape: int) -> Tensor:
    return torch.arange(1.0, 1.0 + np.prod(shape)).view(shape).to(GPU)


@pytest.mark.parametrize("device", ["cuda:0", "cuda:1", "mps"])
@torch.inference_mode()
def test_every_way_to_make_a_tensor_makes_it_there(device: str) -> None:
    x = torch.ones(2, 3).to(device)
    tensors = [
        x, torch.zeros(2, device=device), torch.tensor([1, 2], device=device), torch.arange(3, device=device),
        torch.full((2,), 7, device=device), x.new_zeros(2), torch.empty_like(torch.ones(2), device=device),
        torch.nn.Linear(3, 2).to(device)(x), x @ x.mT, x[0], x + 1,
    ]  # fmt: skip
    expected = device if ":" in device else f"{device}:0"
    assert {str(tensor.device) for tensor in tensors} == {expected}
    assert all(tensor.cpu().device.type == "cpu" for tensor in tensors)


@pytest.mark.parametrize(
    ("work", "message"),
    [
        (lambda: on_gpu(2, 3) + torch.ones(2, 3), "same device"),
        (lambda: on_gpu(2).to("cuda:0") + on_gpu(2), "same device"),
        (lambda: torch.cat((on_gpu(2), torch.ones(2))), "same device"),
        (lambda: on_gpu(3, 3) @ torch.ones(3, 3), "same device"),
        (lambda: torch.ones(3)[torch.tensor([0, 1], device=GPU)], "same device"),
        (
            lambda: torch.full((3,), 1, device=GPU).view(1, 3) @ torch.full((3, 1), 1, device=GPU),
            "not implemented",
        ),
        (lambda: on_gpu(2).numpy(), "Tensor.cpu"),
        (lambda: np.asarray(on_gpu(2)), "Tensor.cpu"),
        (lambda: on_gpu(2).pin_memory(), "cannot pin"),
        (
            lambda: torch.ops.mkldnn._linear_pointwise(
                on_gpu(1, 2), on_gpu(3, 2), None, "none", [], ""
            ),
            "CUDA",
        ),
        (lambda: torch.rand(2, device=GPU, generator=torch.Generator()), "generator"),
        (lambda: torch.ones(2, device="mps").double(), "float64"),
        (lambda: torch.zeros(2, dtype=torch.float64, device="mps"), "float64"),
    ],
)
def test_what_a_device_refuses_is_refused(work: Callable[[], object], message: str) -> None:
    with pytest.raises((RuntimeError, TypeError), match=message):
        work()


def test_what_a_device_takes_from_the_cpu_is_taken() -> None:
    x = on_gpu(3)
    assert (x * torch.tensor(2.0)).tolist() == [2, 4, 6]
    assert x[torch.tensor([2, 0])].tolist() == [3, 1]
    x[[0, 1]] = torch.tensor(5.0)
    assert x.tolist() == [5, 5, 3]
    assert pickle.loads(pickle.dumps(x)).tolist() == [5, 5, 3]


def test_fresh_memory_shows_in_results() -> None:
    assert torch.empty(3, device=GPU).isnan().all()
    assert torch.empty(2, dtype=torch.bool, device=GPU).all()
    assert (torch.empty(2, dtype=torch.int64, device=GPU) > 1 << 60).all()


def test_launches_and_waits_are_counted() -> None:
    x = on_gpu(2, 3)
    counts.reset()
    y = (x + 1).mT[:2]
    assert (counts.launches, counts.waits.total()) == (1, 0)  # a view launches nothing
    y.sum().item()
    assert (counts.launches, counts.waits) == (2, {"read": 1})
    x[x > 2]
    torch.tensor([1.0, 2.0], device=GPU)
    x.cpu()
    assert counts.waits == {"read": 2, "size": 1, "upload": 1}
    assert (counts.read_bytes, counts.upload_bytes) == (4 + 24, 8)


def test_memory_is_counted_and_limited() -> None:
    gc.collect()
    before = memory.held
    x = torch.zeros(256, device=GPU)
    views = [x[1:], x.view(16, 16)]
    assert memory.held - before == 1024
    with simulated_devices(capacity=memory.held + 512):
        assert torch.cuda.mem_get_info(GPU) == (512, memory.capacity)
        with pytest.raises(torch.OutOfMemoryError, match="CUDA out of memory"):
            torch.zeros(256, device=GPU)
    del x, views
    assert memory.held == before


def test_tf32_rounds_operands_of_products() -> None:
    x = torch.randn(8, 8, generator=torch.Generator().manual_seed(0))
    assert torch.equal((x.to(GPU) @ x.to(GPU)).cpu(), x @ x)
    torch.set_float32_matmul_precision("high")
    try:
        gap = float(((x.to(GPU) @ x.to(GPU)).cpu() - x @ x).abs().max())
    finally:
        torch.set_float32_matmul_precision("highest")
    assert 1e-4 < gap < 1e-1


@pytest.mark.parametrize(
    ("dtype", "causal", "groups", "kernel"),
    [
        (torch.bfloat16, True, 4, "flash"), (torch.bfloat16, True, 1, "flash"), (torch.float32, True, 4, "efficient"),
        (torch.float32, False, 1, "math"),
    ],
)  # fmt: skip
@torch.inference_mode()
def test_the_kernel_of_attention_is_counted(
    dtype: torch.dtype, causal: bool, groups: int, kernel: str
) -> None:
    q, k = (torch.ones(1, heads, 3, 8, dtype=dtype, device=GPU) for heads in (4, groups))
    torch.nn.functional.scaled_dot_product_attention(
        q, k, k, is_causal=causal, enable_gqa=groups < 4
    )
    assert counts.attention == {kernel: 1}
