"""Planted bugs are named by their check; `python -m tests.doctor.proof --bugs` plants all of them."""

import pytest

from tests.doctor.bugs import BUGS
from tests.doctor.proof import examine

SLOW = (
    "A boolean 4-D mask, which flex",
    "Rotary frequencies that were rounded",
    "Queries and keys whose products",
)
FAST = [bug for bug in BUGS if not bug.name.startswith(SLOW)]
FIRST = {bug.check: bug for bug in reversed(FAST)}  # one for each check
OTHERS = (
    "A collator that",
    "BertLMHeadModel without",
    "A backend that is causal",
    "A backend that computes the last",
    "A module of one's own",
    "A 4-D mask that bars what",
    "Labels that are the tokens before",
)
PLANTED = [bug for bug in FAST if bug in FIRST.values() or bug.name.startswith(OTHERS)]


@pytest.mark.parametrize("bug", PLANTED, ids=lambda bug: bug.name)
def test_a_planted_bug_is_named_by_its_check(bug):
    result = examine(bug)
    check = result[bug.check]
    assert check.verdict == "wrong"
    assert check.repair and check.reason
    assert not result.passed


def test_enough_bugs_are_planted_in_the_suite_and_in_the_proof():
    assert len(PLANTED) >= 24 and len(BUGS) >= 50
