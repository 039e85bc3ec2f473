"""Compiled loops over rows against float64, a stable sort, and the operators that they stand in for."""

import re
import subprocess
import sys
import warnings
from collections.abc import Sequence

import llvmlite.binding as llvm
import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

import attnscope.model
from attnscope.findings.row_statistics import KEY_TOKENS
from attnscope.model import compiled_rows, row_summary
from attnscope.model.attention import attend
from attnscope.model.inputs import AttentionInputs, AttentionSpec
from attnscope.model.recorders import KeyTokens, RowRecorder, TopRecorder
from attnscope.request.estimate import WORTH_COMPILED_LOOPS
from attnscope.request.masks.terms import Causal
from tests.helpers.row_statistics import entropy

SIZES = (1, 2, 15, 16, 17, 31, 32, 33, 47, 48, 49, 64, 97, 511, 512, 513, 1000, 1025, 4099)


def expect_largest(rows: Tensor, count: int) -> None:
    before = rows.clone()
    _, found = summary(rows[None, None], count)
    exact = before.sort(dim=-1, descending=True, stable=True)
    none = exact.values[:, :count] == -torch.inf
    assert torch.equal(rows, before)
    assert torch.equal(found.places[0, 0], exact.indices[:, :count].masked_fill(none, -1))


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("count", [1, 3, 5, 8])
def test_the_largest_entries_come_in_order_and_the_first_of_equals_first(
    size: int, count: int
) -> None:
    generator = torch.Generator().manual_seed(size)
    few = torch.randint(0, 4, (40, size), generator=generator).float()
    rows = [
        torch.randn(40, size, generator=generator),
        few,  # equals within chunks and between them
        few.masked_fill(torch.rand(40, size, generator=generator) < 0.9, -torch.inf),
        torch.arange(size, dtype=torch.float32)[None],
        -torch.arange(size, dtype=torch.float32)[None],
        torch.zeros(1, size),
        torch.full((1, size), -torch.inf),
        torch.tensor([0.0, -0.0])[torch.randint(0, 2, (4, size), generator=generator)],
    ]
    expect_largest(torch.cat(rows), min(count, size))


@given(
    st.lists(st.sampled_from([-2.0, 0.0, 1.0, 1.5, -np.inf]), min_size=1, max_size=70),
    st.integers(1, 8),
)
def test_the_largest_entries_of_any_row(row: list[float], count: int) -> None:
    expect_largest(torch.tensor([row]), min(count, len(row)))


def summary(masked: Tensor, count: int = 3) -> tuple[Tensor, row_summary.RowSummary]:
    weights = torch.full_like(masked, torch.nan)
    loops = row_summary.row_loops(1 << 40, masked.device)
    assert loops is compiled_rows
    return weights, row_summary.softmax(loops, count, masked, weights)


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("spread", [1e-3, 1.0, 30.0, 1e4])
def test_softmax_and_entropy_are_as_exact_as_float32(size: int, spread: float) -> None:
    generator = torch.Generator().manual_seed(size)
    masked = torch.randn(2, 3, 5, size, generator=generator) * spread
    masked[0].masked_fill_(torch.rand(3, 5, size, generator=generator) < 0.3, -torch.inf)
    masked[..., 0] = masked[..., 0].clamp_min(-1e5)  # each row has a key
    weights, found = summary(masked, min(3, size))
    exact = masked.double().softmax(-1)
    ours, torchs = (weights - exact).abs(), (masked.softmax(-1) - exact).abs()
    assert ours.max() <= 2 * torchs.max() + 1e-7
    visible = exact > 1e-36
    # a difference of up to 87 is rounded before its power is taken
    assert (ours[visible] <= 8e-6 * exact[visible]).all()
    bits = torch.from_numpy(entropy(exact.numpy()))
    torch.testing.assert_close(found.entropy.double(), bits, rtol=2e-6, atol=2e-6)
    assert torch.equal(found.largest, masked.amax(-1))
    places = masked.sort(dim=-1, descending=True, stable=True).indices[..., : min(3, size)]
    none = masked.gather(-1, places) == -torch.inf
    assert torch.equal(found.places, places.masked_fill(none, -1))
    assert torch.equal(found.strongest, weights.gather(-1, places).masked_fill(none, 0.0))


def test_powers_are_exact_over_their_whole_range() -> None:
    below = torch.linspace(-86.999, 0, 200_001)
    exact = below.double().exp()
    weights, _ = summary(torch.stack((torch.zeros_like(below), below), dim=-1)[None, None], 0)
    found = (weights[..., 1] / weights[..., 0]).double()  # e^x / (1 + e^x) over 1 / (1 + e^x)
    assert ((found - exact).abs() / exact).max() < 2.5e-7, (
        "two units in the last place, and two roundings"
    )
    masked = torch.tensor([[[[0.0, -86.9, -87.1, -1e30, -torch.inf]]]])
    weights, _ = summary(masked)
    assert weights[0, 0, 0, 1] > 0
    assert weights[0, 0, 0, 2:].tolist() == [0.0, 0.0, 0.0], "what is no normal float32 is 0"


def test_a_row_without_keys_has_no_weights() -> None:
    masked = torch.zeros(1, 1, 3, 40)
    masked[0, 0, 1] = -torch.inf
    weights, found = summary(masked)
    assert weights[0, 0, 1].eq(0).all() and weights.isfinite().all()
    assert found.entropy[0, 0, 1] == 0 and found.places[0, 0, 1].tolist() == [-1, -1, -1]
    assert found.places[0, 0, 2].tolist() == [0, 1, 2]


@pytest.mark.parametrize("size", SIZES)
def test_weights_may_overwrite_scores(size: int) -> None:
    masked = torch.randn(1, 2, 20, size, generator=torch.Generator().manual_seed(size)).round(
        decimals=1
    )
    masked.masked_fill_(masked < -1.5, -torch.inf)
    weights, found = summary(masked, min(3, size))
    again = row_summary.softmax(compiled_rows, min(3, size), masked, masked)
    assert torch.equal(masked, weights)
    assert torch.equal(again.places, found.places) and torch.equal(again.strongest, found.strongest)
    assert torch.equal(again.entropy, found.entropy)


def sums(weights: Tensor, kinds: Tensor, reaches: Sequence[int], query: int) -> Tensor:
    nothing = torch.empty(0)
    return row_summary.RowSummary(compiled_rows, nothing, nothing, nothing, nothing).sums(
        weights, kinds, reaches, query
    )


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("query", [-3, 0, 1, 20, 5000])
def test_weights_are_summed_up(size: int, query: int) -> None:
    generator = torch.Generator().manual_seed(size + query)
    weights = torch.rand(2, 3, 7, size, generator=generator) ** 8
    kinds = torch.rand(2, 2, size, generator=generator) < 0.3
    reaches = (0, 1, 16, 33, 1024)
    found = sums(weights, kinds, reaches, query)
    apart = (query + torch.arange(7)[:, None] - torch.arange(size)).abs()
    exact = weights.double()
    expected = [
        (exact * apart).sum(-1),
        *((exact * (apart <= reach)).sum(-1) for reach in reaches),
        *((exact * kinds[:, k, None, None]).sum(-1) for k in range(2)),
    ]
    torch.testing.assert_close(found.double(), torch.stack(expected), rtol=2e-6, atol=1e-12)


def test_weights_of_some_heads_are_summed_up_as_those_of_all() -> None:
    weights = torch.rand(1, 6, 40, 100, generator=torch.Generator().manual_seed(1))
    some = weights[:, 1::2, 3:30]
    assert not some.is_contiguous()
    kinds = torch.ones(1, 1, 100, dtype=torch.bool)
    found = sums(some, kinds, (5,), 3)
    assert torch.equal(found, sums(weights, kinds, (5,), 0)[:, :, 1::2, 3:30])


def test_a_row_does_not_depend_on_its_neighbours() -> None:
    masked = torch.randn(1, 1, 64, 777, generator=torch.Generator().manual_seed(0))
    weights, found = summary(masked)
    for row in (0, 13, 63):
        alone, of_it = summary(masked[:, :, row : row + 1].clone())
        assert torch.equal(alone[0, 0, 0], weights[0, 0, row])
        assert torch.equal(of_it.entropy[0, 0, 0], found.entropy[0, 0, row])


@pytest.mark.parametrize("size", [1, 31, 255, 256, 257, 900, 1024, 1500])
@pytest.mark.parametrize("more", [1, 7, 24, 300, 3000])
def test_keys_that_it_may_not_see_change_no_bit_of_a_row(size: int, more: int) -> None:
    masked = torch.randn(1, 1, 50, size, generator=torch.Generator().manual_seed(size))
    weights, found = summary(masked, 1)
    wide = torch.nn.functional.pad(masked, (0, more), value=-torch.inf)
    same, of_wide = summary(wide, 1)
    assert torch.equal(same[..., :size], weights) and same[..., size:].eq(0).all()
    assert torch.equal(of_wide.entropy, found.entropy) and torch.equal(
        of_wide.strongest, found.strongest
    )


def recorded(count: int, eligible: Tensor) -> tuple[TopRecorder, RowRecorder]:
    torch.manual_seed(3)
    q, k, v = torch.randn(3, 1, 12, 1700, 16).unbind()
    inputs = AttentionInputs(0, q, k, v, AttentionSpec(0.3, Causal()))
    kinds = dict.fromkeys(KEY_TOKENS, torch.zeros(1, 1700, dtype=torch.bool))
    top = TopRecorder(count, "weight", range(12), range(1700), eligible, ("weight",))
    rows = RowRecorder(
        range(12), range(1700), KeyTokens(kinds, torch.ones(1, 1700, dtype=torch.bool))
    )
    attend(inputs, [top, rows])
    return top, rows


@pytest.mark.parametrize("count", [1, 5, 8, 11])
@pytest.mark.parametrize("excluded", [False, True])
def test_a_large_layer_is_recorded_as_by_operators(
    count: int, excluded: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """At the size from which loops are used, so that this size is tested, too."""
    eligible = torch.ones(1, 1700, dtype=torch.bool)
    eligible[:, 100:150] = not excluded
    used = list[int]()
    softmax = compiled_rows.softmax
    monkeypatch.setattr(compiled_rows, "softmax", lambda *rows: used.append(1) or softmax(*rows))
    top, rows = recorded(count, eligible)
    assert bool(used) == (count <= 8 and not excluded)
    monkeypatch.setattr(row_summary, "WORTH_COMPILED_LOOPS", 1 << 62)
    used.clear()
    expected, expected_rows = recorded(count, eligible)
    assert not used
    assert torch.equal(top.keys, expected.keys)
    torch.testing.assert_close(top.measures["weight"], expected.measures["weight"], equal_nan=True)
    for name, values in rows.recorded.items():
        torch.testing.assert_close(
            values, expected_rows.recorded[name], rtol=2e-6, atol=2e-6, equal_nan=True
        )


@pytest.fixture
def _load_again():
    row_summary._load.cache_clear()
    yield
    row_summary._load.cache_clear()


@pytest.mark.usefixtures("_load_again")
@pytest.mark.parametrize("missing", ["llvmlite", "llvmlite.binding"])
def test_without_llvm_operators_are_used(missing: str, monkeypatch: pytest.MonkeyPatch) -> None:
    forget_the_loops(monkeypatch)
    monkeypatch.setitem(sys.modules, missing, None)  # what an import finds then
    with pytest.warns(
        UserWarning, match=r"0\.7 of this time with llvmlite: pip install 'attnscope\[fast\]'$"
    ):
        assert row_summary.row_loops(1 << 40, torch.device("cpu")) is None
    recorded(2, torch.ones(1, 1700, dtype=torch.bool))


@pytest.mark.usefixtures("_load_again")
def test_llvm_that_refuses_stops_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise RuntimeError("LLVM IR parsing error")

    forget_the_loops(monkeypatch)
    monkeypatch.setattr(llvm, "parse_assembly", refuse)
    with pytest.warns(UserWarning, match=r"will be slower \(LLVM IR parsing error\)$"):
        assert row_summary.row_loops(1 << 40, torch.device("cpu")) is None
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # it is said once
        assert row_summary.row_loops(1 << 40, torch.device("cpu")) is None


@pytest.mark.skipif(sys.platform != "linux", reason="asks Linux to forbid it")
def test_where_memory_may_not_be_executed_operators_are_used() -> None:
    code = """
import ctypes, torch
number = ctypes.c_ulong
forbidden = ctypes.CDLL(None).prctl(65, number(1), number(0), number(0), number(0)) == 0  # PR_SET_MDWE
from attnscope.model import row_summary
print(forbidden, row_summary.may_execute(), row_summary.row_loops(1 << 40, torch.device("cpu")))
"""
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    if ran.stdout.startswith("False"):
        pytest.skip("this version of Linux cannot forbid it")
    assert ran.stdout == "True False None\n"
    assert "does not let a process execute memory" in ran.stderr
    assert row_summary.may_execute()


def test_processors_that_are_not_known_use_operators(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(row_summary.platform, "machine", lambda: "riscv64")
    row_summary._load.cache_clear()
    assert row_summary.row_loops(1 << 40, torch.device("cpu")) is None
    row_summary._load.cache_clear()


def forget_the_loops(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "attnscope.model.compiled_rows")
    monkeypatch.delattr(attnscope.model, "compiled_rows", raising=False)


def test_small_layers_and_gpus_do_not_load_it() -> None:
    assert row_summary.row_loops(WORTH_COMPILED_LOOPS - 1, torch.device("cpu")) is None
    assert row_summary.row_loops(1 << 40, torch.device("meta")) is None


@pytest.mark.parametrize("processor", ["", "x86-64", "haswell", "znver4", "sapphirerapids"])
def test_the_loops_call_nothing_outside(processor: str) -> None:
    """A name that cannot be resolved would end the process, and there are systems where even memcpy has no address."""
    if processor and not llvm.get_default_triple().startswith("x86_64"):
        pytest.skip("names of x86 processors")
    target = llvm.Target.from_default_triple()
    machine = target.create_target_machine(cpu=processor or llvm.get_host_cpu_name(), jit=True)
    module = llvm.parse_assembly(str(compiled_rows.write()))
    passes = llvm.create_pass_builder(machine, llvm.create_pipeline_tuning_options(speed_level=1))
    passes.getModulePassManager().run(module, passes)
    assert [one.name for one in module.functions if not one.name.startswith("llvm.")] == [
        "softmax",
        "sums",
    ]
    assembly = machine.emit_assembly(module)
    assert "softmax" in assembly and not re.findall(r"\n\s+(?:call|bl|jal)\w*\s", assembly)
