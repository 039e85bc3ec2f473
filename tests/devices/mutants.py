"""Take each `device=`, `.cpu()`, `.to(device)` and question about devices out of attnscope: do the tests see it?

    python -m tests.devices.mutants [--most TESTS] [--keyword EXPRESSION] [first [last]]

In a copy of the tree, one place at a time is changed: `device=` becomes None, `.cpu()` and `.to(device)` disappear, a
comparison of `device.type`, and `is_cuda`, become True, then False. The tests of `tests/devices`, and the parity of
every family on a GPU, run if they execute the line, the fastest first, until one fails. Changes that no test finds are
printed, and the command ends with 1. Changes without effect are listed below, with the reason. It forks, so Unix only.

Examples of hypothesis are not shrunk. The first run traces every test, or those that pytest's -k selects; a range of
changes uses what it has noted. `--most` limits the tests of a change.
"""

import argparse
import ast
import json
import os
import shutil
import sys
import tempfile
import threading
import time
import traceback
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import Any

ROOT = Path(__file__).parent.parent.parent
TESTS = ("tests/devices", "tests/parity/test_cuda.py")
COPIED = ("attnscope", "tests", "configs", "sample_weights", "benchmarks", "pyproject.toml")
LIMIT = 120  # seconds of the tests of one change
# Lines that tests run in processes that they start, where they are not traced: the tests of these files
CHILDREN = {"attnscope/batch/loading.py": ("tests/devices/test_workers.py",)}
# A piece of the path and the line that is changed, and of the change, to why that has no effect
_INDEX = "an index; CUDA takes these from the host, by a copy more"
_READ = "read number by number, each of which is copied"
_SPEED = "a choice of what is faster on the CPU; the numbers are the same"
_COPIED = "kept on the host, into which parts of the device are copied; the numbers are the same"
EQUIVALENT = {
    "at = torch.arange(n, n + len(after), device=after.device)": _INDEX,
    "torch.tensor(positions, dtype=torch.int64, device=like.device)": _INDEX,
    "b, h, q, k = torch.tensor(edges, device=tile.device)": _INDEX,
    "torch.tensor(text_plan.queries, dtype=torch.int64, device=real.device)": _INDEX,
    "heads = torch.arange(weights.shape[1], device=weights.device)": _INDEX,
    'memory = _ARENA.allocate(ends[-1]) if like.device.type == "cpu" … → False': "memory of the CPU is not reused",
    "model.device.type == 'cpu' → False … if model.device.type": "then each worker reads the weights for itself",
    'limit = 0.0 if exam.subject.device.type == "cpu" … → True': "sums of the simulation have the CPU's order",
    "ahead = torch.ones(len(tokens), len(tokens)": _INDEX,
    "torch.tensor(self.config.embedding_scale, dtype=": "a number; operators take it from the host",
    "torch.tensor(embed.config.embedding_scale, dtype=": "a number; operators take it from the host",
    "transformers/reference.py q_at = torch.arange(scores.shape[2], device=scores.device)[:, None]": _INDEX,
    "transformers/reference.py k_at = torch.arange(scores.shape[3], device=scores.device)[None]": _INDEX,
    "for part in parts], 1).cpu().numpy()": "the trace has been moved to the CPU",
    'so the first is shown", values.cpu()': _READ,
    "result = model(input_ids=torch.zeros(1, len(hidden)": "the embedding that would read them is replaced",
    'return q.device.type != "cpu" and plain and not _tiled_heads … → True': _SPEED,
    "cells < _WORTH_A_THREAD or device.type": "tests/model/test_workers.py looks at threads",
    'every_row_sees = a < b or (device.type == "cpu" … → False': _SPEED,
    'device is None or device.type == "cpu" … → False': _SPEED,
    "if shared > 1 and q.is_cuda and q.dtype == torch.float32 … → True": _SPEED,
    "m * n * e < _WORTH_A_CALL or a.device.type": _SPEED,
    'known = known and measure.device.type == "cpu"': "one argmax, which the statistics of rows take as well",
    "heads, queries = (torch.tensor(numbers, device=output.device)": _INDEX,
    'if rows.device.type != "cpu": … → True': _SPEED,
    'on_cpu = masked.device.type == "cpu" … → False': _SPEED,
    'on_cpu = rows.device.type == "cpu"': "which of two ways to the same keys is taken, by the length of rows",
    'if rows.device.type != "cpu" or repeated.any() … → True': _SPEED,
    'if device.type == "cpu" and cells >= WORTH_COMPILED_LOOPS … → False': "tests/model/test_compiled_rows.py finds it",
    'if tensor.is_contiguous() or tensor.device.type != "cpu" … → True': "pages of the CPU; tests/model finds it",
    'if model.device.type == "cpu":  # on a GPU, each worker … → True': "a pass whose numbers are not kept",
    'if tensor.device.type == "meta" … → False': "tests/arrays/test_refusals.py finds it",
    "on_cpu = name == FLEX and all": "compiled or not, it is the same arithmetic",
    "spec.bias(q_at, k_at, torch.arange(scores.shape[1]": _INDEX,
    'if a.device.type != "cpu": … → True': _SPEED,
    'weight.dtype and x.device.type == "cpu" … → False': _SPEED,
    'if self.masked.device.type == "cpu": … → False': _SPEED,
    "taller = min(_MOST_ROWS_ON_GPU, n_queries // 8) … → True": _SPEED,
    "changes = torch.zeros(n, n, dtype=torch.float64, device=unchanged.device)": _COPIED,
    "positions = torch.arange(first, min(first + copies, n), device=x.device)": _INDEX,
    "v[torch.arange(len(v), device=v.device), :, self.positions] = 0": _INDEX,
    'if batch.tokens.real.device.type != "cpu": … → True': "on the CPU, there is nothing to move",
    "output = padded[row : row + 1, places.to(padded.device)]": _INDEX,
    "shown[number, torch.tensor(text_rows, device=device)] = True": _INDEX,
    "return x[..., order.to(x.device)]": _INDEX,
    "wanted[side, number, torch.tensor(keys[side][number], dtype=": _INDEX,
    "logs = to_float64(engine.logits(hidden[0, list(prompt.reading)])).log_softmax(-1).cpu()": _READ,
    "v[:, :, start : start + count, :count] = torch.eye(count": "copied into a tensor of the device",
    'limit = 0.0 if exam.subject.device.type == "cpu" … → False': "equal passes are within every limit",
    "for text in texts]).argsort().to(positions.device)": _INDEX,
    'if device.type == "meta"': "about models without weights, wherever they would be; tests/api looks at them",
}


@dataclass(frozen=True)
class Mutant:
    """A change of one place.

    Attributes:
        path: The file, from the root.
        line: Number of its line, from 1.
        begin: Where the place begins in the file, in bytes.
        end: Where it ends.
        text: What replaces it.
        what: What it is, for people.
    """

    path: str
    line: int
    begin: int
    end: int
    text: str
    what: str


def mutants_of(path: Path) -> Iterator[Mutant]:
    """Every change of one file."""
    source = path.read_bytes()
    starts = [0]
    for line in source.splitlines(keepends=True):
        starts.append(starts[-1] + len(line))
    name = str(path.relative_to(ROOT))

    def mutant(node: ast.AST, text: str, what: str, method: ast.Attribute | None = None) -> Mutant:
        begin = starts[node.lineno - 1] + node.col_offset  # type: ignore[attr-defined]
        if method is not None:  # behind its object, which may stand in parentheses
            begin = starts[method.end_lineno - 1] + method.end_col_offset - len(f".{method.attr}")  # type: ignore[operator]
        end = starts[node.end_lineno - 1] + node.end_col_offset  # type: ignore[attr-defined]
        return Mutant(name, node.lineno, begin, end, text, what)  # type: ignore[attr-defined]

    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Call):
            for keyword in node.keywords:
                if keyword.arg == "device" and ast.unparse(keyword.value) != "None":
                    yield mutant(keyword.value, "None", f"device={ast.unparse(keyword.value)} → None")
            if isinstance(node.func, ast.Attribute):
                moves = node.func.attr == "to" and node.args and "device" in ast.unparse(node.args[0])
                if moves or (node.func.attr == "cpu" and not node.args):
                    yield mutant(node, "", f"without .{node.func.attr}()", method=node.func)
        is_type = isinstance(node, ast.Compare) and "device.type" in ast.unparse(node.left)
        if is_type or (isinstance(node, ast.Attribute) and node.attr == "is_cuda"):
            for value in ("True", "False"):
                yield mutant(node, value, f"{ast.unparse(node)} → {value}")


class Tracer:
    """A plugin of pytest that notes which of some lines each test executes, and how long it takes.

    Args:
        lines: Number of lines by file.
    """

    def __init__(self, lines: Mapping[str, set[int]]) -> None:
        self._lines, self._seen = lines, set[tuple[str, int]]()
        self.tests: dict[str, tuple[float, list[tuple[str, int]]]] = {}

    def _trace(self, frame: FrameType, event: str, argument: object) -> Any:
        name = frame.f_code.co_filename.removeprefix(f"{os.getcwd()}/")
        if name not in self._lines:
            return None
        wanted, seen = self._lines[name], self._seen

        def local(frame: FrameType, event: str, argument: object) -> Any:
            if frame.f_lineno in wanted:
                seen.add((name, frame.f_lineno))
            return local

        return local(frame, event, argument)

    def pytest_runtest_protocol(self, item: Any) -> None:
        self._seen.clear()
        self._begun = time.perf_counter()
        threading.settrace(self._trace)
        sys.settrace(self._trace)

    def pytest_runtest_logfinish(self, nodeid: str) -> None:
        sys.settrace(None)
        threading.settrace(None)  # type: ignore[arg-type]
        self.tests[nodeid] = time.perf_counter() - self._begun, sorted(self._seen)


def _run_tests(folder: Path, ids: Sequence[str], plugin: Tracer | None, keyword: str) -> int:
    os.chdir(folder)
    for name in [name for name in sys.modules if name.partition(".")[0] == "tests"]:
        del sys.modules[name]  # of the tree that is not changed
    sys.path.insert(0, str(folder))
    log = os.open("pytest.log", os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    os.dup2(log, 1)
    os.dup2(log, 2)
    try:
        import pytest
        from hypothesis import Phase, settings

        class NoShrinking:
            def pytest_collection(self) -> None:
                settings.register_profile("mutants", parent=settings(), phases=[Phase.generate])
                settings.load_profile("mutants")

        plugins = [NoShrinking(), *([] if plugin is None else [plugin])]
        options = [
            "-n",
            "0",
            *(["-k", keyword] if keyword else []),
            "-p",
            "no:cacheprovider",
            "-W",
            "ignore::pytest.PytestAssertRewriteWarning",
        ]
        code = pytest.main([*options, *(["-x"] if plugin is None else []), *ids], plugins)
        if plugin is not None:
            Path("lines.json").write_text(json.dumps(plugin.tests))
    except BaseException:
        traceback.print_exc()
        raise
    return int(code)


def in_child(folder: Path, ids: Sequence[str], plugin: Tracer | None = None, keyword: str = "") -> int:
    """Run tests in a forked process, in a copy of the tree; its exit code, and 124 where it takes too long."""
    process = os.fork()
    if process == 0:
        code = 70
        try:
            code = _run_tests(folder, ids, plugin, keyword)
        finally:
            os._exit(code)  # nothing of the parent's is cleaned up twice
    until = time.monotonic() + (LIMIT if plugin is None else 3600)
    while time.monotonic() < until:
        finished, status = os.waitpid(process, os.WNOHANG)
        if finished:
            return os.waitstatus_to_exitcode(status)
        time.sleep(0.05)
    os.kill(process, 9)
    os.waitpid(process, 0)
    return 124


def main() -> int:
    """Plant the changes, one after the other."""
    every = [mutant for path in sorted((ROOT / "attnscope").rglob("*.py")) for mutant in mutants_of(path)]
    parser = argparse.ArgumentParser()
    parser.add_argument("numbers", nargs="*", type=int)
    parser.add_argument("--most", type=int)
    parser.add_argument("--keyword", default="")
    given = parser.parse_args()
    numbers = given.numbers
    chosen = every[slice(*(numbers if len(numbers) > 1 else [*numbers, None]))] if numbers else every
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name).resolve()
        for part in COPIED:
            source = ROOT / part
            if source.is_dir():
                shutil.copytree(source, folder / part, ignore=shutil.ignore_patterns("__pycache__"))
            else:
                shutil.copy(source, folder / part)
        os.environ["PYTHONDONTWRITEBYTECODE"] = "1"
        os.environ["PYTHONPATH"] = str(folder)
        sys.path = [path for path in sys.path if Path(path or ".").resolve() != ROOT]
        import torch
        import transformers  # noqa: F401

        torch.set_num_threads(1)
        lines: dict[str, set[int]] = {}
        for mutant in every:
            lines.setdefault(mutant.path, set()).add(mutant.line)
        cache = ROOT / ".mutants.json"
        if not (cache.exists() and numbers):
            if code := in_child(folder, TESTS, Tracer(lines), given.keyword):
                print(f"the tests fail without any change ({code}):")
                print((folder / "pytest.log").read_text()[-3000:])
                return 1
            shutil.copy(folder / "lines.json", cache)
        tests = json.loads(cache.read_text())
        first = numbers[0] if numbers else 0
        missed = [
            mutant for n, mutant in enumerate(chosen, first) if not _is_found(n, mutant, folder, tests, given.most)
        ]
    print(f"{len(chosen)} changes, {len(missed)} not found")
    return int(bool(missed))


def matches(mutant: Mutant, source: bytes, piece: str) -> bool:
    """Tell whether a key of EQUIVALENT names this change of a file."""
    text = f"{mutant.path} {source.splitlines()[mutant.line - 1].decode().strip()} {mutant.what}"
    return all(part in text for part in piece.split(" … "))


def _is_found(number: int, mutant: Mutant, folder: Path, tests: Mapping[str, Any], most: int | None) -> bool:
    path = folder / mutant.path
    original = path.read_bytes()
    reason = next((why for piece, why in EQUIVALENT.items() if matches(mutant, original, piece)), None)
    if reason is not None:
        print(f"{number:4} equivalent  {mutant.path}:{mutant.line}  {mutant.what}: {reason}", flush=True)
        return True
    touching = [name for name, (_, seen) in tests.items() if [mutant.path, mutant.line] in seen]
    touching.sort(key=lambda name: tests[name][0])
    touching = touching or list(CHILDREN.get(mutant.path, ()))
    code = 0
    if touching:
        path.write_bytes(original[: mutant.begin] + mutant.text.encode() + original[mutant.end :])
        try:
            code = in_child(folder, touching[:most])
        finally:
            path.write_bytes(original)
    verdict = "found" if code else "NOT FOUND" if touching else "NOT RUN"
    print(f"{number:4} {verdict:10}  {mutant.path}:{mutant.line}  {mutant.what}", flush=True)
    return bool(code)


if __name__ == "__main__":
    sys.exit(main())
