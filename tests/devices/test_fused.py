"""The fused kernel: its numbers in Triton's interpreter, and its machine code for GPUs that are not there."""

import importlib.util
import json
import os
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from attnscope.findings.head_averages import TARGETS
from attnscope.findings.row_statistics import KEY_TOKENS, WITHIN
from attnscope.model import fused_rows
from attnscope.model.inputs import AttentionInputs, AttentionSpec
from attnscope.model.masks import hidden_keys_mask, intersect
from attnscope.model.recorders import (
    ColumnRecorder,
    KeyTokens,
    MatrixRecorder,
    RowRecorder,
    TopRecorder,
)
from attnscope.model.tile import Recorder
from attnscope.request.masks.terms import BlockDiagonal, Causal, Prefix, SlidingWindow
from tests.devices.fused_cases import CASES

HERE = Path(__file__).parent
needs_triton = pytest.mark.skipif(
    importlib.util.find_spec("triton") is None,
    reason="needs Triton, which builds of torch for CPUs lack: pip install --no-deps triton",
)
# bytes of a thread of the layer kernel, which holds 255 registers as well; without ranks, it scores what averages name
STACK = {
    (80, "bfloat16", True): 32, (90, "bfloat16", True): 32, (100, "bfloat16", True): 0, (90, "float32", True): 256,
    (80, "bfloat16", False): 32, (90, "bfloat16", False): 32, (100, "bfloat16", False): 64,
    (90, "float32", False): 128,
}  # fmt: skip
SHARED_MEMORY = {80: 163 << 10, 90: 227 << 10, 100: 227 << 10}  # bytes of a block, at most


def run(name: str, *words: str, interpret: bool) -> str:
    environment = {
        **os.environ,
        "OMP_NUM_THREADS": "1",
        "PYTHONPATH": os.pathsep.join(filter(None, sys.path)),
    }
    environment["TRITON_INTERPRET"] = str(int(interpret))  # read when a kernel is declared
    command = [sys.executable, "-W", "ignore", str(HERE / name), *words]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stderr[-3000:]
    return done.stdout


@needs_triton
def test_the_kernel_has_the_numbers_of_operators() -> None:
    lines = run("fused_cases.py", "--draws", "3", interpret=True).splitlines()
    assert len(lines) == len(CASES) + 3


@needs_triton
@pytest.mark.parametrize("capability", SHARED_MEMORY)
def test_the_machine_code_keeps_most_of_its_numbers_in_registers(capability: int) -> None:
    """On an A100, H100 or B200."""
    for line in run("fused_machine_code.py", str(capability), interpret=False).splitlines():
        found = json.loads(line)
        assert found["reg"] <= 255
        assert found["local"] == 0
        if found["kernel"] != "layer_kernel":
            assert found["stack"] <= 8 * (found["kernel"] == "column_kernel")
        elif (stack := STACK.get((capability, found["dtype"], found["ranks"]))) is not None:
            assert found["stack"] <= stack
        assert found["shared"] <= SHARED_MEMORY[capability]
        if found["kernel"] != "ranking_kernel":
            assert found["cores"] == {80: "mma.sync", 90: "wgmma", 100: "tcgen05.mma"}[capability]


HEADS, TOKENS, WIDTH = range(2), 6, 16
REAL = torch.ones(1, TOKENS, dtype=torch.bool)
KINDS = dict.fromkeys(KEY_TOKENS, REAL)
TOP = TopRecorder(5, "weight", HEADS, range(TOKENS), REAL)


def rows(*, same: bool = True) -> RowRecorder:
    return RowRecorder(HEADS, range(TOKENS), KeyTokens(KINDS, REAL, self_attention=same))


def columns() -> ColumnRecorder:
    return ColumnRecorder(HEADS, range(TOKENS), REAL, KeyTokens(KINDS, REAL))


@pytest.fixture
def inputs(monkeypatch: pytest.MonkeyPatch) -> AttentionInputs:
    """A layer on a machine that has Triton and wants the kernel, which computes nothing."""
    monkeypatch.setattr(fused_rows, "_is_worth_it", lambda inputs, recorders: True)
    monkeypatch.setattr(
        fused_rows,
        "_run",
        lambda *given, **named: type("Ran", (), {"is_finite": lambda self: True})(),
    )
    q, k, v = (torch.ones(1, 2, TOKENS, WIDTH) for _ in range(3))
    return AttentionInputs(0, q, k, v, AttentionSpec(0.25, Causal()))


@pytest.mark.parametrize(
    ("recorders", "mask", "chosen"),
    [
        ([TOP], Causal(), True),
        ([TOP, rows()], intersect((Causal(), SlidingWindow(3))), True),
        ([rows()], Prefix(2), True),
        ([columns(), rows()], Causal(), True),
        ([columns(), columns()], Causal(), False),
        ([], Causal(), False),
        ([TOP], BlockDiagonal(2), False),
        ([TOP], hidden_keys_mask([[1]], TOKENS, torch.device("cpu")), False),
        ([TOP], intersect((Causal(), Prefix(2))), False),
        ([TopRecorder(6, "weight", HEADS, range(TOKENS), REAL)], Causal(), False),
        ([TopRecorder(5, "projected", HEADS, range(TOKENS), REAL)], Causal(), False),
        ([TopRecorder(5, "weight", HEADS, range(TOKENS), ~REAL)], Causal(), False),
        ([MatrixRecorder(["weights"], HEADS, range(TOKENS), [0]), TOP], Causal(), False),
        ([rows(same=False)], Causal(), False),
    ],
)
def test_one_function_chooses_the_kernel(
    inputs: AttentionInputs, recorders: list[Recorder], mask: Causal, chosen: bool
) -> None:
    layer = replace(inputs, spec=replace(inputs.spec, mask=mask))
    assert (fused_rows.fused_layer(layer, recorders) is not None) == chosen


@pytest.mark.parametrize(
    "change",
    [
        lambda layer: replace(layer, spec=replace(layer.spec, bias=lambda q, k, heads: q - k)),
        lambda layer: replace(layer, v=torch.ones(1, 2, TOKENS, 8)),
        lambda layer: replace(layer, q=torch.ones(1, 2, 3, WIDTH)),
        lambda layer: replace(layer, **{name: torch.ones(1, 2, TOKENS, 160) for name in "qkv"}),
    ],
)
def test_what_the_kernel_does_not_know_stays_with_operators(
    inputs: AttentionInputs, change: Callable[[AttentionInputs], AttentionInputs]
) -> None:
    assert fused_rows.fused_layer(change(inputs), [TOP]) is None


HOPPER, AMPERE, TURING = (9, 0), (8, 0), (7, 5)
LONG = 1500  # tokens, 2.25 million cells a head


@pytest.mark.parametrize(
    ("capability", "dtype", "heads", "rows", "asked", "chosen"),
    [
        (HOPPER, torch.float32, 4, LONG, None, True),
        (HOPPER, torch.float32, 4, LONG, "operators", False),
        (HOPPER, torch.float32, 3, LONG, None, False),  # too few cells to compile for
        (HOPPER, torch.float32, 3, LONG, "triton", True),
        # kernels would compute ten times as much
        (HOPPER, torch.float32, 8, LONG // 10, None, False),
        (AMPERE, torch.bfloat16, 4, LONG, None, True),
        (AMPERE, torch.float32, 4, LONG, None, False),
        (AMPERE, torch.float32, 4, LONG, "triton", True),
        (TURING, torch.bfloat16, 4, LONG, None, False),
    ],
)
def test_a_gpu_uses_the_kernel_where_it_pays(
    monkeypatch: pytest.MonkeyPatch,
    simulated: str,
    capability: tuple[int, int],
    dtype: torch.dtype,
    heads: int,
    rows: int,
    asked: str | None,
    chosen: bool,
) -> None:
    monkeypatch.setattr(fused_rows, "find_spec", lambda name: object())
    monkeypatch.setattr(torch.version, "cuda", "13.0")
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: capability)
    monkeypatch.delenv("ATTNSCOPE_KERNEL", raising=False)
    if asked:
        monkeypatch.setenv("ATTNSCOPE_KERNEL", asked)
    sides = (torch.zeros(1, 8, LONG, WIDTH, dtype=dtype, device=simulated) for _ in range(3))
    layer = AttentionInputs(0, *sides, AttentionSpec(0.25, Causal()))
    top = TopRecorder(5, "weight", range(heads), range(rows), torch.ones(1, LONG, dtype=torch.bool))
    assert fused_rows._is_worth_it(layer, [top]) == chosen


def test_the_kernel_needs_triton_and_a_gpu(
    monkeypatch: pytest.MonkeyPatch, inputs: AttentionInputs
) -> None:
    monkeypatch.undo()
    # a build for GPUs, but the layer is on the CPU
    monkeypatch.setattr(torch.version, "cuda", "13.0")
    monkeypatch.setenv("ATTNSCOPE_KERNEL", "triton")
    monkeypatch.delenv("TRITON_INTERPRET", raising=False)
    monkeypatch.setattr(fused_rows, "find_spec", lambda name: object())
    assert not fused_rows._is_worth_it(inputs, [TOP])
    monkeypatch.setenv("TRITON_INTERPRET", "1")
    assert fused_rows._is_worth_it(inputs, [TOP])
    monkeypatch.setattr(fused_rows, "find_spec", lambda name: None)
    assert not fused_rows._is_worth_it(inputs, [TOP])


def test_operators_compute_where_triton_cannot_compile(
    monkeypatch: pytest.MonkeyPatch, inputs: AttentionInputs
) -> None:
    def fail(*given: object, **named: object) -> None:
        raise RuntimeError(
            "Failed to find C compiler.\nPlease specify via CC environment variable."
        )

    monkeypatch.setattr(fused_rows, "_run", fail)
    monkeypatch.setattr(fused_rows, "FAILED", [])
    with pytest.warns(
        UserWarning, match=r"slower \(Failed to find C compiler\. Please specify via CC"
    ):
        assert fused_rows.fused_layer(inputs, [TOP]) is None
    monkeypatch.undo()
    monkeypatch.setattr(fused_rows, "FAILED", ["it failed"])
    monkeypatch.setattr(fused_rows, "find_spec", lambda name: object())
    monkeypatch.setenv("TRITON_INTERPRET", "1")
    monkeypatch.setenv("ATTNSCOPE_KERNEL", "triton")
    assert not fused_rows._is_worth_it(inputs, [TOP])


def test_a_gpu_that_fails_is_not_tritons_fault(
    monkeypatch: pytest.MonkeyPatch, inputs: AttentionInputs
) -> None:
    errors = [
        torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 MiB."),
        RuntimeError("CUDA error: …"),
    ]

    def fail(*given: object, **named: object) -> None:
        raise errors.pop(0)

    monkeypatch.setattr(fused_rows, "_run", fail)
    monkeypatch.setattr(fused_rows, "FAILED", [])
    assert fused_rows.fused_layer(inputs, [TOP]) is None
    with pytest.raises(RuntimeError, match="CUDA error"):
        fused_rows.fused_layer(inputs, [TOP])
    assert fused_rows.FAILED == []


def test_the_kernel_knows_every_statistic() -> None:
    """One that is added later is added to the kernel, or keeps the layer with operators."""
    assert WITHIN == (16, 64, 256, 1024)
    assert set(KEY_TOKENS) == {"special", "punctuation"}
    assert fused_rows.STATISTICS[-2:] == TARGETS[1:]


@pytest.mark.parametrize(("on_gpu", "run"), [(True, 16), (False, 2)])
def test_kernels_get_tensors_and_sizes_of_the_layers_device(
    simulated: str, monkeypatch: pytest.MonkeyPatch, on_gpu: bool, run: int
) -> None:
    """And are launched there, although another device is the current one."""
    given: list[object] = []
    sizes: dict[str, object] = {}
    launched: list[int] = []

    class Kernel:
        def __getitem__(self, grid: tuple[int, ...]) -> Callable[..., None]:
            launched.append(torch.cuda.current_device())
            return lambda *operands, **constants: (given.extend(operands), sizes.update(constants))

    kernels = SimpleNamespace(
        SLOTS=8, layer_kernel=Kernel(), ranking_kernel=Kernel(), column_kernel=Kernel()
    )
    monkeypatch.setitem(sys.modules, "attnscope.model.fused_kernels", kernels)
    monkeypatch.setattr("attnscope.model.fused_kernels", kernels, raising=False)
    monkeypatch.setitem(sys.modules, "triton", SimpleNamespace(cdiv=lambda a, b: -(-a // b)))
    monkeypatch.setattr(
        torch.cuda, "get_device_capability", lambda device: {"cuda": (10, 0)}[device.type]
    )
    device = simulated if on_gpu else "cpu"
    q, k, v = (
        torch.ones(1, 2, TOKENS, WIDTH, dtype=torch.bfloat16, device=device) for _ in range(3)
    )
    rule = fused_rows.FusedRule(causal=True, prefix=0, window=0, lengths=None)
    ran = fused_rows._run(
        AttentionInputs(0, q, k, v, AttentionSpec(0.25, Causal())),
        rule,
        None,
        None,
        REAL.to(device),
        order="weight",
    )
    tensors = [x for x in (*given, ran.keys, ran.received) if isinstance(x, torch.Tensor)]
    assert len(tensors) > 20
    assert {str(x.device) for x in tensors} == {device}
    assert sizes["RUN"] == run
    assert launched == [on_gpu] * 3
    assert torch.cuda.current_device() == 0
