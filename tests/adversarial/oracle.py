"""The one oracle of every fuzzer: how a command may end, whatever it was given.

A command ends within a few seconds with an exit code of 0, 1, 2 or 3. Where it fails, standard error has one line
`attnscope: error: …`; nothing that reaches a terminal holds a control character, and nothing is a traceback.
"""

import io
import os
import re
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from attnscope.cli import main
from tests.helpers.folders import within

SECONDS = 30  # what takes a second on a machine that has nothing else to do
_COLOURS = re.compile(r"\x1b\[[0-9;]*m")
_CONTROL = re.compile(r"[\x00-\x09\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069\ud800-\udfff]")
_REMARK = re.compile(r"attnscope: (note|warning|failed|wrote): ")
_ERROR = "attnscope: error: "


@dataclass(frozen=True)
class Case:
    """A command line, and the files that it finds in its working folder."""

    argv: Sequence[str]
    files: dict[str, bytes]


@dataclass(frozen=True)
class Ending:
    """How a command ended."""

    code: int
    out: str
    err: str


def run(case: Case, folder: Path) -> Ending:
    """Run a command in this process, in a folder that holds the files of the case."""
    for name, data in case.files.items():
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_bytes(data)
    with _captured() as streams, _inside(folder):
        try:
            with within(SECONDS):
                code = main(list(case.argv))
        except Exception as e:
            code = 70
            sys.stderr.write(f"main() raised {type(e).__name__}: {e}\n")
    return Ending(
        code, *(stream.getvalue().decode("utf-8", "surrogateescape") for stream in streams)
    )


def fault(case: Case, ending: Ending) -> str | None:
    """What is wrong with an ending; None where all is well."""
    lines = ending.err.split("\n")
    errors = [line for line in lines if line.startswith(_ERROR)]
    if ending.code not in (0, 1, 2, 3):
        return f"exit code {ending.code}"
    if lines.pop() or any(
        not line.startswith(_ERROR) and not _REMARK.match(line) for line in lines
    ):
        return "a line on stderr that is not ours"
    if any(not line.isprintable() for line in lines):
        return "a control character on stderr"
    if any(len(line) > 3200 for line in lines):
        return "a line of thousands of characters on stderr"
    if len(errors) != (ending.code in (1, 2)) and "check" not in case.argv[:1]:
        return f"{len(errors)} errors with exit code {ending.code}"
    if _CONTROL.search(
        _COLOURS.sub("", ending.out) if "always" in " ".join(case.argv) else ending.out
    ):
        return "a control character on stdout"
    return None


@contextmanager
def _captured() -> Iterator[tuple[io.BytesIO, io.BytesIO]]:
    """What is written to both standard streams; what libraries write past Python counts as standard error."""
    before, kept = (sys.stdout, sys.stderr, sys.stdin), os.dup(2)
    out, err = io.BytesIO(), io.BytesIO()
    with tempfile.TemporaryFile() as past:
        os.dup2(past.fileno(), 2)
        sys.stdout = io.TextIOWrapper(out, "utf-8", "backslashreplace", write_through=True)
        sys.stderr = io.TextIOWrapper(err, "utf-8", "backslashreplace", write_through=True)
        sys.stdin = io.TextIOWrapper(io.BytesIO(b"The bank by the river\nA bank\n"))
        try:
            yield out, err
        finally:
            os.dup2(kept, 2)
            os.close(kept)
            # a wrapper that is thrown away would close the buffer that is read now
            sys.stdout.detach(), sys.stderr.detach()  # type: ignore[union-attr]
            sys.stdout, sys.stderr, sys.stdin = before
            past.seek(0)
            err.write(past.read())


@contextmanager
def _inside(folder: Path) -> Iterator[None]:
    before = Path.cwd()
    os.chdir(folder)
    try:
        yield
    finally:
        os.chdir(before)
