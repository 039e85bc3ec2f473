"""Show the exact matrix from tokens to tokens of layers without softmax."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Literal, Protocol, cast

import msgspec
import numpy as np

from attnscope.base.errors import UsageError, arg
from attnscope.base.layer_kinds import MIXING, spell_legend, spell_map, spell_unseen
from attnscope.checkpoints.source import ModelSource
from attnscope.findings.axes import take
from attnscope.findings.heads import Pooled, run_starts
from attnscope.findings.mixing import Mixing
from attnscope.findings.narrowing import narrow_rows
from attnscope.findings.provenance import MaskUse
from attnscope.findings.run import Report, TextReport
from attnscope.findings.tokens import LEFT_OUT
from attnscope.request.memory import layer_parameters
from attnscope.request.run_config import RunConfig
from attnscope.request.selection import AUTO, FEW, WALKED, PresentIndices
from attnscope.run.plan import (
    DEFAULT_STAGES,
    SELECT_LESS,
    SHORTER,
    RunPlan,
    memory_demand,
    plan_for_texts,
    plan_texts,
    spare_memory,
)
from attnscope.run.prediction_plan import logit_option
from attnscope.run.session import (
    Session,
    memory_check,
    prepare,
    provenance,
    report_without_heads,
    warnings_of,
)
from attnscope.run.text_plan import TextPlan

if TYPE_CHECKING:
    from attnscope.model.batch import Batch
    from attnscope.model.mixing import MixingInputs
    from attnscope.run.analysis.mixing import LayerRecorder

SelectedHeads = Sequence[int] | Literal["mean"] | None  # None for one that is to be chosen
_WIDTHS = 8  # queries, keys, values and decays of a token, in numbers of its hidden state
_BLOCKS = 1 << 26  # bytes of blocks of rows


class _ShowsMixing(Protocol):
    """An engine that runs layers without softmax."""

    def show_mixing(
        self, batch: "Batch", observe: "Mapping[int, Callable[[MixingInputs], None]]"
    ) -> None: ...


def selects_mixing(run: RunConfig, source: ModelSource) -> bool:
    """Tell whether a run is about layers without softmax: all that it names by their numbers are such."""
    if run.measure == MIXING or (source.mixing and source.layers == ()):
        return True
    if (
        run.layer.word
        or run.layer.slice
        or source.layers is None
        or any(low < 0 for low, _ in run.layer.ranges)
    ):
        return False
    layers = run.layer.numbers(source.config.n_layers, "layer")
    return all(layer in source.mixing and layer not in source.layers for layer in layers)


def measure_mixing(
    run: RunConfig,
    session: Session,
    *,
    in_detail: bool = False,
) -> Report:
    """Show the matrices of layers without softmax; `in_detail` a single row of a single head, with its dimensions."""
    from attnscope.run.analysis.mixing import LayerRecorder

    source, run = session.open(run)
    heads = selected_heads(run, source)
    _check_options(run, min(heads), pure=source.layers == ())
    plan = plan_mixing(run, source, heads)
    model, device = session.load(plan)
    batch, engine = prepare(plan, model, device)
    check = memory_check(plan, batch)
    scored = run.layer.word == "auto"
    recorders = {
        layer: LayerRecorder(
            run, plan.text_plans, layer, of_layer, check, scored=scored, in_detail=in_detail
        )
        for layer, of_layer in heads.items()
    }

    def observer(layer: int) -> "Callable[[MixingInputs], None]":
        def observe(inputs: "MixingInputs") -> None:
            recorders[layer].record(inputs)
            session.on_progress(
                MIXING, sum(recorder.done for recorder in recorders.values()), len(recorders)
            )

        return observe

    cast(_ShowsMixing, engine).show_mixing(batch, {layer: observer(layer) for layer in recorders})
    shown_layers = [*recorders.values()]
    if scored:
        shown_layers = [max(shown_layers, key=lambda recorder: recorder.score)]
    channels = {
        layer: source.mixing[layer].n_heads
        for layer, recorder in recorders.items()
        if recorder in shown_layers and source.mixing[layer].by_channel
    }
    texts = [
        _text_report(run, text, index, shown_layers, channels)
        for index, text in enumerate(plan.text_plans)
    ]
    values = "exact"
    if any(text_plan.pool for text_plan in plan.text_plans):
        values = "pooled"
    # a recurrence reads what came before
    mask = MaskUse("causal", "causal")
    return Report(
        provenance(source, run, device, values, warnings_of(plan.text_plans)), mask, texts
    )


def selected_heads(run: RunConfig, source: ModelSource) -> dict[int, "SelectedHeads"]:
    """Return the heads that a run names in each layer without softmax; None if one of them is to be chosen."""
    kinds = source.config.layer_map
    layers = "; ".join(
        filter(None, (f"{spell_map(kinds)} ({spell_legend(kinds)})", spell_unseen(kinds)))
    )
    if not source.mixing:
        where = arg("measure", MIXING)
        raise UsageError(
            "no layer of this model has such a matrix without softmax", where=where, hint=layers
        )
    if run.layer.word == "mean":
        message = f"{MIXING} takes layers by their numbers, auto or all"
        raise UsageError(message, where=arg("layer"), hint=f"use {min(source.mixing)}: {layers}")
    present = PresentIndices(
        tuple(source.mixing), "has no matrix without softmax", f"the layers are {layers}"
    )
    selected = replace(run.layer, present=present).numbers(source.config.n_layers, "layer")
    heads: dict[int, SelectedHeads] = {}
    for layer in selected:
        if run.head.word == "mean":
            heads[layer] = _mean_of(layer, source)
            continue
        of_layer = run.head.numbers(source.mixing[layer].n_heads, "head", by_layer=True)
        if run.head.pairs:
            of_layer = [head for of_head, head in run.head.pairs if of_head == layer]
        heads[layer] = None if run.head.word == "auto" else of_layer
    return heads


def _mean_of(layer: int, source: ModelSource) -> Literal["mean"]:
    """Return the mean of all channels; of other heads, refuse it."""
    if not source.mixing[layer].by_channel:
        hint = f"use {arg('head', 'all')}, or a head"
        raise UsageError(
            "a mean of signed matrices says little", where=arg("head", "mean"), hint=hint
        )
    return "mean"


def _check_options(run: RunConfig, layer: int, *, pure: bool) -> None:
    """Refuse options that do not apply to a layer without softmax; a `pure` model has no other layers."""
    are_stages_chosen = run.stages not in (DEFAULT_STAGES, WALKED, ("weights",), ())
    no_weights = f"layer {layer} has no softmax, and so no weights"
    refused = (
        (
            run.hide is not None,
            arg("hide"),
            f"layer {layer} has no softmax from which a token could be hidden",
        ),
        (not run.own_mask, arg("mask"), f"layer {layer} has no softmax that a mask could change"),
        (
            run.scale is not None,
            arg("scale"),
            f"layer {layer} has no softmax whose scores have a factor",
        ),
        (bool(run.cuts), arg("cuts"), "cuts are not made while layers without softmax are shown"),
        (are_stages_chosen, arg("stages"), f"layer {layer} has no softmax, and so no stages"),
        (run.words, arg("words"), f"{no_weights} to merge"),
        (run.least > 0, arg("least"), f"{no_weights} to receive"),
        (run.spans is not None, arg("spans"), f"{no_weights} between spans"),
        (
            run.by == "projected",
            arg("by", "projected"),
            "a norm and a gate stand before the output projection",
        ),
        (run.target is not None, logit_option(run), f"{MIXING} does not take a logit apart"),
        (bool(run.predict), arg("predict"), f"{MIXING} shows no predictions"),
        (run.generate > 0, arg("generate"), f"{MIXING} continues no text"),
        (run.show_padding, arg("show_padding"), "a state keeps no padding"),
    )
    for is_refused, where, message in refused:
        if is_refused:
            if pure:
                hint = "remove it"
            else:
                hint = f"remove it, or use {arg('layer', 'auto')}, which is a layer with softmax"
            raise UsageError(message, where=where, hint=hint)


def plan_mixing(
    run: RunConfig, source: ModelSource, heads: Mapping[int, "SelectedHeads"]
) -> RunPlan:
    """Plan the pass, checked against the texts and the memory."""
    request = msgspec.structs.replace(run, layer=AUTO, head=AUTO, predict=False, measure=MIXING)
    texts = plan_texts(request, source)
    # no mask is made for the attention below, and a model without attention is planned as if each layer had it
    source = replace(source, dense_masks=False, layers=source.layers or None)
    plan = plan_for_texts(request, source, texts)
    n_layers_run = 1 + max(heads)
    longest = max(len(text.tokens) for text in texts)
    work = n_layers_run * layer_parameters(source.config) * sum(len(text.tokens) for text in texts)
    units = sum(1 if of_layer in (None, "mean") else len(of_layer) for of_layer in heads.values())
    cells = units * sum(
        len(text.queries) * (len(text.keys) + 4 * run.top + 4) + (text.pool or 0) ** 2
        for text in texts
    )
    demand = replace(
        memory_demand(plan),
        layers=n_layers_run,
        cells=cells,
        rows=0,
        drawn=0 if run.window is None else cells,
        tiled_queries=1,
        heads=1,
    )
    inputs = 4 * _WIDTHS * source.config.d_model * longest * len(texts)
    more = {MIXING: inputs + _BLOCKS}
    _, _, memory = spare_memory(run, source, demand, more, (SELECT_LESS, SHORTER), work)
    return replace(plan, run=run, n_layers_run=n_layers_run, multiplications=work, memory=memory)


def _text_report(
    run: RunConfig,
    text_plan: TextPlan,
    index: int,
    recorders: "Sequence[LayerRecorder]",
    channels: dict[int, int],
) -> TextReport:
    arrays = {
        name: [a for recorder in recorders for a in recorder.kept[index][name]]
        for name in recorders[0].names
    }
    stacked: dict[str, Any] = {name: np.stack(each) for name, each in arrays.items()}
    pooled = None
    if text_plan.pool:
        n = len(text_plan.tokens)
        starts = run_starts(n, text_plan.pool)
        pooled = Pooled(starts, starts, stacked.pop("pooled"))
    mixing = Mixing(
        units=[unit for recorder in recorders for unit in recorder.units],
        kinds=[recorder.kind for recorder in recorders for _ in recorder.units],
        chosen=[recorder.chosen for recorder in recorders for _ in recorder.units],
        by=run.by,
        left_out=[] if run.special else [*LEFT_OUT],
        pooled=pooled,
        channels=channels,
        ranked=[head for recorder in recorders for head in recorder.ranked],
        read_keys=recorders[0].read_keys,
        **stacked,
    )
    report = report_without_heads(run, text_plan, mixing=mixing, position_ids=text_plan.positions)
    if text_plan.narrowed is None or mixing.matrix is None:
        return report
    return _narrowed(report, text_plan, mixing.matrix)


def _narrowed(report: TextReport, text_plan: TextPlan, matrix: np.ndarray) -> TextReport:
    """Return the rows or columns in which most of |M| is."""
    sizes = np.abs(matrix).sum(
        (0, 1) if text_plan.narrowed == "columns" else (0, 2), dtype=np.float64
    )
    largest = sorted(np.argsort(-sizes, kind="stable")[:FEW].tolist())
    if text_plan.narrowed == "columns":
        return take(report, "key", largest)
    return narrow_rows(report, largest)
