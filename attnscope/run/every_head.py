"""Summaries of every head, recorded in the same pass as the Report, for pages and walks."""

from dataclasses import replace
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
    return make_trace(
        units, plan_summary(plan.run, plan.config, plan.text_plans, plan.stages), tokens
    )


def summarised(plan: RunPlan, index: int, trace: "Trace", text: "TextReport") -> "TextReport":
    """Return the summary of a text: its listed rows, and every head."""
    import msgspec

    from attnscope.run.analysis.heads import counted_rows, text_heads, text_part

    text_plan = plan.text_plans[index]
    record_spec = trace.record_spec
    tokens = text_plan.tokens
    queries = [
        row for row in text_plan.queries or range(len(tokens)) if row in set(record_spec.rows)
    ]
    keys = text_plan.keys
    counted = None
    if record_spec.pool:
        keys = []
        counted = counted_rows([tokens[row] for row in record_spec.rows if row < len(tokens)])
    part = replace(text_part(index, text_plan, counted), queries=queries, keys=keys)
    left_out = [] if plan.run.special else [*LEFT_OUT]
    heads = text_heads(trace, part, left_out=left_out, score_mod=plan.score_mod)
    return msgspec.structs.replace(text, queries=queries, keys=keys, heads=heads)
