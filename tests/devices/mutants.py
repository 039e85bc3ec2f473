"""Take each `device=`, `.cpu()`, `.to(device)` and question about devices out of attnscope: do the tests see it?

    python -m tests.devices.mutants [--listed] [PIECE …]

Each such place of the package is compiled with a switch: `device=` becomes None, `.cpu()` and `.to(device)` disappear,
a comparison of `device.type`, and `is_cuda`, become True, then False. The tests of `tests/devices`, and the parity of
every family on a GPU, run once with all switches off, which notes who asks which switch. For each change, a forked
process then runs the tests that ask its switch, the fastest first, until one fails. Changes that no test finds are
printed, and the command ends with 1. Code in new interpreters, which some tests start, has no switches.

Changes without effect are listed below, with the reason, and left out; `--listed` plants these instead, and prints
those that a test finds after all. Pieces of the path, line or change select changes. It forks, so Unix only.
"""

import argparse
import ast
import builtins
import contextlib
import importlib
import os
import signal
import sys
import tempfile
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.machinery import FileFinder, SourceFileLoader
from pathlib import Path
from time import perf_counter
from types import CodeType
from typing import Any

ROOT = Path(__file__).parent.parent.parent
TESTS = ("tests/devices", "tests/parity/test_cuda.py")
# in interpreters of their own
LEFT_OUT = "test_the_kernel_has_the_numbers_of_operators or test_the_machine_code_keeps_most_of_its_numbers"
LIMIT = 120  # seconds of the tests of one change, which have not found it by then
PROCESSES = 2
# A piece of the path and the line that is changed, and of the change, to why that has no effect
_INDEX = "an index; CUDA takes these from the host, by a copy more"
_READ = "read number by number, each of which is copied"
_SPEED = "a choice of what is faster on the CPU; the numbers are the same"
_COPIED = "kept on the host, into which parts of the device are copied; the numbers are the same"
EQUIVALENT = {
    "at = torch.arange(n, n + len(after), device=after.device)": _INDEX,
    "torch.tensor(positions, dtype=torch.int64, device=like.device)": _INDEX,
    "heads = torch.arange(weights.shape[1], device=weights.device)": _INDEX,
    'recorders/packed.py if like.device.type != "cpu": … → True': _SPEED,
    "model.device.type == 'cpu' → False … if model.device.type": "then each worker reads the weights for itself",
    'decoding.py if exam.subject.device.type != "cpu": … → False': "sums of the simulation have the CPU's order",
    "check/run.py len(tokens), len(tokens), dtype=torch.bool": _INDEX,
    "torch.tensor(self.config.embedding_scale, dtype=": "a number; operators take it from the host",
    "head_capture.py embed.config.embedding_scale, dtype=": "a number; operators take it from the host",
    "transformers/reference.py q_at = torch.arange(scores.shape[2], device=scores.device)[:, None]": _INDEX,
    "transformers/reference.py k_at = torch.arange(scores.shape[3], device=scores.device)[None]": _INDEX,
    "input_ids=torch.zeros(1, len(hidden)": "the embedding that would read them is replaced",
    'return q.device.type != "cpu" and plain and not _tiled_heads … → True': _SPEED,
    "cells < _WORTH_A_THREAD or device.type": "tests/model/test_workers.py looks at threads",
    'every_row_sees = a < b or (device.type == "cpu" … → False': _SPEED,
    "if shared > 1 and q.is_cuda and q.dtype == torch.float32 … → True": _SPEED,
    "matmul.py or a.device.type != ": _SPEED,
    'has_peaks = has_peaks and measure.device.type == "cpu"': "one argmax, which the statistics of rows take as well",
    'if rows.device.type != "cpu": … → True': _SPEED,
    'on_cpu = masked.device.type == "cpu" … → False': _SPEED,
    'top.py if rows.device.type == "cpu":': "which of two ways to the same keys is taken, by the length of rows",
    'if rows.device.type != "cpu" or repeated.any() … → True': _SPEED,
    'if device.type == "cpu" and cells >= WORTH_COMPILED_LOOPS … → False': "tests/model/test_compiled_rows.py finds it",
    'if tensor.is_contiguous() or tensor.device.type != "cpu" … → True': "pages of the CPU; tests/model finds it",
    'if tensor.device.type == "meta" … → False': "tests/arrays/test_refusals.py finds it",
    "spec.bias(q_at, k_at, torch.arange(scores.shape[1]": _INDEX,
    'if a.device.type != "cpu": … → True': _SPEED,
    'if self.masked.device.type == "cpu": … → False': _SPEED,
    "taller = min(_MOST_ROWS_ON_GPU, n_queries // 8) … → True": _SPEED,
    "changes = torch.zeros(n, n, dtype=torch.float64, device=unchanged.device)": _COPIED,
    "positions = torch.arange(start, min(start + copies, n), device=x.device)": _INDEX,
    "v[torch.arange(len(v), device=v.device), :, self.positions] = 0": _INDEX,
    "output[row : row + 1, places.to(output.device)]": _INDEX,
    "shown_rows[index, torch.tensor(text_rows, device=device)] = True": _INDEX,
    "side, index, torch.tensor(keys[side][index], dtype=": _INDEX,
    "logs = to_float64(engine.logits(hidden[0, list(prompt.reading)])).log_softmax(-1).cpu()": _READ,
    "v[:, :, start : start + count, :count] = torch.eye(count": "copied into a tensor of the device",
    'decoding.py if exam.subject.device.type != "cpu": … → True': "equal passes are within every limit",
    "return x[..., order.to(x.device)]": _INDEX,
    'if device.type == "meta" … → False': "models without weights, wherever they would be; tests/api looks at them",
}


@dataclass(frozen=True)
class Mutant:
    """A change of one place."""

    switch: str
    place: str  # the path, and the number of the line
    line: str
    change: str

    def matches(self, pieces: str) -> bool:
        """Tell whether a key of EQUIVALENT, or a part of one, names this change."""
        text = f"{self.place.partition(':')[0]} {self.line} {self.change}"
        return all(piece in text for piece in pieces.split(" … "))

    def is_listed(self) -> bool:
        return any(map(self.matches, EQUIVALENT))


class Switches(ast.NodeTransformer):
    """A module in which each place asks its switch."""

    def __init__(self, path: Path) -> None:
        self.mutants: list[Mutant] = []
        self._path, self._lines = str(path.relative_to(ROOT)), path.read_text("utf-8").splitlines()
        self.tree = ast.fix_missing_locations(self.visit(ast.parse(path.read_bytes())))

    def _switch(self, node: ast.expr, change: str) -> ast.Call:
        number, switch = node.lineno, f"{self._path}#{len(self.mutants)}"
        self.mutants.append(
            Mutant(switch, f"{self._path}:{number}", self._lines[number - 1].strip(), change)
        )
        return ast.Call(ast.Name("_is_planted", ast.Load()), [ast.Constant(switch)], [])

    def visit_Call(self, node: ast.Call) -> ast.expr:
        devices = [
            (keyword, self._switch(keyword.value, f"device={ast.unparse(keyword.value)} → None"))
            for keyword in node.keywords
            if keyword.arg == "device" and ast.unparse(keyword.value) != "None"
        ]
        name = node.func.attr if isinstance(node.func, ast.Attribute) else ""
        target = ast.unparse(node.args[0]) if node.args else ""
        moves = (name == "cpu" and not target) or (name == "to" and "device" in target)
        switch = self._switch(node, f"without .{name}()") if moves else None
        self.generic_visit(node)
        for keyword, planted in devices:
            keyword.value = ast.IfExp(planted, ast.Constant(None), keyword.value)
        if switch and isinstance(node.func, ast.Attribute):
            node.func = ast.Call(
                ast.Name("_move", ast.Load()), [switch, node.func.value, ast.Constant(name)], []
            )
        return node

    def _answered(self, node: ast.expr) -> ast.expr:
        true, false = [
            self._switch(node, f"{ast.unparse(node)} → {answer}") for answer in (True, False)
        ]
        self.generic_visit(node)
        return ast.IfExp(true, ast.Constant(True), ast.IfExp(false, ast.Constant(False), node))

    def visit_Compare(self, node: ast.Compare) -> ast.AST:
        return (
            self._answered(node)
            if "device.type" in ast.unparse(node.left)
            else self.generic_visit(node)
        )

    def visit_Attribute(self, node: ast.Attribute) -> ast.AST:
        return self._answered(node) if node.attr == "is_cuda" else self.generic_visit(node)


def every_mutant() -> list[Mutant]:
    """Every change of the package."""
    paths = (path for path in sorted((ROOT / "attnscope").rglob("*.py")))
    words = b"device", b".cpu()", b"is_cuda"
    asking = (path for path in paths if any(word in path.read_bytes() for word in words))
    return [mutant for path in asking for mutant in Switches(path).mutants]


class SwitchedModule(SourceFileLoader):
    """Loader of a module with switches, which leaves no bytecode."""

    def get_code(self, fullname: str) -> CodeType:
        code: CodeType = compile(Switches(Path(self.path)).tree, self.path, "exec")
        return code


def switched_folder(folder: str) -> FileFinder:
    """Finder of the package's modules, for sys.path_hooks."""
    if not folder.startswith(str(ROOT / "attnscope")):
        raise ImportError
    return FileFinder(folder, (SwitchedModule, [".py"]))


class Trials:
    """Plugin of pytest that runs the collected tests once, and then those of each change."""

    def __init__(self, mutants: Sequence[Mutant], folder: Path) -> None:
        self.found: dict[Mutant, bool] = {}
        self._mutants, self._folder = mutants, folder
        self._planted = self._test = ""
        self._notes, self._noted = (
            (folder / "notes").open("ab", buffering=0),
            set[tuple[str, str]](),
        )

    def is_planted(self, switch: str) -> bool:
        """Answer a switch; forked processes note that it was asked in the same file."""
        if self._test and (self._test, switch) not in self._noted:
            self._noted.add((self._test, switch))
            self._note(switch)
        return switch == self._planted

    def _note(self, text: object) -> None:
        self._notes.write(f"{self._test}\t{text}\n".encode())

    def pytest_collection(self) -> None:
        from hypothesis import Phase, settings

        # shrinks nothing
        settings.register_profile("mutants", parent=settings(), phases=[Phase.generate])
        settings.load_profile("mutants")

    def pytest_runtest_logreport(self, report: Any) -> None:
        if report.failed:
            print(report.longreprtext, flush=True)

    def pytest_runtestloop(self, session: Any) -> bool:
        seconds, tests = self._survey(session)
        items = {item.nodeid: item for item in session.items}
        waiting, running = list(self._mutants), dict[int, Mutant]()
        while waiting or running:
            while waiting and len(running) < PROCESSES:
                mutant = waiting.pop(0)
                asking = sorted(tests[mutant.switch], key=seconds.__getitem__)
                running[self._fork(session, [items[name] for name in asking], mutant.switch)] = (
                    mutant
                )
            process, status = os.wait()
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process, signal.SIGKILL)  # what its tests have started
            mutant = running.pop(process)
            verdict = "TOO LONG" if status == signal.SIGALRM else "found" if status else "NOT FOUND"
            self.found[mutant] = verdict == "found"
            print(f"{verdict:10} {mutant.place}  {mutant.change}", flush=True)
        return True

    def _survey(self, session: Any) -> tuple[dict[str, float], dict[str, set[str]]]:
        """Run every test with nothing planted; return their seconds, and the tests that ask each switch."""
        size = -(-len(session.items) // PROCESSES)
        parts = [session.items[n : n + size] for n in range(0, len(session.items), size)]
        for process in [self._fork(session, part, "") for part in parts]:
            status = os.waitpid(process, 0)[1]
            assert status == 0, (
                f"tests fail without any change: {(self._folder / 'log').read_text()[-3000:]}"
            )
        seconds, tests = dict[str, float](), defaultdict[str, set[str]](set)
        for line in (self._folder / "notes").read_text().splitlines():
            test, noted = line.split("\t")
            if not test:
                with contextlib.suppress(Exception):  # a name that is no module's
                    importlib.import_module(noted)  # once, instead of in every process
            elif "#" in noted:
                tests[noted].add(test)
            else:
                seconds[test] = float(noted)
        return seconds, tests

    def _fork(self, session: Any, items: Sequence[Any], planted: str) -> int:
        """Run tests in a process that ends with 1 at the first that fails."""
        if process := os.fork():
            return process
        try:
            os.setpgid(0, 0)
            signal.alarm(LIMIT if planted else 0)
            log = os.open(self._folder / "log", os.O_WRONLY | os.O_CREAT | os.O_APPEND)
            for descriptor in (1, 2):
                os.dup2(log, descriptor)
            # pytest would empty a folder for temporary files that another process uses
            os.environ["PYTEST_DEBUG_TEMPROOT"] = tempfile.mkdtemp(dir=self._folder)
            self._planted = planted
            for item, following in zip(items, [*items[1:], None], strict=True):
                self._test, begun = item.nodeid, perf_counter()
                item.config.hook.pytest_runtest_protocol(item=item, nextitem=following)
                self._note(perf_counter() - begun)
                if session.testsfailed:
                    os._exit(1)
            self._test = ""
            for name in list(sys.modules):
                self._note(name)
            os._exit(0)
        finally:
            os._exit(70)


def main() -> int:
    """Plant the changes."""
    parser = argparse.ArgumentParser()
    parser.add_argument("pieces", nargs="*")
    parser.add_argument("--listed", action="store_true")
    given = parser.parse_args()
    mutants = [
        mutant
        for mutant in every_mutant()
        if mutant.is_listed() == given.listed and all(map(mutant.matches, given.pieces))
    ]
    sys.path_hooks.insert(0, switched_folder)
    import pytest
    import torch

    from tests.devices.simulation import simulated_devices

    torch.set_num_threads(1)  # threads do not survive a fork
    with simulated_devices():
        torch.ones(1, device="cuda").neg()  # reads the tables of operators
    with tempfile.TemporaryDirectory() as name:
        trials = Trials(mutants, Path(name))
        vars(builtins).update(
            _is_planted=trials.is_planted,
            _move=lambda planted, moved, name: (
                (lambda *args, **named: moved) if planted else getattr(moved, name)
            ),
        )
        options = ["-n0", "-s", "-p", "no:cacheprovider", "-k", f"not ({LEFT_OUT})"]
        code = pytest.main([*options, *TESTS], [trials])
    wrong = [mutant for mutant, found in trials.found.items() if found == given.listed]
    print(
        f"{len(mutants)} changes, {len(wrong)} {'found though they are listed' if given.listed else 'not found'}:"
    )
    for mutant in wrong:
        print(f"{mutant.place}  {mutant.change}  in: {mutant.line}")
    return int(code) or int(bool(wrong))


if __name__ == "__main__":
    sys.exit(main())
