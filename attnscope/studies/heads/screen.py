"""What every head does: a picture of layers × heads, and the strongest heads."""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Literal

import numpy as np
from msgspec import structs

from attnscope.base.layer_kinds import LAYER_KINDS
from attnscope.findings.arrays import Matrix
from attnscope.findings.head_findings import HeadRoles, HeadScores, KeyContrast, RoleValues
from attnscope.findings.head_roles import ROLES
from attnscope.studies.heads.example_screen import ROLES_ALONE, present_example
from attnscope.studies.screens.contributors import MEASURES
from attnscope.studies.screens.header import (
    WORDS_HINT,
    counted,
    more_options,
    named_positions,
    notes,
    report_header,
    splits_character,
    text_headers,
    unknown_tokens,
    unknown_words,
)
from attnscope.views.axes import Axis
from attnscope.views.numbers import Digits, digits_for, formatted
from attnscope.views.parts import (
    GAP,
    Column,
    Facts,
    Matrices,
    Panel,
    Table,
    Text,
    ViewPart,
    paragraph,
)
from attnscope.views.scales import Scale, Shape, shares_of_largest
from attnscope.views.settings import DisplaySettings, Listing
from attnscope.views.spans import Span, Spans, note, ours, token_span
from attnscope.views.walk.effects import tied_names

_STRONGEST = 10  # number of heads listed for one role or measure
_MOST = 64  # number of heads of a role from which a view takes as many as fit on a line
UNCLEAR = "?"
_SHARE = "share of weight"
# what values are measured on, by `RoleValues.measured`
_MEASURED = {
    "texts": "in the texts",
    "images": "in the pictures",
    "repeated": "in random tokens written twice",
    "tripled": "three times",
    "needle": "with a needle",
    "weights": "of the weights alone",
}
_NO_KEY = "no such key in the texts, or the mask hides it"
NO_ROLE = "no clear role"
_GREY = "#969696"  # of a role without a colour
_LEAST = 0.005  # smaller values would show as 0.00
_NOISE = 1e-6  # what rounding leaves of a share of zero


def present_survey(survey: HeadRoles, settings: DisplaySettings) -> Iterator[ViewPart]:
    """Turn the roles of all heads into parts, with two digits, because they have standard errors."""
    settings = replace(settings, precision=2)
    listing = settings.listing
    yield from unknown_tokens(survey.probes.unknown, survey.probes.tokens)
    yield from report_header(survey.provenance, survey.mask, settings)
    yield Facts(
        [*((name, note(text)) for name, text in describe_probes(survey)), *_about_shares(survey)]
    )
    yield GAP
    if len(survey.roles) <= ROLES_ALONE:
        for role in survey.roles:
            yield from _role(role, settings, listing, _kinds(survey))
            yield GAP
    else:
        main = [name for row in survey.main for name in row]
        if settings.is_figure and (listing.top is None or settings.figure.only is not None):
            strongest_heads = _legend(survey)
        else:
            strongest_heads = _strongest_of_roles(survey, listing)
        numbers = [("values", _numbers_of_roles(survey)), ("measured", _texts_of_roles(survey))]
        about = Facts([*numbers, *_limits_of_roles(survey)])
        n_heads = sum(_head_counts(survey))
        none = n_heads - sum(name is not None for name in main)
        if none:
            have = "has" if none == 1 else "have"
            answer = f"{none} of {n_heads} heads {have} no clear role"
            once = f" ({UNCLEAR}); every other head"
        else:
            answer = f"all {n_heads} heads have a clear role"
            once = "; each"
        once += " is counted at its main role alone"
        if not settings.is_figure:
            once += ", whose letter follows it in other rows"
        message = paragraph((Span(answer, "bold"), Span(once)), remark=True)
        yield from answer_first([message, strongest_heads, about], [_picture(survey)], settings)
        texts = f"the {'built-in' if survey.probes.shipped else 'given'} texts"
        random = " and the random tokens" * bool(survey.probes.repeated and survey.probes.draws)
        legend = f"Values are averages over {texts}{random}; run and its pages measure"
        legend += " their own text, where values can differ."
        if any(ROLES[role.name].rank is None for role in survey.roles):
            legend += " A role with – is never the main one."
        yield GAP
        yield paragraph(ours(legend), remark=True)
    if settings.is_figure:
        yield from present_example(survey, settings.every_head, settings)
        yield GAP
    yield notes(survey.notes)
    if len(survey.roles) <= ROLES_ALONE:
        more = []
    else:
        more = ["--role induction (its values for every head)"]
    yield from more_options(
        [*more, "--top K (more heads)", "--json, -o heads.csv (every number)"], settings
    )


def present_measured(measured: HeadScores, settings: DisplaySettings) -> Iterator[ViewPart]:
    """Turn one number for every head into parts."""
    yield from unknown_words(measured.texts)
    yield from report_header(measured.provenance, measured.mask, settings)
    yield from measured_texts(measured, settings)
    yield Facts([*_about_shares(measured)])
    yield GAP
    title = paragraph((Span(measured.measure, "title"), Span("  "), *note(measured.meaning)))
    if not np.isfinite(measured.values).any():
        yield title
        yield paragraph(ours("no head has a number: none of these rows may read a key"))
    elif measured.contrast is None and (nothing := _nothing(measured.values)):
        yield title
        yield paragraph(ours(nothing))
    else:
        yield from _numbers(measured, title, settings)
        if settings.is_figure:
            yield from present_example(measured, settings.every_head, settings)
    yield GAP
    yield notes(measured.notes)
    if any(text.keys is None for text in measured.texts):
        other = "--measure weight --key WORD"
    elif measured.contrast is None:
        other = "--against WORD (compared with another key)"
    else:
        other = "--query WORD"
    split = any(
        splits_character(tokens, positions or ())
        for text in measured.texts
        for tokens, positions in (
            (text.tokens, text.queries),
            (text.sources, text.keys),
            (text.sources, text.against),
        )
    )
    words = [WORDS_HINT] if split else []
    queries = measured.texts[0].queries
    if len(queries) > 1 and len(queries) < len(measured.texts[0].tokens):
        words.append(f"--query {queries[-1]} (that row alone)")
    yield from more_options(
        [other, *words, "--top K (more heads)", "--json (every number)"], settings
    )


def _numbers(measured: HeadScores, title: Text, settings: DisplaySettings) -> Iterator[ViewPart]:
    is_share = measured.measure == "weight" and bool(np.nanmin(measured.values, initial=0) >= 0)
    if is_share:  # on the scale that weights have everywhere
        picture = head_numbers(
            measured.values, settings, kinds=_kinds(measured), shape=settings.ramp, largest=1.0
        )
    else:
        picture = head_numbers(measured.values, settings, kinds=_kinds(measured))
    answer: ViewPart
    if measured.contrast is None:
        answer = strongest(measured.values, None, settings.listing, settings)
    else:
        answer = _contrasted(measured, measured.contrast, settings.listing, settings)
    digits = digits_for(measured.values, max(2, settings.precision)).decimals
    sentence = paragraph(_sentence(measured, digits))
    yield from answer_first([sentence, answer], [title, picture], settings)


def _sentence(measured: HeadScores, digits: int) -> Spans:
    """Say in which heads the number is largest, of a difference also in which one it is smallest."""
    values = measured.values
    if measured.texts[0].keys is None:
        return ours(f"{measured.measure} is largest in {_largest(values, digits)}")
    query = _named(measured, "queries")
    key = _named(measured, "keys")
    by = f" by {MEASURES[measured.measure]}" if measured.measure != "weight" else ""
    start: Spans = (*query, Span(" read " if len(query) == 1 else " reads "))
    contrast = measured.contrast
    if contrast is None:
        return (*start, *key, Span(f" most{by} in {_largest(values, digits)}"))
    against = _named(measured, "against")
    clauses: list[Spans] = []
    for sign, (more, less) in ((1, (key, against)), (-1, (against, key))):
        head = np.unravel_index(int(np.nanargmax(sign * values)), values.shape)
        if sign * values[head] > 0:
            sides = (contrast.keys[head], contrast.against[head])[::sign]
            numbers = " against ".join(formatted(number, f"z.{digits}f") for number in sides)
            place = f"{by}, most in L{head[0]}H{head[1]} ({numbers})"
            clauses.append((*more, Span(" more than "), *less, Span(place)))
    if not clauses:
        return (*start, *key, Span(f" as much{by} as "), *against, Span(" in every head"))
    return (*start, *(span for clause in clauses for span in (*clause, Span("; "))))[:-1]


def _named(measured: HeadScores, side: Literal["queries", "keys", "against"]) -> Spans:
    """Name the token of a side, in quotes; of different tokens, what they are."""
    names = {
        token_span(text.tokens if side == "queries" else text.sources, position, "bold")
        for text in measured.texts
        for position in getattr(text, side)
    }
    if len(names) != 1:
        return ours({"queries": "queries", "keys": "keys", "against": "those of --against"}[side])
    return Span('"'), names.pop(), Span('"')


def _largest(values: Matrix, digits: int) -> str:
    """Name the heads with the largest number, which are several if they tie in these digits, and the number."""
    texts = np.vectorize(lambda value: formatted(value, f"z.{digits}f"))(values)
    largest = texts[np.unravel_index(int(np.nanargmax(values)), values.shape)]
    names = [f"L{layer}H{head}" for layer, head in np.argwhere(texts == largest).tolist()]
    return f"{tied_names(names)}: {largest}"


def answer_first(
    answer: Sequence[ViewPart], picture: Sequence[ViewPart], settings: DisplaySettings
) -> Iterator[ViewPart]:
    """Present the strongest heads above the picture of all, which may take more than a screen; a figure begins with it."""
    if settings.fixed:
        yield from (*picture, GAP, *answer)
        return
    yield from answer
    for part in (GAP, *picture) if picture else ():
        if isinstance(part, Matrices):
            part = structs.replace(part, beside=True)
        yield part


def _contrasted(
    measured: HeadScores, contrast: KeyContrast, listing: Listing, settings: DisplaySettings
) -> Table:
    """List the heads with the largest differences, beside the numbers of both sets of keys."""
    places = replace(listing, signed=False).heads(measured.values, _STRONGEST)
    numbers = {"difference": measured.values, "key": contrast.keys, "against": contrast.against}
    digits = max(2, settings.precision)
    columns = []
    for name, values in numbers.items():
        sign = "+" * (name == "difference")
        columns.append(
            Column(
                name,
                [
                    formatted(float(values[layer_head]), f"{sign}z.{digits}f")
                    for layer_head in places
                ],
            )
        )
    return Table("head", columns, labels=[ours(f"L{layer}H{head}") for layer, head in places])


def describe_probes(survey: HeadRoles) -> Iterator[tuple[str, str]]:
    """Describe the texts and random tokens on which roles were measured."""
    probes = survey.probes
    whose = "built-in" if probes.shipped else "given"
    yield "texts", f"{probes.texts} ({whose}), {counted(probes.tokens, 'token')}"
    if probes.repeated and probes.draws:
        n = probes.draws
        size = probes.repeated
        texts = [f"{n} texts of {size} random tokens written twice"]
        if probes.tripled:
            texts += [f"{n} texts of {probes.tripled} tokens written three times"]
        if probes.needle:
            texts.append(
                f"{n} texts of {2 * size} tokens whose last {probes.needle} also occur before (the needle)"
            )
        before = " ".join(probes.before)
        after = " ".join(probes.after)
        if before:
            inside = f", each after {before}"
        elif after:
            inside = f", each before {after}"
        else:
            inside = ""
        if before and after:
            inside = f", each between {before} and {after}"
        yield "random", f"{', '.join(texts)}{inside}; seed {probes.seed}"


def measured_texts(measured: HeadScores, settings: DisplaySettings) -> Iterator[ViewPart]:
    """Present the texts of a measurement, and its rows and keys unless they are all."""
    for header, text in zip(text_headers(measured.texts, settings), measured.texts, strict=True):
        yield header
        lines: list[tuple[str, Spans]] = []
        sides = ("query", text.queries, text.tokens), ("key", text.keys, text.sources)
        for name, places, tokens in (*sides, ("against", text.against, text.sources)):
            if places is not None and len(places) < len(tokens):
                named = named_positions(tokens, places, _STRONGEST)
                if name == "query" and len(places) > 1 and measured.measure != "max_score":
                    named = (*named, Span("; numbers are averages over these rows"))
                lines.append((name, named))
        yield Facts(lines)


def _picture(survey: HeadRoles) -> Matrices:
    """Present the letter of each head's main role, and its strength."""
    looks_by_role: dict[str | None, tuple[str, str, str]] = {None: (UNCLEAR, NO_ROLE, "")}
    looks_by_role |= {
        role.name: (role.letter, role.title, role_colour(role)) for role in survey.roles
    }
    letters, names, colours = (
        [[looks_by_role[name][n] for name in row] for row in survey.main] for n in range(3)
    )
    counts = _head_counts(survey)
    for layer, row in enumerate(letters):
        row[counts[layer] :] = [""] * (len(row) - counts[layer])
    values = np.full((len(letters), len(letters[0])), np.nan, np.float32)
    by_name = survey.by_name()
    for (layer, head), _ in np.ndenumerate(values):
        if (name := survey.main[layer][head]) is not None:
            values[layer, head] = by_name[name][layer, head]
    return head_grid(
        values,
        letters,
        Scale(0.0, 1.0, False),
        Digits(2),
        colours=colours,
        names=names,
        fuller="a stronger role",
        kinds=_kinds(survey),
    )


def _head_counts(survey: HeadRoles) -> list[int]:
    """Count the heads of every layer whose roles are shown."""
    heads = survey.provenance.n_heads
    attending = {layer: heads for layer in survey.provenance.attending}
    return [
        {**attending, **survey.shares}.get(layer, 0) for layer in range(survey.provenance.n_layers)
    ]


def _kinds(survey: HeadRoles | HeadScores) -> list[str]:
    """Return the letter of the shown path of every layer; nothing if all are attention."""
    if not survey.shares:
        return []
    kinds = survey.provenance.layer_kinds
    letters = [[LAYER_KINDS[path] for path in paths] for paths in kinds]
    return [
        "".join(path.letter for path in paths if path.attends != (layer in survey.shares))
        for layer, paths in enumerate(letters)
    ]


def _about_shares(survey: HeadRoles | HeadScores) -> Iterator[tuple[str, Spans]]:
    """Say which layers have roles or numbers of shares of |M|, and which roles these cannot have."""
    if not survey.shares:
        return
    kinds = {survey.provenance.layer_kinds[layer] for layer in survey.shares}
    names = [
        layer_kind
        for layer_kind in LAYER_KINDS.values()
        if any(layer_kind.name in paths for paths in kinds)
    ]
    letters = ", ".join(layer_kind.letter for layer_kind in names if not layer_kind.attends)
    roles = survey.roles if isinstance(survey, HeadRoles) else []
    without = [role.name for role in roles if not ROLES[role.name].of_shares]
    what = "roles" if roles else "numbers"
    text = (
        f"{what} in layers {letters} are of shares of |M|, the layer's matrix, in place of weights"
    )
    if without:
        text += f"; they have no role {', '.join(without)}"
    yield "|M|", note(text)
    if survey.channels:
        counts = sorted(set(survey.channels.values()))
        if len(counts) == 1:
            each = f"{counts[0]:,}"
        else:
            each = f"{counts[0]:,} to {counts[-1]:,}"
        yield (
            "channels",
            note(
                f"each of the {each} channels of a layer {letters} has a matrix; one head is their mean"
            ),
        )


def head_grid(
    values: Matrix,
    texts: list[list[str]],
    scale: Scale,
    digits: Digits,
    *,
    colours: list[list[str]] | None = None,
    names: list[list[str]] | None = None,
    fuller: str = "",
    kinds: Sequence[str] = (),
) -> Matrices:
    """Present a cell for every head, (layers, heads); `kinds` are letters behind the numbers of layers.

    `colours`, `names` and `fuller` are those of a Panel.
    """
    n_layers, n_heads = values.shape
    labels = [f"L{n} {kinds[n]}" if kinds else f"L{n}" for n in range(n_layers)]
    layers = Axis("layer", range(n_layers), [], [False] * n_layers, n_layers, labels)
    heads = Axis(
        "head", range(n_heads), [], [False] * n_heads, n_heads, [f"H{n}" for n in range(n_heads)]
    )
    cells = "heads", (), values, texts, layers, heads, scale, digits
    return Matrices([Panel(*cells, colours=colours, names=names, fuller=fuller)], heat=True)


def role_colour(role: RoleValues) -> str:
    """Return the colour of a role; grey for an unknown role."""
    return (ROLES[role.name].colour if role.name in ROLES else None) or _GREY


def _role_names(survey: HeadRoles) -> list[Spans]:
    return [
        (Span(role.letter, "bold", colour=role_colour(role)), Span(f" {role.title}"))
        for role in survey.roles
    ]


def _legend(survey: HeadRoles) -> Table:
    """Name every role with its strongest head, and draw how many heads have it as their main role."""
    counts = [_strongest_row(survey, role, Listing())[0] for role in survey.roles]
    strongest = [_strongest_head(role) for role in survey.roles]
    heads = [_count(survey, role) for role in survey.roles]
    columns = [Column("heads", counts), Column("strongest ± s.e.", strongest, left=True)]
    bars = shares_of_largest(heads)
    axis = max(heads), "heads"
    names = _role_names(survey)
    return Table("role", columns, labels=names, indent=0, bars=bars, axis=axis, legend=True)


def _strongest_head(role: RoleValues) -> Spans:
    if np.isnan(role.values).all():
        return ours("not measured", "dim")
    if np.nanmax(role.values) < _LEAST:
        return ours("no such key" if _has_no_key(role) else "0.00 in all", "dim")
    layer, head = divmod(int(np.nanargmax(role.values)), role.values.shape[1])
    value = spell_value(role.values, role.errors, layer, head, 2)
    return ours(f"L{layer}H{head} {value}", "dim" if role.values[layer, head] < role.clear else "")


def _strongest_of_roles(survey: HeadRoles, listing: Listing) -> Table:
    """List the strongest heads of every role, and how many heads have it as their main role."""
    names = _role_names(survey)
    counts, strongest = zip(
        *(_strongest_row(survey, role, listing) for role in survey.roles), strict=True
    )
    heading = Text([ours("strongest"), ours("± standard error from 0.005 on")], ", ", cut="")
    columns = [Column("heads", counts), Column(heading, strongest, left=True)]
    return Table("role", columns, labels=names, indent=0)


def _numbers_of_roles(survey: HeadRoles) -> Text:
    """Say what the values are of the roles with these letters."""
    letters: dict[str, list[str]] = {}
    for role in survey.roles:
        letters.setdefault(ROLES[role.name].number, []).append(role.letter)
    return Text([ours(f"{' '.join(of)}: {number}") for number, of in letters.items()], " · ")


def _texts_of_roles(survey: HeadRoles) -> Text:
    """Say on what the values of the roles with these letters are measured."""
    letters: dict[str, list[str]] = {}
    for role in survey.roles:
        letters.setdefault(role.measured, []).append(role.letter)
    items = [f"{' '.join(of)}: {_MEASURED.get(what, what)}" for what, of in letters.items()]
    return Text([ours(item) for item in items], " · ")


def _limits_of_roles(survey: HeadRoles) -> Iterator[tuple[str, Spans]]:
    """Say from which values on roles are clear, the limit of most of them first."""
    letters: dict[float, list[str]] = {}
    for role in survey.roles:
        if ROLES[role.name].rank is not None:
            letters.setdefault(role.clear, []).append(role.letter)
    limits = sorted(letters, key=lambda limit: -len(letters[limit]))
    others = [f"{' '.join(letters[limit])} {limit:g}" for limit in limits[1:]]
    if limits:
        yield "clear", ours(f"from {limits[0]:g} on{'; ' * bool(others)}{', '.join(others)}")


def _count(survey: HeadRoles, role: RoleValues) -> int:
    """Return the number of heads whose main role it is."""
    return sum(row.count(role.name) for row in survey.main)


def _has_no_key(role: RoleValues) -> bool:
    """Tell whether no row could read what the role is about: softmax gives some weight to every key that it may read."""
    return ROLES[role.name].number == _SHARE and not np.nan_to_num(role.values).any()


def _strongest_row(survey: HeadRoles, role: RoleValues, listing: Listing) -> tuple[Spans, Text]:
    count = _count(survey, role)
    listed = [
        layer_head
        for layer_head in listing.heads(role.values, _MOST)
        if abs(role.values[layer_head]) >= _LEAST
    ]
    letters = {other.name: f" {other.letter}" for other in survey.roles if other.name != role.name}
    is_ranked = ROLES[role.name].rank is not None
    unclear = [head for head in listed if role.values[head] < role.clear]
    weak = unclear if is_ranked else []
    heads = []
    for layer, head in [head for head in listed if head not in weak] + weak:
        name = f"L{layer}H{head}{letters.get(survey.main[layer][head] or '', '')}"
        value = spell_value(role.values, role.errors, layer, head, 2)
        entry = ours(f"{name} {value}", "dim" if (layer, head) in unclear else "")
        if [(layer, head)] == weak[:1]:
            entry = (*ours(f"below {role.clear:g}:", "dim"), *ours(" "), *entry)
        heads.append(entry)
    if not heads:
        measured = not np.isnan(role.values).all()
        cell = ours("0" if measured else "–", "dim")
        why = "0.00 in all heads" if measured else "not measured"
        if measured and _has_no_key(role):
            why = _NO_KEY
        return cell, Text([ours(why, "dim")])
    cell = ours("–" if ROLES[role.name].rank is None else str(count), "" if count else "dim")
    if listing.top is not None:
        return cell, Text(heads, "  ")
    visible = int((np.abs(role.values) >= _LEAST).sum())
    return cell, Text(heads, "  ", cut="", unlisted=visible - len(listed))


def spell_value(values: Matrix, errors: Matrix | None, layer: int, head: int, digits: int) -> str:
    """Format a value and its standard error, if it has one that is not zero in these digits."""
    error = float("nan") if errors is None else float(errors[layer, head])
    written = f"{error:.{digits}f}"
    return formatted(values[layer, head], f"z.{digits}f") + (
        "" if np.isnan(error) or not float(written) else f" ±{written}"
    )


def _role(
    role: RoleValues, settings: DisplaySettings, listing: Listing, kinds: Sequence[str]
) -> Iterator[ViewPart]:
    """Present the value of one role for every head."""
    meaning = note(f"{role.meaning}")
    yield paragraph(
        (
            Span(f"{role.letter} {role.title}", "title"),
            Span("  "),
            *meaning,
            Span(f" ({role.source})"),
        )
    )
    if np.isnan(role.values).all():
        yield paragraph(ours("not measured", "caption"))
        return
    if nothing := _nothing(role.values):
        yield paragraph(ours(nothing))
        return
    # small values do not look strong, and roles can be compared
    picture = head_numbers(role.values, settings, kinds=kinds, shape=settings.ramp, largest=1.0)
    answer: list[ViewPart] = [strongest(role.values, role.errors, listing, settings)]
    declared = ROLES[role.name]
    if declared.rank is not None:
        answer.insert(0, paragraph(ours(_having(role.values, declared.clear))))
    yield from answer_first(answer, [picture], settings)


def _having(values: Matrix, clear: float) -> str:
    """Say how many heads have a role."""
    count = int((values >= clear).sum())
    of = f"{count} of {counted(int(np.isfinite(values).sum()), 'head')}" if count else "no head"
    return f"{of} {'have' if count > 1 else 'has'} this role clearly, from {clear:g} on"


def _nothing(values: Matrix) -> str:
    """Say that the numbers of all heads are zero, up to rounding; empty if one is not."""
    known = np.abs(values[np.isfinite(values)])
    if not known.size or known.max() >= _NOISE:
        return ""
    size = f"at most {known.max():.0e}" if known.any() else "0"
    return f"{size} in all {counted(known.size, 'head')}"


def head_numbers(
    values: Matrix,
    settings: DisplaySettings,
    *,
    together: Sequence[Matrix] = (),
    signed: bool = False,
    kinds: Sequence[str] = (),
    shape: Shape = "linear",
    largest: float | None = None,
) -> Matrices:
    """Present a number for every head, with a scale from the smallest to the largest.

    Differences are signed: their scale is centred at 0.

    Args:
        shape: How colours follow numbers.
        largest: End of the scale; None for the largest number.
    """
    every = np.concatenate([matrix.ravel() for matrix in together or [values]])
    finite = every[np.isfinite(every)].tolist() or [0.0]
    low = min(finite)
    end = largest or max(-low, *finite)
    if signed or low < 0:
        scale = Scale(-end, end, True, shape)
    else:
        scale = Scale(0.0, end, False, shape)
    precision = max(1, settings.precision)
    digits = digits_for(every, precision)
    texts = [
        ["–" if np.isnan(value) else digits.text(value) for value in row] for row in values.tolist()
    ]
    return head_grid(values, texts, scale, digits, kinds=kinds)


def strongest(
    values: Matrix, errors: Matrix | None, listing: Listing, settings: DisplaySettings
) -> Facts:
    """List the heads with the largest values; of values that are all 0, those that come first."""
    digits = digits_for(values, max(2, settings.precision)).decimals
    heads = listing.heads(values, _STRONGEST)
    heads = [head for head in heads if values[head]] or heads
    items = [
        f"L{layer}H{head} {spell_value(values, errors, layer, head, digits)}"
        for layer, head in heads
    ]
    return Facts(
        [("strongest", Text([ours(item) for item in items], "  "))], remark=False, look="bold"
    )
