"""Plan a summary of every head of the model: for pages and walks. Never imports torch."""

from collections.abc import Sequence

from attnscope.base.model_config import ModelConfig
from attnscope.findings.record_parts import RECORD_PARTS, Quantities
from attnscope.findings.row_statistics import STATISTICS
from attnscope.request.record_spec import RecordSpec
from attnscope.request.run_config import RunConfig
from attnscope.run.text_plan import TextPlan

TOP = 5  # sources of a row
RUNS = 24  # rows and columns of a map
MOST_CELLS = 200_000  # largest number of cells of all heads whose stages are kept
_MAPPED = 8_000_000  # the same of their weights alone, which are maps on the pictures of a text
_ROWS = 200_000  # largest number of rows of all heads whose sources and statistics are kept
_FLOAT = 4


def plan_summary(
    run: RunConfig, config: ModelConfig, texts: Sequence[TextPlan], stages: tuple[str, ...]
) -> RecordSpec:
    """Plan the summaries of every head: all stages for short texts, some of the rows and a map for long ones."""
    units = config.n_layers * config.n_heads
    rows = [text.queries or range(len(text.tokens)) for text in texts]
    columns = [text.keys or range(len(text.context or text.tokens)) for text in texts]
    cells = units * sum(len(r) * len(c) for r, c in zip(rows, columns, strict=True))
    exact = cells <= MOST_CELLS and bool(stages) and all(text.queries for text in texts)
    pictured = all(text.media is not None and text.media.images and text.queries for text in texts)
    if not exact and pictured and "weights" in stages and cells <= _MAPPED:
        exact = True
        stages = ("weights",)
    stride = 1 if exact else -(-units * sum(map(len, rows)) // _ROWS)
    listed = sorted({row for positions in rows for row in positions[::stride]})
    return RecordSpec(
        stages=stages if exact else (),
        rows=listed,
        counted=listed,
        columns=sorted({column for positions in columns for column in positions}) if exact else [],
        top=TOP if run.top else 0,
        by=run.by,
        parts=("top", "rows") if exact else ("top", "rows", "pooled"),
        pool=0 if exact else RUNS,
    )


def summary_bytes(
    run: RunConfig, config: ModelConfig, texts: Sequence[TextPlan], stages: tuple[str, ...]
) -> int:
    """Estimate the bytes that a summary takes, with its recorders."""
    spec = plan_summary(run, config, texts, stages)
    units = config.n_layers * config.n_heads
    rows = len(texts) * units * len(spec.rows)
    quantities = Quantities(
        texts=len(texts), units=units, sources=max(len(text.context or text.tokens) for text in texts),
        rows=rows, counted=rows, cells=rows * len(spec.columns) * len(spec.stages), top=spec.top, measures=2,
        statistics=len(STATISTICS), pool=spec.pool,
    )  # fmt: skip
    names = (*spec.parts, "stages")
    return (
        2
        * _FLOAT
        * sum(
            part.numbers(quantities) + part.beside(quantities)
            for part in RECORD_PARTS
            if part.name in names
        )
    )
