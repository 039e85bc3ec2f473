"""An Explanation: one query's arithmetic with its numbers, from top to bottom."""

from collections.abc import Iterable, Iterator

import msgspec

from attnscope.findings.explain import ArithmeticCheck, Explanation, Step, Vector
from attnscope.studies.explain.screen_rows import (
    blend_grid,
    cell_parts,
    in_one_line,
    key_parts,
    product_strips,
    scaled_parts,
    score_grid,
    softmax_grid,
)
from attnscope.studies.screens.header import (
    RANDOM_WEIGHTS,
    describe_used,
    more_options,
    notes,
    report_header,
    text_header,
    unknown_words,
)
from attnscope.studies.screens.stages import BIAS_NAMES
from attnscope.views.axes import Axis, token_axis
from attnscope.views.numbers import MASKED, digits_for, number_text, scale_text
from attnscope.views.parts import GAP, Facts, Text, ViewPart, paragraph
from attnscope.views.settings import DisplaySettings
from attnscope.views.spans import Look, Span, Spans, ours, token_span, untrusted

_STREAM = 4  # residuals up to which each has its vector shown


class ExplainedStep(msgspec.Struct, frozen=True):
    """A step of the arithmetic."""

    title: Spans
    caption: Spans
    parts: list[ViewPart]


def present_explanation(e: Explanation, settings: DisplaySettings) -> Iterator[ViewPart]:
    """Turn an explanation into parts."""
    yield from answer_parts(e, settings)
    for step in steps(e, settings):
        yield GAP
        yield paragraph(step.title)
        if step.caption:
            yield paragraph(step.caption, indent=1, remark=True)
        yield from step.parts
    yield from end_parts(e, settings)


def answer_parts(e: Explanation, settings: DisplaySettings) -> Iterator[ViewPart]:
    """Present what was asked, each cell's way from score to contribution, and whether all checks hold."""
    yield from unknown_words([e])
    yield from report_header(e.provenance, e.mask, settings, labelled=True)
    yield text_header(e, settings)
    query = Span(f"{e.query} "), token_span(e.tokens, e.query)
    keys = [(Span(f"{cell.key} "), token_span(e.sources, cell.key)) for cell in e.cells]
    yield Facts([("query", query), *([("key", Text(keys, ", "))] if keys else [])])
    yield GAP
    random = RANDOM_WEIGHTS if e.provenance.weights == "random" else ()
    between = " " if random else "  "  # the badge ends with a blank
    if e.chosen and not settings.data_only:
        chosen_spans = Span(between), *untrusted(e.chosen)
    else:
        chosen_spans = ()
    yield paragraph((Span(f"L{e.layer}H{e.head}", "title"), *random, *chosen_spans))
    if e.fully_masked:
        yield _say(f"{MASKED}: no key is allowed, so there are no weights and no output", "warning")
    else:
        for cell in e.cells:
            yield GAP
            yield from in_one_line(e, cell, settings)
            yield from product_strips(cell, settings)
    yield from _verdict([check for check in e.checks if not _is_hidden(e, check)])


def steps(e: Explanation, settings: DisplaySettings) -> Iterator[ExplainedStep]:
    """Yield the steps that the layer has."""
    axis = token_axis("key" if e.context is None else "context", e.sources, e.keys)
    yield _inputs(e, settings)
    yield _query_and_keys(e, axis, settings)
    yield _scores(e, axis, settings)
    yield _scaled(e, axis, settings)
    yield _weights(e, axis, settings)
    if not e.fully_masked:
        yield _output(e, axis, settings)
    if e.rest_of_layer:
        yield _rest_of_layer(e, settings)


def end_parts(e: Explanation, settings: DisplaySettings) -> Iterator[ViewPart]:
    """Present notes, and the options that show more."""
    yield GAP
    yield notes(e.notes)
    more = [
        "--key WORD (another cell)",
        "--layer N --head N",
        "--top K (more keys)",
        "--json (every number)",
    ]
    yield from more_options(more, settings)


def _inputs(e: Explanation, settings: DisplaySettings) -> ExplainedStep:
    title = f"what enters layer {e.layer}"
    if not e.inputs:
        text = "not shown: the modules of this architecture are not followed"
        if e.provenance.weights == "given":
            text = "not known: queries, keys and values were given"
        return _step(1, title, (), [_say(text, "caption")])
    last = "the last of these" if len(e.inputs) > 1 else "this"
    caption = f"{last} is x, which the query is computed from; ‖·‖ is the length of a vector"
    return _step(1, title, ours(caption, "caption"), _input_parts(e, settings))


def _input_parts(e: Explanation, settings: DisplaySettings) -> Iterator[ViewPart]:
    residual = [vector for vector in e.inputs if vector.name == "residual"]
    between = residual[1:-1] if len(residual) > _STREAM else []
    for vector in e.inputs:
        if vector not in between:
            yield _vector(vector, settings)
        elif vector is between[-1]:
            norms = [
                ours(f"{v.formula} ‖·‖ {number_text(v.norm, settings.precision)}", "caption")
                for v in between
            ]
            yield Facts([("", Text(norms, ", "))], remark=False, indent=1)
    yield from _checks(e, "embedding", "embedding norm", "norm")


def _query_and_keys(e: Explanation, axis: Axis, settings: DisplaySettings) -> ExplainedStep:
    weights = "W_q, W_k and b" if e.query_steps[0].bias else "W_q and W_k"
    source = f"; {weights} are weights of the layer"
    if not e.inputs:
        source = ", as attention received them"
        if e.provenance.weights == "given":
            source = ", as they were given"
    caption = f"the query q of this token and the key k of every token{source}"
    parts = _query_and_key_parts(e, axis, settings)
    return _step(2, "query and keys", ours(caption, "caption"), parts)


def _query_and_key_parts(
    e: Explanation, axis: Axis, settings: DisplaySettings
) -> Iterator[ViewPart]:
    for vector in e.query_steps:
        yield _vector(vector, settings)
    yield from _checks(e, "query", "position")
    formulas = []
    for step in e.cells[0].key_steps:
        if step.position is None:
            formulas.append(step.formula)
        else:
            formulas.append(f"{step.origin}, each by its own position{step.times}")
    shared = "" if e.group == e.head else f", of key/value head {e.group}"
    of = "" if e.context is None else " from the embedded context"
    yield GAP
    yield _say(f"k of every token{of}{shared}: {', '.join(formulas)}")
    yield from key_parts(e, axis, settings)
    yield from _checks(e, "key")


def _scores(e: Explanation, axis: Axis, settings: DisplaySettings) -> ExplainedStep:
    norm = number_text(e.query_steps[-1].norm, settings.precision)
    caption = f"‖q‖ × ‖k‖ × the cosine between them; ‖q‖ is {norm}"
    parts = _score_parts(e, axis, settings)
    return _step(3, "scores: q·k", ours(caption, "caption"), parts)


def _score_parts(e: Explanation, axis: Axis, settings: DisplaySettings) -> Iterator[ViewPart]:
    yield score_grid(e, axis, settings)
    for cell in e.cells:
        yield GAP
        yield from cell_parts(e, cell, settings)
    yield from _checks(e, "parts")


def _scaled(e: Explanation, axis: Axis, settings: DisplaySettings) -> ExplainedStep:
    changes = [scale_text(e.scale, e.head_width, reason=True)]
    if e.softcap is not None:
        changes += [f"soft-capped at {e.softcap:g}"]
    if e.bias is not None:
        changes += [f"plus {BIAS_NAMES.get(e.bias, e.bias)} bias"]
    used = msgspec.structs.replace(e.mask, used=e.layer_mask or e.mask.used)
    mask = (*ours("mask: ", "caption"), *untrusted(describe_used(used), "caption"))
    title = f"scaled: {', '.join(changes)}; then masked"
    return _step(4, title, mask, _scaled_parts(e, axis, settings))


def _scaled_parts(e: Explanation, axis: Axis, settings: DisplaySettings) -> Iterator[ViewPart]:
    yield from scaled_parts(e, axis, settings)
    yield from _checks(e, "scaled")
    yield from _of_scale(e, settings)


def _of_scale(e: Explanation, settings: DisplaySettings) -> Iterator[ViewPart]:
    """Say what the scale does to the scores, unless it is 1 or the mask allows a single key."""
    if e.effects is None or e.scale == 1 or e.effects.spread == 0:
        return
    spread, scaled = (
        number_text(x, settings.precision) for x in (e.effects.spread, e.effects.scaled_spread)
    )
    bits, without = (number_text(x, 2) for x in (e.effects.entropy, e.effects.unscaled_entropy))
    verb = "narrows" if e.scale < 1 else "widens"
    text = (
        f"the scale {verb} the scores' spread from {spread} to {scaled} (standard deviation); without it, the "
        f"weights would have {without} bits of entropy instead of {bits}"
    )
    yield _say(text, "caption")


def _weights(e: Explanation, axis: Axis, settings: DisplaySettings) -> ExplainedStep:
    sink_note = ""
    if e.sink is not None:
        sink_note = "; the head's sink adds one score that belongs to no token"
    caption = f"exp(masked − largest), divided by the sum{sink_note}"
    parts = _weight_parts(e, axis, settings)
    return _step(5, "weights: softmax", ours(caption, "caption"), parts)


def _weight_parts(e: Explanation, axis: Axis, settings: DisplaySettings) -> Iterator[ViewPart]:
    if e.fully_masked:
        yield _say(f"{MASKED}: no key is allowed, so there are no weights and no output", "warning")
        return
    yield softmax_grid(e, axis, settings)
    yield from _checks(e, "weights")
    if e.effects is not None and e.effects.masked_after is not None:
        total = number_text(e.effects.masked_after, settings.precision)
        yield _say(f"a mask after the softmax would leave a row that sums to {total}", "caption")


def _output(e: Explanation, axis: Axis, settings: DisplaySettings) -> ExplainedStep:
    caption = ours("each value vector v × its weight α, added up", "caption")
    parts = _output_parts(e, axis, settings)
    return _step(6, "output: the weighted sum of the values", caption, parts)


def _output_parts(e: Explanation, axis: Axis, settings: DisplaySettings) -> Iterator[ViewPart]:
    yield blend_grid(e, axis, settings)
    yield from _checks(e, "value")
    if e.sink is not None:
        share = number_text(e.sink.weight, settings.precision)
        yield _say(f"the sink's {share} adds nothing: the sink has no value vector", "caption")
    yield from _checks(e, "output")
    for vector in (e.gate, e.gated, e.projected):
        if vector is not None:
            yield GAP
            yield _vector(vector, settings)
    if e.gate is not None:
        mean = number_text(float(e.gate.values.mean()), settings.precision)
        yield _say(
            f"the gate lets {mean} of the output through on average: near 0, it is closed",
            "caption",
        )


def _rest_of_layer(e: Explanation, settings: DisplaySettings) -> ExplainedStep:
    """Show what follows attention in the layer."""
    caption = ours("what all heads write, the residual stream, and the MLP", "caption")
    parts: list[ViewPart] = [_vector(vector, settings) for vector in e.rest_of_layer]
    parts += _checks(e, "norm of the residual", "layer output")
    return _step(7, "the rest of the layer", caption, parts)


def _step(number: int, title: str, caption: Spans, parts: Iterable[ViewPart]) -> ExplainedStep:
    return ExplainedStep(ours(f"{number}  {title}", "bold"), caption, list(parts))


def _say(text: str, look: Look = "") -> Text:
    return paragraph(ours(text, look), indent=1)


def _vector(vector: Vector, settings: DisplaySettings) -> Facts:
    norm = number_text(vector.norm, settings.precision)
    digits = digits_for(vector.values, settings.precision)  # type: ignore[arg-type]
    values = [ours(digits.text(value), "dim") for value in vector.values.tolist()]
    numbers = Text([ours(f"‖·‖ {norm} "), *values], "  ", cut="  … {} more")
    return Facts(
        [(vector.name, ours(vector.formula, "caption")), ("", numbers)],
        remark=False,
        indent=1,
        look="bold",
    )


def _is_hidden(e: Explanation, check: ArithmeticCheck) -> bool:
    """Whether a check that holds is not shown: its step did nothing, or is left out."""
    did_nothing = {
        "embedding": len(e.inputs) < 2 or e.inputs[1].name == "normed",
        "position": e.query_steps[-1].position is None,
        "value": e.fully_masked,
    }
    return check.holds and did_nothing.get(check.name, False)


def _checks(e: Explanation, *names: Step) -> Iterator[ViewPart]:
    """State whether recomputing these steps agrees."""
    for name in names:
        check = e.check(name)
        if check is not None and not _is_hidden(e, check):
            yield _said(check)


def _said(check: ArithmeticCheck) -> Text:
    if check.holds:
        text = "holds exactly"
        if check.difference:
            text = f"holds to {check.difference:.1e}"
        verdict = Span(f"{check.said}, {text}", "good")
    else:
        text = f"DOES NOT HOLD: differs by {check.difference:.1e}, rounding explains {check.tolerance:.1e}"
        verdict = Span(f"{check.said} {text}", "bad")
    return paragraph((Span("check: ", "dim"), verdict), indent=1)


def _verdict(checks: list[ArithmeticCheck]) -> Iterator[ViewPart]:
    """State whether all steps agree; those that do not are named."""
    broken = [check.said for check in checks if not check.holds]
    if broken:
        verdict = Span(f"{len(broken)} of {len(checks)} broken: {', '.join(broken)}", "bad")
    else:
        largest = max(check.difference for check in checks)
        verdict = Span(f"all {len(checks)} hold, to {largest:.1e} or better", "good")
    yield paragraph((Span("check: ", "dim"), verdict), indent=1)
