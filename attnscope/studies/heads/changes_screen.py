"""What differs between the heads of two models: a picture of the changes, and the largest of them."""

from collections.abc import Iterator, Sequence
from dataclasses import replace

import numpy as np

from attnscope.findings.arrays import Matrix
from attnscope.findings.head_changes import HeadComparison, HeadDifference
from attnscope.findings.head_findings import HeadRoles, HeadScores
from attnscope.findings.head_roles import ROLES
from attnscope.studies.heads.example_screen import ROLES_ALONE
from attnscope.studies.heads.screen import (
    NO_ROLE,
    UNCLEAR,
    describe_probes,
    head_grid,
    head_numbers,
    measured_texts,
    role_colour,
    spell_value,
)
from attnscope.studies.screens.header import (
    arrow,
    describe_mask,
    more_options,
    notes,
    random_weights_of,
    report_header,
    short_path,
    unknown_tokens,
    unknown_words,
)
from attnscope.views.numbers import MINUS, Digits, digits_for
from attnscope.views.parts import GAP, Column, Facts, Table, Text, ViewPart, paragraph
from attnscope.views.scales import Scale
from attnscope.views.settings import DisplaySettings, Listing
from attnscope.views.spans import Span, Spans, note, ours, untrusted

_MOST = 10  # heads that are listed
_OF_A_ROLE = 64  # heads of a role from which a view takes as many as fit on a line
_LONGEST_HEADING = 12  # characters
_LEAST = 0.005  # smaller changes would show as 0.00


def present_changes(comparison: HeadComparison, settings: DisplaySettings) -> Iterator[ViewPart]:
    """Turn the differences between two models' heads into parts."""
    labels = [
        side.label if settings.verbose else short_path(side.label) for side in comparison.sides
    ]
    if len(set(labels)) != len(labels):
        labels = [side.label for side in comparison.sides]
    listing = replace(settings.listing, signed=False)
    yield from _header(comparison, labels, settings)
    yield notes(comparison.notes)
    yield GAP
    sides = [side.roles for side in comparison.sides if side.roles is not None]
    if len(sides) == 2 and len(comparison.differences) > ROLES_ALONE:
        yield from _roles(comparison, labels, sides, listing)
    else:
        for difference in comparison.differences:
            yield from _numbers(comparison, difference, labels, settings, listing)
    if len(comparison.differences) > ROLES_ALONE:
        one_role = ["--role induction (its values for every head)"]
    else:
        one_role = []
    yield from more_options(
        [*one_role, "--top K (more heads)", "--json, -o heads.csv (every number)"], settings
    )


def _header(
    comparison: HeadComparison, labels: Sequence[str], settings: DisplaySettings
) -> Iterator[ViewPart]:
    first_heads, second_heads = (side.heads for side in comparison.sides)
    if isinstance(first_heads, HeadRoles):
        yield from unknown_tokens(first_heads.probes.unknown, first_heads.probes.tokens)
    else:
        yield from unknown_words(first_heads.texts)
    yield from report_header(first_heads.provenance, first_heads.mask, settings)
    yield from random_weights_of(labels[1], second_heads.provenance, first_heads.provenance)
    yield Facts([("compare", (Span(f"{comparison.axis}: "), *arrow(labels)))])
    if second_heads.mask != first_heads.mask:
        mask = describe_mask(second_heads.mask, second_heads.provenance.weights)
        yield Facts([("mask", (*untrusted(labels[1]), Span(": "), *mask))])
    if isinstance(first_heads, HeadRoles):
        yield Facts([(name, note(text)) for name, text in describe_probes(first_heads)])
    else:
        yield from measured_texts(first_heads, settings)


def _roles(
    comparison: HeadComparison, labels: Sequence[str], sides: Sequence[HeadRoles], listing: Listing
) -> Iterator[ViewPart]:
    """Present the change of each head, the heads that changed most, and the changes of every role."""
    size = np.abs(comparison.changed_most)
    n_layers, n_heads = size.shape
    mains = [[row[:n_heads] for row in side.main[:n_layers]] for side in sides]
    # of every layer and head
    pairs = [list(zip(*rows, strict=True)) for rows in zip(*mains, strict=True)]
    changed = sum(a != b for row in pairs for a, b in row)
    has = "has" if changed == 1 else "have"
    text = f"  largest change of a role; {changed} of {size.size} heads {has} another main role"
    yield paragraph((Span("what changed", "title"), Span(text)))
    roles = [role for side in sides for role in side.roles]  # which may be those of another version
    letters: dict[str | None, str] = {None: UNCLEAR} | {role.name: role.letter for role in roles}
    titles: dict[str | None, str] = {None: NO_ROLE} | {role.name: role.title for role in roles}
    short, full_names = (
        [[names[a] if a == b else f"{names[a]}{arrow}{names[b]}" for a, b in row] for row in pairs]
        for names, arrow in ((letters, "→"), (titles, " → "))
    )
    full = float(np.nanmax(size)) if np.isfinite(size).any() else 0.0
    scale = Scale(0.0, full, False)
    yield head_grid(size, short, scale, Digits(2), names=full_names, fuller="a larger change")
    yield GAP
    if (np.nan_to_num(size) < _LEAST).all():
        yield paragraph(
            ours(f"no role of any of {size.size:,} heads changes by {_LEAST:g} or more")
        )
        yield GAP
        return
    short_labels = all(len(label) <= _LONGEST_HEADING for label in labels)
    if short_labels:
        headings = [untrusted(label) for label in labels]
    else:
        headings = [ours("first"), ours("second")]
    yield _changed_heads(comparison, headings, sides, listing)
    yield GAP
    counts = [[name for row in main for name in row] for main in mains]
    yield _changed_roles(comparison, headings, counts, listing)
    yield GAP
    arrows = f"A→B: the main role was A and is B; {UNCLEAR} is no clear role."
    yield paragraph(ours(arrows), remark=True)


def _changed_heads(
    comparison: HeadComparison,
    headings: Sequence[Spans],
    sides: Sequence[HeadRoles],
    listing: Listing,
) -> Table:
    """List the heads that changed most, with their main role in both models."""
    heads = _largest_changes(comparison.changed_most, listing, _MOST)
    by_name = {difference.name: difference for difference in comparison.differences}
    changes: list[Spans] = []
    for layer, head in heads:
        name = str(comparison.role[layer][head])
        title = ROLES[name].title if name in ROLES else name
        changes.append(ours(f"{title} {_change(by_name[name], layer, head)}"))
    columns = [
        Column(heading, [_main_role(side, layer, head) for layer, head in heads], left=True)
        for heading, side in zip(headings, sides, strict=True)
    ]
    labels = [ours(f"L{layer}H{head}", "bold") for layer, head in heads]
    return Table(
        "head", [*columns, Column("largest change", changes, left=True)], labels=labels, indent=0
    )


def _largest_changes(difference: Matrix, listing: Listing, limit: int) -> list[tuple[int, int]]:
    return [head for head in listing.heads(difference, limit) if abs(difference[head]) >= _LEAST]


def _main_role(survey: HeadRoles, layer: int, head: int) -> Spans:
    name = survey.main[layer][head]
    if name is None:
        return ours("no clear role", "dim")
    role = next(values for values in survey.roles if values.name == name)
    value = spell_value(role.values, None, layer, head, 2)
    return Span(role.letter, "bold", colour=role_colour(role)), Span(f" {role.title} {value}")


def _change(difference: HeadDifference, layer: int, head: int, digits: int = 2) -> str:
    """Spell a change with its sign and standard error."""
    value = float(difference.difference[layer, head])
    error = float(difference.error[layer, head])
    sign = MINUS if value < 0 else "+"
    return f"{sign}{abs(value):.{digits}f}" + ("" if np.isnan(error) else f" ±{error:.{digits}f}")


def _changed_roles(
    comparison: HeadComparison,
    headings: Sequence[Spans],
    mains: Sequence[Sequence[str | None]],
    listing: Listing,
) -> Table:
    """List every role, the most changed first: its heads in each model, and the largest changes."""
    largest_changes = {
        difference.name: _largest(difference.difference) for difference in comparison.differences
    }
    sorted_differences = sorted(
        comparison.differences, key=lambda difference: -largest_changes[difference.name]
    )
    names: list[Spans] = []
    cells: list[Text] = []
    for difference in sorted_differences:
        role = ROLES[difference.name]
        names.append((Span(role.letter, "bold", colour=role.colour), Span(f" {role.title}")))
        heads = _largest_changes(difference.difference, listing, _OF_A_ROLE)
        listed = [
            ours(f"L{layer}H{head} {_change(difference, layer, head)}") for layer, head in heads
        ]
        nothing = "not measured in both"
        if largest_changes[difference.name] >= 0:
            nothing = "no head changes"
        cells.append(
            Text(
                listed or [ours(nothing, "caption")], "  ", cut="" if listing.top is None else None
            )
        )
    columns = []
    for heading, main in zip(headings, mains, strict=True):
        counts = [
            "–" if ROLES[role.name].rank is None else str(main.count(role.name))
            for role in sorted_differences
        ]
        columns.append(Column(heading, counts))
    largest = Text([ours("largest changes"), ours("± standard error")], ", ", cut="")
    return Table("role", [*columns, Column(largest, cells, left=True)], labels=names, indent=0)


def _largest(difference: Matrix) -> float:
    known_changes = np.abs(difference[np.isfinite(difference)])
    if known_changes.size:
        return float(known_changes.max())
    return -1.0


def _numbers(
    comparison: HeadComparison,
    difference: HeadDifference,
    labels: Sequence[str],
    settings: DisplaySettings,
    listing: Listing,
) -> Iterator[ViewPart]:
    """Present a role, or one number, of both models on one scale, and its difference."""
    heads = [side.heads for side in comparison.sides]
    role = ROLES.get(difference.name)
    if role:
        meaning = role.meaning
    elif isinstance(heads[0], HeadScores):
        meaning = heads[0].meaning
    else:
        meaning = ""
    title = f"{role.letter} {role.title}" if role else difference.name
    yield paragraph((Span(title, "title"), Span("  "), *note(meaning)))
    if _largest(difference.difference) < 0:
        yield paragraph(ours("not measured in both", "caption"))
        return
    n_layers, n_heads = difference.difference.shape
    if not np.nan_to_num(difference.difference).any():
        yield paragraph(ours(f"the same number in all {difference.difference.size:,} heads"))
        yield GAP
        return
    digits = digits_for(difference.difference, max(2, settings.precision)).decimals
    both = [side.by_name()[difference.name] for side in heads]
    for label, matrix in zip(labels, both, strict=True):
        yield paragraph(untrusted(label, "bold"))
        yield head_numbers(matrix[:n_layers, :n_heads], settings, together=both)
    yield paragraph((*ours("difference  ", "bold"), *arrow(labels)))
    yield head_numbers(difference.difference, settings, signed=True)
    yield GAP
    items = []
    for layer, head in listing.heads(difference.difference, _MOST):
        first_value, second_value = (
            spell_value(values, None, layer, head, digits) for values in both
        )
        items.append(
            ours(
                f"L{layer}H{head} {first_value} → {second_value} ({_change(difference, layer, head, digits)})"
            )
        )
    yield Facts([("changed", Text(items, "  "))], remark=False, look="bold")
    yield GAP
