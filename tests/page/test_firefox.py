"""Pages in Firefox, if it is installed: opened from disk, every number read from the DOM."""

import pytest

from tests.helpers.draws import drawn
from tests.page.cells import check_cells
from tests.page.firefox import BROWSERS, Firefox, find_firefox
from tests.page.walking import READ

CASES = drawn(30)  # of each page


@pytest.fixture(scope="module")
def firefox(tmp_path_factory):
    path = find_firefox()
    if path is None:
        pytest.skip(f"no Firefox: none of {', '.join(BROWSERS)} is installed")
    browser = Firefox(path, tmp_path_factory.mktemp("profile"))
    yield browser
    browser.close()


def test_numbers_of_random_cells_are_those_of_the_report(firefox, pages):
    for path, *findings in pages.values():
        firefox.open(path)
        check_cells(
            lambda addresses: firefox.evaluate(READ, addresses), findings, seed=11, count=CASES
        )
        assert (
            firefox.evaluate(
                "async () => performance.getEntriesByType('resource').map((one) => one.name)"
            )
            == []
        )
        assert firefox.messages(path) == []
