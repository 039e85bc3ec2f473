"""Compare drawn mask expressions with truth tables: `python -m tests.masks --cases 10000 --seed 1`."""

import argparse
import sys
from random import Random

from tests.masks.drawn import check, check_as_function, check_function, draw, draw_function


def main() -> int:
    """Draw expressions and functions; 1 if any differs."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--cases", type=int, default=1000)
    parser.add_argument("--seed", type=int, default=0)
    given = parser.parse_args()
    wrong = 0
    for number in range(given.cases):
        random = Random(f"{given.seed}:{number}")
        expression, n = draw(random)
        function, sizes = draw_function(random)
        try:
            check(expression, n, random)
            check_as_function(expression, n)
            check_function(function, sizes, random)
        except AssertionError as e:
            wrong += 1
            print(
                f"case {number} ({expression} of {n} tokens, or its function): {str(e).splitlines()[0]}"
            )
    print(f"{given.cases} expressions and as many functions, {wrong} wrong")
    return int(wrong > 0)


if __name__ == "__main__":
    sys.exit(main())
