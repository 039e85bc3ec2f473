"""What differs between the heads of two models: a picture of the changes, and the largest of them."""

from collections.abc import Iterator, Sequence

import numpy as np

from attnscope.findings.arrays import Matrix
from attnscope.findings.head_changes import HeadComparison, HeadDifference
from attnscope.findings.head_findings import HeadRoles, HeadScores
from attnscope.findings.head_roles import ROLES
from attnscope.studies.heads.screen import (
    NO_ROLE,
    ROLES_ALONE,
    UNCLEAR,
    describe_probes,
    describe_rows,
    head_grid,
    head_numbers,
    role_colour,
    spell_value,
)
from attnscope.studies.screens.header import (
    arrow,
    describe_mask,
    more_options,
    notes,
    own_mask_name,
    random_weights_of,
    report_header,
    short_path,
    text_headers,
    unknown_tokens,
    unknown_words,
)
from attnscope.studies.study import Display, Listing
from attnscope.views.numbers import MINUS, Digits, digits_for
from attnscope.views.parts import GAP, Column, Facts, Table, Text, ViewPart, paragraph
from attnscope.views.scales import Scale
from attnscope.views.settings import DisplaySettings
from attnscope.views.spans import Span, Spans, note, ours, untrusted

_MOST = 10  # heads that are listed
_OF_A_ROLE = 64  # heads of a role from which a view takes as many as fit on a line
_LONGEST_HEADING = 12  # characters
_LEAST = 0.005  # smaller changes would show as 0.00


def present_changes(comparison: HeadComparison, settings: DisplaySettings, display: Display) -> Iterator[ViewPart]:
    """Turn the differences between two models' heads into parts."""
    labels = [side.label if settings.verbose else short_path(side.label) for side in comparison.sides]
    labels = labels if len(set(labels)) == len(labels) else [side.label for side in comparison.sides]
    first, second = (side.roles or side.measured for side in comparison.sides)
    assert first is not None and second is not None
    yield from _header(comparison, labels, (first, second), settings)
    yield GAP
    if isinstance(first, HeadRoles) and isinstance(second, HeadRoles) and len(comparison.differences) > ROLES_ALONE:
        yield from _roles(comparison, labels, (first, second), display.listing)
    else:
        yield from _numbers(comparison, labels, (first, second), settings, display.listing)
    yield notes(comparison.notes)
    one_role = ["--role induction (its values for every head)"] if len(comparison.differences) > ROLES_ALONE else []
    yield from more_options([*one_role, "--top K (more heads)", "--format json, -o heads.csv (every number)"], settings)


def _header(
    comparison: HeadComparison,
    labels: Sequence[str],
    sides: tuple[HeadRoles | HeadScores, HeadRoles | HeadScores],
    settings: DisplaySettings,
) -> Iterator[ViewPart]:
    """Present the two models and their common data."""
    first, second = sides
    if isinstance(first, HeadRoles):
        yield from unknown_tokens(first.probes.unknown, first.probes.tokens)
    else:
        yield from unknown_words(first.texts)
    yield from report_header(first.provenance, first.mask, settings)
    yield from random_weights_of(labels[1], second.provenance, first.provenance)
    yield Facts([("compare", (Span(f"{comparison.axis}: "), *arrow(labels)))])
    if second.mask != first.mask:
        mask = describe_mask(second.mask, own_mask_name(second.provenance))
        yield Facts([("mask", (*untrusted(labels[1]), Span(": "), *mask))])
    if isinstance(first, HeadRoles):
        yield Facts([(name, note(text)) for name, text in describe_probes(first)])
        return
    for header, text in zip(text_headers(first.texts, settings), first.texts, strict=True):
        yield header
        yield Facts(list(describe_rows(text)))


def _roles(
    comparison: HeadComparison, labels: Sequence[str], sides: tuple[HeadRoles, HeadRoles], listing: Listing
) -> Iterator[ViewPart]:
    """Present the change of each head, the heads that changed most, and the changes of every role."""
    size = np.abs(comparison.changed_most)
    n_layers, n_heads = size.shape
    mains = [[row[:n_heads] for row in side.main[:n_layers]] for side in sides]
    changed = sum(
        a != b for first_row, second_row in zip(*mains, strict=True) for a, b in zip(first_row, second_row, strict=True)
    )
    has = "has" if changed == 1 else "have"
    text = f"  largest change of a role; {changed} of {size.size} heads {has} another main role"
    yield paragraph((Span("what changed", "title"), Span(text)))
    letters, names = (
        [
            [write(a) if a == b else f"{write(a)}{arrow}{write(b)}" for a, b in zip(first_row, second_row, strict=True)]
            for first_row, second_row in zip(*mains, strict=True)
        ]
        for write, arrow in ((_letter, "→"), (_title, " → "))
    )
    full = float(np.nanmax(size)) if np.isfinite(size).any() else 0.0
    yield head_grid(size, letters, Scale(0.0, full, False), Digits(2), names=names)
    yield GAP
    if (np.nan_to_num(size) < _LEAST).all():
        yield paragraph(ours(f"no role of any of {size.size:,} heads changes by {_LEAST:g} or more"))
        yield GAP
        return
    yield _changed_heads(comparison, labels, sides, listing)
    yield GAP
    yield _changed_roles(comparison, labels, sides, listing)
    yield GAP
    text = f"A→B: the main role was A and is B; {UNCLEAR} is no clear role. A darker shade is a larger change."
    yield paragraph(ours(text), remark=True)


def _letter(role: str | None) -> str:
    return ROLES[role].letter if role in ROLES else UNCLEAR


def _title(role: str | None) -> str:
    return ROLES[role].title if role in ROLES else NO_ROLE


def _changed_heads(
    comparison: HeadComparison, labels: Sequence[str], sides: tuple[HeadRoles, HeadRoles], listing: Listing
) -> Table:
    """List the heads that changed most, with their main role in both models."""
    heads = Listing(listing.top, listing.sort, signed=False).heads(comparison.changed_most, _MOST)
    heads = [place for place in heads if abs(comparison.changed_most[place]) >= _LEAST]
    by_name = {difference.name: difference for difference in comparison.differences}
    changes = [_change(by_name[str(comparison.role[layer][head])], layer, head) for layer, head in heads]
    columns = [
        Column(heading, [_main_role(side, layer, head) for layer, head in heads], left=True)
        for heading, side in zip(_headings(labels), sides, strict=True)
    ]
    return Table(
        "head",
        [*columns, Column("largest change", changes, left=True)],
        labels=[ours(f"L{layer}H{head}", "bold") for layer, head in heads],
        indent=0,
    )


def _headings(labels: Sequence[str]) -> list[Spans]:
    """Return column headings: the labels, unless they are wider than their columns."""
    short = all(len(label) <= _LONGEST_HEADING for label in labels)
    return [untrusted(label) for label in labels] if short else [ours("first"), ours("second")]


def _main_role(survey: HeadRoles, layer: int, head: int) -> Spans:
    name = survey.main[layer][head]
    if name is None:
        return ours("no clear role", "dim")
    role = next(values for values in survey.roles if values.name == name)
    value = spell_value(role.values, None, layer, head, 2)
    return Span(role.letter, "bold", colour=role_colour(role)), Span(f" {role.title} {value}")


def _change(difference: HeadDifference, layer: int, head: int, digits: int = 2, *, named: bool = True) -> Spans:
    """Spell a change with its sign and standard error, and the title of its role."""
    value, error = float(difference.difference[layer, head]), float(difference.error[layer, head])
    sign = MINUS if value < 0 else "+"
    spelled = f"{sign}{abs(value):.{digits}f}" + ("" if np.isnan(error) else f" ±{error:.{digits}f}")
    title = ROLES[difference.name].title if difference.name in ROLES else difference.name
    return ours(f"{title} {spelled}" if named else spelled)


def _changed_roles(
    comparison: HeadComparison, labels: Sequence[str], sides: tuple[HeadRoles, HeadRoles], listing: Listing
) -> Table:
    """List every role, the most changed first: its heads in each model, and the largest changes."""
    most = {difference.name: _largest(difference.difference) for difference in comparison.differences}
    shown = sorted(comparison.differences, key=lambda difference: -most[difference.name])
    n_layers, n_heads = comparison.changed_most.shape
    counts = [[name for row in side.main[:n_layers] for name in row[:n_heads]] for side in sides]
    names: list[Spans] = []
    cells: list[Text] = []
    for difference in shown:
        role = ROLES[difference.name]
        names.append((Span(role.letter, "bold", colour=role.colour), Span(f" {role.title}")))
        heads = Listing(listing.top, listing.sort, signed=False).heads(difference.difference, _OF_A_ROLE)
        listed = [
            (*ours(f"L{layer}H{head} "), *_change(difference, layer, head, named=False))
            for layer, head in heads
            if abs(difference.difference[layer, head]) >= _LEAST
        ]
        nothing = "no head changes" if most[difference.name] >= 0 else "not measured in both"
        cells.append(Text(listed or [ours(nothing, "dim")], "  ", cut="" if listing.top is None else None))
    columns = [
        Column(
            column_heading,
            [
                ours("–" if ROLES[difference.name].rank is None else str(names.count(difference.name)))
                for difference in shown
            ],
        )
        for column_heading, names in zip(_headings(labels), counts, strict=True)
    ]
    heading = Text([ours("largest changes"), ours("± standard error")], ", ", cut="")
    return Table("role", [*columns, Column(heading, cells, left=True)], labels=names, indent=0)


def _largest(difference: Matrix) -> float:
    known = np.abs(difference[np.isfinite(difference)])
    return float(known.max()) if known.size else -1.0


def _numbers(
    comparison: HeadComparison,
    labels: Sequence[str],
    sides: tuple[HeadRoles | HeadScores, HeadRoles | HeadScores],
    settings: DisplaySettings,
    listing: Listing,
) -> Iterator[ViewPart]:
    """Present a few roles, or one number, of both models on one scale, and their difference."""
    values = [
        {side.measure: side.values} if isinstance(side, HeadScores) else {r.name: r.values for r in side.roles}
        for side in sides
    ]
    digits = max(2, settings.precision)
    for difference in comparison.differences:
        role = ROLES.get(difference.name)
        meaning = role.meaning if role else sides[0].meaning if isinstance(sides[0], HeadScores) else ""
        title = f"{role.letter} {role.title}" if role else difference.name
        yield paragraph((Span(title, "title"), Span("  "), *note(meaning)))
        if _largest(difference.difference) < 0:
            yield paragraph(ours("not measured in both", "dim"))
            continue
        n_layers, n_heads = difference.difference.shape
        if not np.nan_to_num(difference.difference).any():
            yield paragraph(ours(f"the same number in all {difference.difference.size:,} heads"))
            yield GAP
            continue
        small = digits_for(difference.difference, digits).decimals
        both = [numbers[difference.name] for numbers in values]
        for label, matrix in zip(labels, both, strict=True):
            yield paragraph(untrusted(label, "bold"))
            yield head_numbers(matrix[:n_layers, :n_heads], settings, together=both)
        yield paragraph((*ours("difference  ", "bold"), *arrow(labels)))
        yield head_numbers(difference.difference, settings, signed=True)
        yield GAP
        heads = Listing(listing.top, listing.sort, signed=False).heads(difference.difference, _MOST)
        items = [
            (
                *ours(f"L{layer}H{head} {spell_value(both[0], None, layer, head, small)} → "),
                *ours(f"{spell_value(both[1], None, layer, head, small)} ("),
                *_change(difference, layer, head, small, named=False),
                *ours(")"),
            )
            for layer, head in heads
        ]
        yield Facts([("changed", Text(items, "  "))], remark=False, look="bold")
        yield GAP
