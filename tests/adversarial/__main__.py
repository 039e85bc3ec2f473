"""A long run of the fuzzers: `python -m tests.adversarial --cases 10000 --seed 1 --which arguments,configs`.

Every fault is shown once, with the case that shows it again: `--which NAME --seed N --only NUMBER`.
"""

import argparse
import re
import sys
import time
from collections import Counter
from pathlib import Path

from tests.adversarial.fuzzers import FUZZERS, judge, make, working_folder

_DETAILS = re.compile(r"'[^']*'|\d+")  # what may differ between two faults of one cause


def main() -> int:
    """Run so many cases of every fuzzer; 1 where one of them ends as none may."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--cases", type=int, default=1000)
    parser.add_argument("--start", type=int, default=0, help="number of the first case")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--which", default=",".join(FUZZERS), help=f"some of {', '.join(FUZZERS)}")
    parser.add_argument("--only", type=int, help="this case alone, in full")
    asked = parser.parse_args()
    return max(_run(which, asked) for which in asked.which.split(","))


def _run(which: str, asked: argparse.Namespace) -> int:
    started, seen, codes = time.monotonic(), Counter[str](), Counter[int]()
    slowest = 0.0
    numbers = range(asked.start, asked.start + asked.cases) if asked.only is None else [asked.only]
    with working_folder() as folder:
        for number in numbers:
            case = make(which, asked.seed, number)
            before = time.monotonic()
            ending, wrong = judge(case, folder)
            slowest = max(slowest, time.monotonic() - before)
            codes[ending.code] += 1
            if asked.only is not None:
                _show(case, ending.out, ending.err)
            if wrong is None:
                continue
            said = f"{wrong}: {(ending.err.strip().splitlines() or [''])[-1][:300]}"
            kind = _DETAILS.sub("…", said)
            if not seen[kind]:
                print(
                    f"{which} {number}: {said!a}\n    {' '.join(map(ascii, case.argv))[:400]}",
                    flush=True,
                )
            seen[kind] += 1
    ended = ", ".join(f"{count:,} with {code}" for code, count in sorted(codes.items()))
    print(f"{which}: {sum(codes.values()):,} cases, {sum(seen.values()):,} faults ({ended}), "
          f"slowest {slowest:.1f} s, {time.monotonic() - started:.0f} s", flush=True)  # fmt: skip
    return int(bool(seen))


def _show(case: object, out: str, err: str) -> None:
    for name, data in getattr(case, "files", {}).items():
        Path(f"/tmp/attnscope-case-{name}").write_bytes(data)
    print(ascii(getattr(case, "argv", "")), out[:3000], err, sep="\n")


if __name__ == "__main__":
    sys.exit(main())
