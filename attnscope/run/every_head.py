"""Summaries of every head, recorded in the same pass as the Report, for pages and walks."""

from typing import TYPE_CHECKING

from attnscope.findings.tokens import LEFT_OUT
from attnscope.run.plan import RunPlan
from attnscope.run.summary_plan import SummaryPlan, plan_summary

if TYPE_CHECKING:
    from attnscope.engines.protocol import Engine
    from attnscope.findings.run import TextReport
    from attnscope.model.batch import Batch
    from attnscope.model.trace import Trace


def _summary_of(plan: RunPlan) -> SummaryPlan:
    return plan_summary(plan.run, plan.config, plan.text_plans, plan.stages)


def summary_trace(plan: RunPlan, batch: "Batch", engine: "Engine") -> "Trace":
    """Return the recorders of every head."""
    from attnscope.model.recorders import RecordedTokens
    from attnscope.model.trace import HeadSelection, make_trace

    n_layers, n_heads = engine.sizes
    units = [HeadSelection((layer,), (head,)) for layer in range(n_layers) for head in range(n_heads)]
    eligible = batch.sources.real if plan.run.special else batch.sources.content()
    tokens = RecordedTokens(batch.sources, eligible, batch.tokens.real, batch.tokens.real)
    return make_trace(units, _summary_of(plan).record_spec, tokens)


def summarised(plan: RunPlan, index: int, trace: "Trace", text: "TextReport") -> "TextReport":
    """Return the summary of a text: its listed rows, and every head."""
    import msgspec

    from attnscope.run.analysis.head_reports import TextSlice, head_report
    from attnscope.run.analysis.overview import TextExtent

    text_plan, summary = plan.text_plans[index], _summary_of(plan)
    length = len(text_plan.tokens)
    queries = [row for row in text_plan.queries or range(length) if row in set(summary.record_spec.rows)]
    keys = text_plan.keys if summary.exact else []
    extent = None
    if not summary.exact:
        listed = [row for row in summary.record_spec.rows if row < length]
        extent = TextExtent.of(text_plan.tokens, len(text_plan.context or text_plan.tokens), listed)
    place = TextSlice(index, queries, keys, extent)
    left_out = [] if plan.run.special else [*LEFT_OUT]
    heads = [
        head_report(unit, recorded, trace, place, left_out=left_out, score_mod=plan.score_mod)
        for unit, recorded in trace.recorded
    ]
    return msgspec.structs.replace(text, queries=queries, keys=keys, heads=heads)
