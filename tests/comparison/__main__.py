"""Run `compare --tolerance` on drawn pairs of models: `python -m tests.comparison --cases 200 --seed 1`."""

import argparse
import sys
import tempfile
from pathlib import Path

import transformers as hf

from tests.comparison import drawn
from tests.referee.__main__ import place
from tests.referee.models import Models


def main() -> int:
    """Run some pairs that differ in one tensor, and as many that are equal; 1 if a verdict is wrong."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "--cases", type=int, default=200, help="pairs that differ, and pairs that are equal"
    )
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--first", type=int, default=0)
    given = parser.parse_args()
    hf.utils.logging.disable_progress_bar()
    hf.utils.logging.set_verbosity_error()
    models, wrong = Models(place()), {"changed": 0, "equal": 0}
    with tempfile.TemporaryDirectory() as common:
        for number in range(given.first, given.first + given.cases):
            kind = drawn.EQUAL_KINDS[number % len(drawn.EQUAL_KINDS)]
            with tempfile.TemporaryDirectory() as folder:
                other = Path(common if kind == "gguf" else folder)
                pairs = {
                    "changed": drawn.changed(models, Path(folder), given.seed, number),
                    "equal": drawn.equal(models, other, given.seed, number, kind),
                }
                for name, pair in pairs.items():
                    if fault := pair.fault():
                        wrong[name] += 1
                        print(f"{name} pair {number}: {fault}", flush=True)
    print(
        f"{given.cases} changed pairs, {wrong['changed']} wrong; {given.cases} equal pairs, {wrong['equal']} wrong"
    )
    return int(any(wrong.values()))


if __name__ == "__main__":
    sys.exit(main())
