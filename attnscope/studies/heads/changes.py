"""Compare the heads of two models: the difference of every role, or of one number."""

from collections.abc import Sequence

import numpy as np

from attnscope.findings.arrays import Matrix
from attnscope.findings.head_changes import HeadComparison, HeadDifference, HeadSide
from attnscope.findings.head_findings import HeadRoles, HeadScores, Probes
from attnscope.findings.head_roles import ROLES
from attnscope.studies.screens.header import counted

Heads = HeadRoles | HeadScores


def compare_heads(axis: str, sides: Sequence[tuple[str, Heads]]) -> HeadComparison:
    """Compare the measurements of two models' heads, layer by layer and head by head.

    The findings of both are HeadRoles of the same roles, or HeadScores of the same measure.
    """
    (first_label, a), (second_label, b) = sides
    values = [_values(side_heads) for side_heads in (a, b)]
    sizes = [(side.provenance.n_layers, side.provenance.n_heads) for side in (a, b)]
    layers, heads = map(min, zip(*sizes, strict=True))
    differences = []
    for name, (value, error) in values[0].items():
        if name not in values[1]:
            continue
        other, other_error = values[1][name]
        squares = (
            error[:layers, :heads].astype(np.float64) ** 2
            + other_error[:layers, :heads].astype(np.float64) ** 2
        )
        change = other[:layers, :heads].astype(np.float64) - value[:layers, :heads]
        differences.append(
            HeadDifference(name, change.astype(np.float32), np.sqrt(squares).astype(np.float32))
        )
    largest_change, role = _changed_most(differences, (layers, heads))
    if first_label != second_label:
        labels = [first_label, second_label]
    else:
        labels = [f"{first_label} (1)", f"{second_label} (2)"]
    labelled = [
        HeadSide(label, heads) if isinstance(heads, HeadRoles) else HeadSide(label, measured=heads)
        for label, heads in zip(labels, (a, b), strict=True)
    ]
    return HeadComparison(axis, labelled, largest_change, role, differences, _notes(labels, a, b))


def _values(heads: Heads) -> dict[str, tuple[Matrix, Matrix]]:
    """Return values and standard errors by name."""
    if isinstance(heads, HeadScores):
        return {heads.measure: (heads.values, np.full_like(heads.values, np.nan))}
    return {role.name: (role.values, role.errors) for role in heads.roles}


def _changed_most(
    differences: Sequence[HeadDifference], shape: tuple[int, int]
) -> tuple[Matrix, list[list[str | None]]]:
    """Return the difference of the role that changed most, for each head, and that role's name."""
    ranking = [name for name, role in ROLES.items() if role.rank is not None]
    ranked = [difference for difference in differences if difference.name in ranking] or differences
    if not ranked:
        return np.full(shape, np.nan, np.float32), [[None] * shape[1] for _ in range(shape[0])]
    changes = np.stack([difference.difference for difference in ranked])  # (roles, L, H)
    sizes = np.nan_to_num(np.abs(changes), nan=-1.0)
    best = sizes.argmax(0)
    largest: Matrix = np.take_along_axis(changes, best[None], 0)[0]
    are_known = (sizes.max(0) >= 0).tolist()
    names = [
        [ranked[n].name if there else None for n, there in zip(row, knows, strict=True)]
        for row, knows in zip(best.tolist(), are_known, strict=True)
    ]
    return largest, names


def _notes(labels: Sequence[str], a: Heads, b: Heads) -> list[str]:
    notes = []
    sizes = [(heads.provenance.n_layers, heads.provenance.n_heads) for heads in (a, b)]
    if sizes[0] != sizes[1]:
        spelled = [
            f"'{label}' has {counted(n_layers, 'layer')} × {counted(n_heads, 'head')}"
            for label, (n_layers, n_heads) in zip(labels, sizes, strict=True)
        ]
        fewest = [
            (letter, min(pair)) for letter, pair in zip("LH", zip(*sizes, strict=True), strict=True)
        ]
        shared = [
            f"{letter}0" if count == 1 else f"{letter}0–{count - 1}" for letter, count in fewest
        ]
        notes.append(f"{', '.join(spelled)}: {' and '.join(shared)} of both are compared")
    if sizes[0] != sizes[1] or a.provenance.family != b.provenance.family:
        notes.append(
            "heads of models that were trained apart share a number alone: compare how many heads have a role, not "
            "one head with another"
        )
    if isinstance(a, HeadRoles) and isinstance(b, HeadRoles) and _data(a.probes) != _data(b.probes):
        notes.append(
            f"the models read different tokens: {a.probes.tokens:,} and {b.probes.tokens:,} in the texts"
        )
    if isinstance(a, HeadScores) and isinstance(b, HeadScores):
        tokens = [[token.text for text in heads.texts for token in text.tokens] for heads in (a, b)]
        if tokens[0] != tokens[1]:
            notes.append(
                f"the models read different tokens: {len(tokens[0]):,} and {len(tokens[1]):,}"
            )
    for label, heads in zip(labels, (a, b), strict=True):
        notes += [f"{label}: {note}" for note in heads.notes]
    return notes


def _data(probes: Probes) -> tuple[object, ...]:
    """Return the recorded facts that must be equal if two models were measured on the same tokens."""
    return (
        probes.tokens,
        probes.repeated,
        probes.tripled,
        probes.needle,
        probes.before,
        probes.after,
    )
