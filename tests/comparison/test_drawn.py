"""`compare --tolerance` fails models that differ in one tensor, and passes two ways to the same numbers.

`python -m tests.comparison --cases 200` draws more.
"""

import pytest

from tests.comparison import drawn
from tests.referee.models import Models


@pytest.fixture(scope="module")
def models(tmp_path_factory):
    return Models(tmp_path_factory.mktemp("models"))


@pytest.mark.parametrize("number", range(12))
def test_one_changed_tensor_fails(models, tmp_path, number):
    pair = drawn.changed(models, tmp_path, 0, number)
    assert max(pair.difference) > drawn.TOLERANCE
    assert pair.fault() == ""


@pytest.mark.parametrize("number", range(3))
@pytest.mark.parametrize("kind", drawn.EQUAL_KINDS)
def test_two_ways_to_the_same_numbers_pass(models, tmp_path, number, kind):
    assert drawn.equal(models, tmp_path, 0, number, kind).fault() == ""
