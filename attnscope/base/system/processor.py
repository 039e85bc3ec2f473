"""The kind of processor, for the choice between libraries."""

from itertools import takewhile
from pathlib import Path


def amd_family(description: Path = Path("/proc/cpuinfo")) -> int | None:
    """Return the family of an AMD processor (25 for Zen 3 and 4, 26 for Zen 5).

    None for other processors, and if the system has no such file.
    """
    try:
        with description.open(encoding="utf-8", errors="replace") as lines:
            # The first core's lines end with an empty one.
            first = dict(line.split(":", 1) for line in takewhile(str.strip, lines) if ":" in line)
    except OSError:
        return None
    fields = {name.strip(): value.strip() for name, value in first.items()}
    family = fields.get("cpu family", "")
    return int(family) if fields.get("vendor_id") == "AuthenticAMD" and family.isdigit() else None
