"""Products equal those in float64, by oneDNN and by torch's own choice, whatever this machine's processor prefers."""

from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from attnscope.model import matmul
from attnscope.model.matmul import linear, matmul_transposed, sums_of_products, uses_onednn


@pytest.fixture(params=[True, False], ids=["oneDNN", "torch"])
def onednn(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> bool:
    monkeypatch.setattr(matmul, "_onednn", lambda: request.param)
    monkeypatch.setattr(matmul, "_onednn_is_faster", lambda: request.param)
    monkeypatch.setattr(matmul, "_mkl_in_place", lambda: False)
    return bool(request.param)


def numbers(*shape: int) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(sum(shape)))


WEIGHTS = {
    "rows": numbers(6, 5),
    "columns": numbers(5, 6).mT,
    "strided": numbers(6, 10)[:, ::2],
    "repeated": numbers(1, 5).expand(6, 5),
}


@pytest.mark.parametrize("layout", WEIGHTS)
@pytest.mark.parametrize("bias", [None, numbers(6)], ids=["", "bias"])
@torch.inference_mode()
def test_a_linear_map_of_any_layout(
    onednn: bool, monkeypatch: pytest.MonkeyPatch, layout: str, bias: Tensor | None
) -> None:
    taken, operator = list[Tensor](), torch.ops.mkldnn._linear_pointwise

    def spy(x: Tensor, weight: Tensor, *rest: Any) -> Tensor:
        taken.append(weight)
        return operator(x, weight, *rest)  # type: ignore[no-any-return]

    monkeypatch.setattr(torch.ops.mkldnn, "_linear_pointwise", spy, raising=False)
    monkeypatch.setattr(matmul, "_FEW_ROWS", 5)
    x, weight = numbers(2, 3, 5), WEIGHTS[layout]
    expected = torch.einsum("abe,ne->abn", x.double(), weight.double()) + (
        0 if bias is None else bias.double()
    )
    torch.testing.assert_close(linear(x, weight, bias).double(), expected, rtol=1e-5, atol=1e-5)
    assert len(taken) == onednn
    for given in taken:  # others take up to 1,000 times as long
        assert given.is_contiguous() or given.mT.is_contiguous()
        assert given is weight or layout in ("strided", "repeated")


@pytest.mark.parametrize("rows", [1, 7, 25])
@torch.inference_mode()
def test_a_linear_layer_of_a_short_text_is_as_exact_as_torchs_own(rows: int) -> None:
    """A massive channel shows the order of sums: whatever is added after it is rounded at its size."""
    x, weight = numbers(rows, 1536), numbers(576, 1536)
    x[:, 5] = 300.0
    exact = x.double() @ weight.double().mT

    def error(product: Tensor) -> float:
        return float((product - exact).pow(2).mean().sqrt())

    assert error(linear(x, weight)) < 1.2 * error(torch.nn.functional.linear(x, weight))


@pytest.mark.parametrize("leading", [(), (1,), (3,), (2, 2)], ids=repr)
@pytest.mark.parametrize("worth", [1, 1 << 19], ids=["one by one", "at once"])
@pytest.mark.parametrize("given", [False, True], ids=["", "into a buffer"])
@torch.inference_mode()
def test_products_of_pairs(
    onednn: bool, monkeypatch: pytest.MonkeyPatch, leading: tuple[int, ...], worth: int, given: bool
) -> None:
    monkeypatch.setattr(matmul, "_WORTH_A_CALL", worth)
    a, b = numbers(*leading, 4, 5), numbers(*leading, 3, 5)
    out = torch.full((*leading, 4, 3), torch.nan) if given else None
    expected = torch.einsum("...me,...ne->...mn", a.double(), b.double())
    torch.testing.assert_close(
        matmul_transposed(a, b, out).double(), expected, rtol=1e-5, atol=1e-5
    )


def test_onednn_is_for_float32_without_gradients(onednn: bool) -> None:
    x, weight = numbers(2, 5), numbers(6, 5)
    assert not uses_onednn(x, weight)  # gradients are on
    with torch.inference_mode():
        assert uses_onednn(x, weight) == onednn
        assert not uses_onednn(x.double(), weight)
        assert not uses_onednn(x, weight.double())
        assert not uses_onednn(x.double(), weight.double())
        assert not uses_onednn(x[:0], weight)
        assert not uses_onednn(x, weight[:0])


@pytest.mark.parametrize("old", [False, True], ids=["NumPy 2", "NumPy 1.26"])
@pytest.mark.parametrize("shape", [(2, 3, 5), (1, 4, 0), (3, 8192), (2, 3, 20000)])
def test_sums_of_products_of_rows_that_may_be_cut_out_of_larger_ones(shape, old, monkeypatch):
    if old:
        monkeypatch.delattr(np, "vecdot", raising=False)
    a, b = torch.randn(2, *shape[:-1], shape[-1] + 3)[..., 1 : 1 + shape[-1]].unbind()
    found = sums_of_products(a, b)
    products = a.double() * b.double()
    assert ((found.double() - products.sum(-1)).abs() <= 1e-7 + 1e-6 * products.abs().sum(-1)).all()
    assert found.shape == shape[:-1] and found.dtype == torch.float32
