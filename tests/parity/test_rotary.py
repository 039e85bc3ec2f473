"""Rotary frequencies equal those of transformers."""

import pytest
import torch
import transformers as hf
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

from attnscope.base.model_config import Rope, RopeScaling
from attnscope.model.positions import rotary_frequencies

CPU = torch.device("cpu")


@pytest.mark.parametrize("factor", [1.0, 1.25, 2.0, 3.0, 40.0])
def test_yarn_is_that_of_transformers(factor: float) -> None:
    rope = {
        "rope_type": "yarn",
        "rope_theta": 10000.0,
        "factor": factor,
        "original_max_position_embeddings": 100,
    }
    config = hf.LlamaConfig(
        hidden_size=16,
        num_attention_heads=1,
        head_dim=16,
        max_position_embeddings=4000,
        rope_parameters=rope,
    )
    expected, temperature = ROPE_INIT_FUNCTIONS["yarn"](config, CPU)
    scaling = RopeScaling("yarn", factor, 100, beta_fast=32.0, beta_slow=1.0)
    found, given = rotary_frequencies(Rope(scaling=scaling), 16, 9, CPU)
    torch.testing.assert_close(found, expected)
    assert given == pytest.approx(temperature)
