"""Lint, types, and who may import whom: part of the tests, so that one command says whether the tree is sound."""

import ast
from functools import cache
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

from tests.exhaustive import read_list
from tests.house import FEATURES, feature_of

ROOT = Path(__file__).parent.parent
PACKAGE = ROOT / "attnscope"

# A room is a module or folder of the package, from the bottom up; its row says which rooms it may import.
ROOMS = {
    "base": "",
    "findings": "base",
    "request": "base findings",
    "checkpoints": "base findings request",
    "model": "base findings request checkpoints",
    "engines": "base findings request checkpoints model",
    "run": "base findings request checkpoints model engines",
    "views": "base findings",
    "studies": "base findings request checkpoints model engines run views",
    "batch": "base findings request checkpoints engines run views studies",
    "api": "base findings request engines run views studies batch",
    "__init__": "base api",
    "testing": "api",
    "callbacks": "base request engines run studies api",
    "ray": "base batch request run",
    "cli": "base findings request checkpoints engines run views studies batch",
    "__main__": "cli",
}
# what it may import before it knows what is wanted
AT_ONCE = {"cli": "base cli request views", "__init__": "base"}
# Declarations that options are made of, and the names of the package, too
LIGHT = (
    "attnscope.batch.formats",
    "attnscope.findings.record_parts",
    "attnscope.studies.formats",
    "attnscope.studies.registry",
    "attnscope.studies.study",
)
OTHERS = {
    "torch": "model engines run studies checkpoints/convert_pickle",
    "transformers": "engines/transformers",
    "typer": "cli",
    "rich": "cli views/terminal views/explore",
    "textual": "views/explore",
}
FILES = sorted(PACKAGE.rglob("*.py"))


@cache
def parsed(path):
    return ast.parse(path.read_text())


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
            folder = ROOT / str(node.module).replace(".", "/")
            for alias in node.names:
                whole = node.module == "attnscope" or (folder / f"{alias.name}.py").exists()
                yield (f"{node.module}.{alias.name}" if whole else node.module), node in at_once


def test_rooms_import_only_rooms_below_them():
    order = list(ROOMS)
    for n, (here, row) in enumerate(ROOMS.items()):
        assert set(row.split()) <= set(order[:n]), f"{here} imports a room above it"


def test_no_two_classes_share_a_name():
    names = [
        node.name
        for path in FILES
        for node in ast.walk(parsed(path))
        if isinstance(node, ast.ClassDef)
    ]
    assert {name for name in names if names.count(name) > 1} == set()


def test_one_engine_does_not_import_the_other():
    for path in FILES:
        inside = path.relative_to(PACKAGE).as_posix()
        if inside.startswith("engines/transformers/") or inside == "engines/native.py":
            other = (
                "attnscope.engines.native"
                if "/transformers/" in inside
                else "attnscope.engines.transformers"
            )
            assert not any(name.startswith(other) for name, _ in imports(parsed(path))), path


def test_nothing_outside_engines_asks_which_engine_it_has():
    """By its name, or by the class of a model; `cli` reads what was typed, a screen names it in a header."""
    for path in FILES:
        if room(path) in ("engines", "cli") or "screens" in path.parts:
            continue
        for node in ast.walk(parsed(path)):
            if isinstance(node, ast.Compare):
                assert "engine" not in {
                    n.attr for n in ast.walk(node) if isinstance(n, ast.Attribute)
                }, path
            if isinstance(node, ast.Call) and ast.unparse(node.func) == "isinstance":
                asked = ast.unparse(node.args[1])
                # What `attnscope.open_model` returns is no engine's model.
                assert asked == "OpenModel" or not asked.endswith(("Engine", "Model")), path


def is_in(path, places):
    inside = path.relative_to(PACKAGE).with_suffix("").as_posix() + "/"
    return any(inside.startswith(f"{place}/") for place in places.split())


def misdirected(path):
    """Every import of a file that goes where it may not."""
    here, inside = room(path), path.relative_to(PACKAGE).as_posix()
    assert here in ROOMS, f"{here} is new: add its row to ROOMS"
    for name, at_once in imports(parsed(path)):
        top, _, rest = name.partition(".")
        if top == "attnscope":
            there = rest.partition(".")[0] if rest.partition(".")[0] in ROOMS else "__init__"
            if there not in {here, *ROOMS[here].split()}:
                yield f"{inside}: {here} may not import {name}"
            if (
                at_once
                and here in AT_ONCE
                and name not in LIGHT
                and there not in AT_ONCE[here].split()
            ):
                yield f"{inside}: {name} belongs into a function"
        elif top in OTHERS and not is_in(path, OTHERS[top]):
            yield f"{inside}: {top} is imported here"


def test_imports_keep_their_direction():
    assert [message for path in FILES for message in misdirected(path)] == []


def test_no_module_imports_itself_by_way_of_others():
    """Not even where imports wait in functions: modules of a circle can only be understood, or moved, together."""
    modules = {
        ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__"): path
        for path in FILES
    }
    below = {
        name: {there for there, _ in imports(parsed(path))} & modules.keys()
        for name, path in modules.items()
    }
    sorter = TopologicalSorter(below)
    try:
        sorter.prepare()
    except CycleError as e:
        pytest.fail(" → ".join(reversed(e.args[1])))


def views_seen_by(folder):
    for path in sorted((PACKAGE / "views" / folder).rglob("*.py")):
        for name, _ in imports(parsed(path)):
            yield path, name


@pytest.mark.parametrize("view", ["terminal", "figure"])
def test_a_view_draws_parts_and_reads_no_findings(view):
    """So that a new view is another folder, and every screen of every study appears in it."""
    shared = (
        "axes",
        "head_layout",
        "numbers",
        "palette",
        "parts",
        "pictures",
        "scales",
        "sound",
        "spans",
    )
    allowed = (
        f"attnscope.views.{view}",
        *(f"attnscope.views.{name}" for name in shared),
        "attnscope.base",
    )
    if view == "figure":
        allowed = *allowed, "attnscope.views.settings"
    for path, name in views_seen_by(view):
        if name.startswith("attnscope."):
            assert name.startswith((*allowed, "attnscope.findings.arrays")), f"{name} in {path}"


PRINT_OR_EXIT = [
    PACKAGE / "__main__.py",
    *(PACKAGE / "base" / "system" / name for name in ("signals.py", "forking.py")),
    *(PACKAGE / "cli").rglob("*.py"),
]


def test_only_the_command_line_prints_and_exits():
    for path in FILES:
        if path not in PRINT_OR_EXIT:
            called = {
                ast.unparse(n.func) for n in ast.walk(parsed(path)) if isinstance(n, ast.Call)
            }
            assert not called & {"print", "exit", "sys.exit", "os._exit", "quit"}, path


def test_every_path_of_a_feature_is_there_and_every_file_is_part_of_one():
    for feature, paths in FEATURES.items():
        assert all((PACKAGE / path).exists() for path in paths.split()), feature
    assert {feature_of(path) for path in FILES} <= FEATURES.keys()


def test_listed_exhaustive_tests_exist():
    for test in read_list():
        path, *_, name = test.split("::")
        assert f"def {name}(" in (ROOT / path).read_text(), (
            f"{test} is gone: remove it from tests/exhaustive.txt"
        )
