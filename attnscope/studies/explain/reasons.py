"""Why a cell has its weight, in words: how it stands in its row, what decides that, and which parts of q·k do."""

from collections.abc import Iterator, Mapping

import numpy as np

from attnscope.findings.explain import ExplainedCell, Explanation, Reason, Rival
from attnscope.studies.screens.stages import BIAS_NAMES
from attnscope.views.numbers import MINUS, number_text, scale_text
from attnscope.views.settings import DisplaySettings
from attnscope.views.spans import TIE, Span, Spans, ours, token_span

_FEW = 4  # parts of q·k that are listed, if they make half of it


def reason_spans(
    e: Explanation, cell: ExplainedCell, reason: Reason, settings: DisplaySettings
) -> Spans:
    """Say how a cell stands in its row, and what decides that."""
    clauses = list(_clauses(e, cell, reason, settings))
    return tuple(
        span for n, clause in enumerate(clauses) for span in (*ours("; " * bool(n)), *clause)
    )


def _clauses(
    e: Explanation, cell: ExplainedCell, reason: Reason, settings: DisplaySettings
) -> Iterator[Spans]:
    rival = reason.rival
    if rival is None:
        of_all = "all of it" if e.sink is None else "what the sink leaves"
        yield ours(f"it is the only key that the mask allows, which gets {of_all}")
        return
    yield from _standing(e, cell, reason, rival, settings)
    if cell.allowed:
        if rival.lead:
            yield from _decisive(e, cell, rival, key_spans(e, rival.key), settings)
        yield from _sink(e, cell, settings)


def key_spans(e: Explanation, key: int) -> Spans:
    """Return the position of a key and its token."""
    return Span(f"{key}{TIE}"), token_span(e.sources, key)


def _standing(
    e: Explanation, cell: ExplainedCell, reason: Reason, rival: Rival, settings: DisplaySettings
) -> Iterator[Spans]:
    def said(value: float) -> str:
        return number_text(value, min(2, settings.precision))

    other = key_spans(e, rival.key)
    score = said(float(e.row.scaled[e.keys.index(cell.key)]))
    if not cell.allowed:
        place = f"number {reason.rank} of {reason.allowed + 1}"
        yield ours(
            f"the mask forbids it, whatever q·k is: allowed, its scaled {score} would be {place}"
        )
        return
    largest = f"its scaled {score} is the largest of the {reason.allowed} allowed keys"
    if not rival.lead:
        yield *ours(f"{largest}, as is that of "), *other, *ours(", which has the same weight")
        return
    ratio = f"e^{said(rival.lead)} = {said(float(np.exp(rival.lead)))}"
    if rival.lead > 0:
        ahead = f"{largest}, {said(rival.lead)} above the next, "
        yield *ours(ahead), *other, *ours(f": {ratio} times its weight {said(rival.weight)}")
    else:
        place = f"number {reason.rank} of the {reason.allowed} allowed keys"
        behind = f"its scaled {score} is {place}, {said(-rival.lead)} below the largest, "
        yield *ours(behind), *other, *ours(f": {ratio} of its weight {said(rival.weight)}")


def _decisive(
    e: Explanation, cell: ExplainedCell, rival: Rival, other: Spans, settings: DisplaySettings
) -> Iterator[Spans]:
    """Say what makes the lead, and without what it would turn round."""

    def said(value: float) -> str:
        return number_text(value, min(2, settings.precision))

    at = e.keys.index(cell.key)
    norms = float(e.row.key_norms[at]), rival.key_norm
    length = e.query_steps[-1].norm
    cosines = [
        said(score / (length * norm)) if length * norm else "unknown"
        for score, norm in zip((cell.score, rival.score), norms, strict=True)
    ]
    yield ours(
        f"q·k {said(cell.score)} against {said(rival.score)} (cosine {cosines[0]} against {cosines[1]}, "
        f"‖k‖ {said(norms[0])} against {said(norms[1])})"
    )
    made = _made(e, rival)
    if len(made) == 1:
        yield ours(f"{next(iter(made))} alone decides")
        return
    parts = ", ".join(f"{_signed(said(value))} {name}" for name, value in made.items())
    scale = scale_text(e.scale, e.head_width)
    yield ours(f"its lead: {parts.replace('q·k', f'q·k {scale}', 1)}")
    needed = [name for name, value in made.items() if (rival.lead - value) * rival.lead <= 0]
    if not needed:
        yield ours("none decides alone")
        return
    below, above = other, key_spans(e, cell.key)
    if rival.lead < 0:
        below, above = above, below
    yield (
        *ours(f"without {' or without '.join(needed)}, "),
        *below,
        *ours(" would reach or pass "),
        *above,
    )


def _made(e: Explanation, rival: Rival) -> Mapping[str, float]:
    """Return what a lead is made of, by its name."""
    unrotated = "" if rival.rotation is None else "unrotated "
    named = {
        f"{unrotated}q·k": rival.content,
        "the rotation by distance": rival.rotation,
        "the soft-cap": rival.cap,
        f"the {BIAS_NAMES.get(e.bias or '', e.bias)} bias": rival.bias,
    }
    return {name: value for name, value in named.items() if value is not None}


def _signed(text: str) -> str:
    return text if text.startswith(MINUS) else f"+{text}"


def _sink(e: Explanation, cell: ExplainedCell, settings: DisplaySettings) -> Iterator[Spans]:
    if e.sink is None:
        return
    above = "above" if e.sink.logit > e.row.scaled[e.keys.index(cell.key)] else "below"
    logit, weight = (
        number_text(x, min(2, settings.precision)) for x in (e.sink.logit, e.sink.weight)
    )
    yield ours(f"the sink, which is no key, is {above} it with {logit} and takes {weight}")


def largest_parts(cell: ExplainedCell, settings: DisplaySettings) -> str:
    """Say what of q·k is for the cell and against it, and how few of its parts make half of that; empty for one part."""

    def said(value: float) -> str:
        return _signed(number_text(value, min(2, settings.precision)))

    products = np.array([part.product for part in cell.parts])
    sign = 1 if cell.total >= 0 else -1
    same = [part for part in cell.parts if part.product * sign > 0]
    if len(products) < 2 or not same:
        return ""
    words = ("for", "against")[::sign]
    whole, other = (float(products[products * side > 0].sum()) for side in (sign, -sign))
    reached = np.abs(np.cumsum([part.product for part in same])) >= abs(whole) / 2
    count = int(reached.argmax()) + 1
    pairs = any(part.wavelength is not None for part in cell.parts)
    noun = "rotated pairs of dimensions" if pairs else "dimensions"
    makes = "makes" if count == 1 else "make"
    most = f"it takes {count} of {len(products)} {noun} to make"
    few = ""
    if count <= _FEW:
        most = f"{count} of {len(products)} {noun} {makes}"
        few = ": " + ", ".join(
            f"{'+'.join(map(str, part.dims))} ({said(part.product)})" for part in same[:count]
        )
    return (
        f"{said(whole)} {words[0]} it, {said(other)} {words[1]}; "
        f"{most} half of the {said(whole)}{few}"
    )
