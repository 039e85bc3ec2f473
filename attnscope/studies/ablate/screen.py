"""The effects of a cut, and of every head, layer or edge, as parts."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace as dataclass_replace
from typing import Any

import numpy as np

from attnscope.findings.ablation import (
    Ablation,
    Effects,
    EffectSurvey,
    PredictionChange,
    TokenChange,
    logit_of,
)
from attnscope.findings.images import picture_of
from attnscope.findings.tokens import Token
from attnscope.studies.ablate.span_screen import present_spans
from attnscope.studies.ablate.target_screen import (
    before_target,
    changed_target,
    correlation_text,
    effect_bars,
    other_text,
    ranked_weights,
    signed,
    sized,
    target_columns,
    target_name,
    weight_note,
)
from attnscope.studies.heads.screen import answer_first, head_numbers
from attnscope.studies.screens.header import (
    counted,
    more_options,
    notes,
    report_header,
    text_header,
    unknown_words,
)
from attnscope.studies.screens.predictions import percent
from attnscope.views.axes import token_axis
from attnscope.views.numbers import formatted
from attnscope.views.parts import (
    GAP,
    Column,
    Facts,
    Scatter,
    ScatterAxis,
    Table,
    ViewPart,
    paragraph,
)
from attnscope.views.settings import DisplaySettings, Listing
from attnscope.views.spans import TIE, Span, Spans, note, ours, token_span, untrusted
from attnscope.views.walk.effects import effect_word, verdict_text

_LISTED = 10
_ROWS = 16  # number of tokens whose hidden states are shown
# smaller changes of a hidden state, relative to its length, would show as 0.0 %
_UNCHANGED = 0.0005
_HOW = {
    "zero": ("set to 0", "{} replaced by 0"),
    "mean": ("set to mean", "{} replaced by {}"),
    "renormalised": (
        "renormalised",
        "the edge's score is −inf, so softmax gives its weight to the other keys",
    ),
    "unnormalised": (
        "unnormalised",
        "the edge's weight is 0, and the other weights stay as they were",
    ),
    "resample": ("resampled", "{} replaced by {} in other texts"),
    "patch": ("patched", "{} replaced by {} in the other text"),
}
# how a sentence on what is predicted without a unit begins
_WITHOUT = {
    "zero": "Without it",
    "mean": "With its mean in its place",
    "renormalised": "Without it",
    "unnormalised": "Without it",
    "resample": "With what it gives in other texts",
    "patch": "With what it gives in the other text",
}
_OUTPUTS = {
    "head": "the head's output is",
    "layer": "the outputs of its heads are",
    "edge": "what the query reads is",
}
_OTHERS = {"head": "its output", "layer": "their outputs", "edge": "what it reads"}
_HEADINGS = {"target": "change", "kl": "KL", "hidden": "hidden"}
_UNITS = {"target": "", "kl": "bits", "hidden": "", "loss": "bits"}
# names of the axis of effects, by what ranks them
_AXES = {
    "target": "change of the logit",
    "kl": "KL",
    "hidden": "change of the hidden state",
    "loss": "loss",
}
_MEANS = {"head": "its mean", "layer": "their means"}
_KL = "how much predictions change: KL(before ‖ after) in bits"
_HIDDEN = "how much the final hidden state changes, relative to its length"
# the same in a title of one line
_TITLES = "KL(before ‖ after) of predictions, in bits", "relative change of the final hidden state"
_EDGE = "edge A ← B: what query A reads from key B; "


def present_ablation(ablation: Ablation, settings: DisplaySettings) -> Iterator[ViewPart]:
    """Turn the effects of a cut into parts."""
    yield from _header(ablation, settings)
    yield from other_text(ablation)
    yield GAP
    yield _cuts(ablation, settings)
    yield GAP
    if ablation.targets:
        yield from changed_target(
            ablation, {how: name for how, (name, _) in _HOW.items()}, settings
        )
        yield GAP
    if any(effect.predictions for effect in ablation.effects):
        for effects in zip(*(effect.predictions for effect in ablation.effects), strict=True):
            yield from _predictions(ablation, list(effects), settings)
            yield GAP
    yield from _hidden(ablation, settings)
    yield GAP
    yield notes(ablation.notes)
    edges = all(cut.queries is not None for cut in ablation.cuts)
    more = ["--cut L0H0 (a head)" if edges else "--cut 'L0H0: QUERY←KEY' (an edge)"]
    if any(effect.how == "zero" for effect in ablation.effects):
        more += ["--replacement mean"]
    more += ["--each head (instead of --cut)", "--at TOKEN"]
    yield from more_options([*more, "--json (every number)"], settings)


def present_effects(
    survey: EffectSurvey, settings: DisplaySettings
) -> Iterator[ViewPart | Scatter]:
    """Turn the effects of every head, layer, edge or span into parts."""
    yield from _header(survey, settings)
    yield from other_text(survey)
    yield GAP
    if survey.unit == "span":
        yield from present_spans(survey, settings, settings.listing)
        return
    yield from _titles(survey, settings)
    picture: list[Any] = [*_picture(survey, settings)]
    if settings.is_figure and survey.unit == "head":
        picture += [GAP, weight_against_effect(survey)]
    answer = [*_largest(survey, settings), _strongest(survey, settings.listing, settings)]
    if text := correlation_text(survey, {how: name for how, (name, _) in _HOW.items()}):
        answer.append(paragraph(ours(text)))
    yield from answer_first(answer, picture, settings)
    yield GAP
    restored = []
    if any(survey.restored(effects) is not None for effects in survey.effects):
        restored.append(
            "restored: the change as a share of the way from the text (0) to the other text (1)."
        )
    edge = _EDGE if survey.unit == "edge" else ""
    yield notes([*restored, *_columns(survey), edge + weight_note(survey), *survey.notes])
    more = ["--top K (list more)", "--at TOKEN"]
    predicted = any(effects.kl is not None for effects in survey.effects)
    if predicted and not survey.targets:
        more += ["--target TOKEN (its logit)"]
    replaced = survey.effects[0].how in ("patch", "resample")
    if survey.unit == "head" and predicted and not replaced:
        strongest = survey.order()[0]
        cut = f"L{survey.layers[strongest]}H{survey.heads[strongest]}"
        more.insert(0, f"--cut {cut} instead of --each (all that changes without it)")
    if survey.unit == "head":
        more += ["--each edge --layer N --head N"]
    if survey.unit == "edge" and any(map(picture_of, survey.tokens)):
        more.append("--key image (its patches one by one)")
    yield from more_options([*more, "--json, -o effects.csv (every number)"], settings)


def _header(study: Ablation | EffectSurvey, settings: DisplaySettings) -> Iterator[ViewPart]:
    yield from unknown_words([study])
    yield from report_header(study.provenance, study.mask, settings)
    yield text_header(study, settings)


def _cuts(ablation: Ablation, settings: DisplaySettings) -> Facts:
    lines: list[tuple[str, Spans]] = []
    for cut in ablation.cuts:
        heads = counted(len(cut.heads), "head")
        expression: Spans = (*untrusted(cut.written, "bold"), Span("  "))
        is_one = len(cut.heads) == 1 and cut.queries is not None and len(cut.queries) == 1
        weight = f"; {'' if is_one else 'mean '}weight {cut.weight:.{settings.precision}f}"
        if cut.queries is None:
            what = f"{heads}{weight} on tokens that are not first or special"
        else:
            keys = cut.keys or ()
            what = f"{counted(len(cut.queries) * len(keys), 'edge')} of {heads}{weight}"
            if len(cut.queries) == len(keys) == 1:
                expression = (*expression, *_edge(ablation, cut.queries[0], keys[0]))
                what = f" in {heads}{weight}"
        lines.append(("cut", (*expression, *ours(what, "caption"))))
    unit = "head"
    if all(cut.queries is not None for cut in ablation.cuts):
        unit = "edge"
    lines += [
        (_HOW[effect.how][0], note(_replaced(effect.how, unit))) for effect in ablation.effects
    ]
    return Facts(lines, remark=False, look="")


def _replaced(how: str, unit: str) -> str:
    by = (_OTHERS if how in ("resample", "patch") else _MEANS).get(unit, "")
    return _HOW[how][1].format(_OUTPUTS[unit], by)


def _predictions(
    ablation: Ablation, changes: list[PredictionChange], settings: DisplaySettings
) -> Iterator[ViewPart]:
    """Present the predictions at one position, without the cut and with it in each way."""
    position = changes[0].position
    sizes = [sized(change.kl, settings.precision) for change in changes]
    if any("e" in size for size in sizes):  # one sentence writes its numbers in one way
        sizes = [f"{change.kl:.1e}" for change in changes]
    sizes = [
        f"{size} bits ({effect_word(change.kl, 'kl').lower()})"
        for size, change in zip(sizes, changes, strict=True)
    ]
    if len(sizes) > 1:
        sizes = [
            f"{_HOW[effect.how][0]} {size}"
            for size, effect in zip(sizes, ablation.effects, strict=True)
        ]
    at = (
        Span("prediction", "title"),
        Span(f"  at {position} "),
        token_span(ablation.tokens, position),
    )
    yield paragraph((*at, Span(f"; KL divergence {', '.join(sizes)}; bits: log₂(after / before)")))
    rows = changes[0].tokens
    columns = [Column("before", [percent(token.before) for token in rows])]
    for effect, change in zip(ablation.effects, changes, strict=True):
        columns.append(
            Column(_HOW[effect.how][0], [percent(token.after) for token in change.tokens])
        )
        columns.append(
            Column("bits", [formatted(token.change, "+z.2f") for token in change.tokens])
        )
    yield Table("token", columns, labels=[(Span(token.text, "", "token"),) for token in rows])


def _hidden(ablation: Ablation, settings: DisplaySettings) -> Iterator[ViewPart]:
    """Present cosine and change of final hidden states; in a long text, of the tokens that change most."""
    several = len(ablation.effects) > 1
    largest = np.max([effect.change for effect in ablation.effects], axis=0)
    count = len(ablation.tokens)
    moved = largest >= _UNCHANGED * np.maximum(ablation.norms, np.finfo(np.float32).tiny)
    if not moved.any():
        text = f"  no token's changes by {_UNCHANGED:.2%} of its length or more".replace("%", " %")
        yield paragraph((Span("final hidden state", "title"), Span(text)))
        return
    rows = sorted(np.argsort(-largest, kind="stable")[: min(_ROWS, int(moved.sum()))].tolist())
    which = "of every token"
    if len(rows) != count:
        which = f"of the {len(rows)} tokens of {count:,} that change most"
    if len(rows) == moved.sum() < count:
        tokens_text = "the only token"
        if len(rows) != 1:
            tokens_text = f"the {len(rows)} tokens"
        which = f"of {tokens_text} of {count:,} that it changes"
    columns = list[Column]()
    form = f"z.{settings.precision}f"
    for effect in ablation.effects:
        norms = zip(effect.change[rows].tolist(), ablation.norms[rows].tolist(), strict=True)
        relative = [f"{100 * change / norm:.1f} %" if norm else "–" for change, norm in norms]
        numbers = effect.cosine[rows].tolist()
        column = Column(
            "cosine", ["–" if np.isnan(value) else formatted(value, form) for value in numbers]
        )
        if several:
            columns += [Column(_HOW[effect.how][0], relative), column]
        else:
            sizes = [sized(value, settings.precision) for value in effect.change[rows].tolist()]
            columns += [column, Column("difference", sizes), Column("relative", relative, "dim")]
    cosine = "cosine of the states without and with the cut"
    text = f"{cosine}; length of their difference"
    if several:
        text = f"relative length of the change; {cosine}"
    yield paragraph((Span("final hidden state", "title"), Span(f"  {which}")))
    yield paragraph(ours(text))
    yield Table("token", columns, token_axis("token", ablation.tokens, rows), spelled=True)


def _titles(survey: EffectSurvey, settings: DisplaySettings) -> Iterator[ViewPart]:
    """Say what the effect of a unit is."""
    first = survey.effects[0]
    doing = {"patch": "patching", "resample": "resampling"}.get(first.how, "cutting")
    measure, where = effect_meaning(survey, first, settings)
    several = len(survey.effects) > 1
    yield paragraph((Span(f"effect of {doing} each {survey.unit}", "title"), Span("  "), *measure))
    replaced = f", if {_replaced(first.how, survey.unit)}" if not several else ""
    yield paragraph((*where, *ours(replaced)))
    if several:
        ways = [_HOW[effects.how] for effects in survey.effects]
        yield Facts([(name, note(meaning)) for name, meaning in ways], remark=False, look="")


def _largest(survey: EffectSurvey, settings: DisplaySettings) -> Iterator[ViewPart]:
    """Say which unit has the largest effect, whether that is large, and what is predicted without it."""
    strongest = survey.order()[0]
    first = survey.effects[0]
    effect = float(first.effect[strongest])
    if np.isnan(effect):
        return
    if not effect or first.are_rounding(survey.provenance.dtype):
        size = f"{sized(abs(effect), settings.precision)} {_UNITS[first.ranked_by]}".rstrip()
        beyond = f" beyond rounding ({size})" if effect else ""
        yield paragraph(ours(f"no {survey.unit} has an effect here{beyond}."))
        return
    name = [dataclass_replace(span, look="bold") for span in _label(survey, strongest)]
    spans = [Span(f" has the largest effect: {verdict_text(effect, first.ranked_by)}")]
    start = f". {_WITHOUT[first.how]}, "
    if (before := logit_of(survey.targets)) is not None:
        logits = [
            formatted(logit, f"z.{settings.precision}f") for logit in (before, before + effect)
        ]
        moves = _moves(*logits, falls=effect < 0)
        spans += [Span(f"{start}the "), *target_name(survey.targets), Span(moves)]
    else:
        for change in survey.predictions:
            spans.append(Span(start))
            if len(survey.predictions) > 1:
                at = Span(f"at {change.position} "), token_span(survey.tokens, change.position)
                spans += [*at, Span(": ")]
            spans += _moved(change)
            start = "; "
    yield paragraph((*name, *spans, Span(".")))


def _moved(change: PredictionChange) -> Iterator[Span]:
    """Say how the probability of the most probable token moves, and which token is the most probable one then."""
    token = max(change.tokens, key=lambda token: token.before)
    first = max(change.tokens, key=lambda token: token.after)
    shares = [percent(share).replace(" ", TIE) for share in (token.before, token.after)]
    moves = _moves(*shares, falls=token.after < token.before)
    yield from _quoted(token)
    if first is token:
        yield Span(f"{moves} and is still the most probable token")
        return
    yield Span(f"{moves}, and ")
    yield from _quoted(first)
    now, then = (percent(share).replace(" ", TIE) for share in (first.after, first.before))
    yield Span(f" is the most probable token, with {now} (before: {then})")


def _quoted(token: TokenChange) -> Iterator[Span]:
    """Name a token in a sentence, where it could be read as a word of it."""
    yield from (Span('"'), Span(token.text, "bold", "token"), Span('"'))


def _moves(before: str, after: str, *, falls: bool) -> str:
    """Say how a number moves that is shown as these."""
    if before == after:
        return f" stays at {after}"
    return f" {'falls' if falls else 'rises'} from {before} to {after}"


def _picture(survey: EffectSurvey, settings: DisplaySettings) -> Iterator[ViewPart]:
    """Draw the effect of every head or layer."""
    first = survey.effects[0]
    if survey.unit == "head":
        # one large effect would leave all others without colour
        yield head_numbers(survey.grid(first.effect), settings, shape=settings.ramp)
    # else the list below has all of them
    elif survey.unit == "layer" and len(survey.layers) > _LISTED:
        write = signed if survey.targets else sized
        sizes = [write(value, settings.precision) for value in first.effect.tolist()]
        labels = [ours(f"L{layer}") for layer in survey.layers]
        yield Table("layer", [Column(_HEADINGS[first.ranked_by], sizes)], labels=labels)


def weight_against_effect(survey: EffectSurvey, display: str = "") -> Scatter:
    """Return a point for every head by its weight and its effect, with their rank correlation.

    `display`: see Scatter.
    """
    effects = survey.effects[0]
    correlation = ""
    if effects.correlation is not None:
        by_size = ", by size" * (effects.ranked_by == "target")
        correlation = f" · ρ {formatted(effects.correlation, 'z.2f')} (Spearman{by_size})"
    return Scatter(
        f"weight against effect of {len(survey.heads):,} heads{correlation}",
        [f"L{layer}H{head}" for layer, head in zip(survey.layers, survey.heads, strict=True)],
        ScatterAxis("weight", survey.weights),
        ScatterAxis(_AXES[effects.ranked_by], effects.effect, _UNITS[effects.ranked_by]),
        display,
    )


def effect_meaning(
    survey: EffectSurvey, effects: Effects, settings: DisplaySettings
) -> tuple[Spans, Spans]:
    """Say what the effect of a unit is the change of, and where."""
    where = note(_where(survey.tokens, survey.positions))
    if not survey.targets:
        return ours(_TITLES[effects.kl is None]), where
    before = ours(f"{before_target(survey, settings)}; ")
    return (Span("change of the "), *target_name(survey.targets)), (*before, *where)


def effect_text(survey: EffectSurvey, effects: Effects, settings: DisplaySettings) -> str:
    """Say the same in full, and how a unit is replaced."""
    replaced = _replaced(effects.how, survey.unit)
    if not survey.targets:
        return change_text(survey.tokens, survey.positions, replaced, hidden=effects.kl is None)
    measure, where = (
        "".join(span.text for span in spans) for spans in effect_meaning(survey, effects, settings)
    )
    return f"{measure}, {where}, if {replaced}"


def change_text(
    tokens: Sequence[Token],
    positions: Sequence[int],
    replaced: str = "the head's output is replaced by 0",
    *,
    hidden: bool,
) -> str:
    """Say what an effect is the change of: of hidden states, or of predictions; no positions are all tokens."""
    return f"{_HIDDEN if hidden else _KL}, {_where(tokens, positions)}, if {replaced}"


def _where(tokens: Sequence[Token], positions: Sequence[int]) -> str:
    if not positions:
        return f"averaged over all {len(tokens)} tokens"
    places = ", ".join(f"{position} {tokens[position].text}" for position in positions[:3])
    more = f" and {len(positions) - 3} more" if len(positions) > 3 else ""
    return f"at {places}{more}"


def _strongest(survey: EffectSurvey, listing: Listing, settings: DisplaySettings) -> Table:
    """List the units with the largest effects, with weights and their ranks."""
    order = survey.order()[: listing.top or _LISTED]
    digits = settings.precision
    several = len(survey.effects) > 1
    columns = []
    for effects in survey.effects:
        heading = _HOW[effects.how][0] if several else _HEADINGS[effects.ranked_by]
        if survey.targets:
            columns += target_columns(survey, effects, order, heading, digits)
            if effects.kl is not None and not several:
                columns.append(Column("KL", [sized(effects.kl[n], digits) for n in order]))
        else:
            columns.append(Column(heading, [sized(effects.effect[n], digits) for n in order]))
        if effects.kl is not None and not several:
            columns.append(Column("hidden", [sized(effects.hidden[n], digits) for n in order]))
    columns.append(ranked_weights(survey, [sized(survey.weights[n], digits) for n in order], order))
    ranking = survey.effects[0]
    sizes = ranking.effect[order].tolist()
    axis = max(map(abs, sizes)), _UNITS[ranking.ranked_by]
    labels = [_label(survey, n) for n in order]
    bars = effect_bars(survey, ranking, sizes)
    return Table(survey.unit, columns, labels=labels, bars=bars, axis=axis)


def _columns(survey: EffectSurvey) -> list[str]:
    """Explain the columns that the title does not explain."""
    effects = survey.effects[0]
    if effects.kl is None or len(survey.effects) > 1:
        return []
    kl = [f"KL: {_KL}"] if survey.targets else []
    return ["; ".join([*kl, f"hidden: {_HIDDEN}"]) + "."]


def _label(survey: EffectSurvey, n: int) -> Spans:
    if survey.unit == "layer":
        head = f"L{survey.layers[n]}"
    else:
        head = f"L{survey.layers[n]}H{survey.heads[n]}"
    if survey.unit != "edge":
        return ours(head)
    return Span(f"{head}  "), *_edge(survey, survey.queries[n], survey.keys[n], survey.word_names())


def _edge(
    study: Ablation | EffectSurvey,
    query: int,
    key: int,
    words: Sequence[Mapping[int, str]] = ({}, {}),
) -> Spans:
    """Name an edge by its tokens, or by words at their positions."""
    sides = zip(words, (study.tokens, study.sources), (query, key), strict=True)
    names = []
    for of_words, tokens, position in sides:
        if position in of_words:
            names.append(Span(of_words[position], origin="token"))
        else:
            names.append(token_span(tokens, position))
    return Span(f"{query} "), names[0], Span(f" ← {key} "), names[1]
