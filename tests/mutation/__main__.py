"""Mutation testing: `python -m tests.mutation --sample 200 --seed 0 --of model,analysis,comparison,records`.

Small bugs are planted one at a time into a copy of the tree, and the tests that run the changed line must fail.
Whatever has been judged is kept, so the same command goes on where it was ended.
It needs `pip install cosmic-ray coverage`.
"""

import argparse
import difflib
import json
import os
import re
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path
from typing import Any

from tests.mutation.baseline import Baseline, Chosen
from tests.mutation.mutants import PARTS, Mutant, sample
from tests.mutation.sandbox import Sandbox

ROOT = Path(__file__).parent.parent.parent


def main() -> int:
    """Judge a sample of mutants and print the score; 1 where any survived."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--of", default=",".join(PARTS), help=f"some of {', '.join(PARTS)}")
    parser.add_argument("--sample", type=int, default=200, help="mutants, as many of each part")
    parser.add_argument("--seed", type=int, default=0, help="another seed draws from what no other has judged")
    parser.add_argument("--again", nargs="?", const="", help="judge survivors again: those that fit this expression")
    parser.add_argument("--budget", type=float, default=60, help="seconds of tests that a mutant has to survive")
    parser.add_argument("--folder", type=Path, default=Path(tempfile.gettempdir()) / "attnscope-mutation")
    given = parser.parse_args()
    given.folder.mkdir(exist_ok=True)
    record, parts = Record(given.folder / "judged.jsonl"), given.of.split(",")
    taken = {tuple(row["site"]) for row in record.rows.values() if row["seed"] != given.seed}
    drawn = [(part, m) for part in parts for m in sample(ROOT, part, given.sample // len(parts), given.seed, taken)]
    judge = Judge(given.folder, given.budget)
    for part, mutant in drawn:
        row = record.rows.get(name(mutant))
        again = row is not None and given.again is not None and re.search(given.again, row["name"])
        if row is None or (again and row["verdict"] == "survived"):
            record.add(name(mutant), judge(mutant) | {"seed": given.seed, "part": part, "site": mutant.site})
    rows = [record.rows[name(mutant)] for _, mutant in drawn]
    for row in rows:
        if row["verdict"] == "survived":
            print(f"\n{row['part']}: survived {row['tests']} tests\n{row['diff']}")
    for part in parts:
        print(f"{part}: {score([row for row in rows if row['part'] == part])}")
    print(f"all, seed {given.seed}: {score(rows)}")
    return int(any(row["verdict"] == "survived" for row in rows))


class Judge:
    """Tells whether the tests kill a mutant."""

    def __init__(self, folder: Path, budget: float) -> None:
        """Copy the tree and measure its tests, which takes some minutes where nothing is known of them."""
        os.environ["OMP_NUM_THREADS"] = "1"
        self._sandbox, self._budget, self._failed = Sandbox(ROOT, folder), budget, folder / "failed.txt"
        self._baseline = Baseline(self._sandbox)

    def __call__(self, mutant: Mutant) -> dict[str, Any]:
        """Return the verdict, what killed it, how long that took, and the change."""
        source = (ROOT / mutant.path).read_text()
        changed = mutant.apply(source)
        assert changed is not None
        tests = {test: self._baseline.seconds[test] for test in self._baseline.tests(mutant, self._budget)}
        started = time.monotonic()
        verdict = "passed"
        if tests:
            self._sandbox.mutate(mutant.path, changed)
            try:
                files = list(dict.fromkeys(test.partition("::")[0] for test in tests))
                verdict = self._sandbox.pytest(files, Chosen(tests, self._failed), 60 + 5 * sum(tests.values()))
            finally:
                self._sandbox.mutate(mutant.path, source)
        diff = "\n".join(
            difflib.unified_diff(source.splitlines(), changed.splitlines(), mutant.path, mutant.path, "", "", 1, "")
        )
        return {
            "verdict": {"passed": "survived", "failed": "killed"}.get(verdict, verdict),
            "by": self._failed.read_text() if verdict == "failed" and self._failed.exists() else "",
            "tests": len(tests),
            "seconds": round(time.monotonic() - started, 1),
            "diff": diff,
        }


class Record:
    """The verdicts so far, a line of JSON each; a later one of the same mutant stands for an earlier one."""

    def __init__(self, path: Path) -> None:
        """Read what there is."""
        self._path, self.rows = path, {}
        for line in path.read_text().splitlines() if path.exists() else []:
            row: dict[str, Any] = json.loads(line)
            self.rows[row["name"]] = row

    def add(self, mutant: str, row: dict[str, Any]) -> None:
        """Keep a verdict, on disk too, and tell of it."""
        self.rows[mutant] = {"name": mutant} | row
        with self._path.open("a") as file:
            file.write(json.dumps(self.rows[mutant]) + "\n")
        print(f"{row['verdict']:9}{row['seconds']:6.1f} s {row['tests']:5} tests  {mutant}  {row['by']}", flush=True)


def name(mutant: Mutant) -> str:
    """Name a mutant by its place, its operator and the number of the occurrence."""
    return f"{mutant.site[0]} {mutant.operator.removeprefix('core/')} #{mutant.occurrence}"


def score(rows: list[dict[str, Any]]) -> str:
    """Say how many were killed."""
    counts = Counter(row["verdict"] for row in rows)
    killed = counts["killed"] + counts["timeout"]
    return f"{killed} of {len(rows)} killed ({killed / max(len(rows), 1):.1%}; {counts['timeout']} by the time limit)"


if __name__ == "__main__":
    sys.exit(main())
