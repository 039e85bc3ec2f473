"""Resolve a request against a model: layers, heads, rows and columns. Never imports torch."""

import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from attnscope.base.errors import AttnscopeError, NotInText, UsageError, arg, spell_options
from attnscope.base.files.mask_files import read_mask
from attnscope.base.layer_kinds import count_attending, spell_legend, spell_map
from attnscope.base.model_config import ModelConfig
from attnscope.base.system.escape import as_unicode
from attnscope.base.system.gpu import cuda_device, gpu_memory, tile_bytes
from attnscope.base.system.machine import count_threads
from attnscope.checkpoints.source import ModelSource
from attnscope.findings.heads import STAGES
from attnscope.findings.record_parts import reported_parts
from attnscope.findings.spans import KEPT_ROWS
from attnscope.findings.tokens import Token
from attnscope.request.estimate import MemoryDemand, estimate_memory
from attnscope.request.masks.expression import mask_files, used_mask
from attnscope.request.masks.terms import Hidden, MaskTerm
from attnscope.request.memory import (
    DTYPE_BYTES,
    MemoryBound,
    MemoryLimit,
    cache_bytes,
    find_stream_reason,
    layer_parameters,
    memory_bound,
    require_memory,
)
from attnscope.request.options import on_command_line
from attnscope.request.record_spec import RecordSpec
from attnscope.request.run_config import RunConfig, TextInput
from attnscope.request.selection import (
    FEW,
    POOL,
    PRINTED,
    WALKED,
    IndexSelection,
    PresentIndices,
    extremes,
)
from attnscope.run.prediction_plan import (
    AT_ONCE,
    PredictedPlaces,
    attribution_bytes,
    check_generation,
    plan_predictions,
    target_warnings,
)
from attnscope.run.summary_plan import summary_bytes
from attnscope.run.text_plan import TextPlan, plan_text, with_padding

if TYPE_CHECKING:
    import numpy as np

DEFAULT_STAGES = RunConfig(()).stages
_COMPARING = 100  # bytes of a cell of one head while two of them are compared, in float64
# bytes of a pair of spans of a head: in float64, averaged and as findings; of a span
_SPAN_SUM = 24
_SPAN_TOTAL = 16
# bytes of a row's share of a span, and of a token
_SPAN_SHARE = 16
_SPAN_TOKEN = 64
# bytes of a key for every span, and of the largest block of keys in all threads
_SPAN_KEYS = 4, 16 << 20
_ON_HOST = ("program", "text", "report", "margin")  # what a run needs there, whatever the device
_GPU_SHARE = 0.9  # of a GPU's free memory that a run may take
SELECT_LESS = f"select less with {arg('layer')}, {arg('head')}, {arg('query')}, {arg('key')} or {arg('stages')}"
SHORTER = "use a shorter text"
_POOLED = f"use {arg('pool', POOL)} for a map instead of matrices"
# bytes of a pair of positions while transformers sorts distances into buckets, and after
_DISTANCES = 48
_BUCKETS = 16


@dataclass(frozen=True)
class RunPlan:
    """A RunConfig that has been checked against a model and its texts."""

    run: RunConfig  # the request; its texts are those of `text_plans`, except in a batch
    source: ModelSource
    layers: IndexSelection
    heads: IndexSelection
    terms: tuple[MaskTerm, ...]
    stages: tuple[str, ...]
    text_plans: list[TextPlan]
    n_layers_run: int
    # the matrices of the mask's files, (queries, keys) or (heads, queries, keys), bool, True where allowed
    matrices: "dict[str, np.ndarray[Any, np.dtype[np.bool_]]]"
    multiplications: int  # approximate number of multiplications of the layers that run
    # why weights are read again in every pass, layer by layer; empty if they are kept
    stream_reason: str = ""
    # places of every text where the model predicts; empty if it does not
    predicted: Sequence[PredictedPlaces] = ()
    memory: MemoryLimit | None = None
    # number of similar runs whose findings are kept at the same time, to be compared
    sides: int = 1

    @property
    def auto(self) -> bool:
        """Whether a layer or a head is chosen automatically."""
        return "auto" in (self.layers.word, self.heads.word)

    @property
    def score_mod(self) -> str | None:
        """Names of the Python functions that change scores, in order; None if there are none."""
        functions = [self.config.score_mod, *map(str, self.run.score_functions)]
        return ", then ".join(as_unicode(name) for name in functions if name is not None) or None

    @property
    def config(self) -> ModelConfig:
        """The model's sizes and mathematics."""
        return self.source.config

    def record_spec(self) -> RecordSpec:
        """Return the record specification of the run's Report."""
        texts = self.text_plans
        pool = max((text_plan.pool or 0 for text_plan in texts), default=0)
        rows = sorted({query for text_plan in texts for query in text_plan.queries})
        counted = rows
        if pool:
            counted = list(range(max(len(text_plan.tokens) for text_plan in texts)))
        return RecordSpec(
            stages=self.stages,
            rows=rows,
            counted=counted,
            columns=sorted({key for text_plan in texts for key in text_plan.keys}),
            top=self.run.top,
            by=self.run.by,
            parts=(*reported_parts(pool), *(["received"] if self.run.least else [])),
            pool=pool,
        )


def make_plan(
    run: RunConfig,
    source: ModelSource,
    continued: Mapping[int, list[Token]] | None = None,
    *,
    sides: int = 1,
    every_head: bool = False,
    all_layers: bool = False,
) -> RunPlan:
    """Plan a request, checked against the model and the texts.

    Args:
        every_head: Every head is recorded in summary, too; see run.every_head.
        all_layers: Every layer runs, whichever are selected.
    """
    if run.words and "weights" not in run.stages:
        raise UsageError(
            "merges weights", where=arg("words"), hint=f"use {arg('stages', 'weights')}"
        )
    plan = plan_for_texts(run, source, plan_texts(run, source, continued))
    long_matrices = any(
        text_plan.keys and len(text_plan.tokens) > PRINTED for text_plan in plan.text_plans
    )
    less: tuple[str, ...] = (SELECT_LESS,)
    if plan.stages and run.pool is None and long_matrices:
        less = _POOLED, SELECT_LESS
    more: dict[str, int] = {}
    if run.target is not None:
        more = {
            "kept": attribution_bytes(source, [text_plan.tokens for text_plan in plan.text_plans])
        }
    if run.generate and continued is None:
        # The pass that continues texts, one after the other.
        check_generation(
            run, source, plan.terms, [text_plan.tokens for text_plan in plan.text_plans]
        )
        longest = max(len(text_plan.tokens) for text_plan in plan.text_plans)
        more |= {"cache": cache_bytes(source.config, run.dtype, longest + run.generate)}
    if any(text_plan.spans is not None for text_plan in plan.text_plans):
        more |= {"spans": span_bytes(plan)}
    if sides > 1:
        plan = replace(plan, sides=sides)
    if every_head or all_layers:
        plan = replace(plan, n_layers_run=source.config.n_layers)
    if every_head:
        more["every head"] = sides * summary_bytes(run, source.config, plan.text_plans, plan.stages)
    return fit_to_memory(plan, more, less)


def span_bytes(plan: RunPlan) -> int:
    """Estimate the bytes of the weights between spans in every layer and head, and of their sums."""
    c = plan.config
    texts = len(plan.text_plans)
    count = max(
        len(text_plan.spans.names) for text_plan in plan.text_plans if text_plan.spans is not None
    )
    longest = max(len(text_plan.tokens) for text_plan in plan.text_plans)
    sums = c.n_layers * c.n_heads * texts * (_SPAN_SUM * count**2 + _SPAN_TOTAL * count)
    of_token, limit = _SPAN_KEYS
    keys = min(of_token * texts * longest * count, limit)
    return (
        sums
        + keys
        + texts * (longest * _SPAN_TOKEN + min(longest, KEPT_ROWS) * count * _SPAN_SHARE)
    )


def plan_texts(
    run: RunConfig, source: ModelSource, continued: Mapping[int, list[Token]] | None = None
) -> list[TextPlan]:
    """Plan every text; of several, texts that lack a typed word or position are left out, and named."""
    text_plans: list[TextPlan] = []
    missing: list[tuple[TextInput, NotInText]] = []
    for index, text in enumerate(run.texts):
        try:
            tokens = None if continued is None else continued[index]
            text_plan = plan_text(run, source, text, several=len(run.texts) > 1, continued=tokens)
            text_plans.append(replace(text_plan, number=index))
        except NotInText as e:
            missing.append((text, e))
    if missing and not text_plans:
        text, error = missing[0]
        if len(run.texts) == 1:
            raise error
        message = f"{error.parts.message} ({text.where})"
        raise NotInText(message, where=error.parts.where, hint=error.parts.hint)
    for text, error in missing:
        skipped = f"{text.where}: skipped: {error.parts.where} {error.parts.message}"
        warnings.warn(spell_options(skipped, on_command_line), stacklevel=2)
    if run.show_padding:
        return with_padding(run, text_plans)
    return text_plans


def fit_to_memory(
    plan: RunPlan, more: Mapping[str, int] | None, less: Sequence[str] = ()
) -> RunPlan:
    """Decide whether weights are kept, or read again in every pass because they do not fit in memory."""
    _, streamed, memory = spare_memory(
        plan.run, plan.source, memory_demand(plan), more, less, plan.multiplications
    )
    return replace(plan, stream_reason=streamed, memory=memory)


def spare_memory(
    run: RunConfig,
    source: ModelSource,
    demand: MemoryDemand,
    more: Mapping[str, int] | None = None,
    less: Sequence[str] = (),
    multiplications: int | None = None,
) -> tuple[int, str, MemoryLimit]:
    """Count the bytes left over; say why weights are read again in every pass (empty: they are kept), and the limit.

    On a GPU, its memory decides, and `--max-memory` limits it; the result is the smaller of GPU and host.

    Args:
        more: Bytes by purpose that come on top.
        less: Ways to take less memory (keys of `_REDUCED`); an error names those that would fit.
        multiplications: How much there is to compute; None if that follows from `demand`.
    """
    work = (
        multiplications
        or demand.layers * layer_parameters(source.config) * demand.batch * demand.tokens
    )
    device = cuda_device(run.device, work)
    gpu = None if device is None else gpu_memory(device)

    def needs(run: RunConfig, demand: MemoryDemand) -> tuple[dict[str, int], dict[str, int] | None]:
        """Return the bytes if weights are kept, and if they are read again, of the host or of the GPU."""
        kept_bytes, streamed = (
            bytes_needed(run, source, replace(demand, streamed=streamed), more or {})
            for streamed in (False, True)
        )
        if gpu is not None:
            cells = demand.batch * demand.heads * demand.tiled_queries * demand.tokens
            tile = {"tile": tile_bytes(gpu.total, cells)}
            kept_bytes, streamed = (
                {name: size for name, size in need.items() if name not in _ON_HOST} | tile
                for need in (kept_bytes, streamed)
            )
        return kept_bytes, streamed if source.can_stream and demand.layers > 2 else None

    def fits(run: RunConfig, demand: MemoryDemand) -> bool:
        return any(
            need is not None and sum(need.values()) <= bound.size for need in needs(run, demand)
        )

    def fitting() -> str:
        """Return the ways to take less memory that would fit."""
        ways = [way for way in less if fits(run, _REDUCED[way](demand))]
        if fits(run, replace(demand, threads=1)):
            ways.insert(0, f"use {arg('threads', 1)}")
        if run.dtype == "float32" and fits(msgspec.structs.replace(run, dtype="bfloat16"), demand):
            ways.insert(0, f"use {arg('dtype', 'bfloat16')}")
        return ", or ".join(ways)

    bound = memory_bound(run.max_memory)
    if gpu is not None and run.max_memory is None:
        bound = MemoryBound(
            int(_GPU_SHARE * gpu.free), f"{_GPU_SHARE:.0%} of the free memory of {device}", gpu.free
        )
    elif gpu is not None:
        bound = replace(bound, most=max(bound.size, gpu.free))
    kept_bytes, streamed = needs(run, demand)
    why = ""
    estimated = sum(kept_bytes.values())
    if estimated > bound.size:
        why = find_stream_reason(
            kept_bytes, streamed, bound, "" if fits(run, demand) else fitting()
        )
        estimated = sum((streamed or kept_bytes).values())
    if gpu is None:
        return bound.size - estimated, why, MemoryLimit(bound.size, bound.what, estimated)
    # findings are copied to the host, and weights pass through it
    through_host = bytes_needed(run, source, replace(demand, streamed=True), more or {})
    on_host = {
        name: size for name, size in through_host.items() if name in (*_ON_HOST, "kept", "weights")
    }
    host = memory_bound(None)
    taken = sum(on_host.values())
    require_memory(on_host, replace(host, most=0))
    return (
        min(bound.size - estimated, host.size - taken),
        why,
        MemoryLimit(host.size, host.what, taken),
    )


def _one_cell(demand: MemoryDemand) -> MemoryDemand:
    """Return the demand of one query, key and stage of one head in the first layer."""
    texts = demand.batch
    of_one = replace(
        demand,
        layers=1,
        units=1,
        heads=1,
        tiled_queries=1,
        rows=texts,
        cells=texts,
        raw=False,
        pool=0,
    )
    return replace(of_one, drawn=min(demand.drawn, texts * (1 + 2 * demand.top)), predicted=0)


def _one_token(demand: MemoryDemand) -> MemoryDemand:
    return replace(
        _one_cell(demand), layers=demand.layers, heads=demand.heads, tokens=1, characters=1
    )


def _pooled(demand: MemoryDemand) -> MemoryDemand:
    drawn_values = demand.batch * demand.units * POOL * (POOL + 2 * demand.top)
    return replace(demand, pool=POOL, cells=0, raw=False, drawn=min(demand.drawn, drawn_values))


_REDUCED = {SELECT_LESS: _one_cell, SHORTER: _one_token, _POOLED: _pooled}


def bytes_needed(
    run: RunConfig, source: ModelSource, demand: MemoryDemand, more: Mapping[str, int]
) -> dict[str, int]:
    """Estimate the bytes that a run takes, by purpose; see estimate.estimate_memory."""
    need = estimate_memory(source.config, run.dtype, demand)
    if not source.layerwise:
        # They are in memory already.
        need["weights"] = 0
    if source.dense_masks:
        # Two of them, as bool and as float.
        need["masks"] = 2 * 5 * demand.batch * demand.tokens**2
    if source.dense_biases:
        bias = source.dense_biases * source.config.n_heads * DTYPE_BYTES[run.dtype]
        need["position bias"] = max(_DISTANCES, bias + _BUCKETS) * demand.tokens**2
    if demand.sides > 1:
        # Findings of another side, and its differences from the first: of one stage, and of one head at a time.
        matrices = demand.cells // demand.stages
        side = need["kept"] + 4 * matrices + _COMPARING * (matrices // demand.units)
        need["other sides"] = (demand.sides - 1) * side
    return need | {name: need.get(name, 0) + size for name, size in more.items()}


def plan_for_texts(run: RunConfig, source: ModelSource, text_plans: list[TextPlan]) -> RunPlan:
    """Plan a request for texts that are tokenized already; `run.texts` is ignored."""
    layers = present_layers(run.layer, source)
    heads = run.head
    c = source.config
    picked = layers.numbers(c.n_layers, "layer")
    heads.numbers(c.n_heads, "head", by_layer=True)
    if run.by == "projected" and source.no_projection:
        hint = f"use {arg('by', 'weight')} or {arg('by', 'value')}"
        raise UsageError(source.no_projection, where=arg("by", "projected"), hint=hint)
    if (run.by == "value" or "output" in run.stages) and not source.has_values:
        where = arg("by", "value") if run.by == "value" else arg("stages", "output")
        raise UsageError("no values are given", where=where, hint="give v as well, or leave it out")
    n_layers_run = c.n_layers if layers.word else 1 + extremes(picked)[1]
    stages = _stages(run, source)
    terms = mask_terms(run)
    tokens = [text_plan.tokens for text_plan in text_plans]
    predicted = plan_predictions(
        run, source, terms, tokens, is_whole_run=n_layers_run == c.n_layers
    )
    if run.target is not None:
        for index, text_plan in enumerate(text_plans):
            if run.query is not None and len(text_plan.queries) == 1:
                # The logit is that of the named row.
                predicted[index] = replace(predicted[index], positions=text_plan.queries)
            after_word = predicted[index].follows_word(text_plan.tokens, source)
            text_plan.warnings.extend(target_warnings(run.target, source, after_word=after_word))
    spanned = any(text_plan.spans is not None for text_plan in text_plans)
    n_layers_run = c.n_layers if predicted or spanned else n_layers_run
    work = (
        n_layers_run * layer_parameters(c) * sum(len(text_plan.tokens) for text_plan in text_plans)
    )
    matrices = _matrices(run, terms, text_plans, c.n_heads)
    return RunPlan(
        run,
        source,
        layers,
        heads,
        terms,
        stages,
        text_plans,
        n_layers_run,
        matrices,
        work,
        predicted=predicted,
    )


def _stages(run: RunConfig, source: ModelSource) -> tuple[str, ...]:
    """Return the kept stages in their order; by default, all that exist."""
    known_stages = source.stages or STAGES
    missing = [stage for stage in run.stages if stage not in known_stages]
    # No user typed the stages of defaults and walks.
    if missing and run.stages not in (DEFAULT_STAGES, WALKED):
        hint = f"use {arg('stages', ','.join(known_stages))}, or give queries and keys"
        raise UsageError(f"given weights come without {missing[0]}", where=arg("stages"), hint=hint)
    return tuple(stage for stage in STAGES if stage in run.stages and stage in known_stages)


def present_layers(layers: IndexSelection, source: ModelSource) -> IndexSelection:
    """Return a selection among the layers whose attention can be shown."""
    if source.layers is None:
        return layers
    if not source.layers:
        kinds = source.config.layer_map
        hint = f"{spell_map(kinds)} ({spell_legend(kinds)}); attnscope run and attnscope heads show its matrices"
        raise UsageError(
            "no layer of this model has attention over tokens", where=source.name, hint=hint
        )
    listed = ",".join(map(str, source.layers[:12])) + ",…" * (len(source.layers) > 12)
    lack = "is not among the given ones"
    hint = f"use some of {listed}, or all"
    if kinds := source.config.layer_kinds:
        lack = "has no attention over tokens"
        hint = f"{count_attending(kinds)}: {spell_map(kinds)} ({spell_legend(kinds)}); {hint}"
        if unattended := [layer for layer in source.mixing if layer not in source.layers]:
            hint += f"; attnscope run shows a layer without softmax alone, such as {arg('layer', unattended[0])}"
    return replace(layers, present=PresentIndices(source.layers, lack, hint))


def mask_terms(run: RunConfig) -> tuple[MaskTerm, ...]:
    """Return the requested mask terms; terms that are not part of the expression are last."""
    hidden = () if run.hide is None else (Hidden(str(run.hide)),)
    return (*run.mask, *hidden, *run.score_functions)


def _matrices(
    run: RunConfig, terms: tuple[MaskTerm, ...], text_plans: list[TextPlan], n_heads: int
) -> "dict[str, np.ndarray[Any, np.dtype[np.bool_]]]":
    """Return the matrices that a mask expression names, each of the size of every text's matrix."""
    paths = mask_files(terms)
    matrices = {
        path: run.matrices[path] if path in run.matrices else read_mask(Path(path))
        for path in paths
    }
    for path, matrix in matrices.items():
        *heads, queries, keys = matrix.shape
        if heads not in ([], [n_heads]):
            message = f"there are {heads[0]} matrices, but the model has {n_heads} heads"
            raise AttnscopeError(
                message, where=path, hint="expected one matrix, or one for every head"
            )
        for text_plan in text_plans:
            shape = len(text_plan.tokens), len(text_plan.context or text_plan.tokens)
            if (queries, keys) != shape:
                sizes = f"{queries} × {keys}, but the text needs {shape[0]} × {shape[1]}"
                hint = "expected a row per query token and a column per key token"
                raise AttnscopeError(f"the matrix is {sizes}", where=path, hint=hint)
    return matrices


def memory_demand(plan: RunPlan) -> MemoryDemand:
    """Count the sizes that determine the memory of a run."""
    run = plan.run
    source = plan.source
    c = plan.config
    text_plans = plan.text_plans
    picked = plan.layers.numbers(c.n_layers, "layer")
    layers = 1 if plan.layers.word in ("auto", "mean") else len(picked)
    if plan.heads.word in ("auto", "mean"):
        heads = 1
    else:
        heads = len(plan.heads.numbers(c.n_heads, "head", by_layer=True))
    longest = max(
        len(tokens)
        for text_plan in text_plans
        for tokens in (
            text_plan.tokens,
            text_plan.context or text_plan.encoder_tokens or text_plan.tokens,
        )
    )
    rows = len(text_plans) * len({q for text_plan in text_plans for q in text_plan.queries})
    columns = len({k for text_plan in text_plans for k in text_plan.keys})
    pool = max(text_plan.pool or 0 for text_plan in text_plans)
    width = sum(c.d_value if stage == "output" else columns for stage in plan.stages)
    # A comparison draws few columns.
    compared = run.window is not None and run.window > PRINTED and run.auto_key is None
    narrowed = {text_plan.narrowed for text_plan in text_plans}
    if compared:
        few = PRINTED
    elif narrowed == {"columns"}:
        few = FEW
    else:
        few = width
    # A contributor has two numbers; of several sides, the heads that moved most are drawn.
    drawn_values = min(width, few * len(plan.stages)) + 2 * run.top
    drawn_heads = layers * heads if plan.sides == 1 else min(layers * heads, FEW)
    drawn_values *= drawn_heads * (FEW * len(text_plans) if narrowed == {"rows"} else rows)
    if "mean" in (plan.layers.word, plan.heads.word):
        # Mean contributions over every key.
        width += 4 * longest
    if plan.layers.word == "mean":
        # Mean weights and scores, until the last layer is added.
        width += 2 * longest
    cells = layers * heads * rows * width
    computed_heads = heads
    if plan.auto or plan.heads.word == "mean" or run.target is not None:
        computed_heads = c.n_heads
    tiled_queries = max(len(text_plan.queries) for text_plan in text_plans)
    if pool or plan.auto or plan.n_layers_run > 1:
        tiled_queries = longest
    return MemoryDemand(
        layers=plan.n_layers_run,
        batch=len(text_plans),
        tokens=longest,
        characters=sum(len(text.text) + len(text.pair or "") for text in run.texts),
        cells=cells,
        rows=layers * heads * rows,
        top=run.top,
        units=layers * heads,
        raw=bool({"scores", "scaled"} & set(plan.stages)),
        drawn=0 if run.window is None else drawn_values,
        picture=run.picture,
        pool=pool,
        heads=computed_heads,
        words=source.tokenizer.name == "words",
        n_merges=source.tokenizer.n_merges,
        copied_elements=source.copied_elements,
        streamed=bool(plan.stream_reason),
        tiled_queries=tiled_queries,
        masks=frozenset(used_mask(plan.terms, mask) for mask in c.masks_of(plan.n_layers_run)),
        threads=run.threads or count_threads(),
        predicted=max(
            min(AT_ONCE, sum(len(places.positions) for places in plan.predicted)),
            int(run.generate > 0),
        ),
        stages=max(1, len(plan.stages)),
        sides=plan.sides,
    )
