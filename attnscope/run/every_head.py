"""Summaries of every head, recorded in the same pass as the Report, for pages and walks."""

from typing import TYPE_CHECKING

from attnscope.findings.tokens import LEFT_OUT
from attnscope.run.plan import RunPlan
from attnscope.run.summary_plan import plan_summary

if TYPE_CHECKING:
    from attnscope.engines.protocol import Engine
    from attnscope.findings.run import TextReport
    from attnscope.model.batch import Batch
    from attnscope.model.trace import Trace


def summary_trace(plan: RunPlan, batch: "Batch", engine: "Engine") -> "Trace":
    """Return the recorders of every head."""
    from attnscope.model.recorders import RecordedTokens
    from attnscope.model.trace import HeadSelection, make_trace

    heads = range(engine.sizes[1])
    units = [HeadSelection((layer,), (head,)) for layer in engine.layers for head in heads]
    eligible = batch.sources.real if plan.run.special else batch.sources.content()
    tokens = RecordedTokens(batch.sources, eligible, batch.tokens.real, batch.tokens.real)
    return make_trace(units, plan_summary(plan.run, plan.config, plan.text_plans, plan.stages), tokens)


def summarised(plan: RunPlan, index: int, trace: "Trace", text: "TextReport") -> "TextReport":
    """Return the summary of a text: its listed rows, and every head."""
    import msgspec

    from attnscope.run.analysis.head_reports import TextExtent, TextSlice, head_report

    text_plan, record_spec = plan.text_plans[index], trace.record_spec
    length, rows = len(text_plan.tokens), set(record_spec.rows)
    queries = [row for row in text_plan.queries or range(length) if row in rows]
    keys, extent = text_plan.keys, None
    if record_spec.pool:
        listed, keys = [row for row in record_spec.rows if row < length], list[int]()
        extent = TextExtent.of(text_plan.tokens, len(text_plan.context or text_plan.tokens), listed)
    place = TextSlice(index, queries, keys, extent)
    left_out = [] if plan.run.special else [*LEFT_OUT]
    heads = [
        head_report(unit, recorded, trace, place, left_out=left_out, score_mod=plan.score_mod)
        for unit, recorded in trace.recorded
    ]
    return msgspec.structs.replace(text, queries=queries, keys=keys, heads=heads)
