"""The record specification of a Report. Never imports torch."""

from attnscope.findings.record_parts import reported_parts
from attnscope.request.record_spec import RecordSpec
from attnscope.run.plan import RunPlan


def make_record_spec(plan: RunPlan) -> RecordSpec:
    """Return the record specification of a run's Report."""
    text_plans = plan.text_plans
    pool = max((text_plan.pool or 0 for text_plan in text_plans), default=0)
    rows = sorted({query for text_plan in text_plans for query in text_plan.queries})
    longest = max(len(text_plan.tokens) for text_plan in text_plans)
    return RecordSpec(
        stages=plan.stages,
        rows=rows,
        counted=list(range(longest)) if pool else rows,
        columns=sorted({key for text_plan in text_plans for key in text_plan.keys}),
        top=plan.run.top,
        by=plan.run.by,
        parts=(*reported_parts(pool), *(["received"] if plan.run.least else [])),
        pool=pool,
    )
