"""Matrices that lie text by text are those of a recorder of its own; memory that is held is never used again."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from attnscope.model.attention import attend
from attnscope.model.recorders import MatrixRecorder, PackedMatrices
from attnscope.model.recorders.arena import CHUNK, Arena
from tests.helpers.attention_cases import Case, cases

pytestmark = pytest.mark.usefixtures("both_ways")

STAGES = ("scores", "masked", "weights", "output")


@given(cases(), st.data())
def test_sheets_hold_what_a_recorder_of_its_own_holds(case: Case, data: st.DataObject) -> None:
    """Two layers of permuted heads, each text with its own share of the first rows and columns."""
    batch, n_heads, n_queries, n_keys = case.sizes
    heads = data.draw(st.permutations(range(n_heads)))[: data.draw(st.integers(1, n_heads))]
    sizes = [(data.draw(st.integers(1, n_queries)), data.draw(st.integers(1, n_keys))) for _ in range(batch)]
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
            found = packed.texts(stage)[text]
            assert found.is_contiguous()
            torch.testing.assert_close(found, torch.cat((whole, whole)), rtol=0, atol=0, equal_nan=True)


def test_memory_that_is_held_is_nobody_elses() -> None:
    arena = Arena()
    held = [arena.allocate(CHUNK // 3) for _ in range(9)]
    for i, piece in enumerate(held):
        piece[:] = i
    assert [(piece == i).all().item() for i, piece in enumerate(held)] == [True] * 9
    view = held[4][7:9].numpy()  # what is left of the chunk in the middle
    del held, piece
    taken = [arena.allocate(CHUNK) for _ in range(3)]
    for other in taken:
        other[:] = -1.0
    assert view.tolist() == [4.0, 4.0]


def test_memory_that_is_given_back_is_used_again() -> None:
    arena = Arena()
    places = set()
    for _ in range(5):
        held = [arena.allocate(CHUNK) for _ in range(2)]
        places |= {piece.data_ptr() for piece in held}
        del held
    assert len(places) <= 3


@pytest.mark.parametrize("count", [0, CHUNK + 1])
def test_any_size(count: int) -> None:
    assert Arena().allocate(count).shape == (count,)


def test_memory_follows_on_within_a_page() -> None:
    """What is taken one after the other lies as in a file, seen block by block, whichever chunks it comes from."""
    arena, taken, held = Arena(), 0, []
    for count in (3, CHUNK // 2 + 5, CHUNK // 2 + 7, CHUNK + 9, 11, CHUNK - 1, 2):
        held.append(arena.allocate(count))
        assert held[-1].data_ptr() % 4096 == 4 * taken % 4096
        taken += count
    arena.reset()
    assert arena.allocate(1).data_ptr() % 4096 == 0
