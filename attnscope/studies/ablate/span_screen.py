"""Effects of cutting an answer off from each span, as parts."""

from collections.abc import Iterator

from attnscope.findings.ablation import Effects, EffectSurvey
from attnscope.studies.ablate.target_screen import (
    correlation_text,
    effect_bars,
    ranked_weights,
    sized,
    weight_note,
)
from attnscope.studies.screens.header import counted, more_options, notes
from attnscope.studies.screens.spans import span_notes, spell_run
from attnscope.views.numbers import formatted
from attnscope.views.parts import GAP, Column, Facts, Table, ViewPart, paragraph
from attnscope.views.settings import DisplaySettings, Listing
from attnscope.views.spans import Look, Span, Spans, note, ours, untrusted
from attnscope.views.walk.effects import verdict_text

_LISTED = 20
_HOW = {
    "renormalised": "the scores of these edges are −inf, so softmax gives their weight to the other keys",
    "unnormalised": "their weights are 0, and the other weights stay as they were",
}


def present_spans(
    survey: EffectSurvey, settings: DisplaySettings, listing: Listing
) -> Iterator[ViewPart]:
    """Turn the effects of spans into parts."""
    yield _answer(survey, settings)
    yield GAP
    what = "the answer" if survey.answer else counted(len(survey.rows), "token")
    title = f"effect of cutting {what} off from each span"
    yield paragraph((Span(title, "title"), Span("  edges are cut in every chosen layer and head")))
    yield Facts(
        [(effects.how, ours(_HOW[effects.how])) for effects in survey.effects],
        remark=False,
        look="",
    )
    yield GAP
    yield _largest(survey, settings)
    yield _table(survey, listing, settings)
    yield GAP
    if text := correlation_text(survey, {how: how for how in _HOW}):
        yield paragraph(ours(text))
        yield GAP
    yield notes(_meanings(survey))
    more = ["--top K (list more)", "--query SPAN (who is cut off)"]
    if survey.answer:
        more += ["--answer TEXT"]
    yield from more_options([*more, "--json, -o effects.csv (every number)"], settings)


def _answer(survey: EffectSurvey, settings: DisplaySettings) -> Facts:
    lines: list[tuple[str, Spans]] = []
    if survey.answer:
        text = spell_run([survey.tokens[position] for position in survey.answer])
        probability = ""
        if survey.log_probability is not None:
            probability = (
                f"  log₂ p = {formatted(survey.log_probability, f'z.{settings.precision}f')}"
            )
        count = f" · {counted(len(survey.answer), 'token')}"
        lines.append(
            ("answer", (*untrusted(text, "bold"), *ours(f"{probability}{count}", "caption")))
        )
    first_row = survey.rows[0]
    last = survey.rows[-1]
    if last > first_row:
        rows = f"{len(survey.rows)} tokens, {first_row} to {last}"
    else:
        rows = f"token {first_row}"
    which = "which --query names"
    if not survey.answer and first_row == len(survey.tokens) - 1:
        which = "the last"
    elif survey.answer and first_row == survey.answer[0] - 1:
        which = "which predicts the answer" if first_row == last else "which predict the answer"
    lines.append(("cut off", note(f"{rows}, {which}")))
    return Facts(lines, remark=False)


def _largest(survey: EffectSurvey, settings: DisplaySettings) -> ViewPart:
    """Say which span of the text the answer needs most, or without one has the largest effect; or that none does."""
    effects = survey.effects[0]
    if effects.are_rounding(survey.provenance.dtype):
        return paragraph(ours("no span has an effect here beyond rounding."))
    order = survey.order()
    assert survey.spans is not None
    kinds = survey.spans.kinds
    of_text = [n for n in order if kinds[survey.span_numbers[n]] in ("text", "pair", "rest")]
    strongest, *_ = of_text or order
    effect = float(effects.effect[strongest])
    whose = "Of the text's spans, " if of_text else "Of the spans, "
    name = Span(survey.span_names[strongest], "bold", "untrusted")
    if effects.loss is None:
        size = verdict_text(effect, effects.ranked_by)
        return paragraph((Span(whose), name, Span(f" has the largest effect: {size}.")))
    if effect <= 0:
        none = "the answer needs none: without any one of them, it is at least as probable."
        return paragraph(ours(f"{whose}{none}"))
    lost = f": {sized(effect, settings.precision)} bits."
    return paragraph((Span(f"{whose}the answer loses most without "), name, Span(lost)))


def _table(survey: EffectSurvey, listing: Listing, settings: DisplaySettings) -> Table:
    order = survey.order()[: listing.top or _LISTED]
    digits = settings.precision
    columns = list[Column]()
    looks: tuple[tuple[Look, str], ...] = ("", ""), ("dim", " (0)")
    for (look, end), effects in zip(looks, survey.effects, strict=False):
        if effects.kl is None:
            shown_effects = {"hidden": effects.hidden}
        else:
            shown_effects = {"KL": effects.kl}
        if effects.loss is not None:
            shown_effects = {"bits lost": effects.loss, **shown_effects}
        for name, values in shown_effects.items():
            cells = [sized(float(values[index]), digits) for index in order]
            columns.append(Column(f"{name}{end}", cells, look))
    weights = [formatted(float(survey.weights[n]), f"z.{digits}f") for n in order]
    columns.append(ranked_weights(survey, weights, order))
    ranked = survey.effects[0]
    sizes = [float((ranked.effect if ranked.loss is None else ranked.loss)[n]) for n in order]
    axis = max(map(abs, sizes)), "" if ranked.kl is None and ranked.loss is None else "bits"
    labels = [untrusted(survey.span_names[n]) for n in order]
    bars = effect_bars(survey, ranked, sizes)
    return Table("span", columns, labels=labels, bars=bars, axis=axis)


def _meanings(survey: EffectSurvey) -> list[str]:
    effects: Effects = survey.effects[0]
    meanings = ["(0): unnormalised, so that the other weights stay as they were."]
    if effects.loss is not None:
        meanings.append(
            "bits lost: log₂ of the answer's probability before / after; negative if the cut helps it."
        )
    if effects.kl is not None:
        meanings.append(
            "KL: KL(before ‖ after) of the predictions in bits, averaged over the compared tokens."
        )
    else:
        meanings.append("hidden: change of the final hidden state, relative to its length.")
    return [*meanings, weight_note(survey), *span_notes(survey.span_names), *survey.notes]
