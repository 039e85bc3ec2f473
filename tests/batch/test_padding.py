"""What docs/dumps.md promises of padding holds for 200 random models, whatever the size of their scores."""

from random import Random

import numpy as np
import torch

from attnscope.base.model_config import ModelConfig
from attnscope.batch.groups import MIN_PADDED_TOKENS
from attnscope.model.randomize import make_random
from tests.helpers import native_stages

MODELS, PROMISE = 200, 1e-6


def _model(rng, seed):
    """A model of one to six layers, whose queries and keys are up to three times as long as usual."""
    heads, width = rng.choice([2, 4]), rng.choice([4, 8, 16])
    config = ModelConfig(
        vocab_size=50, d_model=heads * width, n_layers=rng.choice([1, 2, 2, 3, 6]), n_heads=heads,
        n_kv_heads=rng.choice([1, heads]), d_head=width, d_value=width, d_mlp=rng.choice([24, 64]), max_positions=80,
        mask=rng.choice(["causal", "bidirectional", "causal+window:5"]), norm=rng.choice(["layernorm", "rmsnorm"]),
        positions=rng.choice(["none", "learned", "sinusoidal", "rope", "alibi"]), gated=rng.random() < 0.5,
        norm_order=rng.choice(["pre", "post", "sandwich"]), qkv_bias=rng.random() < 0.5, sinks=rng.random() < 0.2,
        softcap=rng.choice([None, None, 5.0]),
    )  # fmt: skip
    stack = make_random(config, seed, config.n_layers, torch.float32, torch.device("cpu"))
    longer = rng.choice([0.3, 1.0, 2.0, 3.0])
    with torch.no_grad():
        for name, parameter in stack.named_parameters():
            if ".attention.q." in name or ".attention.k." in name:
                parameter.mul_(longer)
    return stack


def _excess(seed):
    """The largest difference of a weight in a padded batch from the text alone, and what is promised of it."""
    rng = Random(seed)
    stack = _model(rng, seed)
    n = rng.randint(MIN_PADDED_TOKENS, 40)
    longest = n + rng.randint(1, 30)
    ids = torch.randint(0, 50, (3, longest), generator=torch.Generator().manual_seed(seed))
    together, alone = (
        native_stages.run(stack, ids, [n, longest, longest - 1]),
        native_stages.run(stack, ids[:1, :n], [n]),
    )
    worst, largest = (0.0, PROMISE), 1.0
    for beside, one in zip(together, alone, strict=True):
        largest = max(largest, float(one.masked[one.masked > -torch.inf].abs().max()))
        gap = float((beside.weights[:1, :, :n, :n] - one.weights).abs().max())
        worst = max(worst, (gap, PROMISE * largest), key=lambda pair: pair[0] / pair[1])
    return worst


def test_a_padded_text_has_the_weights_of_the_text_alone():
    gaps, promised = np.array([_excess(seed) for seed in range(MODELS)]).T
    assert (gaps <= promised).all(), [seed for seed in range(MODELS) if gaps[seed] > promised[seed]]
    assert gaps.max() > PROMISE, "the promise is about scores larger than 1"


def test_padding_that_is_seen_breaks_the_promise(monkeypatch):
    def seen_by_one(lengths, n_keys, device):
        return padding(
            [length + 1 if length < n_keys else length for length in lengths], n_keys, device
        )

    padding = native_stages.padding_mask
    monkeypatch.setattr(native_stages, "padding_mask", seen_by_one)
    found = [_excess(seed) for seed in range(12)]
    assert sum(gap > promised for gap, promised in found) >= 3
