"""The control groups of this process: limits of a container, a batch system or a service manager (Linux)."""

from pathlib import Path

ROOT = Path("/sys/fs/cgroup")
MEMBERSHIP = Path("/proc/self/cgroup")


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
        folders += [hierarchy / part for hierarchy in hierarchies for part in (inner, *inner.parents)]
    return list(dict.fromkeys(folders))
