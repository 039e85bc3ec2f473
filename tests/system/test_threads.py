"""How many threads a run may use."""

import os
from pathlib import Path

import pytest

from attnscope.base.system import machine
from attnscope.base.system.machine import available_memory, count_threads


@pytest.fixture(autouse=True)
def _nothing_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    monkeypatch.setattr(machine, "ROOT", tmp_path)
    monkeypatch.setattr(machine, "MEMBERSHIP", tmp_path / "member")
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(8)), raising=False)


@pytest.mark.parametrize(("named", "count"), [("3", 3), ("5,2", 5), ("0", 8), ("many", 8), ("", 8)])
def test_the_environment_is_followed_where_it_names_a_number(monkeypatch, named, count):
    monkeypatch.setenv("OMP_NUM_THREADS", named)
    assert count_threads() == count


@pytest.mark.parametrize(
    ("quota", "count"),
    [("max 100000", 8), ("150000 100000", 1), ("50000 100000", 1), ("400000 100000", 4)],
)
def test_a_container_s_quota_is_rounded_down(tmp_path, quota, count):
    (tmp_path / "cpu.max").write_text(f"{quota}\n")
    assert count_threads() == count


@pytest.mark.parametrize(("quota", "count"), [("-1", 8), ("250000", 2)])
def test_older_containers_keep_quota_and_period_apart(tmp_path, quota, count):
    (tmp_path / "cpu").mkdir()
    (tmp_path / "cpu" / "cpu.cfs_quota_us").write_text(quota)
    (tmp_path / "cpu" / "cpu.cfs_period_us").write_text("100000")
    assert count_threads() == count


def test_the_least_of_all_levels_counts(tmp_path):
    inner = tmp_path / "user" / "job"
    inner.mkdir(parents=True)
    (tmp_path / "cpu.max").write_text("600000 100000")
    (tmp_path / "user" / "cpu.max").write_text("300000 100000")
    (inner / "cpu.max").write_text("max 100000")
    (tmp_path / "member").write_text("0::/user/job\n")
    assert count_threads() == 3


def test_a_group_below_the_root_of_an_older_hierarchy(tmp_path):
    inner = tmp_path / "cpu,cpuacct" / "user" / "job"
    inner.mkdir(parents=True)
    (inner / "cpu.cfs_quota_us").write_text("150000")
    (inner / "cpu.cfs_period_us").write_text("100000")
    (tmp_path / "member").write_text("12:memory:/other\n4:cpu,cpuacct:/user/job\n0::/\n")
    assert count_threads() == 1


@pytest.mark.parametrize(
    ("folder", "limit", "used"),
    [
        ("", "memory.max", "memory.current"),
        ("memory", "memory.limit_in_bytes", "memory.usage_in_bytes"),
    ],
)
def test_the_memory_of_a_group_counts(tmp_path, folder, limit, used):
    group = tmp_path / folder / "job"
    group.mkdir(parents=True)
    (group / limit).write_text("1000000\n")
    (group / used).write_text("400000\n")
    (tmp_path / "member").write_text(f"3:{folder}:/job\n")
    assert available_memory() == 600_000


@pytest.mark.parametrize(
    ("folder", "limit", "used", "stat"),
    [
        (
            "",
            "memory.max",
            "memory.current",
            "anon 100000\ninactive_file 250000\nactive_file 50000\nfile 320000\n",
        ),
        (
            "memory",
            "memory.limit_in_bytes",
            "memory.usage_in_bytes",
            "inactive_file 7\nactive_file 7\ntotal_inactive_file 250000\ntotal_active_file 50000\n",
        ),
    ],
)
def test_cached_pages_of_files_are_free_in_a_group_too(tmp_path, folder, limit, used, stat):
    """A container that has read a checkpoint of its own size can run it again."""
    group = tmp_path / folder
    group.mkdir(exist_ok=True)
    (group / limit).write_text("1000000\n")
    (group / used).write_text("400000\n")
    (group / "memory.stat").write_text(stat)
    assert available_memory() == 900_000
    (group / "memory.stat").write_text("not numbers of any kind\n")
    assert available_memory() == 600_000


def test_a_hierarchy_whose_folder_has_another_name_than_its_controllers(tmp_path):
    """Some systems write `cpuacct,cpu` for what is mounted as `cpu,cpuacct`, with a link for each controller."""
    inner = tmp_path / "cpu" / "user" / "job"
    inner.mkdir(parents=True)
    (inner / "cpu.cfs_quota_us").write_text("150000")
    (inner / "cpu.cfs_period_us").write_text("100000")
    (tmp_path / "member").write_text("4:cpuacct,cpu:/user/job\n")
    assert count_threads() == 1
