"""A Diagnosis: what of a model's settings given queries and keys were computed without."""

from collections.abc import Iterator, Sequence

from attnscope.findings.compare import Comparison, Diagnosis
from attnscope.findings.tokens import spell_piece
from attnscope.views.parts import GAP, Column, Table, ViewPart, paragraph
from attnscope.views.settings import DisplaySettings
from attnscope.views.spans import Look, Span, ours

_NAMES = {"softcap": "soft-cap", "rope": "rotation by positions"}


def present_diagnosis(comparison: Comparison, found: Diagnosis, settings: DisplaySettings) -> Iterator[ViewPart]:
    """Turn a diagnosis into parts: what it concludes, and what was tried."""
    yield GAP
    yield paragraph((Span("diagnosis", "title"), Span("  "), *ours(_conclusion(comparison, found), _look(found))))
    if found.tried:
        labels = [ours("as given", "bold"), *(ours(_NAMES.get(each.name, each.name)) for each in found.tried)]
        columns = [
            Column("arrays", ["", *(each.given for each in found.tried)]),
            Column("model", ["", *(each.model for each in found.tried)]),
            Column("difference", [_number(found.difference), *(_number(each.difference) for each in found.tried)]),
        ]
        yield Table("with the model's", columns, labels=labels)
        yield paragraph(ours("difference: the largest of a weight, with this setting alone from the model", "dim"))
    yield GAP


def _look(found: Diagnosis) -> Look:
    return "good" if found.agrees and not found.needed else "warning"


def _conclusion(comparison: Comparison, found: Diagnosis) -> str:
    """Say in a sentence what was found."""
    place = f"L{found.layer}H{found.head}, query {found.query}"
    text = comparison.sides[0].report.texts[found.text]
    place += f" '{spell_piece(text.tokens, found.query)}'"
    if len(comparison.sides[0].report.texts) > 1:
        place = f"text {found.text}, {place}"
    if found.agrees and not found.needed:
        return f"the weights agree: the largest difference is {_number(found.difference)} ({place})"
    first = "" if found.first_layer is None else f", from layer {found.first_layer} on"
    differs = f"the weights differ by up to {_number(found.difference)} ({place}){first}"
    if found.agrees:
        names = _listed(found.needed)
        left = f"with the model's {names}, the largest difference is {_number(found.remaining)}"
        return f"{differs}; {left}: {_advice(found.needed)}"
    scores = ""
    if found.first_scores is not None:
        scores = f"; q·k itself differs from layer {found.first_scores} on, before any setting applies"
    tried = "no setting of the model explains it" if found.tried else "all settings are those of the model"
    return f"{differs}; {tried}{scores}"


def _advice(needed: Sequence[str]) -> str:
    settings = [name for name in needed if name not in ("rope", "scale in q")]
    said = []
    if settings:
        said.append(f"the other side forgets {_listed(settings)}, or the arrays were saved without")
    if "rope" in needed:
        said.append("q and k were saved before they were rotated")
    if "scale in q" in needed:
        said.append("q was saved with the scale in it (pass scale 1)")
    return "; ".join(said)


def _listed(names: Sequence[str]) -> str:
    spelled = [_NAMES.get(name, name) for name in names]
    return spelled[0] if len(spelled) == 1 else f"{', '.join(spelled[:-1])} and {spelled[-1]}"


def _number(value: float) -> str:
    return "0" if value == 0 else f"{value:.2g}"
