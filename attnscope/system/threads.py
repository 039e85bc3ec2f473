"""How many threads a run may use, known before torch is imported."""

import os
from pathlib import Path

_CGROUPS = Path("/sys/fs/cgroup")


def count_threads() -> int:
    """Count the threads worth using: OMP_NUM_THREADS, or the CPUs that this process may keep busy.

    A container's quota is rounded down: with 1.5 CPUs, two threads would both be stopped for part of every period, and
    whatever waits for both of them with them.
    """
    named = os.environ.get("OMP_NUM_THREADS", "").split(",")[0].strip()
    if named.isascii() and named.isdigit() and int(named):
        return int(named)
    cpus = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return max(1, min(cpus, int(_quota(_CGROUPS, Path("/proc/self/cgroup")))))


def _quota(root: Path, membership: Path) -> float:
    """Read how many CPUs the process's cgroups allow it, the least of all levels; a large number for no limit."""
    folders = [root]
    try:
        for line in membership.read_text().splitlines():
            name = line.split(":", 2)[2].strip("/")
            folders += [root / part for part in (Path(name), *Path(name).parents)] if name else []
    except (OSError, IndexError):
        pass  # not Linux, or no cgroups
    quotas = [_allowed(folder) for folder in (*folders, root / "cpu")]
    return min(quotas)


def _allowed(folder: Path) -> float:
    for names in (("cpu.max",), ("cpu.cfs_quota_us", "cpu.cfs_period_us")):  # of cgroups 2, and 1
        try:
            quota, period = (number for name in names for number in (folder / name).read_text().split())
            if quota not in ("max", "-1"):
                return int(quota) / int(period)
        except (OSError, ValueError):
            continue  # another version of cgroups, or none
    return float(1 << 20)
