"""Expand a mask expression, cell by cell."""

import json
import re
from collections.abc import Sequence
from functools import cache
from pathlib import Path

import numpy as np

from tests.referee.call import places
from tests.referee.reference import Allowed


def allowed(expression: str, own: Allowed) -> Allowed:
    """The matrix (queries, keys) that an expression stands for, True where a query may attend.

    A term `hide:0,3` hides keys from every query.
    """
    for mark, join in (("|", np.logical_or), ("+", np.logical_and)):
        parts = _split(expression, mark)
        if len(parts) > 1:
            return join.reduce([allowed(part, own) for part in parts])
    if expression.startswith("("):
        return allowed(expression[1:-1], own)
    if expression == "own":
        return own
    return _file(Path(expression)) if "." in expression else _cells(expression, *own.shape)


def is_own(expression: str) -> bool:
    """Whether an expression says no more than the model's own mask."""
    return set(re.split(r"[+|()]", expression)) <= {"own", ""}


def _split(expression: str, mark: str) -> list[str]:
    """The parts between marks that are in no parentheses."""
    parts, depth = [""], 0
    for character in expression:
        depth += (character == "(") - (character == ")")
        if character == mark and not depth:
            parts.append("")
        else:
            parts[-1] += character
    return parts


@cache
def _cells(term: str, n_queries: int, n_keys: int) -> Allowed:
    return np.array([[_may(term, i, j) for j in range(n_keys)] for i in range(n_queries)])


def of_one_length(expression: str | None) -> bool:
    """Whether an expression fits only texts of one length: it names a file, or documents."""
    return expression is not None and ("." in expression or "docs" in expression)


def expression(mask: str | None, hide: str | None, words: Sequence[str]) -> str:
    """The expression of a text's whole mask, as it was typed, with the positions of hidden tokens as a term."""
    return (
        mask or "own"
        if hide is None
        else f"({mask or 'own'})+hide:{','.join(map(str, places(hide, words)))}"
    )


def _may(term: str, i: int, j: int) -> bool:
    kind, _, size = term.partition(":")
    if kind == "hide":
        return str(j) not in size.split(",")
    if kind == "docs":
        ends = np.cumsum([int(length) for length in size.split(",")])
        return int((i >= ends).sum()) == int((j >= ends).sum())
    n = int(size or 0)
    return {
        "bidirectional": True,
        "causal": j <= i,
        "window": abs(i - j) < n,
        "prefix": j <= i or j < n,
        "block": n > 0 and i // n == j // n,
        "sink": j < n,
    }[kind]


def _file(path: Path) -> Allowed:
    if path.suffix == ".json":
        return np.array(json.loads(path.read_text()), dtype=bool)
    if path.suffix == ".npy":
        return np.load(path)
    from safetensors.numpy import load_file

    (matrix,) = load_file(path).values()
    return matrix
