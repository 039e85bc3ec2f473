"""Experts: the chosen ones run, on their own tokens, and no others."""

import msgspec
import pytest
import torch
from torch import Tensor

from attnscope.base.model_config import ModelConfig
from attnscope.model.layers import MLP, Experts
from attnscope.model.randomize import make_random

CONFIG = ModelConfig(
    vocab_size=9, d_model=8, n_layers=1, n_heads=2, n_kv_heads=2, d_head=4, d_value=4, d_mlp=12, mlp_bias=True,
    n_experts=5, experts_per_token=2, router_bias=True,
)  # fmt: skip
VARIANTS = {
    "plain": {},
    "gated": {"gated": True, "activation": "silu"},
    "bounded": {"gated": True, "activation": "quick_gelu", "glu_limit": 0.5, "glu_plus_one": True},
    "one": {"experts_per_token": 1},
    "all": {"experts_per_token": 5},
}


def made(**changes: object) -> Experts:
    config = msgspec.structs.replace(CONFIG, **changes)
    experts = make_random(config, 3, 1, torch.float32, torch.device("cpu")).blocks[0].mlp
    assert isinstance(experts, Experts)
    return experts


def tokens() -> Tensor:
    return torch.randn(2, 7, 8, generator=torch.Generator().manual_seed(1)) * 2


def naive(config: ModelConfig, experts: Experts, x: Tensor) -> Tensor:
    """One token at a time, by the formula."""
    logits = experts.router.weight @ x + experts.router.bias
    chosen = sorted(range(config.n_experts), key=lambda number: -float(logits[number]))[
        : config.experts_per_token
    ]
    total = sum(float(logits[number].exp()) for number in chosen)
    return sum(
        float(logits[n].exp()) / total * naive_mlp(config, experts.experts[n], x) for n in chosen
    )


def naive_mlp(config: ModelConfig, mlp: MLP, x: Tensor) -> Tensor:
    up = mlp.up.weight @ x + mlp.up.bias
    if mlp.gate is None:
        hidden = torch.nn.functional.gelu(up)
    else:
        gate, slope = (
            mlp.gate.weight @ x + mlp.gate.bias,
            1.702 if config.activation == "quick_gelu" else 1.0,
        )
        if config.glu_limit is not None:
            gate, up = (
                gate.clamp(max=config.glu_limit),
                up.clamp(-config.glu_limit, config.glu_limit),
            )
        hidden = gate / (1 + (-slope * gate).exp()) * (up + config.glu_plus_one)
    return mlp.down.weight @ hidden + mlp.down.bias


@pytest.mark.parametrize("changes", VARIANTS.values(), ids=VARIANTS)
@torch.inference_mode()
def test_experts_are_the_formula(changes: dict[str, object]) -> None:
    experts, config, x = made(**changes), msgspec.structs.replace(CONFIG, **changes), tokens()
    expected = torch.stack(
        [torch.stack([naive(config, experts, token) for token in text]) for text in x]
    )
    torch.testing.assert_close(experts(x), expected, rtol=1e-5, atol=1e-5)


@torch.inference_mode()
def test_an_expert_runs_for_the_tokens_that_chose_it_and_for_no_other() -> None:
    experts, x = made(), tokens()
    chosen = experts.router(x).topk(2).indices
    ran: dict[int, int] = {}
    for number, expert in enumerate(experts.experts):
        expert.register_forward_pre_hook(
            lambda _, given, number=number: ran.update({number: len(given[0])})
        )
    experts(x)
    assert ran == {number: int((chosen == number).sum()) for number in chosen.unique().tolist()}
    assert sum(ran.values()) == 2 * 7 * 2


@torch.inference_mode()
def test_one_that_nobody_chooses_never_runs() -> None:
    experts, x = made(), tokens()
    experts.router.bias[3] = -1e4
    before = experts(x)
    for parameter in experts.experts[3].parameters():
        parameter.fill_(torch.nan)
    assert torch.equal(experts(x), before)
