"""The simulation of a million texts: seeded, and never faster than arithmetic allows."""

import random
import re
from pathlib import Path

import pytest

from attnscope.cli import main
from benchmarks.million import WORDS, Costs, simulate


@pytest.mark.parametrize("shards_each", [1, 4])
@pytest.mark.parametrize("rate", [30.0, 350.0])
def test_a_run_takes_at_least_what_its_work_does(shards_each, rate):
    costs = Costs(1_000_000, 100, rate, 15_000)
    end, lost, restarts, written = simulate(costs, 1, shards_each=shards_each)
    assert (end, lost, restarts, written) == simulate(costs, 1, shards_each=shards_each)
    assert written == costs.texts
    assert end >= costs.start + costs.texts / (costs.workers * rate * 1.5)
    assert lost <= restarts * 2 * costs.block / (0.2 * rate)


def test_a_slow_disk_and_failures_cost_what_they_should():
    calm = {"spread": 0.0, "stragglers": 0.0, "hours_between_failures": 1e9, "start": 0.0}
    costs = Costs(1024 * 1000, 100, 100.0, 10_000, **calm)
    assert simulate(costs, 1, shards_each=1) == (pytest.approx(10 * 10.24), 0.0, 0, costs.texts)
    # 100 kB a second for each: ten texts
    slow = Costs(1024 * 1000, 100, 100.0, 10_000, disk=10e6, **calm)
    assert simulate(slow, 1, shards_each=1)[0] == pytest.approx(10 * 102.4)
    failing = Costs(1024 * 1000, 100, 100.0, 10_000, **calm | {"hours_between_failures": 0.05})
    end, lost, restarts, _ = simulate(failing, 1, shards_each=1)
    assert 20 < restarts < 120  # 1,000 blocks, each of which fails with 10.24 / 180
    assert lost > 0 and end > 10 * 10.24


def test_a_disk_is_full_when_the_blocks_that_fit_are_written():
    calm = {"spread": 0.0, "stragglers": 0.0, "hours_between_failures": 1e9, "start": 0.0}
    costs = Costs(1024 * 1000, 100, 100.0, 10_000, capacity=250.9 * 1024 * 10_000, **calm)
    # 100 blocks every 10.24 s; the 251st does not fit
    end, _, _, written = simulate(costs, 1, shards_each=1)
    assert (end, written) == (pytest.approx(3 * 10.24), 250 * 1024)


def test_stragglers_hold_up_an_array_more_than_actors():
    costs = Costs(1_000_000, 100, 30.0, 15_000, hours_between_failures=1e9)
    array, actors = (simulate(costs, 1, shards_each=n)[0] for n in (1, 4))
    assert actors < 0.7 * array


def test_the_page_says_what_was_measured_and_what_the_simulation_does():
    root = Path(__file__).parents[2]
    page, readme = ((root / name).read_text() for name in ("docs/scale.md", "benchmarks/README.md"))
    lines = re.findall(r": (\d+) texts a second of a CPU, ([\d.]+) kB a record", readme)
    assert len(lines) == 3
    assert re.findall(r"\| ([\d,]+) \| ([\d.]+) kB \|", page) == [
        (f"{int(rate):,}", size) for rate, size in lines
    ]
    rows = [
        [cell.strip() for cell in row.split("|")[1:-1]]
        for row in page.splitlines()
        if "MB/s |" in row
    ]
    seen, lost = [], []
    for about, alone, disk, array, actors in rows:
        if about:
            rate, gigabytes = (
                float(word.replace(",", "")) for word in re.findall(r"\d[\d,.]*", about)
            )
            assert alone == f"{1e6 / rate / 3600:.1f} h"
        costs = Costs(1_000_000, 100, rate, 1000 * gigabytes, disk=1e6 * float(disk.split()[0]))
        found = [simulate(costs, 1, shards_each=n) for n in (1, 4)]
        assert [array, actors] == [f"{end / 60:.1f} min" for end, *_ in found]
        seen.append((f"{rate:.0f}", f"{gigabytes}", disk))
        lost += [(round(seconds), restarts) for _, seconds, restarts, _ in found]
    assert seen == [(rate, size, disk) for rate, size in lines for disk in ("500 MB/s", "50 MB/s")]
    assert "({:,} s of work in {} failures".format(*max(lost)) in page
    full = {}
    for rate, size in lines[1:]:
        small = Costs(1_000_000, 100, float(rate), 1000 * float(size), capacity=20e9)
        end, _, _, written = simulate(small, 1, shards_each=1)
        full[rate] = f"{written:,} texts ({end / 60:.1f} min)"
        assert f"a disk of 20 GB is full after {end / 60:.1f} min and {written:,} texts" in readme
    assert (
        "after {} with 225 texts a second, and after {} with 24.".format(full["225"], full["24"])
        in page
    )
    merge = re.search(
        r"cat [\d.]+ s \(CPU ([\d.]+) s\), merge [\d.]+ s \(CPU ([\d.]+) s\)\n.* memory (\d+) MB",
        readme,
    )
    assert "{1} s of a CPU (`cat` {0} s) and {2} MB".format(*merge.groups()) in page
    (rate, size), wanted = (
        lines[1],
        re.search(r"100 workers with (\d+) texts a second could write ([\d,]+) MB/s", page),
    )
    assert wanted.groups() == (rate, f"{100 * int(rate) * float(size) / 1000:,.0f}")


def test_a_record_has_the_bytes_that_were_measured(tmp_path, monkeypatch):
    luck = random.Random(1)
    lines = (" ".join(luck.choices(WORDS, k=luck.randint(8, 18))) for _ in range(60))
    (tmp_path / "texts.txt").write_text("\n".join(lines) + "\n")
    monkeypatch.chdir(tmp_path)
    assert main(["batch", "texts.txt", "-o", "d.jsonl", "--quiet"]) == 0
    assert (tmp_path / "d.jsonl").stat().st_size / 60 == pytest.approx(14_800, rel=0.05)
