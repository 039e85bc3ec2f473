"""Stacks of our own: random weights are the same for the same seed, and come back from a file under our own names."""

from pathlib import Path

import msgspec
import pytest
import torch
from safetensors.torch import save_file

from attnscope.base.errors import AttnscopeError
from attnscope.base.model_config import ModelConfig
from attnscope.checkpoints.families import NATIVE_LAYOUT
from attnscope.checkpoints.folder import open_weights
from attnscope.model.checkpoint import load_stack
from attnscope.model.randomize import make_random
from attnscope.model.stack import Stack
from tests.helpers.loaded_stack import load_all

CPU = torch.device("cpu")
PLAIN = ModelConfig(
    vocab_size=9, d_model=8, n_layers=3, n_heads=2, n_kv_heads=1, d_head=6, d_value=4
)
CONFIGS = {
    "attention alone": PLAIN,
    "everything": msgspec.structs.replace(
        PLAIN, d_mlp=12, gated=True, mlp_bias=True, qkv_bias=True, out_bias=True, qk_norm=True, norm="rmsnorm",
        norm_order="sandwich", embedding_norm=True, n_segments=2, positions="learned", max_positions=5,
    ),
    "experts and sinks": msgspec.structs.replace(
        PLAIN, d_mlp=12, gated=True, glu_limit=7.0, glu_plus_one=True, n_experts=5, experts_per_token=2,
        router_bias=True, sinks=True,
    ),
    "no output projection": msgspec.structs.replace(PLAIN, out_projection=False, residual=False, norm="none"),
}  # fmt: skip


def _random(config: ModelConfig, seed: int = 1, n_layers: int = 3) -> Stack:
    return make_random(config, seed, n_layers, torch.float32, CPU)


@pytest.mark.parametrize("config", CONFIGS.values(), ids=CONFIGS)
def test_a_stack_comes_back_from_its_own_file(config: ModelConfig, tmp_path: Path) -> None:
    before = _random(config).state_dict()
    save_file(before, tmp_path / "stack.safetensors")
    after = load_all(
        load_stack(
            NATIVE_LAYOUT,
            config,
            open_weights(tmp_path / "stack.safetensors"),
            3,
            torch.float32,
            CPU,
        )
    ).state_dict()
    assert before.keys() == after.keys()
    assert all(torch.equal(before[name], after[name]) for name in before)


@pytest.mark.parametrize("config", CONFIGS.values(), ids=CONFIGS)
def test_the_first_blocks_are_the_same_however_many_there_are(config: ModelConfig) -> None:
    whole, first = _random(config).state_dict(), _random(config, n_layers=1).state_dict()
    assert len(first) < len(whole)
    assert all(torch.equal(tensor, whole[name]) for name, tensor in first.items())


def test_another_seed_gives_other_weights() -> None:
    one, other = _random(PLAIN, 1).state_dict(), _random(PLAIN, 2).state_dict()
    assert not torch.equal(one["blocks.0.attention.q.weight"], other["blocks.0.attention.q.weight"])


def test_weights_of_another_stack_are_refused_where_they_lie(tmp_path: Path) -> None:
    save_file(_random(PLAIN).state_dict(), tmp_path / "stack.safetensors")
    deeper = msgspec.structs.replace(PLAIN, n_layers=4)
    with pytest.raises(AttnscopeError) as caught:
        load_stack(
            NATIVE_LAYOUT,
            deeper,
            open_weights(tmp_path / "stack.safetensors"),
            4,
            torch.float32,
            CPU,
        )
    assert str(caught.value) == (
        f"{tmp_path}: config says 4 layers, but the weights have 3; config.json and weights do not match"
    )


def test_weights_are_read_in_the_type_that_is_asked_for(tmp_path: Path) -> None:
    save_file(_random(PLAIN).state_dict(), tmp_path / "stack.safetensors")
    stack = load_all(
        load_stack(
            NATIVE_LAYOUT,
            PLAIN,
            open_weights(tmp_path / "stack.safetensors"),
            2,
            torch.bfloat16,
            CPU,
        )
    )
    assert {p.dtype for p in stack.parameters()} == {torch.bfloat16}
    assert len(stack.blocks) == 2
