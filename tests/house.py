"""How much there is to read: `python -m tests.house [FOLDER …]` prints it for every folder of the package.

Tokens are those of Python's tokenizer without comments, docstrings and layout: lines can be joined, tokens cannot.
`run` is what one `attnscope run "The bank by the river"` executes of it.
"""

import argparse
import ast
import contextlib
import inspect
import io
import sys
import tokenize
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

PACKAGE = Path(__file__).parent.parent / "attnscope"
READ = {tokenize.NAME, tokenize.OP, tokenize.NUMBER, tokenize.STRING}
VAGUE = frozenset(
    "given named known kept shown written chosen drawn needed beside place number most first kind".split()
)
FUNCTIONS = ast.FunctionDef | ast.AsyncFunctionDef


def docstring_lines(tree: ast.AST) -> set[int]:
    """First lines of docstrings."""
    lines = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Module | ast.ClassDef | FUNCTIONS) and ast.get_docstring(node, clean=False) is not None:
            lines.add(node.body[0].lineno)
    return lines


def joined_assignments(tree: ast.AST) -> Iterator[ast.Assign]:
    """Yield `a, b = x, y`, which are several statements on one line; an exchange such as `a, b = b, a` is none."""
    for node in ast.walk(tree):
        if (
            isinstance(node, ast.Assign)
            and isinstance(node.value, ast.Tuple)
            and isinstance(node.targets[0], ast.Tuple)
        ):
            targets = {ast.unparse(target) for target in node.targets[0].elts}
            values = {ast.unparse(value) for value in node.value.elts}
            if not targets & values:
                yield node


def bindings(tree: ast.AST) -> Iterator[str]:
    """Yield every name that is bound: variables, parameters, functions and classes, without underscores before it."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            yield node.id.lstrip("_")
        elif isinstance(node, ast.arg):
            yield node.arg.lstrip("_")
        elif isinstance(node, FUNCTIONS | ast.ClassDef):
            yield node.name.lstrip("_")


def measure(path: Path) -> Counter[str]:
    """Count what one file has."""
    text = path.read_text()
    tree = ast.parse(text)
    documented = docstring_lines(tree)
    counts = Counter[str]()
    code_lines = set()
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        is_docstring = token.type == tokenize.STRING and token.start[0] in documented
        if token.type in READ and not is_docstring:
            counts["tokens"] += 1
            code_lines.add(token.start[0])
    counts["code lines"] = len(code_lines)
    names = list(bindings(tree))
    counts["bindings"] = len(names)
    counts["vague names"] = sum(name in VAGUE for name in names)
    counts["joined assignments"] = sum(1 for _ in joined_assignments(tree))
    for node in ast.walk(tree):
        counts["statements"] += isinstance(node, ast.stmt)
        counts["functions"] += isinstance(node, FUNCTIONS)
    return counts


def total(folder: Path) -> Counter[str]:
    """Count what all files below a folder have."""
    counts = Counter[str]()
    for path in sorted(folder.rglob("*.py")):
        counts += measure(path)
    return counts


def executed(arguments: list[str]) -> tuple[int, int]:
    """Return how many different functions of the package a command executes, and in how many files."""
    functions = set()

    def note(frame, event, _):
        # The body of a class is executed, too, without being a function.
        is_function = frame.f_code.co_flags & inspect.CO_OPTIMIZED
        if event == "call" and is_function and frame.f_code.co_filename.startswith(str(PACKAGE)):
            functions.add((frame.f_code.co_filename, frame.f_code.co_qualname))

    sys.setprofile(note)
    try:
        from attnscope.cli import main

        with contextlib.redirect_stdout(io.StringIO()):
            assert main(arguments) == 0
    finally:
        sys.setprofile(None)
    named = {
        (file, name) for file, name in functions if not name.endswith(("<lambda>", "comp>", "<genexpr>", "<module>"))
    }
    return len(named), len({file for file, _ in named})


def report(folders: list[Path]) -> Iterator[str]:
    """Yield lines of a table."""
    yield f"{'folder':<24}{'tokens':>9}{'a line':>8}{'functions':>11}{'joined ‰':>10}{'vague %':>9}"
    for folder in folders:
        counts = total(folder)
        if not counts["tokens"]:
            continue
        a_line = counts["tokens"] / counts["code lines"]
        joined = 1000 * counts["joined assignments"] / counts["statements"]
        vague = 100 * counts["vague names"] / counts["bindings"]
        name = str(folder.relative_to(PACKAGE.parent))
        yield f"{name:<24}{counts['tokens']:>9,}{a_line:>8.1f}{counts['functions']:>11,}{joined:>10.1f}{vague:>9.2f}"


def main() -> None:
    """Print the table, and what a run executes."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folders", nargs="*", type=Path)
    folders = [folder.resolve() for folder in parser.parse_args().folders]
    folders = folders or [*sorted(path for path in PACKAGE.iterdir() if path.is_dir()), PACKAGE]
    print("\n".join(report(folders)))
    functions, files = executed(["run", "The bank by the river"])
    print(f"\nrun: {functions} functions in {files} files")


if __name__ == "__main__":
    main()
