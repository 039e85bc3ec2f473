"""The whole proof of `attnscope doctor`.

    python -m tests.doctor.proof [--bugs] [--alarms] [--real]

Bugs: every planted bug is named by its check. Alarms: nothing is wrong in any native family under eager, sdpa and
flex_attention in float32 and bfloat16, alone and with right batches and collators. Real: the same of MiniLM and
SmolLM2. Prints a line for each, and exits with 1 if anything is missed or alarmed.
"""

import argparse
import sys
import time
import warnings
from contextlib import ExitStack
from typing import Any

import torch

import attnscope
from tests.doctor.bugs import BUGS, Bug
from tests.doctor.sound import real_cases, sound_cases


def examine(planted: Bug) -> Any:
    """What the doctor says of a planted bug."""
    with ExitStack() as stack:
        arguments = planted.plant(stack)
        return attnscope.doctor(**arguments)


def bugs() -> int:
    missed = 0
    for planted in BUGS:
        start = time.perf_counter()
        result = examine(planted)
        wrong = [check.name for check in result.wrong]
        found = planted.check in wrong
        missed += not found
        also = [name for name in wrong if name != planted.check]
        print(f"{'found ' if found else 'MISSED'} {planted.check:18} {time.perf_counter() - start:5.1f} s  "
              f"{planted.name}{f' (also {also})' if also else ''}", flush=True)  # fmt: skip
        if not found:
            print("      ", result[planted.check])
    print(f"{len(BUGS) - missed} of {len(BUGS)} bugs are named by their check")
    return missed


def alarms(cases: Any) -> int:
    alarmed = count = 0
    for name, arguments in cases:
        start = time.perf_counter()
        result = attnscope.doctor(**arguments)
        count += 1
        alarmed += bool(result.wrong)
        told = sum(check.verdict == "ok" for check in result.checks)
        print(
            f"{'ALARM' if result.wrong else 'ok   '} {time.perf_counter() - start:5.1f} s {told:2} ok  {name}",
            flush=True,
        )
        for check in result.wrong:
            print("      ", check.name, check.value, check.limit, check.where, check.reason)
    print(f"{alarmed} alarms in {count} examinations")
    return alarmed


def main() -> int:
    """Run the parts that are named, or all."""
    warnings.simplefilter("ignore")
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    for part in ("bugs", "alarms", "real"):
        parser.add_argument(f"--{part}", action="store_true")
    parser.add_argument("--only", default="", help="names that begin so")
    given = parser.parse_args()
    torch.set_num_threads(1)
    everything = not (given.bugs or given.alarms or given.real)
    failed = 0
    if given.bugs or everything:
        failed += bugs()
    if given.alarms or everything:
        failed += alarms(case for case in sound_cases() if case[0].startswith(given.only))
    if given.real or everything:
        failed += alarms(real_cases())
    return int(failed > 0)


if __name__ == "__main__":
    sys.exit(main())
