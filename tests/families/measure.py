"""Count how many of a folder's config.json files are accepted, and why others are not.

    python -m tests.families.measure FOLDER          every *.json in it and below: a line for each that is not plain
    python -m tests.families.measure FOLDER --all    a line for each

A file counts as quantised where it says so: its weights are refused whatever its other keys say. Exits with 1 where
less than the share of `--least` of the others is accepted.
"""

import argparse
import sys
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

from attnscope.base.errors import AttnscopeError
from attnscope.checkpoints.families import open_config
from attnscope.checkpoints.folder import read_config_file, without_mxfp4


@dataclass(frozen=True)
class Outcome:
    """What came of a file."""

    kind: str  # `accepted`, `quantised` or `refused`
    detail: str  # notes, or why it was refused


def judge(path: Path) -> Outcome:
    """Read a config.json as `attnscope info` does."""
    try:
        _, raw = read_config_file(path)
        return Outcome("accepted", "; ".join(open_config(without_mxfp4(raw), str(path)).notes))
    except AttnscopeError as e:
        reason = str(e).removeprefix(f"{path}: ")
        return Outcome("quantised" if "the weights are quantised" in reason else "refused", reason)


def main(arguments: list[str]) -> int:
    """Judge every file, and print the counts."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument(
        "--all", action="store_true", help="print accepted files without a note, too"
    )
    parser.add_argument(
        "--least", type=float, default=0.0, help="share that must be accepted, such as 0.98"
    )
    asked = parser.parse_args(arguments)
    found = {path: judge(path) for path in sorted(asked.folder.rglob("*.json"))}
    for path, outcome in found.items():
        if asked.all or outcome.kind != "accepted" or outcome.detail:
            print(f"{outcome.kind:9} {path.relative_to(asked.folder)}  {outcome.detail}".rstrip())
    counts = Counter(outcome.kind for outcome in found.values())
    plain = len(found) - counts["quantised"]
    share = counts["accepted"] / plain if plain else 1.0
    print(
        f"{counts['accepted']} of {plain} accepted ({share:.1%}), besides {counts['quantised']} quantised"
    )
    return int(share < asked.least)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
