"""What docs/dumps.md promises of padding holds for 200 random models, whatever the size of their scores.

And texts of one forward pass have the findings that each has alone, to the rounding of the model's type.
"""

from pathlib import Path
from random import Random

import numpy as np
import pytest
import torch

from attnscope.base.model_config import ModelConfig
from attnscope.batch.header import Settings
from attnscope.batch.items import text_item
from attnscope.batch.loading import open_worker
from attnscope.batch.records import Record, arrays_of
from attnscope.batch.windows import MIN_PADDED_TOKENS
from attnscope.findings.row_statistics import STATISTICS
from attnscope.model.randomize import make_random
from attnscope.request.run_config import RunConfig
from attnscope.run.session import Session
from tests.devices.test_commands import write_tokenizer
from tests.helpers import native_stages
from tests.helpers.tiny_models import TABLE

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


WORDS = "the bank by river".split()
# What a number may differ by, as a part of its largest value: a few steps of the type, or a few dozen of float32.
NEAR = {"float32": 2.0**-17, "float16": 2.0**-9, "bfloat16": 2.0**-6}
LARGEST = {"distance": 40.0, "entropy": 5.0, "max_score": 2.0}  # others are at most 1


def records(folder: Path, dtype: str, texts: list[str], *, together: bool) -> list[Record]:
    """Records of texts that go through the model together, or one after the other."""
    settings = Settings(keep=("top", "rows", "heads"), top=3)
    run = RunConfig(texts=(), model=str(folder), dtype=dtype, device="cpu", threads=1)
    worker, _, _ = open_worker(settings, run, Session(()))
    ready = [worker.prepare(text_item(index, text)) for index, text in enumerate(texts)]
    if together:
        return worker.process(ready)
    return [record for one in ready for record in worker.process([one])]


@pytest.mark.parametrize("family", ["bert", "gpt2", "llama"])
@pytest.mark.parametrize("dtype", NEAR)
def test_random_frames_equal_frames_of_one_text(tmp_path: Path, family: str, dtype: str) -> None:
    next(row for row in TABLE if row.name == family).save(tmp_path)
    write_tokenizer(tmp_path, WORDS)
    draw = Random(family + dtype)
    texts = [" ".join(draw.choices(WORDS, k=draw.randint(16, 30))) for _ in range(12)]
    frame = records(tmp_path, dtype, texts, together=True)
    alone = records(tmp_path, dtype, texts, together=False)
    assert len({len(record.tokens) for record in alone}) > 3
    worst = 0.0
    for of_frame, by_itself in zip(frame, alone, strict=True):
        expected = arrays_of(by_itself)
        found = arrays_of(of_frame)
        assert (
            found.keys() == expected.keys()
            and {f"rows.{name}" for name in STATISTICS} <= found.keys()
        )
        for path, numbers in expected.items():
            if path == "top.keys":  # rounding may exchange those of nearly equal weight
                continue
            assert (np.isnan(numbers) == np.isnan(found[path])).all(), path
            gap = np.nanmax(np.abs(numbers - found[path]), initial=0.0)
            worst = max(worst, float(gap) / LARGEST.get(path.rpartition(".")[2], 1.0))
    assert worst <= NEAR[dtype]
