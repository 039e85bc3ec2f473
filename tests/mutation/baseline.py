"""Which tests run which lines, and how long they take without any mutant."""

import hashlib
import json
import signal
from collections import defaultdict
from pathlib import Path
from typing import Any

import coverage
import pytest

from tests.mutation.mutants import Mutant
from tests.mutation.sandbox import Sandbox, load

# Not in it: lint and types; planted bugs (a mutant fails them for the wrong reason); tests of help, signals, kills and
# failing disks, which take minutes and ask nothing about numbers; tests that start the program anew or never run it.
_FOLDERS = "analysis comparison model parity pipeline batch cli explanation referee checks engines adversarial".split()
_LEFT_OUT = "planted_bugs planted_elsewhere planted_effects soak faults scripting reference".split()
_LEFT_OUT += "fuzz folders mutations names_and_disks tokenizers".split()  # of tests/adversarial
_LEFT_OUT += "help lazy boundary hostile progress complete usage info".split()  # of tests/cli
_SUBPROCESSES = ("cli/test_batch.py",)
_QUICK = 0.3  # seconds


class Baseline:
    """Seconds of every test, and the tests that run a line.

    Attributes:
        seconds: By test.
    """

    def __init__(self, sandbox: Sandbox) -> None:
        """Measure the test files that changed since they were measured; all of them where the package did.

        Raises:
            RuntimeError: A test fails without any mutant.
        """
        self._sandbox, self._path = sandbox, sandbox.folder / "baseline.json"
        package = _digest(sorted((sandbox.tree / "attnscope").rglob("*.py")))
        helpers = _digest(sorted((sandbox.tree / "tests" / "helpers").rglob("*.py")))
        known = load(self._path)
        if known.get("package") != package:
            known = {"package": package, "files": {}}
        for file in _files(sandbox.tree):
            digest = _digest([sandbox.tree / file]) + helpers
            if known["files"].get(file, {}).get("digest") != digest:
                known["files"][file] = self._measure(file) | {"digest": digest}
                self._path.write_text(json.dumps(known))
        self._files = {file: known["files"][file] for file in _files(sandbox.tree)}
        self.seconds = {test: s for found in self._files.values() for test, s in found["seconds"].items()}

    def _measure(self, file: str) -> dict[str, Any]:
        into = self._sandbox.folder / "measured.json"
        into.unlink(missing_ok=True)
        meter = _Meter(self._sandbox.tree, into)
        if self._sandbox.pytest([file], meter, 1200, meter.start) != "passed":
            raise RuntimeError(f"{file} fails without a mutant: see {self._sandbox.folder / 'pytest.txt'}")
        print(f"  measured {file}", flush=True)
        return dict(load(into))

    def tests(self, mutant: Mutant, budget: float) -> list[str]:
        """Tests that run what a mutant changes, those of its own folder first, quick ones before slow ones.

        Where all of them take longer than the budget, half of it goes to quick tests, those of its own folder first.
        The rest goes to other tests, each of which has one case there before any has a second.
        """
        found: list[str] = []
        for table in self._files.values():
            lines = table["lines"].get(mutant.path, {})
            first, last = mutant.lines or (0, 1 << 30)
            names = {name for line, tests in lines.items() if first <= int(line) <= last for name in tests}
            found += table["seconds"] if "setup" in names else names
        own, chosen, spent = f"tests/{_own(mutant)}/", set[str](), 0.0
        ranks = self._ranks(found)
        quick = sorted((t for t in found if self.seconds[t] < _QUICK), key=lambda t: (not t.startswith(own), ranks[t]))
        for share, tests in ((0.5, quick), (1.0, sorted(found, key=lambda t: ranks[t]))):
            for test in tests:
                if test not in chosen and (not chosen or spent + self.seconds[test] <= share * budget):
                    chosen.add(test)
                    spent += self.seconds[test]
        return self._in_order(chosen, own)

    def _ranks(self, found: list[str]) -> dict[str, tuple[int, float]]:
        """The place of each test among the cases of one function, quickest first, and its seconds."""
        cases: dict[str, list[str]] = defaultdict(list)
        for test in sorted(found, key=lambda test: self.seconds[test]):
            cases[test.partition("[")[0]].append(test)
        return {test: (rank, self.seconds[test]) for tests in cases.values() for rank, test in enumerate(tests)}

    def _in_order(self, chosen: set[str], own: str) -> list[str]:
        totals: dict[str, float] = defaultdict(float)
        for test in chosen:
            totals[_file(test)] += self.seconds[test]

        def place(test: str) -> tuple[bool, float, str, float]:
            file = _file(test)
            return not file.startswith(own), totals[file], file, self.seconds[test]

        return sorted(chosen, key=place)


class _Meter:
    """A plugin that notes the seconds of every test and, by coverage, the lines of the package that it runs."""

    def __init__(self, tree: Path, into: Path) -> None:
        self._tree, self._into = tree, into
        self._seconds: dict[str, float] = defaultdict(float)

    def start(self) -> None:
        self._coverage = coverage.Coverage(
            data_file=None, config_file=False, source=[str(self._tree / "attnscope")], messages=False
        )
        self._coverage.start()

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_call(self, item: Any) -> Any:
        # What fixtures run counts for every test of the file: most of them are shared.
        self._coverage.switch_context(item.nodeid)
        result = yield
        self._coverage.switch_context("setup")
        return result

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_setup(self) -> Any:
        self._coverage.switch_context("setup")
        return (yield)

    def pytest_runtest_logreport(self, report: Any) -> None:
        if not report.skipped:
            self._seconds[report.nodeid] += report.duration

    def pytest_sessionfinish(self) -> None:
        self._coverage.stop()
        data = self._coverage.get_data()
        lines = {
            str(Path(file).relative_to(self._tree)): {
                line: [name for name in names if name in self._seconds or name == "setup"]
                for line, names in data.contexts_by_lineno(file).items()
            }
            for file in data.measured_files()
        }
        self._into.write_text(json.dumps({"seconds": self._seconds, "lines": lines}))


class Chosen:
    """A plugin that runs some tests in a given order, each for a limited time, and notes the first that fails.

    Args:
        tests: In order, with the seconds that each takes without a mutant.
        into: Where the name of the one that fails is written.
    """

    def __init__(self, tests: dict[str, float], into: Path) -> None:
        self._seconds, self._place = tests, {test: n for n, test in enumerate(tests)}
        self._into = into
        into.unlink(missing_ok=True)

    def pytest_collection_modifyitems(self, items: list[Any]) -> None:
        items[:] = sorted(
            (item for item in items if item.nodeid in self._place), key=lambda item: self._place[item.nodeid]
        )

    def pytest_runtest_logstart(self, nodeid: str) -> None:
        signal.alarm(20 + int(10 * self._seconds[nodeid]))  # ends the process where a mutant never ends

    def pytest_runtest_logreport(self, report: Any) -> None:
        if report.failed:
            self._into.write_text(report.nodeid)


def _files(tree: Path) -> list[str]:
    return [
        path.relative_to(tree).as_posix()
        for folder in _FOLDERS
        for path in sorted((tree / "tests" / folder).rglob("test_*.py"))
        if path.stem.removeprefix("test_") not in _LEFT_OUT and not path.as_posix().endswith(_SUBPROCESSES)
    ]


def _own(mutant: Mutant) -> str:
    return mutant.path.split("/")[1]


def _file(test: str) -> str:
    return test.partition("::")[0]


def _digest(paths: list[Path]) -> str:
    return hashlib.sha256(b"".join(path.read_bytes() for path in paths)).hexdigest()[:16]
