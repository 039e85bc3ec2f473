"""Every number of random comparisons, explanations, records, tables, predictions and cuts is transformers' own."""

import pytest

from tests.referee.__main__ import KINDS
from tests.referee.models import Models
from tests.referee.verify import Mismatch

CASES = {"compare": 30, "explain": 40, "batch": 30, "predict": 10, "ablate": 10, "measure": 8}
PARTS = 4


@pytest.mark.parametrize("part", range(PARTS))
@pytest.mark.parametrize("kind", CASES)
def test_every_number_is_right(models: Models, kind: str, part: int) -> None:
    make, check = KINDS[kind]
    for number in range(part, CASES[kind], PARTS):
        call = make(models, 0, number)
        try:
            check(call, models)
        except Mismatch as e:
            pytest.fail(f"{e}\n{call.command()}\npython -m tests.referee --of {kind} --seed 0 --case {number}")
