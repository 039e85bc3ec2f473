"""A few fixed cases of every fuzzer; `python -m tests.adversarial` runs any number of them."""

import pytest

from tests.adversarial.fuzzers import judge, make, working_folder
from tests.helpers.draws import drawn

# peft's
pytestmark = pytest.mark.filterwarnings(
    "ignore:.is_gradient_checkpointing. is deprecated:FutureWarning"
)
CASES = {
    "arguments": 30,
    "configs": 15,
    "ggufs": 12,
    "adapters": 15,
    "stacks": 40,
    "reports": 60,
    "dumps": 60,
}


@pytest.mark.parametrize("which", CASES)
def test_no_input_makes_a_command_end_as_none_may(which: str) -> None:
    with working_folder() as folder:
        for number in range(drawn(CASES[which])):
            case = make(which, 0, number)
            ending, wrong = judge(case, folder)
            assert wrong is None, (
                f"python -m tests.adversarial --which {which} --seed 0 --only {number}: {ending.err}"
            )


def test_the_same_seed_makes_the_same_case() -> None:
    assert [make(which, 0, 7) for which in CASES] == [make(which, 0, 7) for which in CASES]
    assert make("stacks", 0, 7) != make("stacks", 1, 7)
