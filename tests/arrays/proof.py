"""Many drawn arrays against NumPy: `python -m tests.arrays.proof --cases 1000 --seed 1`; the suite runs a few."""

import argparse
import sys

from tests.arrays.test_from_qkv import compare_with_numpy


def main() -> int:
    """Run the cases; print the seed of each that fails."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--cases", type=int, default=1000)
    parser.add_argument("--seed", type=int, default=1)
    given = parser.parse_args()
    failed = 0
    for seed in range(given.seed, given.seed + given.cases):
        try:
            compare_with_numpy(seed)
        except Exception as error:
            failed += 1
            print(
                f"seed {seed}: {str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__}"
            )
    print(f"{given.cases} cases, {failed} failed")
    return int(failed > 0)


if __name__ == "__main__":
    sys.exit(main())
