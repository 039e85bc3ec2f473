"""Run a benchmark, and put what it prints into benchmarks/README.md.

    python benchmarks/record.py attention.py [its options] [--into FILE]

The output stands under a line with command, machine and commit, at the end of the section that names the script; it
replaces that of the same command on the same machine. The exit code is the benchmark's.
"""

import re
import subprocess
import sys
from pathlib import Path

from measure import commit, machine

HERE = Path(__file__).parent


def put(page: str, command: str, output: str) -> str:
    """Return a page with the output of a command in place of an older one, or at the end of the script's section.

    Raises:
        SystemExit: No section names the script.
    """
    origin = f"<!-- {command}; {machine()}; commit"
    block = f"{origin} {commit()} -->\n\n```\n{output.rstrip()}\n```\n"
    older = re.compile(re.escape(origin) + r" \S+ -->\n\n```\n.*?\n```\n", re.DOTALL)
    if older.search(page):
        return older.sub(lambda _: block, page, count=1)
    section = re.search(
        rf"^## .*{re.escape(command.split()[0])}.*?(?=^## |\Z)", page, re.DOTALL | re.MULTILINE
    )
    if section is None:
        raise SystemExit(f"no section names {command.split()[0]}")
    return f"{page[: section.end()].rstrip()}\n\n{block}\n{page[section.end() :]}".rstrip() + "\n"


def main() -> int:
    """Run the benchmark and record what it prints."""
    arguments, into = sys.argv[1:], HERE / "README.md"
    if "--into" in arguments:
        at = arguments.index("--into")
        into = Path(arguments[at + 1])
        del arguments[at : at + 2]
    # A script without a section is refused before it runs, which may take hours.
    put(into.read_text(), " ".join(arguments), "")
    with subprocess.Popen(
        [sys.executable, HERE / arguments[0], *arguments[1:]], stdout=subprocess.PIPE, text=True
    ) as ran:
        assert ran.stdout is not None
        lines = []
        for line in ran.stdout:
            print(line, end="", flush=True)
            lines.append(line)
    if lines:
        into.write_text(put(into.read_text(), " ".join(arguments), "".join(lines)))
    return ran.returncode


if __name__ == "__main__":
    sys.exit(main())
