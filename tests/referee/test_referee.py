"""Every number in the Reports of random calls equals what eager transformers and NumPy float64 give."""

import pytest

from tests.referee import draw, runner
from tests.referee.models import Models
from tests.referee.verify import Mismatch

CASES, PARTS = 300, 10


@pytest.mark.parametrize("part", range(PARTS))
def test_every_number_of_a_report_is_right(models: Models, part: int) -> None:
    for number in range(part, CASES, PARTS):
        call = draw.call(models, 0, number)
        try:
            runner.check(call, models)
        except Mismatch as e:
            pytest.fail(f"{e}\n{call.command()}\npython -m tests.referee --seed 0 --case {number}")
