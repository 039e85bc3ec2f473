"""Sums over columns and runs equal their definitions from the weights, however the text is cut into tiles."""

import numpy as np
import pytest
import torch

from attnscope.model.attention import attend
from attnscope.model.inputs import AttentionInputs, AttentionSpec
from attnscope.model.masks import build_mask, intersect, padding_mask
from attnscope.model.recorders import ColumnRecorder, MatrixRecorder, PooledRecorder
from attnscope.request.masks.expression import parse_mask
from attnscope.request.masks.terms import Bidirectional, Causal
from tests.helpers.key_tokens import key_tokens
from tests.helpers.row_statistics import group_means, runs

pytestmark = pytest.mark.usefixtures("both_ways")

LENGTHS, HEADS, WIDTH = [11, 4, 1], 3, 11


def seen(recorders, mask, elements=1 << 20, sinks=None):
    torch.manual_seed(0)
    q, k, v = (torch.randn(len(LENGTHS), HEADS, WIDTH, 4) for _ in range(3))
    spec = AttentionSpec(
        0.5, intersect((mask, padding_mask(LENGTHS, WIDTH, q.device))), sinks=sinks
    )
    attend(AttentionInputs(0, q, k, v, spec), recorders, tile_elements=elements)


@pytest.fixture
def sources():
    real = torch.arange(WIDTH)[None] < torch.tensor(LENGTHS)[:, None]
    return key_tokens(torch.zeros_like(real), real)


MASKS = {
    "bidirectional": Bidirectional(),
    "causal": Causal(),
    "dead rows": build_mask(parse_mask("window:2"), Causal()),
}


@pytest.mark.parametrize("mask", MASKS.values(), ids=MASKS)
@pytest.mark.parametrize("elements", [1, 40, 1 << 20])
@pytest.mark.parametrize("mean", [False, True], ids=["heads", "mean"])
@pytest.mark.parametrize(
    "sinks", [None, torch.tensor([0.0, 1.5, 150.0])], ids=["no sinks", "sinks"]
)
def test_sums_are_those_of_the_weights(sources, mask, elements, mean, sinks):
    shown = sources.real.clone()
    shown[0, 3:6] = False
    every = list(range(WIDTH))
    matrices = MatrixRecorder(["weights"], range(HEADS), every, every)
    columns = ColumnRecorder(range(HEADS), every, shown, sources, mean=mean)
    pooled = PooledRecorder(range(HEADS), 4, shown, sources, mean=mean)
    seen([matrices, columns, pooled], mask, elements, sinks)
    kept = matrices.compute()["weights"].double().numpy()
    for b, length in enumerate(LENGTHS):
        n = min(4, length)
        groups, counted = runs(length, 4), shown[b, :length].numpy()
        matrices = kept[b, :, :length, :length]
        sums = np.nan_to_num(matrices[:, counted]).sum(1)
        maps = group_means(matrices, groups, groups, counted)
        found, small = columns.compute()[b].numpy(), pooled.compute()[b, :, :n, :n].numpy()
        np.testing.assert_allclose(
            found[:, :length], sums.mean(0)[None] if mean else sums, atol=1e-5
        )
        assert not found[:, length:].any()
        expected = np.nanmean(maps, axis=0)[None] if mean and not np.isnan(maps).any() else maps
        if not (mean and np.isnan(maps).any()):
            np.testing.assert_allclose(small, expected, atol=1e-5)
            if sinks is None:
                np.testing.assert_allclose(small.sum(-1)[~np.isnan(small.sum(-1))], 1.0, atol=1e-5)
