"""A text of 16,384 tokens: contributors are found without a tensor of T×T."""

import time
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from attnscope.base.model_config import ModelConfig, Rope
from attnscope.model.hooks import AttentionHooks
from attnscope.model.randomize import make_random
from attnscope.model.recorders import MatrixRecorder, RowRecorder, TopRecorder
from attnscope.request.masks.terms import Bidirectional, Causal
from tests.helpers.key_tokens import key_tokens

LONG = 16_384
MINILM = ModelConfig(
    vocab_size=1000, d_model=384, n_layers=2, n_heads=12, n_kv_heads=12, d_head=32, d_value=32, d_mlp=1536,
    qkv_bias=True, out_bias=True, mlp_bias=True, positions="rope", rope=Rope(), norm_order="post", embedding_norm=True,
)  # fmt: skip


class Largest(TorchDispatchMode):
    """The number of float32 that the memory behind the largest tensor of any operation holds; a view takes none."""

    elements = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        made = func(*args, **(kwargs or {}))
        for one in made if isinstance(made, tuple | list) else (made,):
            if isinstance(one, torch.Tensor):
                self.elements = max(self.elements, one.untyped_storage().nbytes() // 4)
        return made


def _run(n: int, recorders: dict[int, list[Any]], n_layers: int) -> tuple[int, float]:
    stack = make_random(MINILM, 0, n_layers, torch.float32, torch.device("cpu"))
    ids = torch.randint(1000, (1, n), generator=torch.Generator().manual_seed(0))
    began = time.perf_counter()
    with Largest() as largest:
        masks = [Causal()] * n_layers
        stack.run((ids, torch.zeros_like(ids)), masks, Bidirectional(), AttentionHooks(recorders))
    return largest.elements, time.perf_counter() - began


def test_contributors_of_one_head_in_a_text_of_16384_tokens() -> None:
    real = torch.ones(1, LONG, dtype=torch.bool)
    top = TopRecorder(3, "value", [4], range(LONG), real)
    rows = RowRecorder([4], range(LONG), key_tokens(torch.zeros_like(real), real))
    largest, took = _run(LONG, {0: [top, rows]}, n_layers=1)
    assert largest < LONG * LONG / 10
    assert took < 60
    assert (top.keys[0, 0, :, 0] >= 0).all()
    assert (top.keys[0, 0] <= torch.arange(LONG)[:, None]).all()
    assert not rows.recorded["entropy"].isnan().any()


def test_a_watched_row_behind_unwatched_layers_needs_no_matrix_either() -> None:
    n = 4_096
    largest, took = _run(n, {1: [MatrixRecorder(["weights"], [0], [n - 1], range(n))]}, n_layers=2)
    assert largest < n * n / 2
    assert took < 60
