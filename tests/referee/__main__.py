"""Verify random calls of attnscope: `python -m tests.referee --cases 10000 --seed 1`, and with `--of compare`, too."""

import argparse
import hashlib
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import transformers as hf

from tests.referee import (
    comparing,
    cutting,
    draw,
    dumping,
    explaining,
    mixing,
    predicting,
    rollouts,
    runner,
)
from tests.referee.models import NAMES, Models
from tests.referee.verify import Mismatch

KINDS: dict[str, tuple[Any, Any]] = {
    "run": (draw.call, runner.check),
    "compare": (comparing.call, comparing.check),
    "explain": (explaining.call, explaining.check),
    "batch": (dumping.call, dumping.check),
    "predict": (predicting.call, predicting.check),
    "ablate": (cutting.call, cutting.check),
    "measure": (rollouts.call, rollouts.check),
    "mixing": (mixing.call, mixing.check),
}
_SOURCES = ("models.py", "../helpers/tiny_models.py")


def main() -> int:
    """Play some cases; 1 where any of them went wrong."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "--of", choices=KINDS, default="run", help="the command; batch goes on to convert"
    )
    parser.add_argument("--cases", type=int, default=300)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--case", type=int, help="only this one")
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--model", choices=NAMES, help="only this model, of run")
    given = parser.parse_args()
    cases = (
        [given.case] if given.case is not None else range(given.first, given.first + given.cases)
    )
    hf.utils.logging.disable_progress_bar()
    hf.utils.logging.set_verbosity_error()
    make, check = KINDS[given.of]
    if given.model and given.of != "run":
        parser.error("--model goes with --of run")
    models, wrong, began = Models(place()), 0, time.monotonic()
    for done, number in enumerate(cases, 1):
        call = make(models, given.seed, number, *([(given.model,)] if given.model else []))
        try:
            check(call, models)
        except Mismatch as e:
            wrong += 1
            only = f" --model '{given.model}'" if given.model else ""
            again = (
                f"python -m tests.referee --of {given.of} --seed {given.seed} --case {number}{only}"
            )
            print(f"case {number}: {e}\n  {call.command()}\n  {again}", flush=True)
        if done % 500 == 0:
            print(
                f"{done} cases, {wrong} wrong, {time.monotonic() - began:.0f} s",
                file=sys.stderr,
                flush=True,
            )
    print(f"{len(cases)} cases, {wrong} wrong")
    return int(wrong > 0)


def place() -> Path:
    """Where models lie from one process to the next, so that a printed command can be repeated."""
    here = Path(__file__).parent
    made = hashlib.sha256(b"".join((here / name).read_bytes() for name in _SOURCES)).hexdigest()[
        :12
    ]
    path = Path(tempfile.gettempdir()) / f"attnscope-referee-{made}"
    path.mkdir(exist_ok=True)
    return path


if __name__ == "__main__":
    sys.exit(main())
