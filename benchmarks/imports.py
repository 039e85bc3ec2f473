"""Time `import attnscope` in whole processes, in turns with an empty one; medians of several runs.

    python benchmarks/imports.py [RUNS]

prints two ratios against `import numpy, msgspec`: `import attnscope` alone, and with every name that it gives, which
loads what is not torch (at most 1.5 and 2). Exits with 1 where one of them is missed.
"""

import sys

from startup import compare

FLOOR = "import numpy, msgspec"
LIMITS = {"import attnscope": 1.5, "from attnscope import *": 2.0}


def main() -> int:
    """Measure, print, and judge."""
    runs, missed = int(sys.argv[1]) if len(sys.argv) > 1 else 9, False
    for ours, limit in LIMITS.items():
        a, b = compare([sys.executable, "-c", ours], [sys.executable, "-c", FLOOR], runs)
        ratio = round(a.time / b.time, 2)  # as it is printed
        missed |= ratio > limit
        print(
            f"{ours:<24}{a.time * 1000:6.0f} ms   python -c '{FLOOR}' {b.time * 1000:6.0f} ms   "
            f"{ratio:.2f} (at most {limit}); of processor time {a.processor / b.processor:.2f}"
        )
    return int(missed)


if __name__ == "__main__":
    sys.exit(main())
