"""Where the rows and columns of one text lie among those of a batch, which other texts have more of."""

from itertools import combinations

import numpy as np
import pytest

from attnscope.model.tile import as_slice
from attnscope.run.analysis import heads

AMONG = [2, 3, 5, 8, 9, 10]


@pytest.mark.parametrize(
    "chosen", [list(some) for n in range(7) for some in combinations(AMONG, n)], ids=str
)
def test_places_select_what_was_chosen(chosen: list[int]) -> None:
    there = np.array(AMONG)
    places = heads._index_of(chosen, AMONG)
    assert there[places].tolist() == chosen
    neighbours = chosen == [] or any(chosen == AMONG[i : i + len(chosen)] for i in range(6))
    assert isinstance(places, slice) == neighbours  # which copies nothing


@pytest.mark.parametrize(
    "chosen", [list(some) for n in range(1, 6) for some in combinations(range(5), n)], ids=str
)
def test_an_index_selects_what_the_list_does(chosen: list[int]) -> None:
    assert np.arange(5)[as_slice(chosen)].tolist() == chosen
