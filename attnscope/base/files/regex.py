"""Match regular expressions of files that anyone may have written: one that backtracks for ever must not hang."""

import json
import re
import subprocess
import sys
from collections.abc import Iterable

_PATIENCE = 5  # seconds of a CPU; what real files have takes a few milliseconds
# without any of them, an expression takes as long as it has characters
_REPEATS = re.compile(r"[*+?{]")
_MATCH = """
import json, re, sys
try:
    from resource import RLIMIT_CPU, setrlimit
    setrlimit(RLIMIT_CPU, (int(sys.argv[1]), int(sys.argv[1])))
except ImportError:
    pass
expression, texts = json.load(sys.stdin)
json.dump([text for text in texts if re.fullmatch(expression, text)], sys.stdout)
"""


def full_matches(expression: str, texts: Iterable[str], before: str) -> frozenset[str]:
    """Return the texts that an expression matches as a whole.

    Python lets no other thread run while it matches, so that no signal could end the process. A process of its own
    therefore matches an expression that repeats anything; it also ends by itself where the caller was killed.

    Raises:
        ValueError: It is not a regular expression, or takes too long.
    """
    every = list(texts)
    pattern = f"{before}({expression})" if before else expression
    try:
        re.compile(expression)
        matcher = re.compile(pattern)
        if _REPEATS.search(expression) is None:
            return frozenset(text for text in every if matcher.fullmatch(text))
        command = [sys.executable, "-I", "-S", "-c", _MATCH, str(_PATIENCE)]
        request = json.dumps([pattern, every]).encode()
        done = subprocess.run(
            command, input=request, capture_output=True, timeout=2 * _PATIENCE, check=True
        )
    except (re.error, RecursionError, OverflowError) as e:
        raise ValueError(f"is not a regular expression ({e})") from e
    except (subprocess.TimeoutExpired, subprocess.CalledProcessError) as e:
        raise ValueError("takes too long to match") from e
    return frozenset(json.loads(done.stdout))
