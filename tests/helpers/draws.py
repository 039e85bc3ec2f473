"""Number of cases that random tests draw: `ATTNSCOPE_CASES=4 python -m pytest` draws four times as many, as CI does."""

import os
from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import strategies as st

CHARACTERS = st.characters(exclude_categories=["Cs"])
"""Those of `st.text()`, which in a fresh clone encodes all of Unicode first: seconds in every process."""
_FACTOR = float(os.environ.get("ATTNSCOPE_CASES", "1"))


def drawn(cases: int) -> int:
    """As many cases as usual, times ATTNSCOPE_CASES."""
    return max(1, round(cases * _FACTOR))


def in_two(name: str, cases: Sequence[Any], short: int) -> pytest.MarkDecorator:
    """Parametrize a test that loops over cases: the first ones are for those who wait, the rest are exhaustive."""
    first, rest = cases[:short], cases[short:]
    parts = [
        pytest.param(first, id="first"),
        pytest.param(rest, id="rest", marks=pytest.mark.exhaustive),
    ]
    return pytest.mark.parametrize(name, parts)
