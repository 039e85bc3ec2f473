"""The reference that Reports are compared with gives the weights of transformers' own eager attention."""

import numpy as np
import pytest
import torch
import transformers as hf

from tests.referee import masks, reference
from tests.referee.expected import Attention
from tests.referee.models import ROWS, Models

IDS = [7, 9, 7, 30, 12, 44, 8, 51, 20]
FOUR_D = (
    "bert",
    "distilbert",
    "gpt2",
    "gpt_neox",
    "llama",
    "gemma2",
    "gemma3",
    "gpt_oss",
    "mistral",
)


def eager(models: Models, name: str, mask: torch.Tensor) -> list[np.ndarray]:
    model = hf.AutoModel.from_pretrained(
        models[name].path, attn_implementation="eager", experts_implementation="eager"
    ).double()
    with torch.no_grad():
        found = model.eval()(
            input_ids=torch.tensor([IDS]), attention_mask=mask, output_attentions=True
        )
    return [layer[0].numpy() for layer in found.attentions]


@pytest.mark.parametrize("name", ROWS)
def test_under_the_models_own_mask(models: Models, name: str) -> None:
    theirs = eager(models, name, torch.ones(1, len(IDS), dtype=torch.int64))
    for layer, weights in zip(reference.run(models[name].path, IDS, None), theirs, strict=True):
        ours = Attention(layer, layer.own, [False] * len(IDS), [False] * len(IDS)).weights
        np.testing.assert_allclose(ours, weights, rtol=0, atol=2e-6)  # eager softmax is float32
        assert layer.out is not None


@pytest.mark.parametrize("name", FOUR_D)
def test_the_whole_model_under_another_mask(models: Models, name: str) -> None:
    def other(own: np.ndarray) -> np.ndarray:
        return masks.allowed("prefix:2+window:4", own)

    allowed = torch.from_numpy(other(np.ones((len(IDS), len(IDS)), dtype=bool)))
    added = torch.zeros(1, 1, *allowed.shape, dtype=torch.float64).masked_fill(
        ~allowed, torch.finfo(torch.float64).min
    )
    theirs = eager(models, name, added)
    for layer, weights in zip(
        reference.run(models[name].path, IDS, None, other), theirs, strict=True
    ):
        ours = Attention(layer, other(layer.own), [False] * len(IDS), [False] * len(IDS)).weights
        np.testing.assert_allclose(ours, weights, rtol=0, atol=2e-6)
