"""Each activation that a config may name equals transformers' own function of that name."""

import pytest
import torch
from transformers.activations import ACT2FN

from attnscope.checkpoints.families.spec import ACTIVATIONS
from attnscope.model.layers import ACTIVATION_FUNCTIONS


@pytest.mark.parametrize("name", ACTIVATIONS)
def test_an_activation_equals_the_one_of_its_name(name: str) -> None:
    x = torch.linspace(-6, 6, 1001)
    torch.testing.assert_close(
        ACTIVATION_FUNCTIONS[ACTIVATIONS[name]](x), ACT2FN[name](x), rtol=1e-6, atol=1e-6
    )
