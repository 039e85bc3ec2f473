"""Matrices that lie text by text are those of a recorder of its own; memory that is held is never used again."""

from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from attnscope.base.system.memory import map_memory
from attnscope.model.attention import attend
from attnscope.model.recorders import MatrixRecorder, PackedMatrices, packed
from attnscope.model.recorders.packed import CHUNK, Arena
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


@pytest.mark.parametrize("sizes", [[CHUNK], [CHUNK + 1], [CHUNK, CHUNK + 1], [2 * CHUNK, 3 * CHUNK + 1]])
def test_memory_that_is_given_back_is_used_again(sizes: list[int], monkeypatch: pytest.MonkeyPatch) -> None:
    mapped = list[int]()
    monkeypatch.setattr(packed, "map_memory", lambda size: mapped.append(size) or map_memory(size))
    arena = Arena()
    for turn in range(8):
        held = [arena.allocate(sizes[(turn + i) % len(sizes)]) for i in range(2)]
        del held
    assert len(mapped) <= 3 + len(sizes)


def test_free_memory_of_other_sizes_does_not_stay() -> None:
    arena = Arena()
    for size in (1, 3, 8, 1, 20, 2):
        held = [arena.allocate(size * CHUNK) for _ in range(2)]
        del held
        arena.reset()
        assert sum(map(len, arena._free)) <= 2 * size * 4 * CHUNK


def test_threads_get_memory_of_their_own() -> None:
    arena = Arena()

    def fill(number: int) -> bool:
        held = [arena.allocate(CHUNK // 7 + number) for _ in range(20)]
        for i, piece in enumerate(held):
            piece[:] = number * 100 + i
        return all(bool((piece == number * 100 + i).all()) for i, piece in enumerate(held))

    with ThreadPoolExecutor(4) as pool:
        assert all(pool.map(fill, range(8)))


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
