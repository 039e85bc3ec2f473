"""What recorders keep depends neither on how a text is cut into tiles nor on how many threads work on it: 1e-6."""

from collections.abc import Iterator
from functools import cache
from typing import Any

import pytest
import torch

from attnscope.model.attention import attend
from attnscope.model.inputs import AttentionInputs, AttentionSpec
from attnscope.model.masks import build_mask
from attnscope.model.recorders import (
    ColumnRecorder,
    MatrixRecorder,
    PooledRecorder,
    RowRecorder,
    TopRecorder,
)
from attnscope.request.masks.expression import parse_mask
from attnscope.request.masks.terms import Mask
from tests.helpers.key_tokens import key_tokens

pytestmark = pytest.mark.usefixtures("both_ways")

N, HEADS = 300, 3
SHORT = 120  # tokens where every row is a tile, which takes long
TOLERANCE = 1e-6
TILES = [7_777, 1 << 24, None]  # some rows; everything; what suits the device


@pytest.fixture
def threads(request: Any) -> Iterator[int]:
    """So many threads for a test."""
    before = torch.get_num_threads()
    torch.set_num_threads(request.param)
    yield request.param
    torch.set_num_threads(before)


def seen(mask: str, elements: int | None, n: int = N) -> dict[str, torch.Tensor]:
    """Everything that recorders keep of one layer over n tokens, whole and as a mean over heads."""
    generator = torch.Generator().manual_seed(0)
    q, k, v = (torch.randn(1, HEADS, n, 16, generator=generator) for _ in range(3))
    special = torch.arange(n)[None] % 47 == 5
    real = torch.ones(1, n, dtype=torch.bool)
    sources, heads, rows = key_tokens(special, real), range(HEADS), range(n)
    columns, pooled = (
        ColumnRecorder(heads, rows, real, sources),
        PooledRecorder(heads, 64, real, sources),
    )
    means = (
        ColumnRecorder(heads, rows, real, sources, mean=True),
        PooledRecorder(heads, 64, real, sources, mean=True),
    )
    statistics = RowRecorder(heads, rows, sources)
    tops = {by: TopRecorder(5, by, heads, rows, real) for by in ("weight", "value")}
    place = 2 * n // 3
    matrices = MatrixRecorder(
        ["scores", "weights", "output"],
        heads,
        [0, 7, place, n - 1],
        [0, 3, place - 1, place, n - 1],
    )
    spec = AttentionSpec(16**-0.5, _mask(mask))
    attend(AttentionInputs(0, q, k, v, spec), [columns, pooled, *means, statistics, *tops.values(), matrices],
           **({} if elements is None else {"tile_elements": elements}))  # fmt: skip
    found = {
        "columns": columns.compute() / n,
        "pooled": pooled.compute(),
        "mean pooled": means[1].compute(),
    }
    found["mean columns"] = means[0].compute() / n
    found |= {
        f"rows {name}": values / (n if name == "distance" else 1)
        for name, values in statistics.recorded.items()
    }
    found |= {f"matrix {stage}": values for stage, values in matrices.compute().items()}
    for by, top in tops.items():
        found |= {f"top {by} {name}": values for name, values in top.measures.items()}
        found[f"top {by} keys"] = top.keys.double()
    return found


def _mask(words: str) -> Mask:
    return build_mask(parse_mask(words))


MASKS = ["causal", "bidirectional", "causal+window:100", "prefix:200", "window:3+block:7"]
SHORT_MASKS = ["causal", "bidirectional", "causal+window:40", "prefix:80", "window:3+block:7"]


@cache
def in_one_tile(mask: str, n: int) -> dict[str, torch.Tensor]:
    return seen(mask, 1 << 20, n)


CASES = [
    *((mask, elements, threads, N) for mask in MASKS for elements in TILES for threads in (1, 2)),
    *((mask, 1, 1 + number % 2, SHORT) for number, mask in enumerate(SHORT_MASKS)),
]


@pytest.mark.parametrize(("mask", "elements", "threads", "n"), CASES, indirect=["threads"])
def test_neither_tiles_nor_threads_show(
    mask: str, elements: int | None, threads: int, n: int
) -> None:
    assert torch.get_num_threads() == threads
    for name, values in seen(mask, elements, n).items():
        expected = in_one_tile(mask, n)[name]
        assert torch.equal(values.isnan(), expected.isnan()), name
        apart = (values - expected).nan_to_num(0.0, posinf=0.0, neginf=0.0).abs()
        worst = (apart / expected.nan_to_num(0.0).abs().clamp_min(1.0)).max()
        assert float(worst) <= TOLERANCE, (name, float(worst))


@pytest.mark.parametrize("mask", MASKS)
def test_the_number_of_threads_changes_no_bit(mask: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("attnscope.model.attention._WORTH_A_THREAD", 0)
    before, found = torch.get_num_threads(), {}
    try:
        for count in (1, 2, 3):
            torch.set_num_threads(count)
            found[count] = seen(mask, 20_000)
    finally:
        torch.set_num_threads(before)
    for count in (2, 3):
        for name, values in found[count].items():
            torch.testing.assert_close(
                values, found[1][name], rtol=0, atol=0, equal_nan=True, msg=f"{count}: {name}"
            )
