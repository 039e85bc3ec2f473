"""Every number of random comparisons, explanations, records, tables, predictions and cuts is transformers' own."""

import pytest

from tests.helpers.draws import drawn
from tests.referee.__main__ import KINDS
from tests.referee.models import Models
from tests.referee.verify import Mismatch

CASES = {"compare": 16, "explain": 20, "batch": 16, "predict": 6, "ablate": 6, "measure": 6}
PARTS = 2


@pytest.mark.parametrize("part", range(PARTS))
@pytest.mark.parametrize("kind", CASES)
def test_every_number_is_right(models: Models, kind: str, part: int) -> None:
    make, check = KINDS[kind]
    for number in range(part, drawn(CASES[kind]), PARTS):
        call = make(models, 0, number)
        try:
            check(call, models)
        except Mismatch as e:
            pytest.fail(f"{e}\n{call.command()}\npython -m tests.referee --of {kind} --seed 0 --case {number}")
