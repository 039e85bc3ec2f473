"""Linear maps with their non-linearity, and blocks that take a long text some positions at a time."""

from typing import Literal

import pytest
import torch
from torch import Tensor

from attnscope.base.model_config import ModelConfig, Rope
from attnscope.model import layers
from attnscope.model import stack as stack_module
from attnscope.model.hooks import AttentionHooks
from attnscope.model.layers import ACTIVATION_FUNCTIONS, MLP, Linear, map_rows
from attnscope.model.randomize import make_random
from attnscope.model.recorders import MatrixRecorder
from attnscope.model.stack import Stack
from attnscope.request.masks.terms import Bidirectional

ACTIVATIONS = ("gelu", "gelu_tanh", "quick_gelu", "relu", "silu")


@pytest.mark.parametrize("name", ACTIVATIONS)
@torch.inference_mode()
def test_a_fused_non_linearity_is_the_one_of_that_name(name: str) -> None:
    torch.manual_seed(0)
    linear, x = Linear(16, 32), 3 * torch.randn(2, 5, 16)
    torch.nn.init.normal_(linear.weight)
    torch.nn.init.normal_(linear.bias)
    product = torch.nn.functional.linear(x.double(), linear.weight.double(), linear.bias.double())
    expected = ACTIVATION_FUNCTIONS[name](product)
    torch.testing.assert_close(linear(x, name).double(), expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("batch", [1, 3])
def test_a_function_of_positions_sees_each_once_and_few_at_a_time(
    monkeypatch: pytest.MonkeyPatch, batch: int
) -> None:
    monkeypatch.setattr(layers, "_ROWS", 6)
    x, seen = torch.arange(batch * 7 * 2.0).reshape(batch, 7, 2), list[int]()

    def work(rows: slice) -> Tensor:
        part = x[:, rows]
        seen.append(part.shape[0] * part.shape[1])
        return part * 2

    assert torch.equal(map_rows(work, batch, 7), x * 2)
    assert sum(seen) == x.shape[0] * 7 and max(seen) <= 6


@pytest.mark.parametrize("order", ["pre", "post", "sandwich"])
@pytest.mark.parametrize("parallel", [False, True])
def test_a_long_text_goes_through_a_block_as_a_short_one(
    monkeypatch: pytest.MonkeyPatch, order: Literal["pre", "post", "sandwich"], parallel: bool
) -> None:
    config = ModelConfig(
        vocab_size=11, d_model=16, n_layers=3, n_heads=2, n_kv_heads=2, d_head=8, d_value=8, d_mlp=32,
        norm_order=order, parallel=parallel,
    )  # fmt: skip
    stack = make_random(config, 0, 3, torch.float32, torch.device("cpu"))
    whole = _scores_behind_two_blocks(stack)
    assert whole.std() > 0.1
    widest = list[int]()
    for module in stack.modules():
        if isinstance(module, MLP):
            module.register_forward_hook(lambda _module, _given, made: widest.append(made.shape[1]))
    monkeypatch.setattr(layers, "_ROWS", 4)
    torch.testing.assert_close(_scores_behind_two_blocks(stack), whole, rtol=1e-5, atol=1e-5)
    assert max(widest) == 4
    assert sum(widest) == 2 * 22


def _scores_behind_two_blocks(stack: Stack) -> Tensor:
    ids = torch.arange(22)[None] % 11
    seen = MatrixRecorder(["scores"], [0, 1], range(22), range(22))
    stack.run(
        (ids, torch.zeros_like(ids)),
        [Bidirectional()] * 3,
        Bidirectional(),
        AttentionHooks({2: [seen]}),
    )
    return seen.compute()["scores"]


def test_layers_that_turn_alike_share_a_rotary_table(monkeypatch: pytest.MonkeyPatch) -> None:
    made = list[Rope]()
    table = stack_module.rotary_tables
    monkeypatch.setattr(
        stack_module,
        "rotary_tables",
        lambda rope, *rest: (made.append(rope), table(rope, *rest))[1],
    )
    local = Rope(theta=77.0)
    config = ModelConfig(
        vocab_size=11, d_model=16, n_layers=6, n_heads=2, n_kv_heads=2, d_head=8, d_value=8, d_mlp=32, positions="rope",
        rope_local=local, windows=(3, None, 3, None, 3, None), rope_layers=(True, True, True, True, False, True),
    )  # fmt: skip
    stack = make_random(config, 0, 6, torch.float32, torch.device("cpu"))
    ids, last = torch.arange(7)[None], MatrixRecorder(["scores"], [0], range(7), range(7))
    stack.run(
        (ids, torch.zeros_like(ids)),
        [Bidirectional()] * 6,
        Bidirectional(),
        AttentionHooks({5: [last]}),
    )
    assert made == [local, config.rope]
