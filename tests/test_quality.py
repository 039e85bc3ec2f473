"""Lint, types, and who may import whom: part of the tests, so that one command says whether the tree is sound."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
PACKAGE = ROOT / "attnscope"

# A room is a module or folder of the package; its row says which other rooms it may import, anywhere in it.
# Everybody may import `visible`.
ROOMS = {
    "__init__": "",
    "__main__": "cli",
    "visible": "",
    "errors": "",
    "report": "errors",
    "rotary": "",
    "config": "errors rotary",
    "selection": "errors report",
    "shipped": "errors",
    "folder": "errors",
    "quiet": "errors",
    "output": "errors shutdown",
    "shutdown": "",
    "pieces": "errors",
    "memory": "config errors",
    "heap": "",
    "threads": "",
    "estimate": "config heap memory selection threads",
    "maskfile": "errors folder",
    "cost": "config selection",
    "texts": "config errors folder",
    "tokens": "errors folder report",
    "tokenizerjson": "errors folder quiet",
    "filetokenizer": "errors folder pieces quiet report tokenizerjson tokens",
    "stackfile": "config errors folder selection",
    "families": "config errors",
    "hosted": "errors folder model selection",
    "guest": "config errors filetokenizer folder hosted memory shipped source tokens",
    "model": "config errors families folder heap report selection tokens",
    "analysis": "errors model report selection tokens",
    "source": "config errors families filetokenizer folder hosted model report selection shipped stackfile tokens",
    "shown": "config report selection",
    "request": "config errors estimate maskfile memory report selection shown source",
    "description": "config errors memory source",
    "loading": "config errors guest hosted model request source threads",
    "pipeline": "__init__ analysis config cost folder hosted loading memory model report request selection source",
    "alignment": "errors report",
    "tolerance": "errors report",
    "overviews": "errors report tolerance",
    "comparison": "alignment errors overviews report tolerance",
    "sides": "comparison config errors folder loading pipeline report selection tolerance",
    "explanation": "config errors loading memory model pipeline report request selection source",
    "batch": "analysis config errors estimate loading memory output pipeline report request selection shutdown source "
    "texts",
    "checks": "analysis config errors hosted loading model pipeline report request selection source",
    "views": "config cost description errors report selection tolerance",
    "cli": "__init__ batch checks config cost description errors explanation loading output pipeline report selection "
    "shipped shutdown sides texts tolerance views",
}
AT_ONCE = {"cli": "__init__ cli errors selection shutdown visible"}  # what it may import before it knows what is wanted
OTHERS = {
    "torch": "checks guest hosted analysis loading model pipeline source",
    "transformers": "hosted",
    "typer": "cli",
    "rich": "cli views/terminal",
}
FILES = sorted(PACKAGE.rglob("*.py"))


def room(path):
    return path.relative_to(PACKAGE).parts[0].removesuffix(".py")


def imports(tree):
    """Every module that is imported, and whether that happens when the file itself is."""
    at_once = [node for node in tree.body if isinstance(node, ast.Import | ast.ImportFrom)]
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield alias.name, node in at_once
        elif isinstance(node, ast.ImportFrom):
            assert not node.level, "relative imports hide who imports whom"
            names = [f"attnscope.{alias.name}" for alias in node.names] if node.module == "attnscope" else [node.module]
            for name in names:
                yield name, node in at_once


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(PACKAGE)))
def test_imports_keep_their_direction(path):
    here = room(path)
    assert here in ROOMS, f"{here} is new: add its row to ROOMS"
    for name, at_once in imports(ast.parse(path.read_text())):
        top, _, rest = name.partition(".")
        if top == "attnscope":
            there = rest.partition(".")[0] if rest.partition(".")[0] in ROOMS else "__init__"
            assert there in {here, "visible", *ROOMS[here].split()}, f"{here} may not import {name}"
            if at_once and here in AT_ONCE:
                assert there in AT_ONCE[here].split(), f"{name} belongs into a function"
        elif top in OTHERS:
            inside = path.relative_to(PACKAGE).as_posix()
            allowed = OTHERS[top].split()
            assert any(inside == f"{a}.py" or inside.startswith(f"{a}/") for a in allowed), f"{top} in {inside}"


@pytest.mark.parametrize("path", [p for p in FILES if room(p) not in ("cli", "__main__")], ids=lambda path: path.name)
def test_only_the_command_line_prints_and_exits(path):
    called = {ast.unparse(n.func) for n in ast.walk(ast.parse(path.read_text())) if isinstance(n, ast.Call)}
    assert not called & {"print", "exit", "sys.exit", "os._exit", "quit"}


@pytest.mark.parametrize("tool", [["ruff", "check"], ["ruff", "format", "--check"], ["mypy"]], ids=" ".join)
def test_tools_are_content(tool):
    done = subprocess.run(
        [sys.executable, "-m", *tool], cwd=ROOT, capture_output=True, text=True, timeout=300, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
