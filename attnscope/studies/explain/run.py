"""Explain one query of one head: every step of its arithmetic, with checks."""

from contextlib import nullcontext

import numpy as np
from msgspec.structs import replace

from attnscope.base.errors import TEXTS_FILE, UsageError, arg, listed
from attnscope.base.layer_kinds import MIXING
from attnscope.findings.axes import take
from attnscope.findings.explain import ArithmeticCheck, Explanation, Vector
from attnscope.findings.hints import Hint
from attnscope.findings.run import Report, TextReport
from attnscope.findings.tokens import PADDING, spell_piece
from attnscope.request.run_config import RunConfig
from attnscope.request.selection import AUTO, PositionSelection
from attnscope.run.plan import RunPlan, fit_to_memory, make_plan, plan_texts
from attnscope.run.session import (
    HeadChoice,
    Session,
    describe_mask_use,
    prepare,
    provenance,
    select_heads,
)
from attnscope.run.text_plan import TextPlan
from attnscope.studies.mixing.measure import measure_mixing
from attnscope.studies.rollout.run import shows_mixing

_RANKED = 3  # keys of a row without softmax whose contributions are shown
_NAMED = 40  # tokens that an error names


def explain(run: RunConfig, session: Session | None = None) -> Explanation:
    """Do what `attnscope explain` does, without printing.

    `window` of the run is the number of keys kept (None for all), and `key` names the cells in depth.
    """
    _check_one(run)
    if run.score_functions:
        raise _changed_scores()
    session = session or Session(run.texts)
    source, run = session.open(run)
    if source.stages is not None:
        hint = "give queries and keys instead"
        raise UsageError("given weights have no arithmetic to explain", where=arg("qkv"), hint=hint)
    full_run = replace(run, window=None, stages=())
    plan = make_plan(full_run, source)
    text_plan = plan.text_plans[0]
    query = _one_query(run, text_plan)
    plan = _within_memory(plan, run.window)

    model, device = session.load(plan)
    from attnscope.model.head_capture import HeadCapture, RowCapture
    from attnscope.studies.explain.build import build
    from attnscope.studies.explain.origins import GivenOrigin, ModelOrigin
    from attnscope.studies.explain.rest_of_layer import rest_of_layer

    batch, engine = prepare(plan, model, device)
    (unit,) = select_heads(plan, batch, engine, HeadChoice(model), session.on_progress).units
    layer = unit.layers[0]
    # the softmax is over the padding that a model makes of its sound, too
    padding = [PADDING] * (0 if text_plan.media is None else text_plan.media.padding)
    cell = layer, unit.heads[0], query, len(text_plan.context or text_plan.tokens) + len(padding)
    modules = engine.modules_of(layer) if source.runs else None
    capture = RowCapture(*cell) if modules is None else HeadCapture(modules, *cell)
    with capture.capturing() if isinstance(capture, HeadCapture) else nullcontext():
        engine.forward(
            batch,
            {layer: [capture]},
            lambda done, total: session.on_progress("attending", done, total),
        )
    origin: ModelOrigin | GivenOrigin = GivenOrigin(
        capture, "as attention received it" if source.runs else "given"
    )
    rest: tuple[list[Vector], list[ArithmeticCheck]] = ([], [])
    notes = list(text_plan.notes)
    if isinstance(capture, HeadCapture) and modules is not None:
        origin = ModelOrigin(run.dtype, text_plan, modules.stack, capture, batch.tokens.ids)
        own_block = (
            modules.whole_block is not None and batch.context is None and run.what_if == "stack"
        )
        if own_block and model.stream:
            notes.append(
                "what follows attention in the layer is left out, as weights are read again in every pass"
            )
        elif own_block and capture.sees_keys:
            # A pass of its own: one that also needs the layer's output sums the scores in another order than run does.
            with capture.capturing_rest():
                engine.run_blocks(batch, layer, lambda *_block: None)
            rest = rest_of_layer(modules.stack, capture, run.dtype)
    if capture.spec is not None and capture.spec.mask.changes_scores is not None:
        raise _changed_scores()
    mask = describe_mask_use(source, run, engine.describe_mask(), plan.text_plans, plan.matrices)
    here = describe_mask_use(source, run, engine.describe_layer_mask(layer)).used
    if source.runs and modules is None:
        notes.append(
            "steps before queries and keys are shown of architectures that attnscope runs itself"
        )
    about = {
        "provenance": provenance(source, run, device, warnings=text_plan.warnings),
        "mask": mask,
        "layer_mask": None if here == mask.used else here,
        "text": run.texts[0].text,
        "pair": run.texts[0].pair,
        "tokens": text_plan.tokens
        if text_plan.context is not None
        else [*text_plan.tokens, *padding],
        "context": None if text_plan.context is None else [*text_plan.context, *padding],
        "notes": notes,
        "chosen": unit.chosen,
    }
    return build(run, text_plan, capture, origin, about, rest)


def explain_mixing(run: RunConfig, top: int | None, session: Session) -> Report | None:
    """Explain one row of a layer without softmax, as a Report of this row alone; None if another layer is meant.

    Args:
        run: What applies to every study.
        top: Number of keys to keep, largest |M| first, beside those that are named; None for all.
    """
    if run.measure != MIXING and not shows_mixing(run, session):
        return None
    _check_one(run)
    source, rendered = session.open(run)
    (text_plan,) = plan_texts(
        replace(rendered, layer=AUTO, head=AUTO, window=None, stages=()), source
    )
    query = PositionSelection.of([_one_query(run, text_plan)])
    one_row = replace(run, query=query, window=None, stages=("weights",), top=top or _RANKED)
    report = measure_mixing(one_row, session, in_detail=True)
    if top is not None:
        report.texts[:] = [_strongest(text, top) for text in report.texts]
    return report


def _strongest(text: TextReport, top: int) -> TextReport:
    """Return the keys with the largest |M| of the only row, and those that are shown in detail."""
    mixing = text.mixing
    if mixing is None or mixing.matrix is None or len(text.keys) <= top:
        return text
    sizes = np.abs(mixing.matrix[0, 0])
    detailed = [text.keys.index(read.key) for read in mixing.read_keys]
    places = sorted({*np.argsort(-sizes, kind="stable")[:top].tolist(), *detailed})
    earlier = sum(key <= text.queries[0] for key in text.keys) - len(places)
    notes = list(text.notes)
    if earlier > 0:
        rest = np.delete(sizes, places).sum() / mixing.size[0, 0]
        notes.append(f"left out: {earlier} {'key' if earlier == 1 else 'keys'} ({rest:.2f} of |M|)")
    return take(replace(text, notes=notes), "key", places)


def _within_memory(plan: RunPlan, window: int | None) -> RunPlan:
    """Add the memory of an explanation to the plan: keys, values and rotary tables of one head, in float64."""
    c = plan.config
    text_plan = plan.text_plans[0]
    n_keys = len(text_plan.context or text_plan.tokens)
    kept_values = n_keys * (5 * c.d_head + 3 * c.d_value + 16)
    shown_values = min(n_keys, window or n_keys) * (c.d_head + c.d_value + 16)
    return fit_to_memory(plan, {"walk": 8 * kept_values, "kept": 20 * shown_values})


def _changed_scores() -> UsageError:
    message = "the arithmetic that is explained has no such function"
    return UsageError(message, where=arg("score_mod"), hint="leave it out, or use inspect")


def _check_one(run: RunConfig) -> None:
    """Refuse more than one text, layer or head: an explanation is about one query of one head."""
    if len(run.texts) != 1:
        where = TEXTS_FILE
        hint = f"pass {arg('text')}"
        if run.qkv is not None:
            where = arg("qkv")
            hint = "save each text by itself"
        raise UsageError(f"{len(run.texts)} texts; explain takes one", where=where, hint=hint)
    for what, picked in (("layer", run.layer), ("head", run.head)):
        if not picked.single:
            mean = picked.word == "mean"
            if mean:
                message = f"explain needs a single {what}, not a mean"
            else:
                message = f"'{picked}' is not a single {what}"
            hint = f"use one, such as {arg(what, 0)}, or auto"
            if picked.label is not None:
                first_label, *_ = (f"L{layer}H{head}" for layer, head in picked.label.pairs)
                message = f"'{picked.label.written}' is not a single head"
                hint = f"use one, such as {first_label}"
            raise UsageError(message, where=picked.option(what), hint=hint)


def _one_query(run: RunConfig, text_plan: TextPlan) -> int:
    """Return the query to explain: the only one that was named, or the last token of a span."""
    candidates = text_plan.queries if run.query is not None else range(len(text_plan.tokens))
    listing = listed(
        [f"{i} {spell_piece(text_plan.tokens, i)}" for i in candidates[: _NAMED + 1]], _NAMED
    )
    if run.query is None:
        hint = f"use {arg('query', placeholder='WORD')} or {arg('query', placeholder='POSITION')}; the text has {listing}"
        raise UsageError("explain needs one token", where=arg("query"), hint=hint)
    if len(text_plan.queries) == 1:
        return text_plan.queries[0]
    if run.query.names_span(text_plan.spans):
        first_query = text_plan.queries[0]
        last = text_plan.queries[-1]
        statement = (
            f"'{run.query}' is {len(text_plan.queries)} tokens, and each has a softmax of its own: the last of them, "
            f"{last} '{spell_piece(text_plan.tokens, last)}', is explained"
        )
        text_plan.warnings.append(Hint.ANOTHER_TOKEN.after(statement, first_query))
        return last
    message = f"'{run.query}' selects {len(text_plan.queries)} tokens: {listing}"
    hint = f"select one by its position, such as {arg('query', text_plan.queries[-1])}"
    raise UsageError(message, where=arg("query"), hint=hint)
