"""A Diagnosis: what of a model's settings given queries and keys were computed without."""

from collections.abc import Iterator, Sequence

from attnscope.findings.compare import SCALED_ALREADY, Comparison, Diagnosis
from attnscope.findings.tokens import spell_piece
from attnscope.views.parts import GAP, Column, Table, ViewPart, paragraph
from attnscope.views.settings import DisplaySettings
from attnscope.views.spans import Look, Span, ours

_NAMES = {"softcap": "soft-cap", "rope": "rotation by positions"}


def present_diagnosis(comparison: Comparison, diagnosis: Diagnosis, settings: DisplaySettings) -> Iterator[ViewPart]:
    """Turn a diagnosis into parts: the conclusion, and the settings that were tried."""
    yield GAP
    look: Look = "good" if diagnosis.agrees and not diagnosis.needed else "warning"
    yield paragraph((Span("diagnosis", "title"), Span("  "), *ours(_conclusion(comparison, diagnosis), look)))
    if tried := diagnosis.tried:
        labels = [ours("as given", "bold"), *(ours(_NAMES.get(setting.name, setting.name)) for setting in tried)]
        differences = [diagnosis.difference, *(setting.difference for setting in tried)]
        columns = [
            Column("arrays", ["", *(setting.given for setting in tried)]),
            Column("model", ["", *(setting.model for setting in tried)]),
            Column("difference", [_number(difference) for difference in differences]),
        ]
        yield Table("with the model's", columns, labels=labels)
        yield paragraph(ours("difference: the largest of a weight, with this setting alone from the model", "dim"))
    yield GAP


def _conclusion(comparison: Comparison, diagnosis: Diagnosis) -> str:
    location = f"L{diagnosis.layer}H{diagnosis.head}, query {diagnosis.query}"
    text = comparison.sides[0].report.texts[diagnosis.text]
    location += f" '{spell_piece(text.tokens, diagnosis.query)}'"
    if len(comparison.sides[0].report.texts) > 1:
        location = f"text {diagnosis.text}, {location}"
    if diagnosis.agrees and not diagnosis.needed:
        return f"the weights agree: the largest difference is {_number(diagnosis.difference)} ({location})"
    from_layer = "" if diagnosis.first_layer is None else f", from layer {diagnosis.first_layer} on"
    differs = f"the weights differ by up to {_number(diagnosis.difference)} ({location}){from_layer}"
    if diagnosis.agrees:
        names = _listed(diagnosis.needed)
        left = f"with the model's {names}, the largest difference is {_number(diagnosis.remaining)}"
        return f"{differs}; {left}: {_advice(diagnosis.needed)}"
    scores = ""
    if diagnosis.first_scores is not None:
        scores = f"; q·k itself differs from layer {diagnosis.first_scores} on, before any setting applies"
    tried = "no setting of the model explains it" if diagnosis.tried else "all settings are those of the model"
    return f"{differs}; {tried}{scores}"


def _advice(needed_settings: Sequence[str]) -> str:
    settings = [name for name in needed_settings if name not in ("rope", SCALED_ALREADY)]
    advice = []
    if settings:
        advice.append(f"the other side forgets {_listed(settings)}, or the arrays were saved without")
    if "rope" in needed_settings:
        advice.append("q and k were saved before they were rotated")
    if SCALED_ALREADY in needed_settings:
        advice.append("q was saved with the scale in it (pass scale 1)")
    return "; ".join(advice)


def _listed(names: Sequence[str]) -> str:
    spelled = [_NAMES.get(name, name) for name in names]
    if len(spelled) == 1:
        return spelled[0]
    return f"{', '.join(spelled[:-1])} and {spelled[-1]}"


def _number(value: float) -> str:
    return "0" if value == 0 else f"{value:.2g}"
