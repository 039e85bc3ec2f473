"""What tests of attention share."""

from collections.abc import Iterator

import pytest

from attnscope.model import row_summary


@pytest.fixture(params=["operators", "compiled loops"], scope="module")
def both_ways(request: pytest.FixtureRequest) -> Iterator[None]:
    """Run a test twice: with the softmax of torch's operators, and with that of compiled loops in every layer."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(
            row_summary, "WORTH_COMPILED_LOOPS", 0 if request.param == "compiled loops" else 1 << 62
        )
        yield
