"""What a cut changes, and the effects of every head, layer or edge, as parts."""

from collections.abc import Iterator

import numpy as np

from attnscope.findings.ablation import Ablation, Effects, EffectSurvey, PredictionChange
from attnscope.findings.run import Report, TextReport
from attnscope.studies.ablate.span_screen import present_spans
from attnscope.studies.ablate.target_screen import (
    before_target,
    changed_target,
    other_text,
    signed,
    target_columns,
    target_name,
)
from attnscope.studies.heads.screen import Listing, head_numbers
from attnscope.studies.screens.header import more_options, notes, report_header, text_header, unknown_words
from attnscope.studies.screens.predictions import percent
from attnscope.views.axes import token_axis
from attnscope.views.numbers import formatted
from attnscope.views.parts import GAP, Column, Facts, Table, ViewPart, paragraph
from attnscope.views.settings import DisplaySettings
from attnscope.views.spans import Span, Spans, note, ours, token_span, untrusted

_LISTED = 10
_ROWS = 16  # number of tokens whose hidden states are shown
_UNCHANGED = 0.0005  # smaller changes of a hidden state, relative to its length, would show as 0.0 %
_HOW = {
    "zero": ("set to 0", "{} replaced by 0"),
    "mean": ("set to mean", "{} replaced by {}"),
    "renormalised": ("renormalised", "its score is −inf, so softmax gives its weight to the other keys"),
    "unnormalised": ("unnormalised", "its weight is 0, and the other weights stay as they were"),
    "resample": ("resampled", "{} replaced by {} in other texts"),
    "patch": ("patched", "{} replaced by {} in the other text"),
}
_OUTPUTS = {"head": "the head's output is", "layer": "the outputs of its heads are", "edge": "what the query reads is"}
_OTHERS = {"head": "its output", "layer": "their outputs", "edge": "what it reads"}
_MEANS = {"head": "its mean", "layer": "their means"}
_KL = "how much the predictions change, as KL(before ‖ after) in bits"
_HIDDEN = "how much the final hidden state changes, relative to its length"
_EDGE = "edge A → B: what query A reads from key B."


def present_ablation(found: Ablation, settings: DisplaySettings) -> Iterator[ViewPart]:
    """Turn what a cut changes into parts."""
    yield from _header(found, settings)
    yield from other_text(found)
    yield GAP
    yield _cuts(found, settings)
    yield GAP
    if found.targets:
        yield from changed_target(found, {how: name for how, (name, _) in _HOW.items()}, settings)
        yield GAP
    if any(effect.predictions for effect in found.effects):
        for effects in zip(*(effect.predictions for effect in found.effects), strict=True):
            yield from _predictions(found, list(effects), settings)
            yield GAP
    yield from _hidden(found, settings)
    yield GAP
    yield notes(found.notes)
    edges = all(cut.queries is not None for cut in found.cuts)
    more = ["--cut L5H1 (a head)" if edges else "--cut 'L5H1: it→animal' (an edge)"]
    more += ["--with mean"] if any(effect.how == "zero" for effect in found.effects) else []
    more += ["--each head", "--at TOKEN"]
    yield from more_options([*more, "--format json (every number)"], settings)


def present_effects(found: EffectSurvey, settings: DisplaySettings, listing: Listing) -> Iterator[ViewPart]:
    """Turn the effects of every head, layer, edge or span into parts."""
    yield from _header(found, settings)
    yield from other_text(found)
    yield GAP
    if found.unit == "span":
        yield from present_spans(found, settings, listing)
        return
    for effects in found.effects:
        yield from _effects(found, effects, settings)
        yield GAP
    yield _strongest(found, listing, settings)
    yield GAP
    edge = [_EDGE] if found.unit == "edge" else []
    if any(found.restored(effects) is not None for effects in found.effects):
        edge.append("restored: the change as a share of the way from the text (0) to the other text (1).")
    meaning = found.meaning[:1].lower() + found.meaning[1:]
    yield notes([*edge, f"columns: {meaning.rstrip('.')}; its rank, 1 for the largest.", *found.notes])
    more = ["--top K (list more)", "--at TOKEN"]
    more += [] if found.targets else ["--target TOKEN (its logit)"]
    more += ["--each edge --layer N --head N"] if found.unit == "head" else []
    yield from more_options([*more, "--format json, -o effects.csv (every number)"], settings)


def _header(found: Ablation | EffectSurvey, settings: DisplaySettings) -> Iterator[ViewPart]:
    shown = TextReport(0, found.text, found.pair, found.tokens, found.context, [], [], [])
    yield from unknown_words([shown])
    yield from report_header(Report(found.provenance, found.mask, []), settings)
    yield text_header(shown, 1, settings)


def _cuts(found: Ablation, settings: DisplaySettings) -> Facts:
    """Say what is cut, and how much weight it has."""
    lines: list[tuple[str, Spans]] = []
    for cut in found.cuts:
        heads = "1 head" if len(cut.heads) == 1 else f"{len(cut.heads):,} heads"
        said: Spans = (*untrusted(cut.written, "bold"), Span("  "))
        if cut.queries is None:
            what = ours(
                f"{heads}; weight {cut.weight:.{settings.precision}f} on tokens that are not first or special", "dim"
            )
        else:
            pairs = len(cut.queries) * len(cut.keys or ())
            counted = "1 edge" if pairs == 1 else f"{pairs:,} edges"
            what = ours(f"{counted} of {heads}; weight {cut.weight:.{settings.precision}f}", "dim")
        lines.append(("cut", (*said, *what)))
    for effect in found.effects:
        edges = all(cut.queries is not None for cut in found.cuts)
        lines.append((_HOW[effect.how][0], note(_replaced(effect.how, "edge" if edges else "head"))))
    return Facts(lines, remark=False)


def _replaced(how: str, unit: str) -> str:
    """Say in words what happens to a head, a layer or an edge."""
    by = (_OTHERS if how in ("resample", "patch") else _MEANS).get(unit, "")
    return _HOW[how][1].format(_OUTPUTS[unit], by)


def _predictions(found: Ablation, changes: list[PredictionChange], settings: DisplaySettings) -> Iterator[ViewPart]:
    """Present what is predicted at one position, without the cut and with it in each way."""
    place = changes[0].position
    kl = "  ".join(
        f"{_HOW[effect.how][0]} {_size(one.kl, settings.precision)}"
        for effect, one in zip(found.effects, changes, strict=True)
    )
    at = (Span("prediction", "title"), Span(f"  at {place} "), token_span(found.tokens, place))
    yield paragraph((*at, Span(f"; KL divergence in bits: {kl}; bits: log₂ of after / before")))
    rows = changes[0].tokens
    columns = [Column("before", [percent(one.before) for one in rows])]
    for effect, change in zip(found.effects, changes, strict=True):
        columns.append(Column(_HOW[effect.how][0], [percent(one.after) for one in change.tokens]))
        columns.append(Column("bits", [formatted(one.change, "+z.2f") for one in change.tokens], "dim"))
    yield Table("token", columns, labels=[(Span(one.text, "", "token"),) for one in rows])


def _hidden(found: Ablation, settings: DisplaySettings) -> Iterator[ViewPart]:
    """Present cosine and change of the final hidden states; of a long text, those that change most."""
    largest = np.max([effect.change for effect in found.effects], axis=0)
    count, moved = len(found.tokens), largest >= _UNCHANGED * np.maximum(found.norms, np.finfo(np.float32).tiny)
    if not moved.any():
        said = f"  no token's changes by {_UNCHANGED:.2%} of its length or more".replace("%", " %")
        yield paragraph((Span("final hidden state", "title"), Span(said)))
        return
    rows = sorted(np.argsort(-largest, kind="stable")[: min(_ROWS, int(moved.sum()))].tolist())
    which = "of every token" if len(rows) == count else f"of the {len(rows)} tokens of {count:,} that change most"
    if len(rows) == moved.sum() < count:
        named = "the only token" if len(rows) == 1 else f"the {len(rows)} tokens"
        which = f"of {named} of {count:,} that it changes"
    axis = token_axis("token", found.tokens, rows)
    for n, effect in enumerate(found.effects):
        if n:
            yield GAP
        how = f" ({_HOW[effect.how][0]})" if len(found.effects) > 1 else ""
        said = f"  {which}: cosine of the states without and with the cut{how}, and length of their difference, "
        said += "absolute and relative"
        yield paragraph((Span("final hidden state", "title"), Span(said)))
        norms = zip(effect.change[rows].tolist(), found.norms[rows].tolist(), strict=True)
        columns = [
            Column("cosine", [_number(value, settings.precision) for value in effect.cosine[rows].tolist()]),
            Column("difference", [_size(value, settings.precision) for value in effect.change[rows].tolist()]),
            Column("relative", [f"{100 * change / norm:.1f} %" if norm else "–" for change, norm in norms], "dim"),
        ]
        yield Table("token", columns, axis, spelled=n + 1 == len(found.effects))


def _number(value: float, digits: int) -> str:
    """Write a number; a dash for one that is not defined, such as the cosine with a vector of zeros."""
    return "–" if np.isnan(value) else formatted(value, f"z.{digits}f")


def _size(value: float, digits: int) -> str:
    """Write a size that is at least 0; one that would round to 0 with two digits, so that only nothing is `0`."""
    if np.isnan(value):
        return "–"
    if value == 0:
        return "0"
    return formatted(value, f".{digits}f" if value >= 0.5 * 10**-digits else ".1e")


def _effects(found: EffectSurvey, effects: Effects, settings: DisplaySettings) -> Iterator[ViewPart]:
    """Show one effect of every unit as a picture, and how well weights predict it."""
    meaning, where, name = _HIDDEN if effects.kl is None else _KL, _where(found), _HOW[effects.how][0]
    doing = {"patch": "patching", "resample": "resampling"}.get(effects.how, "cutting")
    said = note(f"{meaning}, {where}, if {_replaced(effects.how, found.unit)}")
    if found.targets:
        said = (Span("change of the "), *target_name(found.targets), *note(f" ({before_target(found, settings)})"))
        said += note(f", {where}, if {_replaced(effects.how, found.unit)}")
    between = f"  {name}  " if len(found.effects) > 1 else "  "
    yield paragraph((Span(f"effect of {doing} each {found.unit}", "title"), Span(between), *said))
    if found.unit == "head":
        yield head_numbers(found.grid(effects.effect), settings)
    elif found.unit == "layer" and len(found.layers) > _LISTED:  # else the list below has all of them
        write = signed if found.targets else _size
        sizes = [write(value, settings.precision) for value in effects.effect.tolist()]
        labels = [ours(f"L{layer}") for layer in found.layers]
        yield Table("layer", [Column(_heading(effects), sizes)], labels=labels)
    if effects.correlation is not None:
        count = f"Spearman, {len(found.layers):,} {found.unit}s"
        value, effect = formatted(effects.correlation, "z.2f"), "size of the effect" if found.targets else "effect"
        yield paragraph(ours(f"rank correlation of weight and {effect} {value} ({count})"))


def _where(found: EffectSurvey) -> str:
    if not found.positions:
        return f"averaged over all {len(found.tokens)} tokens"
    places = ", ".join(f"{place} {found.tokens[place].text}" for place in found.positions[:3])
    more = f" and {len(found.positions) - 3} more" if len(found.positions) > 3 else ""
    return f"at {places}{more}"


def _strongest(found: EffectSurvey, listing: Listing, settings: DisplaySettings) -> Table:
    """List the units with the largest effects, with weights and ranks by weight."""
    order = found.order()[: listing.top or _LISTED]
    by_weight = np.argsort(np.argsort(-found.weights, kind="stable"), kind="stable") + 1
    digits, several = settings.precision, len(found.effects) > 1
    columns = []
    for effects in found.effects:
        heading = _HOW[effects.how][0] if several else _heading(effects)
        if found.targets:
            columns += target_columns(found, effects, order, heading, digits)
            if effects.kl is not None and not several:
                columns.append(Column("KL", [_size(effects.kl[n], digits) for n in order]))
        else:
            columns.append(Column(heading, [_size(effects.effect[n], digits) for n in order]))
        if effects.kl is not None and not several:
            columns.append(Column("hidden", [_size(effects.hidden[n], digits) for n in order]))
    columns.append(Column("weight", [_size(found.weights[n], digits) for n in order]))
    columns.append(Column("rank", [f"{by_weight[n]:,}" for n in order], "dim"))
    return Table(found.unit, columns, labels=[_label(found, n) for n in order])


def _heading(effects: Effects) -> str:
    return {"target": "change", "kl": "KL", "hidden": "hidden"}[effects.ranked_by]


def _label(found: EffectSurvey, n: int) -> Spans:
    head = f"L{found.layers[n]}" if found.unit == "layer" else f"L{found.layers[n]}H{found.heads[n]}"
    if found.unit != "edge":
        return ours(head)
    query, key = found.queries[n], found.keys[n]
    names = [
        Span(words[position], origin="token") if position in words else token_span(tokens, position)
        for words, tokens, position in zip(found.word_names(), (found.tokens, found.sources), (query, key), strict=True)
    ]
    return Span(f"{head}  {query} "), names[0], Span(f" → {key} "), names[1]
