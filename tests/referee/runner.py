"""Run a call through the command line's own entry point, in this process, and verify its Report."""

import contextlib
import io
import json
from typing import Any

from attnscope.cli import main
from tests.helpers.heads import unstacked
from tests.referee import verify
from tests.referee.call import Call
from tests.referee.models import Models
from tests.referee.verify import Mismatch

_UNLIKE = "these layers scale their scores differently"


def run(argv: list[str]) -> tuple[int, bytes, str]:
    """Exit code, standard output and standard error of a command line."""
    out, errors = io.TextIOWrapper(io.BytesIO(), "utf-8"), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(errors):
        code = main(argv)
        out.flush()
    return code, out.buffer.getvalue(), errors.getvalue()


def output(argv: list[str]) -> bytes:
    """Standard output of a command line."""
    code, out, errors = run(argv)
    if code or errors:
        raise Mismatch(f"{argv[0]}: exit code {code}: {errors.strip()}")
    return out


def check(call: Call, models: Models) -> None:
    """Run one call and verify every number of its Report."""
    verify.report(parsed(output(call.argv())), call, models[call.model])


def parsed(data: bytes) -> Any:
    """Strict JSON: neither NaN nor Infinity."""

    def refuse(word: str) -> None:
        raise Mismatch(f"{word} in the JSON")

    return unstacked(json.loads(data, parse_constant=refuse))
