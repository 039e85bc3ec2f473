"""Which cases a test has: how many random ones it draws, and which of a table are left to the exhaustive tests.

`ATTNSCOPE_CASES=4 python -m pytest` draws four times as many, as CI does.
"""

import os
from collections.abc import Iterable
from typing import Any

import pytest
from hypothesis import strategies as st

CHARACTERS = st.characters(exclude_categories=["Cs"])
"""Those of `st.text()`, which in a fresh clone encodes all of Unicode first: seconds in every process."""
ParameterSet = type(pytest.param())
_FACTOR = float(os.environ.get("ATTNSCOPE_CASES", "1"))


def drawn(cases: int) -> int:
    """As many cases as usual, times ATTNSCOPE_CASES."""
    return max(1, round(cases * _FACTOR))


def rest_exhaustive(cases: Iterable[Any], count: int = 1) -> list[Any]:
    """Mark all cases of a parametrised test but the first ones as exhaustive."""
    marked = []
    for index, case in enumerate(cases):
        values = case
        if not isinstance(case, ParameterSet):
            values = pytest.param(*case) if isinstance(case, tuple) else pytest.param(case)
        marks = values.marks if index < count else (*values.marks, pytest.mark.exhaustive)
        marked.append(pytest.param(*values.values, id=values.id, marks=marks))
    return marked
