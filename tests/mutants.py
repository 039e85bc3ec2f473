"""Whether the short suite finds the mutants that the whole suite finds: `python -m tests.mutants --count 60 --seed 1`.

Draws changes of single expressions in modules of `MODULES`, and runs their tests: first those that one waits for, then,
for mutants that survive these, the exhaustive ones. It edits the files, and puts them back; use a clone of its own.
"""

import argparse
import ast
import contextlib
import os
import random
import signal
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parent.parent
# modules, and the tests that are meant for them
MODULES = {
    "attnscope/request/masks/expression.py": "tests/masks",
    "attnscope/request/masks/terms.py": "tests/masks",
    "attnscope/model/recorders/top.py": "tests/model",
    "attnscope/model/recorders/sums.py": "tests/model",
    "attnscope/model/tile_stages.py": "tests/model",
    "attnscope/studies/explain/arithmetic.py": "tests/explanation",
    "attnscope/batch/blocks.py": "tests/batch/test_reader.py tests/scale",
    "attnscope/cli/next_command.py": "tests/cli",
    "attnscope/views/walk/effects.py": "tests/explore",
    "attnscope/views/walk/window.py": "tests/explore",
    "attnscope/views/explore/row.py": "tests/explore",
}
SWAPS: dict[type, type] = {
    ast.Lt: ast.LtE, ast.LtE: ast.Lt, ast.Gt: ast.GtE, ast.GtE: ast.Gt, ast.Eq: ast.NotEq, ast.NotEq: ast.Eq,
    ast.In: ast.NotIn, ast.NotIn: ast.In, ast.Is: ast.IsNot, ast.IsNot: ast.Is, ast.Add: ast.Sub, ast.Sub: ast.Add,
    ast.Mult: ast.Div, ast.Div: ast.Mult, ast.FloorDiv: ast.Mult, ast.And: ast.Or, ast.Or: ast.And,
    ast.BitAnd: ast.BitOr, ast.BitOr: ast.BitAnd,
}  # fmt: skip
SECONDS = 400


def changes(text: str) -> Iterator[tuple[int, str, str]]:
    """Yield the line, the changed expression and the new text of the file for every mutant."""
    lines = text.encode().splitlines(keepends=True)
    tree = ast.parse(text)
    annotations = set()
    for node in ast.walk(tree):
        for name in ("annotation", "returns"):
            if (annotation := getattr(node, name, None)) is not None:
                annotations.update(ast.walk(annotation))
    for node in ast.walk(tree):
        if node in annotations or not isinstance(
            node, ast.Compare | ast.BinOp | ast.BoolOp | ast.Constant
        ):
            continue
        before = ast.unparse(node)
        mutate(node)
        after = ast.unparse(node)
        if after == before:
            continue
        start = sum(map(len, lines[: node.lineno - 1])) + node.col_offset
        end = sum(map(len, lines[: node.end_lineno - 1])) + node.end_col_offset
        whole = text.encode()
        yield (
            node.lineno,
            f"{before} → {after}",
            (whole[:start] + f"({after})".encode() + whole[end:]).decode(),
        )
        mutate(node)


def mutate(node: ast.AST) -> None:
    """Change an operator, or a number or truth value; twice is the original."""
    if isinstance(node, ast.Compare) and type(node.ops[0]) in SWAPS:
        node.ops[0] = SWAPS[type(node.ops[0])]()
    elif isinstance(node, ast.BinOp | ast.BoolOp) and type(node.op) in SWAPS:
        node.op = SWAPS[type(node.op)]()
    elif isinstance(node, ast.Constant) and isinstance(node.value, bool):
        node.value = not node.value
    elif isinstance(node, ast.Constant) and isinstance(node.value, int):
        node.value ^= 1


def finds(folders: str, marks: str) -> bool | None:
    """Tell whether a process with the marked tests fails; None if it takes too long."""
    child = os.fork()
    if not child:
        signal.alarm(SECONDS)
        with open(os.devnull, "w") as nothing:
            os.dup2(nothing.fileno(), 1)
            os.dup2(nothing.fileno(), 2)
            import pytest

            options = ["-x", "-q", "-n0", "-p", "no:cacheprovider", "-m", marks]
            os._exit(pytest.main([*options, *folders.split()]))
    code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    return None if code == -signal.SIGALRM else code != 0


def main() -> None:
    """Draw mutants, and print how many each suite finds."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--count", type=int, default=60)
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    import torch  # once for all children

    torch.set_num_threads(1)
    mutants = [(name, *change) for name in MODULES for change in changes((ROOT / name).read_text())]
    drawn = random.Random(options.seed).sample(mutants, min(options.count, len(mutants)))
    by_short = 0
    by_whole = 0
    for number, (name, line, change, text) in enumerate(drawn, 1):
        path = ROOT / name
        original = path.read_text()
        with contextlib.ExitStack() as stack:
            stack.callback(path.write_text, original)
            path.write_text(text)
            short = finds(MODULES[name], "not exhaustive")
            whole = short if short is not False else finds(MODULES[name], "exhaustive")
        by_short += short is True
        by_whole += whole is True
        result = (
            "too slow" if whole is None else "short" if short else "whole" if whole else "survives"
        )
        print(f"{number:3} {result:9} {name}:{line} {change}", flush=True)
    print(
        f"the short suite finds {by_short} of the {by_whole} mutants that the whole finds; {len(drawn)} drawn"
    )


if __name__ == "__main__":
    main()
