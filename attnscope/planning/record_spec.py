"""Say which reductions of attention are recorded. Never imports torch."""

from dataclasses import dataclass

from attnscope.planning.run_plan import RunPlan


@dataclass(frozen=True)
class RecordSpec:
    """What is recorded of every layer and head.

    Attributes:
        stages: Stages whose matrices are recorded.
        rows: Query positions of matrices and contributors, sorted: all that any text of the batch shows.
        counted: Query positions of row statistics and sums, sorted: `rows`, or all where a text is pooled.
        columns: Key positions of matrices, sorted.
        top: Contributors per row.
        by: Measure that ranks contributors.
        parts: What is recorded, of record_parts.RECORD_PARTS; matrices are where `stages` names any.
        measures: Numbers recorded of each contributor; None for weight and value, and projected where that ranks.
        pool: Rows and columns of a pooled map.
        packed: How many of the first rows and columns each text's matrices have; None for as many as the batch.
    """

    stages: tuple[str, ...]
    rows: list[int]
    counted: list[int]
    columns: list[int]
    top: int
    by: str
    parts: tuple[str, ...] = ("top", "rows")
    measures: tuple[str, ...] | None = None
    pool: int = 0
    packed: tuple[tuple[int, int], ...] | None = None


def make_record_spec(plan: RunPlan) -> RecordSpec:
    """List what a Report of a run holds."""
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
        parts=("top", "rows", "columns", "pooled") if pool else ("top", "rows"),
        pool=pool,
    )
