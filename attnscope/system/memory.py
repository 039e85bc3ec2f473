"""How much memory this process may still take."""

from pathlib import Path


def available_memory() -> int:
    """Bytes that this process may still take: MemAvailable, or less where the cgroup allows less."""
    free = [1 << 62]
    try:
        lines = Path("/proc/meminfo").read_text().splitlines()
        free += [int(line.split()[1]) * 1024 for line in lines if line.startswith("MemAvailable:")]
    except OSError:
        pass  # not Linux: nothing known, nothing refused by default
    for limit, used in (
        ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory.current"),
        ("/sys/fs/cgroup/memory/memory.limit_in_bytes", "/sys/fs/cgroup/memory/memory.usage_in_bytes"),
    ):
        try:
            free.append(int(Path(limit).read_text()) - int(Path(used).read_text()))
        except (OSError, ValueError):
            continue  # another cgroup version, or "max"
    return max(0, min(free))
