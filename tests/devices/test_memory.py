"""Memory is planned for the device that the model is on: a GPU's own, and the host's for what stays there."""

import gc
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

import attnscope
from attnscope.base.errors import AttnscopeError
from attnscope.base.system.gpu import WORTH_A_GPU, cuda_device, tile_bytes, tile_scores
from attnscope.engines.opening import open_source
from attnscope.findings.row_statistics import KEY_TOKENS
from attnscope.model.attention import attend
from attnscope.model.inputs import AttentionInputs, AttentionSpec
from attnscope.model.recorders import KeyTokens, RowRecorder, TopRecorder
from attnscope.request import memory as host
from attnscope.request.masks.terms import Causal
from attnscope.request.run_config import TextInput
from attnscope.run.plan import RunPlan, make_plan
from tests.devices.simulation import memory
from tests.helpers.requests import requested

MIB = 1 << 20


@pytest.fixture
def plan(minilm: Path) -> Callable[..., RunPlan]:
    """Plans a run of all layers and heads of a real model."""

    def make(**options: Any) -> RunPlan:
        text = TextInput(text="the bank by the river " * 20, where="text")
        given = {"threads": 1, "layer": "all", "head": "all", **options}
        run = requested(texts=(text,), model=str(minilm), **given)
        return make_plan(run, open_source(run, run.texts))

    return make


def test_max_memory_limits_the_gpu(simulated: str, plan: Callable[..., RunPlan]) -> None:
    assert not plan(device=simulated, max_memory=300 * MIB).stream_reason
    with pytest.raises(AttnscopeError, match=r"max_memory is 300\.0 MiB"):
        plan(device="cpu", max_memory=300 * MIB)
    assert "--max-memory is 100.0 MiB" in plan(device=simulated, max_memory=100 * MIB).stream_reason
    with pytest.raises(
        AttnscopeError, match=r"weights, two layers at a time .* max_memory is 30\.0 MiB"
    ):
        plan(device=simulated, max_memory=30 * MIB)


def test_weights_that_do_not_fit_into_the_gpu_are_read_in_every_pass(
    simulated: str, plan: Callable[..., RunPlan]
) -> None:
    memory.capacity = memory.held + 110 * MIB
    assert "90% of the free memory of cuda:1" in plan(device=simulated).stream_reason


def test_weights_that_fit_into_the_gpu_alone_are_kept(
    simulated: str, plan: Callable[..., RunPlan], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(host, "available_memory", lambda: 2 * 460 * MIB)
    assert plan(device="cpu").stream_reason
    assert not plan(device=simulated).stream_reason
    monkeypatch.setattr(host, "available_memory", lambda: 2 * 200 * MIB)
    with pytest.raises(AttnscopeError, match="half of the free memory is 200"):
        plan(device=simulated)


def test_the_memory_of_the_host_is_not_checked_while_a_gpu_computes(
    simulated: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(limit: object) -> None:
        raise AttnscopeError("the host is full")

    monkeypatch.setattr(host.MemoryLimit, "check", full)
    attnscope.inspect("the bank", device=simulated)
    with pytest.raises(AttnscopeError, match="the host is full"):
        attnscope.inspect("the bank", device="cpu")


def test_auto_is_the_cpu_for_little_work(simulated: str) -> None:
    assert cuda_device("auto", WORTH_A_GPU - 1) is None
    assert cuda_device("auto", WORTH_A_GPU) == "cuda:0"
    assert cuda_device("cuda", 1) == "cuda:0"
    assert cuda_device("cpu", WORTH_A_GPU) is None


@pytest.mark.parametrize("total", [512 * MIB, 8192 * MIB])
def test_tiles_take_what_the_plan_says(
    simulated: str, total: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of the five strongest keys and every statistic of each row."""
    monkeypatch.setattr("attnscope.base.system.gpu._MOST_SCORES", 1 << 21)  # a text of a second
    memory.capacity = total
    tokens, heads = 1200, 4
    q, k, v = (torch.randn(1, heads, tokens, 16, device=simulated) for _ in range(3))
    real = torch.ones(1, tokens, dtype=torch.bool, device=simulated)
    recorders = [
        TopRecorder(5, "weight", range(heads), range(tokens), real, ("weight",)),
        RowRecorder(range(heads), range(tokens), KeyTokens(dict.fromkeys(KEY_TOKENS, ~real), real)),
    ]
    planned = tile_bytes(total, heads * tokens**2)
    gc.collect()
    memory.peak = before = memory.held
    with torch.inference_mode():
        attend(
            AttentionInputs(0, q, k, v, AttentionSpec(0.25, Causal())), recorders, need_output=False
        )
    assert planned / 4 < memory.peak - before < planned
    assert tile_scores(total) <= total // 16 // 24


def test_tiles_do_not_depend_on_what_is_free() -> None:
    sizes = [tile_scores(gib << 30) for gib in (1, 2, 4, 8, 24, 80, 139)]
    assert sizes == [1 << 21, 1 << 22, 1 << 23, 1 << 24, 1 << 26, 1 << 26, 1 << 26]
