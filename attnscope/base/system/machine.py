"""Memory and processors: what there is, and what this process may use, known before torch is imported."""

import mmap
import os
from contextlib import suppress
from itertools import takewhile
from pathlib import Path

_PROC = Path("/proc")
# control groups: limits of a container, a batch system or a service manager (Linux)
ROOT = Path("/sys/fs/cgroup")
MEMBERSHIP = Path("/proc/self/cgroup")


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
        for limit, used in (
            ("memory.max", "memory.current"),
            ("memory.limit_in_bytes", "memory.usage_in_bytes"),
        ):
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


def amd_family(description: Path = Path("/proc/cpuinfo")) -> int | None:
    """Return the family of an AMD processor (25 for Zen 3 and 4, 26 for Zen 5).

    None for other processors, and if the system has no such file.
    """
    try:
        with description.open(encoding="utf-8", errors="replace") as lines:
            # The first core's lines end with an empty one.
            first_core = dict(
                line.split(":", 1) for line in takewhile(str.strip, lines) if ":" in line
            )
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
    if hasattr(os, "sched_getaffinity"):
        cpus = len(os.sched_getaffinity(0))
    else:
        cpus = os.cpu_count() or 1
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


def control_groups(controller: str) -> list[Path]:
    """List the folders of the groups that this process is in, all levels of them, for one controller.

    Version 2 has one hierarchy for all controllers, version 1 one for each, in a folder of its name, or in one for
    several of them with a link of each one's name. Inside a container the groups' names may be those outside, and its
    own group the root; so the roots are always among them.

    Args:
        controller: `cpu` or `memory`.
    """
    folders = [ROOT, ROOT / controller]
    try:
        lines = MEMBERSHIP.read_text().splitlines()
    except OSError:
        return folders
    for line in lines:
        _, controllers, name = (*line.split(":", 2), "", "")[:3]
        if controllers and controller not in controllers.split(","):
            continue
        # Version 2 names no controllers.
        hierarchies = (ROOT / controllers, ROOT / controller) if controllers else (ROOT,)
        inner = Path(name.strip("/"))
        folders += [
            hierarchy / part for hierarchy in hierarchies for part in (inner, *inner.parents)
        ]
    return list(dict.fromkeys(folders))
