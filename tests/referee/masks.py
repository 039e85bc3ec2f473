"""Expand a mask expression, cell by cell."""

import json
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
    found = np.ones_like(own)
    for term in expression.split("+"):
        found &= own if term == "own" else _file(Path(term)) if "." in term else _cells(term, *own.shape)
    return found


@cache
def _cells(term: str, n_queries: int, n_keys: int) -> Allowed:
    return np.array([[_may(term, i, j) for j in range(n_keys)] for i in range(n_queries)])


def expression(mask: str | None, hide: str | None, words: Sequence[str]) -> str:
    """The expression of a text's whole mask, as it was typed, with the positions of hidden tokens as a term."""
    return (mask or "own") + ("" if hide is None else "+hide:" + ",".join(map(str, places(hide, words))))


def _may(term: str, i: int, j: int) -> bool:
    kind, _, size = term.partition(":")
    if kind == "hide":
        return str(j) not in size.split(",")
    n = int(size or 0)
    return {
        "bidirectional": True,
        "causal": j <= i,
        "window": abs(i - j) < n,
        "prefix": j <= i or j < n,
        "block": n > 0 and i // n == j // n,
    }[kind]


def _file(path: Path) -> Allowed:
    if path.suffix == ".json":
        return np.array(json.loads(path.read_text()), dtype=bool)
    if path.suffix == ".npy":
        return np.load(path)
    from safetensors.numpy import load_file

    (matrix,) = load_file(path).values()
    return matrix
