"""Memory of this process: used and available bytes, and limits."""

import mmap
import os
from contextlib import suppress
from pathlib import Path

from attnscope.base.system.cgroups import control_groups

_PROC = Path("/proc")


def available_memory() -> int:
    """Count the bytes that this process may still take: MemAvailable, or less if the cgroup allows less.

    Both count cached pages of files as free, such as those of a checkpoint that was read: the system drops them first.
    On other systems than Linux, this is all memory of the machine, if the system reports it.
    """
    try:
        lines = (_PROC / "meminfo").read_text().splitlines()
        free = [int(line.split()[1]) * 1024 for line in lines if line.startswith("MemAvailable:")]
    except OSError:
        free = []
    for folder in control_groups("memory"):
        for limit, used in (("memory.max", "memory.current"), ("memory.limit_in_bytes", "memory.usage_in_bytes")):
            try:
                max_bytes, taken = (int((folder / name).read_text()) for name in (limit, used))
                free.append(max_bytes - max(0, taken - _cached_pages(folder)))
            except (OSError, ValueError):
                # Another version of control groups, or "max".
                continue
    return max(0, min(free)) if free else machine_memory()


def _cached_pages(folder: Path) -> int:
    """Count the bytes of files that the system caches for a control group; 0 if unknown."""
    try:
        stat = dict(line.split() for line in (folder / "memory.stat").read_text().splitlines())
    except (OSError, ValueError):
        return 0
    # Version 1 has those of inner groups, too, only in its totals.
    names = ("active_file", "inactive_file")
    return sum(int(stat.get(f"total_{name}", stat.get(name, 0))) for name in names)


def resident_memory() -> int:
    """Count the resident bytes of this process; 0 if unknown."""
    try:
        with open(_PROC / "self/statm", "rb", buffering=0) as file:
            return int(file.read(64).split()[1]) * mmap.PAGESIZE
    except OSError:
        return 0


def limit_process(memory: int, seconds: int) -> None:
    """Limit the memory of this process, on Unix.

    Args:
        memory: Bytes that it may use in addition to what it uses now.
    """
    with suppress(ImportError, OSError, ValueError):
        import resource

        resource.setrlimit(resource.RLIMIT_CPU, (seconds, seconds))
        taken = int((_PROC / "self/statm").read_text().split()[0]) * mmap.PAGESIZE
        resource.setrlimit(resource.RLIMIT_AS, (taken + memory, taken + memory))


def machine_memory() -> int:
    """Count the bytes of the machine's memory, taken or not."""
    try:
        return os.sysconf("SC_PHYS_PAGES") * mmap.PAGESIZE
    except (AttributeError, ValueError, OSError):
        # Windows: the size of memory is unknown, so nothing is refused by default.
        return 1 << 62
