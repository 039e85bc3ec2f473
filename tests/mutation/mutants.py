"""List the mutants of a part of the package with cosmic-ray's operators, and draw a sample of them."""

import ast
import random
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import cosmic_ray.plugins
import parso
from cosmic_ray.ast import ast_nodes, get_ast
from cosmic_ray.mutating import mutate_code

PARTS = {
    "model": ("model/**/*.py",),
    "analysis": ("analysis/*.py",),
    "comparison": ("comparison/*.py",),
    "records": tuple(
        f"batch/{name}.py"
        for name in ("records", "worker", "groups", "sinks", "dump_reader", "shapes", "reports", "tables", "convert")
    ),
}

# Equality and identity agree for what the package compares: None, booleans, enumerations, interned strings.
_EQUIVALENT = ("_Eq_Is", "_NotEq_IsNot", "_Is_Eq", "_IsNot_NotEq")
_COMPOUND = ("if_stmt", "for_stmt", "while_stmt", "with_stmt", "try_stmt", "funcdef", "classdef", "match_stmt")


@dataclass(frozen=True)
class Mutant:
    """One change of one place in a file.

    Attributes:
        path: The file, from the root of the tree.
        operator: Cosmic-ray's name of the operator.
        occurrence: Which of the places in this file where the operator applies, and which of its changes.
        place: Line and column where the changed code starts.
        lines: First and last line that run when the changed code does; None where it runs on import.
    """

    path: str
    operator: str
    occurrence: int
    place: tuple[int, int]
    lines: tuple[int, int] | None

    @property
    def site(self) -> tuple[str, str]:
        """The place and the kind of change: all replacements of one `+` share it."""
        return f"{self.path}:{self.place[0]}:{self.place[1]}", self.operator.partition("_")[0]

    def apply(self, source: str) -> str | None:
        """Return the changed source; None where it is no Python."""
        changed = mutate_code(source, cosmic_ray.plugins.get_operator(self.operator)(), self.occurrence)
        try:
            ast.parse(changed)
        except (SyntaxError, ValueError):
            return None
        return str(changed)


def sample(root: Path, part: str, count: int, seed: int, taken: set[tuple[str, str]]) -> list[Mutant]:
    """Draw mutants of a part: places first, then one change at each, so that eleven replacements of a `+` count once.

    Args:
        root: The tree.
        part: A key of PARTS.
        count: How many; all there are where there are fewer.
        seed: A larger sample of the same seed begins with the smaller one.
        taken: Sites that are left out.
    """
    sites: dict[tuple[str, str], list[Mutant]] = {}
    for pattern in PARTS[part]:
        for path in sorted((root / "attnscope").glob(pattern)):
            for mutant in mutants(path.relative_to(root).as_posix(), path.read_text()):
                sites.setdefault(mutant.site, []).append(mutant)
    chance = random.Random(f"{seed} {part}")
    order = sorted(sites)
    chance.shuffle(order)
    drawn: list[Mutant] = []
    for site in order:
        mutant = chance.choice(sites[site])
        if len(drawn) < count and site not in taken and mutant.apply((root / mutant.path).read_text()) is not None:
            drawn.append(mutant)
    return drawn


def mutants(path: str, source: str) -> Iterator[Mutant]:
    """Yield every mutant of a file that says something about the tests.

    Left out: annotations, unions of types, `*` and `/` of signatures and decorators (most of these end the import at
    once, the others, such as `frozen=True` or a cache, change no result), and `==` for `is` and the reverse.
    """
    tree = get_ast(source)
    nodes = list(ast_nodes(tree))
    for name in cosmic_ray.plugins.operator_names():
        operator = cosmic_ray.plugins.get_operator(name)
        if operator.arguments() or name.endswith((*_EQUIVALENT, "/RemoveDecorator", "/NoOp")):
            continue
        places = ((node, start) for node in nodes for start, _ in operator().mutation_positions(node))
        for occurrence, (node, start) in enumerate(places):
            leaf = tree.get_leaf_for_position(start, include_prefixes=True)
            if not _says_nothing(leaf, "BitOr" in name):
                yield Mutant(path, name, occurrence, start, _lines(node, leaf))


def _says_nothing(leaf: Any, union: bool) -> bool:
    node, above = leaf, leaf.parent
    if above.type in ("parameters", "lambdef"):
        return True  # the mark of keyword-only or positional-only parameters
    while above is not None:
        if above.type == "annassign" and node is above.children[1]:
            return True
        if above.type == "tfpdef" and node is above.children[-1]:
            return True
        if above.type == "funcdef" and node is above.annotation:
            return True
        if above.type == "decorator":
            return True
        if union and above.type == "atom_expr" and above.children[0].get_code().strip() in ("isinstance", "cast"):
            return True
        node, above = above, above.parent
    return bool(union and parso.tree.search_ancestor(leaf, "funcdef") is None)


def _lines(node: Any, leaf: Any) -> tuple[int, int] | None:
    function = parso.tree.search_ancestor(leaf, "funcdef")
    if function is None:
        return None
    inner, outer = node, node.parent
    if node.type in _COMPOUND:
        inner, outer = node.children[1], node
    while outer.type not in _COMPOUND and outer.type not in ("suite", "file_input"):
        inner, outer = outer, outer.parent
    if outer is function and inner is not function.children[-1]:
        inner = function.children[-1]  # a default: used when the body runs
    return inner.start_pos[0], inner.end_pos[0]
