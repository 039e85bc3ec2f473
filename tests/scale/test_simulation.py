"""The simulation of a million texts: seeded, and never faster than arithmetic allows."""

import re
from pathlib import Path

import pytest

from benchmarks.million import Costs, simulate


@pytest.mark.parametrize("shards_each", [1, 4])
@pytest.mark.parametrize("rate", [30.0, 350.0])
def test_a_run_takes_at_least_what_its_work_does(shards_each, rate):
    costs = Costs(1_000_000, 100, rate, 15_000)
    end, lost, restarts = simulate(costs, 1, shards_each=shards_each)
    assert (end, lost, restarts) == simulate(costs, 1, shards_each=shards_each)
    assert end >= costs.start + costs.texts / (costs.workers * rate * 1.5)
    assert lost <= restarts * 2 * costs.block / (0.2 * rate)


def test_a_slow_disk_and_failures_cost_what_they_should():
    calm = {"spread": 0.0, "stragglers": 0.0, "hours_between_failures": 1e9, "start": 0.0}
    costs = Costs(1024 * 1000, 100, 100.0, 10_000, **calm)
    assert simulate(costs, 1, shards_each=1) == (pytest.approx(10 * 10.24), 0.0, 0)
    slow = Costs(1024 * 1000, 100, 100.0, 10_000, disk=10e6, **calm)  # 100 kB a second for each: ten texts
    assert simulate(slow, 1, shards_each=1)[0] == pytest.approx(10 * 102.4)
    failing = Costs(1024 * 1000, 100, 100.0, 10_000, **calm | {"hours_between_failures": 0.05})
    end, lost, restarts = simulate(failing, 1, shards_each=1)
    assert 20 < restarts < 120  # 1,000 blocks, each of which fails with 10.24 / 180
    assert lost > 0 and end > 10 * 10.24


def test_stragglers_hold_up_an_array_more_than_actors():
    costs = Costs(1_000_000, 100, 30.0, 15_000, hours_between_failures=1e9)
    array, actors = (simulate(costs, 1, shards_each=n)[0] for n in (1, 4))
    assert actors < 0.7 * array


def test_the_page_says_what_the_simulation_does():
    page = (Path(__file__).parents[2] / "docs" / "scale.md").read_text()
    rows = [[cell.strip() for cell in row.split("|")[1:-1]] for row in page.splitlines() if "MB/s |" in row]
    seen, lost = [], []
    for about, alone, disk, array, actors in rows:
        if about:
            rate, gigabytes = (float(word) for word in re.findall(r"\d+", about))
            assert alone == f"{1e6 / rate / 3600:.1f} h"
        costs = Costs(1_000_000, 100, rate, 1000 * gigabytes, disk=1e6 * float(disk.split()[0]))
        found = [simulate(costs, 1, shards_each=n) for n in (1, 4)]
        assert [array, actors] == [f"{end / 60:.1f} min" for end, _, _ in found]
        seen.append((rate, disk))
        lost += [(round(seconds), restarts) for _, seconds, restarts in found]
    assert len({*seen}) == 4
    seconds, restarts = max(lost)
    assert f"({seconds} s of work in {['no', 'one', 'two', 'three', 'four', 'five'][restarts]} failures" in page
