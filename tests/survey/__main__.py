"""Compare every role of every head of a checkpoint with plain NumPy over eager `transformers`; it takes minutes.

python -m tests.survey FOLDER
"""

import sys
from pathlib import Path

import numpy as np

from attnscope.studies.heads.texts import TEXTS
from tests.survey.test_roles import found_and_expected


def main() -> int:
    """Print the largest difference of each role."""
    survey, expected = found_and_expected(Path(sys.argv[1]), TEXTS[:4], draws=4)
    worst = 0.0
    for role in survey.roles:
        if role.name in expected:
            pairs = zip((role.values, role.errors), expected[role.name], strict=True)
            value, error = (float(np.abs(ours - theirs).max()) for ours, theirs in pairs)
            print(f"{role.name:<12} value {value:.1e}  standard error {error:.1e}", flush=True)
            worst = max(worst, value, error)
    print(f"{'as promised' if worst < 1e-4 else 'MISSED'}: at most 1e-4")
    return int(worst >= 1e-4)


if __name__ == "__main__":
    sys.exit(main())
