"""Measure how much of every token stems from each token, over layers."""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import msgspec
import numpy as np

from attnscope.base.errors import UsageError, arg
from attnscope.base.layer_kinds import attends, count_attending, mixes_unseen, spell_map
from attnscope.checkpoints.source import ModelSource
from attnscope.findings.arrays import Array
from attnscope.findings.hints import Hint
from attnscope.findings.rollout import ROLLOUT_MEASURES, Collapse, RolloutMeasure, TokenRollout
from attnscope.findings.run import Report, TextReport
from attnscope.findings.tokens import LEFT_OUT
from attnscope.request.run_config import RunConfig
from attnscope.request.selection import MEAN, IndexSelection
from attnscope.run.plan import (
    SHORTER,
    RunPlan,
    memory_demand,
    plan_for_texts,
    plan_texts,
    present_layers,
    spare_memory,
)
from attnscope.run.session import (
    ProgressCallback,
    Session,
    describe_mask_use,
    forward,
    prepare,
    provenance,
    report_without_heads,
    warnings_of,
)
from attnscope.run.text_plan import TextPlan
from attnscope.studies.rollout.arithmetic import collapsed_on, normalized, rollouts, strongest

if TYPE_CHECKING:
    import torch

    from attnscope.engines.protocol import Engine
    from attnscope.model.batch import Batch
    from attnscope.model.stack import RunBlock
    from attnscope.request.masks.terms import Mask

_AT_ONCE = 2048  # number of tokens in a batch of copies of a text, unless one copy has more
_SELECT = f"remove it; {arg('query')} and {arg('key')} select rows and columns"
# number of float64 matrices of a text, apart from one per layer, that the arithmetic needs
_FLOATS = 6


@dataclass(frozen=True)
class RolloutPlan:
    """The measure, layers, cells and passes of a measurement over layers."""

    measure: RolloutMeasure
    layers: list[int]
    shown: list[TextPlan]  # rows and columns that are shown of every text
    plan: RunPlan  # passes over the texts, one at a time, with every row and column
    steps: bool  # whether each layer has a matrix


def measure_rollout(run: RunConfig, session: Session, *, steps: bool = False) -> Report:
    """Measure how much of every token's output stems from each token, over layers.

    Args:
        steps: Of a product of all layers, keep it after each of them: for a page, which shows them side by side.
    """
    source, run = session.open(run)
    if ROLLOUT_MEASURES[run.measure].zeroing:
        source.require_model(run.measure)
    if source.first_queries:
        hint = "give queries of every token, or remove it"
        raise UsageError(
            "needs the queries of all tokens", where=arg("measure", run.measure), hint=hint
        )
    rollout_plan = plan_rollout(run, source, steps=steps)
    model, device = session.load(rollout_plan.plan)
    find = _zeroing if rollout_plan.measure.zeroing else _weights
    count = len(rollout_plan.shown)
    texts = []
    engine = None
    for text_index, text in enumerate(rollout_plan.shown):
        text_plan = replace(
            rollout_plan.plan, text_plans=[rollout_plan.plan.text_plans[text_index]]
        )
        batch, engine = prepare(text_plan, model, device)
        step = run.measure + (f", text {text_index + 1} of {count}" if count > 1 else "")
        matrices = find(text_plan, batch, engine, rollout_plan.layers, (step, session.progress))
        texts.append(_text_report(run, text, matrices, rollout_plan))
    assert engine is not None
    plan = rollout_plan.plan
    mask = describe_mask_use(source, run, engine.describe_mask(), plan.text_plans, plan.matrices)
    return Report(
        provenance(source, run, device, warnings=warnings_of(plan.text_plans)), mask, texts
    )


def plan_rollout(run: RunConfig, source: ModelSource, *, steps: bool = False) -> RolloutPlan:
    """Plan a measurement over layers, checked against the model, the texts and the memory."""
    measure = ROLLOUT_MEASURES[run.measure]
    _check_model(source, measure)
    layers = _layers(run, source, measure)
    shown_texts = [
        _within(run, text) for text in plan_texts(msgspec.structs.replace(run, window=None), source)
    ]
    steps = steps or not measure.cumulative
    plan = _plan(run, source, layers, shown_texts, measure, len(layers) if steps else 1)
    return RolloutPlan(measure, layers, shown_texts, plan, steps)


def _check_model(source: ModelSource, measure: RolloutMeasure) -> None:
    """Refuse a model with steps between tokens that the measure does not follow."""
    where = arg("measure", measure.name)
    if source.needs_context or source.part == "cross":
        message = "is not defined under cross-attention, where a layer's output also depends on a second text"
        raise UsageError(
            message,
            where=where,
            hint=f"use a model without cross-attention, or {arg('part', 'encoder')}",
        )
    if measure.residual and not source.config.residual:
        hint = "use rollout-no-residual"
        raise UsageError(
            "the layers of this model do not add their input to their output",
            where=where,
            hint=hint,
        )


def _layers(run: RunConfig, source: ModelSource, measure: RolloutMeasure) -> list[int]:
    """Return the layers, ascending; a product needs all layers between them that let tokens read each other."""
    if run.layer.word == "mean":
        message = f"{measure.name} cannot be averaged over layers"
        hint = "use all, or a range such as 0-3"
        raise UsageError(message, where=arg("layer"), hint=hint)
    layers = sorted(present_layers(run.layer, source).numbers(source.config.n_layers, "layer"))
    kinds = source.config.layer_map
    between = range(layers[0], layers[-1] + 1)
    if measure.cumulative and (
        unseen := [layer for layer in between if mixes_unseen(kinds[layer])]
    ):
        message = f"{measure.name} multiplies weights of attention, and in layer {unseen[0]} tokens read each other "
        message += f"through {' and '.join(kinds[unseen[0]])}"
        hint = f"{count_attending(kinds)}: {spell_map(kinds)}; use {arg('measure', 'value-zeroing')}, or one layer"
        raise UsageError(message, where=arg("measure", measure.name), hint=hint)
    passed = [layer for layer in between if layer in layers or attends(kinds[layer])]
    if measure.cumulative and layers != passed:
        hint = f"use {layers[0]}-{layers[-1]}, or one layer"
        raise UsageError(f"{measure.name} needs consecutive layers", where=arg("layer"), hint=hint)
    return layers


def _within(run: RunConfig, text: TextPlan) -> TextPlan:
    """Return a text with as many rows and columns as are shown of a long one, and a note on the others."""
    notes = list(text.notes)
    size = run.window
    queries = text.queries
    keys = text.keys
    if size is not None and run.query is None and len(queries) > size:
        notes.append(Hint.OTHER_ROWS.after(f"rows 0–{size - 1} of {len(queries)} shown"))
        queries = queries[:size]
    if size is not None and run.key is None and len(keys) > size:
        notes.append(Hint.OTHER_COLUMNS.after(f"columns 0–{size - 1} of {len(keys)} shown"))
        keys = keys[:size]
    return replace(text, queries=queries, keys=keys, notes=notes)


def _plan(
    run: RunConfig,
    source: ModelSource,
    layers: list[int],
    shown_texts: list[TextPlan],
    measure: RolloutMeasure,
    matrices: int,
) -> RunPlan:
    """Plan passes over one text at a time, with every row and column, and estimate their memory.

    Args:
        matrices: Number of matrices that are kept of a text.
    """
    texts = [
        replace(text, queries=(n := list(range(len(text.tokens)))), keys=n) for text in shown_texts
    ]
    request = msgspec.structs.replace(
        run,
        layer=IndexSelection.of(layers),
        head=MEAN,
        stages=("weights",),
        top=0,
        query=None,
        key=None,
    )
    plan = plan_for_texts(request, source, texts)
    longest = max(texts, key=lambda text: len(text.tokens))
    cells = len(longest.tokens) ** 2
    results = matrices * sum(
        len(text.queries) * (len(text.keys) + 2 * run.top) for text in shown_texts
    )
    batch = 1
    if measure.zeroing:
        batch = _copies(len(longest.tokens)) + 1
    demand = replace(
        memory_demand(replace(plan, text_plans=[longest])),
        batch=batch,
        cells=0 if measure.zeroing else len(layers) * cells,
        rows=0,
        drawn=0 if run.window is None else results,
    )
    kept_bytes = 8 * cells * (len(layers) + _FLOATS)
    _, stream_reason, memory = spare_memory(
        run, source, demand, {"kept": kept_bytes + 4 * results}, (SHORTER,)
    )
    return replace(plan, stream_reason=stream_reason, memory=memory)


def _copies(n_tokens: int) -> int:
    """Return how many copies of a text go through a layer together, each with another value zeroed."""
    return max(1, min(n_tokens, _AT_ONCE // n_tokens))


def _weights(
    plan: RunPlan,
    batch: "Batch",
    engine: "Engine",
    layers: list[int],
    step: tuple[str, ProgressCallback | None],
) -> list[Array]:
    """Return the weights of every layer averaged over heads, (T, T) each; 0 in fully masked rows."""
    from attnscope.model.recorders import MatrixRecorder

    every = plan.text_plans[0].queries
    heads = range(engine.sizes[1])
    recorders = {
        layer: MatrixRecorder(("weights",), heads, every, every, mean=True) for layer in layers
    }
    forward(plan, batch, engine, {layer: [recorder] for layer, recorder in recorders.items()}, step)
    return [
        np.nan_to_num(recorders[layer].compute()["weights"][0, 0].cpu().numpy().astype(np.float64))
        for layer in layers
    ]


def _zeroing(
    plan: RunPlan,
    batch: "Batch",
    engine: "Engine",
    layers: list[int],
    step: tuple[str, ProgressCallback | None],
) -> list[Array]:
    """Return the change of each token's output when a value is zeroed, by layer; rows sum to 1."""
    from attnscope.model.value_zeroing import output_changes

    n = len(plan.text_plans[0].tokens)
    what, on_progress = step
    changes: dict[int, Array] = {}
    done = 0
    total = len(layers) * n

    def advance(count: int) -> None:
        nonlocal done
        done += count
        if plan.memory is not None:
            plan.memory.check()
        if on_progress is not None:
            on_progress(what, done, total)

    def block(
        layer: int, again: "RunBlock", x: "torch.Tensor", y: "torch.Tensor", mask: "Mask"
    ) -> None:
        if layer in layers:
            changes[layer] = normalized(
                output_changes(again, x, y, mask, _copies(n), advance).cpu().numpy()
            )

    engine.run_blocks(batch, layers[-1], block)
    return [changes[layer] for layer in layers]


def _text_report(
    run: RunConfig,
    text: TextPlan,
    matrices: list[Array],
    plan: RolloutPlan,
) -> TextReport:
    found = []
    eligible = np.array([run.special or not token.special for token in text.tokens])
    eligible[0] &= run.special
    for covered_layers, matrix, collapse in _covered(matrices, plan):
        rows = matrix[text.queries]
        keys, values = strongest(rows, eligible, run.top)
        nothing = [query for query, row in zip(text.queries, rows, strict=True) if not row.any()]
        part = rows[:, text.keys].astype(np.float32)
        part[[query in nothing for query in text.queries]] = np.nan
        ranked = keys, values.astype(np.float32), [] if run.special else [*LEFT_OUT]
        found.append(
            TokenRollout(plan.measure.name, covered_layers, part, nothing, *ranked, collapse)
        )
    return report_without_heads(run, text, hidden=list(text.hidden), rollouts=found)


def _covered(
    matrices: list[Array], plan: RolloutPlan
) -> Iterator[tuple[list[int], Array, Collapse | None]]:
    """Yield the matrix of each layer, or their product, after each layer or after all; and the layers that it covers."""
    layers = plan.layers
    if not plan.measure.cumulative:
        yield from (([layer], matrix, None) for layer, matrix in zip(layers, matrices, strict=True))
        return
    products = rollouts(matrices, residual=plan.measure.residual)
    source = None
    first_layer = 0
    for count, product in enumerate(products, 1):
        if source is None:
            source = collapsed_on(product)
            first_layer = layers[count - 1]
        if plan.steps or count == len(layers):
            collapse = None
            if source is not None:
                collapse = Collapse(source, first_layer, float(product[-1, source]))
            yield layers[:count], product, collapse
