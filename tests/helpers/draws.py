"""Number of cases that random tests draw: `ATTNSCOPE_CASES=4 python -m pytest` draws four times as many, as CI does."""

import os

_FACTOR = float(os.environ.get("ATTNSCOPE_CASES", "1"))


def drawn(cases: int) -> int:
    """As many cases as usual, times ATTNSCOPE_CASES."""
    return max(1, round(cases * _FACTOR))
