"""Explain one query of one head: every step of its arithmetic, with checks."""

from typing import TYPE_CHECKING

from msgspec.structs import replace

from attnscope.base.errors import TEXTS_FILE, UsageError, arg, listed
from attnscope.findings.explain import Explanation
from attnscope.findings.tokens import spell_piece
from attnscope.request.run_config import RunConfig
from attnscope.run.plan import RunPlan, fit_to_memory, make_plan
from attnscope.run.session import ProgressCallback, Session, describe_mask_use, prepare, provenance, select_heads
from attnscope.run.text_plan import TextPlan
from attnscope.studies.explain.location import QueryLocation

if TYPE_CHECKING:
    from attnscope.engines.protocol import Engine
    from attnscope.model.batch import Batch
    from attnscope.model.head_capture import RowCapture

__all__ = ["explain"]

_NAMED = 40  # tokens that an error names


def explain(run: RunConfig, progress: ProgressCallback | None = None, session: Session | None = None) -> Explanation:
    """Do what `attnscope explain` does, without printing.

    Args:
        run: The request; `window` is the number of keys kept (None for all), `key` names the cells in depth.
        progress: See pipeline.inspect.
        session: Models that are open already.
    """
    _check_one(run)
    if run.score_functions:
        raise _changed_scores()
    session = session or Session(run.texts, progress)
    (source, run), on_progress = session.open(run), session.on_progress
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
    from attnscope.studies.explain.build import GivenOrigin, ModelOrigin, Origin, build

    batch, engine = prepare(plan, model, device)
    (unit,), _ = select_heads(plan, batch, engine, on_progress)
    location = QueryLocation(text_plan, query, unit.layers[0], unit.heads[0], unit.chosen)
    place = location.layer, location.head, query, len(text_plan.context or text_plan.tokens)
    capture: RowCapture
    if source.runs:
        modules = engine.modules_of(location.layer)
        capture = HeadCapture(modules, *place)
        with capture.capturing():
            _forward(engine, batch, capture, on_progress)
        origin: Origin = ModelOrigin(run.dtype, location, modules.stack, capture, batch.tokens.ids)
    else:
        capture = RowCapture(*place)
        _forward(engine, batch, capture, on_progress)
        origin = GivenOrigin(capture)
    if capture.spec is not None and capture.spec.mask.changes_scores is not None:
        raise _changed_scores()
    mask = describe_mask_use(source, run, engine.describe_mask())
    here = describe_mask_use(source, run, engine.describe_layer_mask(location.layer)).used
    context = provenance(source, run, device), mask, None if here == mask.used else here
    return build(run, context, location, capture, origin)


def _forward(engine: "Engine", batch: "Batch", capture: "RowCapture", on_progress: ProgressCallback) -> None:
    engine.forward(batch, {capture.layer: [capture]}, lambda done, total: on_progress("attending", done, total))


def _within_memory(plan: RunPlan, window: int | None) -> RunPlan:
    """Add the memory of an explanation to the plan: keys, values and rotary tables of one head, in float64."""
    c, text_plan = plan.config, plan.text_plans[0]
    n_keys = len(text_plan.context or text_plan.tokens)
    kept = n_keys * (5 * c.d_head + 3 * c.d_value + 16)
    shown = min(n_keys, window or n_keys) * (c.d_head + c.d_value + 16)
    return fit_to_memory(plan, {"walk": 8 * kept, "kept": 20 * shown})


def _changed_scores() -> UsageError:
    message = "the arithmetic that is explained has no such function"
    return UsageError(message, where=arg("score_mod"), hint="leave it out, or use inspect")


def _check_one(run: RunConfig) -> None:
    """Refuse more than one text, layer or head: an explanation is about one query of one head."""
    if len(run.texts) != 1:
        where, hint = (
            (TEXTS_FILE, f"pass {arg('text')}") if run.qkv is None else (arg("qkv"), "save each text by itself")
        )
        raise UsageError(f"{len(run.texts)} texts; explain takes one", where=where, hint=hint)
    for what, picked in (("layer", run.layer), ("head", run.head)):
        if not picked.single:
            mean = picked.word == "mean"
            message = f"explain needs a single {what}, not a mean" if mean else f"'{picked}' is not a single {what}"
            hint = f"use one, such as {arg(what, 0)}, or auto"
            if picked.label is not None:
                first, *_ = (f"L{layer}H{head}" for layer, head in picked.label.pairs)
                message, hint = f"'{picked.label.written}' is not a single head", f"use one, such as {first}"
            raise UsageError(message, where=picked.option(what), hint=hint)


def _one_query(run: RunConfig, text_plan: TextPlan) -> int:
    """Return the query to explain: the only one that was named, or the last token of a span."""
    candidates = text_plan.queries if run.query is not None else range(len(text_plan.tokens))
    named = listed([f"{i} {spell_piece(text_plan.tokens, i)}" for i in candidates[: _NAMED + 1]], _NAMED)
    if run.query is None:
        hint = f"use {arg('query', placeholder='WORD')} or {arg('query', placeholder='POSITION')}; the text has {named}"
        raise UsageError("explain needs one token", where=arg("query"), hint=hint)
    if len(text_plan.queries) > 1 and run.query.names_span(text_plan.spans):
        first, last = text_plan.queries[0], text_plan.queries[-1]
        text_plan.notes.append(
            f"'{run.query}' is {len(text_plan.queries)} tokens, and each has a softmax of its own: the last of them, "
            f"{last} '{spell_piece(text_plan.tokens, last)}', is explained; --query {first} explains another"
        )
        return last
    if len(text_plan.queries) > 1:
        message = f"'{run.query}' selects {len(text_plan.queries)} tokens: {named}"
        raise UsageError(
            message,
            where=arg("query"),
            hint=f"select one by its position, such as {arg('query', text_plan.queries[-1])}",
        )
    return text_plan.queries[0]
