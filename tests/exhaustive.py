"""Which tests are exhaustive: `python -m tests.exhaustive DURATIONS` writes `exhaustive.txt`, which conftest reads.

DURATIONS is what `python -m pytest --durations=0 --durations-min=0.005` printed, of those that one waits for. A line
of `exhaustive.txt` is a test function; a number after it says how many of its cases are still run by those who wait,
spread over all of them, since the first is often the simplest. Lines can be written by hand; this program adds others.
Times are shares of what was waited for, since machines differ: a test is left out if it takes more than `TEST_SHARE`,
cases beyond one if they take more than `CASES_SHARE` together. Every file keeps its quickest test.
"""

import re
import sys
from collections import defaultdict
from pathlib import Path

LIST = Path(__file__).with_suffix(".txt")
HEADING = "# See tests/exhaustive.py, which adds lines from measured durations."
TEST_SHARE = 1 / 1000
CASES_SHARE = 1 / 2000
DURATION = re.compile(r"([\d.]+)s (?:call|setup|teardown) +(\S+?\.py::\w+)(\[.*)?$")


def read_list(path: Path = LIST) -> dict[str, int]:
    """Return how many cases of each listed test are not exhaustive, by `file::function`."""
    listed = {}
    for line in path.read_text().splitlines():
        if line and not line.startswith("#"):
            test, _, count = line.partition(" ")
            listed[test] = int(count or 0)
    return listed


def exhaustive_tests(printed: str) -> dict[str, int]:
    """Choose from durations: tests, and how many of their cases stay."""
    seconds: dict[str, dict[str, float]] = defaultdict(lambda: defaultdict(float))
    for line in printed.splitlines():
        if match := DURATION.search(line.strip()):
            seconds[match[2]][match[3] or ""] += float(match[1])
    whole = sum(sum(cases.values()) for cases in seconds.values())
    by_file: dict[str, list[str]] = defaultdict(list)
    for test in seconds:
        by_file[test.partition("::")[0]].append(test)
    chosen = {}
    for tests in by_file.values():
        quickest = min(tests, key=lambda test: min(seconds[test].values()))
        for test in tests:
            cases = seconds[test]
            a_case = sum(cases.values()) / len(cases)
            if a_case > TEST_SHARE * whole and test != quickest:
                chosen[test] = 0
            elif len(cases) > 1 and sum(cases.values()) - a_case > CASES_SHARE * whole:
                chosen[test] = 1
    return chosen


def main() -> None:
    """Write the list."""
    listed = read_list()
    for test, count in exhaustive_tests(Path(sys.argv[1]).read_text()).items():
        # several cases were chosen by hand
        if listed.get(test, 1) <= 1:
            listed[test] = count
    lines = [f"{test} {count}" if count else test for test, count in sorted(listed.items())]
    LIST.write_text("\n".join([HEADING, *lines]) + "\n")
    print(f"{len(lines)} tests")


if __name__ == "__main__":
    main()
