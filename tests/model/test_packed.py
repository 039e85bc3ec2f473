"""Matrices that lie text by text are those of a recorder of its own."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from attnscope.model.attention import attend
from attnscope.model.recorders import MatrixRecorder, PackedMatrices
from tests.helpers.attention_cases import Case, cases

pytestmark = pytest.mark.usefixtures("both_ways")

STAGES = ("scores", "masked", "weights", "output")


@given(cases(), st.data())
def test_sheets_hold_what_a_recorder_of_its_own_holds(case: Case, data: st.DataObject) -> None:
    """Two layers of permuted heads, each text with its own share of the first rows and columns."""
    batch, n_heads, n_queries, n_keys = case.sizes
    heads = data.draw(st.permutations(range(n_heads)))[: data.draw(st.integers(1, n_heads))]
    sizes = [
        (data.draw(st.integers(1, n_queries)), data.draw(st.integers(1, n_keys)))
        for _ in range(batch)
    ]
    every = STAGES, heads, range(n_queries), range(n_keys)
    packed, own = PackedMatrices(2 * len(heads), sizes), MatrixRecorder(*every)
    for first in (len(heads), 0):
        recorder = MatrixRecorder(*every, into=(packed, first))
        attend(case.inputs, [recorder], need_output=False, tile_elements=case.tile)
    attend(case.inputs, [own], need_output=False, tile_elements=case.tile)
    for stage in STAGES:
        for text, (rows, columns) in enumerate(sizes):
            whole = own.compute()[stage][text, :, :rows]
            whole = whole if stage == "output" else whole[..., :columns]
            found = packed.text(text)[stage]
            assert found.is_contiguous()
            torch.testing.assert_close(
                found, torch.cat((whole, whole)), rtol=0, atol=0, equal_nan=True
            )
