"""The processor: its kind, and how many threads a run may use, known before torch is imported."""

import os
from itertools import takewhile
from pathlib import Path

from attnscope.base.system.cgroups import control_groups


def amd_family(description: Path = Path("/proc/cpuinfo")) -> int | None:
    """Return the family of an AMD processor (25 for Zen 3 and 4, 26 for Zen 5).

    None for other processors, and if the system has no such file.
    """
    try:
        with description.open(encoding="utf-8", errors="replace") as lines:
            # The first core's lines end with an empty one.
            first_core = dict(line.split(":", 1) for line in takewhile(str.strip, lines) if ":" in line)
    except OSError:
        return None
    fields = {name.strip(): value.strip() for name, value in first_core.items()}
    family = fields.get("cpu family", "")
    if fields.get("vendor_id") == "AuthenticAMD" and family.isdigit():
        return int(family)
    return None


def count_threads() -> int:
    """Count the threads worth using: OMP_NUM_THREADS, or the CPUs that this process may keep busy.

    A container's quota is rounded down: with 1.5 CPUs, two threads would both be stopped for part of every period, and
    whatever waits for both of them with them.
    """
    value = os.environ.get("OMP_NUM_THREADS", "").split(",")[0].strip()
    if value.isascii() and value.isdigit() and int(value):
        return int(value)
    return count_cpus()


def count_cpus() -> int:
    """Count the CPUs that this process may use."""
    cpus = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return max(1, min(cpus, int(min(map(_allowed, control_groups("cpu"))))))


def _allowed(folder: Path) -> float:
    """Read the number of CPUs that a group may use; a large number for no limit."""
    # Version 2 of control groups has one file, version 1 two.
    for names in (("cpu.max",), ("cpu.cfs_quota_us", "cpu.cfs_period_us")):
        try:
            quota, period = (part for name in names for part in (folder / name).read_text().split())
            if quota not in ("max", "-1"):
                return int(quota) / int(period)
        except (OSError, ValueError):
            continue
    return float(1 << 20)
