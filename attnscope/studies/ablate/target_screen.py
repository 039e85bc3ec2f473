"""The logits that cuts change, and the texts that replacements come from, as parts."""

from collections.abc import Iterator, Mapping, Sequence

import numpy as np

from attnscope.findings.ablation import (
    Ablation,
    Effects,
    EffectSurvey,
    LogitTarget,
    logit_of,
    ranks_of,
)
from attnscope.views.numbers import formatted
from attnscope.views.parts import Column, Facts, Table, ViewPart, paragraph
from attnscope.views.scales import shares_of_largest
from attnscope.views.settings import DisplaySettings
from attnscope.views.spans import Span, Spans, note, ours, token_span, untrusted

_LISTED = 8  # number of tokens that are named in which two texts differ
# Rank correlations from which units with more weight tend to have more effect, and mostly have it.
_PARTLY = 0.3
_FEWEST = 8  # units of which a correlation tells something
_MOSTLY = 0.7


def other_text(study: Ablation | EffectSurvey) -> Iterator[ViewPart]:
    """Present the text to patch from, and where it differs from the text."""
    replacing = study.replacing
    if replacing is None or replacing.text is None:
        return
    (tokens,) = replacing.tokens
    places = [
        n
        for n, (mine, other) in enumerate(zip(study.tokens, tokens, strict=True))
        if mine.id != other.id
    ]
    differs: Spans = ours("no token differs")
    if places:
        differs = ours("differs at ")
        for n, position in enumerate(places[:_LISTED]):
            differs += (
                Span(f"{', ' * bool(n)}{position} "),
                token_span(study.tokens, position),
                Span(" | "),
            )
            differs += (token_span(tokens, position),)
        more = len(places) - _LISTED
        differs += ours(f" and {more} more" if more > 0 else "")
    meaning = "patched values come from the same positions of this text"
    lines: list[tuple[str, Spans]] = [
        ("from", untrusted(replacing.text)),
        ("", differs),
        ("", note(meaning, "caption")),
    ]
    yield Facts(lines)


def target_name(targets: Sequence[LogitTarget]) -> Spans:
    """Name a logit, or the difference of two."""
    before = "logit of ", " minus that of "
    return tuple(
        span
        for words, target in zip(before, targets, strict=False)
        for span in (Span(words), Span(target.text, "bold", "token"))
    )


def before_target(study: Ablation | EffectSurvey, settings: DisplaySettings) -> str:
    """Describe the logit, or the difference of two, without a cut and in the text to patch from."""
    here = logit_of(study.targets)
    there = logit_of(study.targets, other=True)
    assert here is not None
    form = f"z.{settings.precision}f"
    if there is None:
        return f"{formatted(here, form)} without a cut"
    return f"{formatted(here, form)} in the text, {formatted(there, form)} in the other"


def changed_target(
    ablation: Ablation, names: dict[str, str], settings: DisplaySettings
) -> Iterator[ViewPart]:
    """Present the logit of the target, or the difference of two, without cuts and with them."""
    before = logit_of(ablation.targets)
    if before is None:
        return
    digits = settings.precision
    yield paragraph(
        (Span("target", "title"), Span("  "), *target_name(ablation.targets), *_places(ablation))
    )
    after = [effect.target or 0.0 for effect in ablation.effects]
    there = logit_of(ablation.targets, other=True)
    labels = [
        ours("without the cut" if there is None else "the text"),
        *(ours(names[e.how]) for e in ablation.effects),
    ]
    logits = [before, *(before + change for change in after)]
    changes = ["", *(signed(c, digits) for c in after)]
    if there is not None:
        labels.append(ours("the other text"))
        logits = [*logits, there]
        changes = [*changes, signed(there - before, digits)]
    cells = [formatted(value, f"z.{digits}f") for value in logits]
    heading = "logit" if len(ablation.targets) == 1 else "difference"
    yield Table("", [Column(heading, cells), Column("change", changes)], labels=labels)


def _places(ablation: Ablation) -> Spans:
    predictions = next((effect.predictions for effect in ablation.effects), [])
    if len(predictions) == 1:
        position = predictions[0].position
        return (Span(f", at {position} "), token_span(ablation.tokens, position))
    return ours(f", mean over {len(predictions)} positions")


def sized(value: float, digits: int, sign: str = "") -> str:
    """Write a size, or a change with its sign; a small one keeps two digits, so that only zero is written `0`."""
    if np.isnan(value):
        return "–"
    if value == 0:
        return "0"
    return formatted(
        value, f"{sign}.{digits}f" if abs(value) >= 0.5 * 10**-digits else f"{sign}.1e"
    )


def effect_bars(survey: EffectSurvey, effects: Effects, sizes: Sequence[float]) -> list[float]:
    """Return bars of the effects of some units: shares of the largest size; nothing of what is rounding."""
    if effects.are_rounding(survey.provenance.dtype):
        return [0.0] * len(sizes)
    return shares_of_largest(sizes)


def signed(value: float, digits: int) -> str:
    """Write a change with its sign; see `sized`."""
    return sized(value, digits, "+")


def ranked_weights(survey: EffectSurvey, weights: Sequence[str], order: Sequence[int]) -> Column:
    """Return the column of the weights of some units, each with its rank: that of rows is by effect."""
    by_weight = ranks_of(survey.weights)
    ranks = [f"({by_weight[n]:,})" for n in order]
    widest = max(map(len, ranks))
    cells = [f"{weight} {rank:>{widest}}" for weight, rank in zip(weights, ranks, strict=True)]
    return Column("weight (rank)", cells)


def weight_note(survey: EffectSurvey) -> str:
    """Say what `ranked_weights` shows."""
    meaning = survey.meaning[:1].lower() + survey.meaning[1:].rstrip(".")
    return f"weight: {meaning}; (rank): by weight, 1 for the largest."


def correlation_text(survey: EffectSurvey, names: Mapping[str, str]) -> str:
    """Say whether weights tell, in this text, which units matter: once, if all ways of cutting agree.

    Empty if unknown, and for few units, whose orders are often alike by chance.
    `names`: those of the ways.
    """
    if len(survey.weights) < _FEWEST:
        return ""
    numbers: dict[str, list[str]] = {}
    for effects in survey.effects:
        if effects.correlation is not None:
            way = f" ({names[effects.how]})" if len(survey.effects) > 1 else ""
            number = f"{formatted(effects.correlation, 'z.2f')}{way}"
            numbers.setdefault(_found(survey.unit, effects.correlation), []).append(number)
    if not numbers:
        return ""
    found = "; ".join(f"{found}: ρ {' and '.join(values)}" for found, values in numbers.items())
    units = f"{len(survey.weights):,} {survey.unit}s"
    return (
        f"in this text, {found} over {units} (Spearman's rank correlation; 1: the same order, 0: unrelated, "
        "−1: reversed)"
    )


def _found(unit: str, correlation: float) -> str:
    """Say what a rank correlation of weight and effect tells of the units that it was measured over."""
    if abs(correlation) < _PARTLY:
        return "weight and effect are hardly related"
    how = "tend to" if abs(correlation) < _MOSTLY else "mostly"
    return f"{unit}s with more weight {how} have {'more' if correlation > 0 else 'less'} effect"


def target_columns(
    survey: EffectSurvey, effects: Effects, order: Sequence[int], name: str, digits: int
) -> list[Column]:
    """Return the column of the target's changes, and for patches the share of the way to the other text."""
    assert effects.target is not None
    columns = [Column(name, [signed(float(effects.target[n]), digits) for n in order])]
    restored = survey.restored(effects)
    if restored is not None:
        columns.append(
            Column("restored", [formatted(float(restored[n]), f"z.{digits}f") for n in order])
        )
    return columns
