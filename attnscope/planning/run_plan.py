"""Resolve what the user asked against a model: layers, heads, rows and columns. Never imports torch."""

import warnings
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from attnscope.checkpoints.source import ModelSource, tokenize
from attnscope.config import MaskTerm, ModelConfig, RunConfig, TextInput, parse_mask, used_mask
from attnscope.errors import AttnscopeError, NotInText, UsageError
from attnscope.files.mask_files import read_mask
from attnscope.planning.estimate import MemoryDemand, estimate_memory
from attnscope.planning.memory import MEMORY_HINT, MemoryLimit, find_stream_reason, layer_parameters, memory_limit
from attnscope.planning.shown_cells import choose_cells
from attnscope.report import STAGES, Token
from attnscope.selection import POOL, PRINTED, IndexSelection, extremes, parse_indices

if TYPE_CHECKING:
    import numpy as np


@dataclass(frozen=True)
class TextPlan:
    """One text with what is shown of it.

    Attributes:
        tokens: Its tokens.
        context: Tokens of the text that keys and values come from; None where they come from the text itself.
        encoder_tokens: Tokens of the text that the encoder reads where a decoder's attention to itself is shown; None
            elsewhere.
        queries: Rows, sorted.
        keys: Columns, sorted.
        pool: Runs, each way, of the pooled map that is shown; None where there is none.
        notes: What was cut or left out.
        number: Number of the text within the call, from 0.
    """

    tokens: list[Token]
    context: list[Token] | None
    encoder_tokens: list[Token] | None
    queries: list[int]
    keys: list[int]
    pool: int | None
    notes: list[str]
    number: int = 0


@dataclass(frozen=True)
class RunPlan:
    """A RunConfig that has been held against a model and its texts.

    Attributes:
        layers: Picked layers.
        heads: Picked heads.
        terms: The mask.
        stages: Stages in their order.
        text_plans: The texts.
        n_layers_run: How many layers have to run.
        matrices: The matrices of the mask's files, (queries, keys), bool, True where allowed.
        multiplications: About how many multiplications the layers that run take.
        config: The model.
        stream_reason: Why weights are read again in every pass, layer by layer; empty where they are kept.
        memory: What stops the run where it takes more than it may; None before that is known.
    """

    layers: IndexSelection
    heads: IndexSelection
    terms: tuple[MaskTerm, ...]
    stages: tuple[str, ...]
    text_plans: list[TextPlan]
    n_layers_run: int
    matrices: "dict[str, np.ndarray[Any, np.dtype[np.bool_]]]"
    multiplications: int
    config: ModelConfig
    stream_reason: str = ""
    memory: MemoryLimit | None = None

    @property
    def auto(self) -> bool:
        """A layer or a head is chosen by what it does."""
        return "auto" in (self.layers.word, self.heads.word)


def make_plan(run: RunConfig, source: ModelSource) -> RunPlan:
    """Hold what the user asked against the model and the texts.

    Raises:
        UsageError: A layer, head, position or word is not there.
        AttnscopeError: A text does not fit the model, or what was asked for does not fit into memory.
    """
    plan = plan_for_texts(run, source, _pages(run, source))
    hint = MEMORY_HINT
    if (
        plan.stages
        and run.pool is None
        and any(text_plan.keys and len(text_plan.tokens) > PRINTED for text_plan in plan.text_plans)
    ):
        hint = f"--pool {POOL} makes a map in place of matrices; or {MEMORY_HINT}"
    return fit_to_memory(run, source, plan, hint=hint)


def _pages(run: RunConfig, source: ModelSource) -> list[TextPlan]:
    """The pages of all texts; of several, those that lack a word or position that was typed are left out, and named.

    Raises:
        NotInText: It is in none of them.
    """
    text_plans: list[TextPlan] = []
    missing: list[tuple[TextInput, NotInText]] = []
    for number, text in enumerate(run.texts):
        try:
            text_plan = plan_text(run, source, text, clip=len(run.texts) > 1)
            text_plans.append(replace(text_plan, number=number))
        except NotInText as e:
            missing.append((text, e))
    if missing and not text_plans:
        raise missing[0][1]
    for text, error in missing:
        warnings.warn(f"{text.where}: left out: {error.where} {error.found}", stacklevel=2)
    return text_plans


def fit_to_memory(
    run: RunConfig, source: ModelSource, plan: RunPlan, more: Mapping[str, int] | None = None, hint: str = MEMORY_HINT
) -> RunPlan:
    """The request, with weights kept where there is room for them, and read again in every pass where there is not.

    Args:
        run: What the user asked.
        source: The model.
        plan: The same, held against the model and the texts.
        more: Bytes by purpose that come on top.
        hint: What makes it fit, where it does not.

    Raises:
        AttnscopeError: It does not fit either way.
    """
    _, streamed, memory = spare_memory(run, source, memory_demand(run, source, plan), more, hint)
    return replace(plan, stream_reason=streamed, memory=memory)


def spare_memory(
    run: RunConfig,
    source: ModelSource,
    asked: MemoryDemand,
    more: Mapping[str, int] | None = None,
    hint: str = MEMORY_HINT,
) -> tuple[int, str, MemoryLimit]:
    """Bytes that are left over; why weights are read again in every pass (empty where they are kept); what stops it.

    Raises:
        AttnscopeError: It does not fit either way.
    """
    kept, streamed = (
        _bytes_needed(run, source, replace(asked, streamed=streamed), more or {}) for streamed in (False, True)
    )
    most, what = memory_limit(run.max_memory)
    again = source.can_stream and asked.layers > 2
    if 2 * (streamed if again else kept)["weights"] > most:
        hint = "raise --max-memory" if run.dtype != "float32" else "take --dtype bfloat16, or raise --max-memory"
    why = find_stream_reason(kept, streamed if again else None, most, what, hint)
    estimated = sum((streamed if why else kept).values())
    return most - estimated, why, MemoryLimit(most, what, estimated)


def required_memory(run: RunConfig, source: ModelSource, plan: RunPlan) -> dict[str, int]:
    """Bytes that a run takes, by purpose; see estimate.estimate_memory."""
    return _bytes_needed(run, source, memory_demand(run, source, plan), {})


def _bytes_needed(run: RunConfig, source: ModelSource, asked: MemoryDemand, more: Mapping[str, int]) -> dict[str, int]:
    need = estimate_memory(source.config, run.dtype, asked)
    if source.engine == "transformers":
        need |= {"weights": 0, "masks": 2 * 5 * asked.batch * asked.tokens**2}  # loaded; masks as bool and as float
    return need | {name: need.get(name, 0) + size for name, size in more.items()}


def plan_for_texts(run: RunConfig, source: ModelSource, text_plans: list[TextPlan]) -> RunPlan:
    """What the user asked, of texts that are tokens already; `run.texts` is not looked at.

    Raises:
        UsageError: A layer or head is not there.
        AttnscopeError: A mask's file does not fit the texts.
    """
    layers, heads = parse_indices(run.layer, "--layer"), parse_indices(run.head, "--head")
    c = source.config
    picked = layers.numbers(c.n_layers, "layer")
    heads.numbers(c.n_heads, "head")
    if run.by == "projected" and not source.has_projection:
        hint = "rank by weight or by value"
        raise UsageError("the model's output projection was not found", where="--by projected", hint=hint)
    n_layers_run = c.n_layers if layers.word else 1 + extremes(picked)[1]
    stages = tuple(stage for stage in STAGES if stage in run.stages)
    terms = parse_mask(run.mask)
    work = n_layers_run * layer_parameters(c) * sum(len(text_plan.tokens) for text_plan in text_plans)
    return RunPlan(layers, heads, terms, stages, text_plans, n_layers_run, _matrices(terms, text_plans), work, c)


def plan_text(run: RunConfig, source: ModelSource, text: TextInput, *, clip: bool = False) -> TextPlan:
    """One text as tokens, with the rows and columns that are shown of it.

    Args:
        run: What the user asked.
        source: The model.
        text: The text.
        clip: Slices of rows and columns may reach beyond it: they are meant for texts of any length.

    Raises:
        UsageError: A position or word is not there, or a context is missing or too many.
        AttnscopeError: The text does not fit the model.
    """
    _check_context(text, source)
    tokens, notes = tokenize(source, text.text, text.pair, text.where, truncate=run.truncate)
    context = None
    if text.context is not None:
        context, more = tokenize(source, text.context, None, "--context", truncate=run.truncate)
        notes += [f"--context: {note}" for note in more]
    encoder_tokens = None
    if context is not None and not source.config.cross_attention:
        encoder_tokens, context = context, None
        notes.append(f"the encoder reads --context: {text.context}")

    if text.pair is not None and source.engine == "native" and "causal" in source.config.mask:
        notes.append("--pair: the model is a decoder, which was not made for pairs: no token of the text sees the pair")
    shown = choose_cells(run, text, tokens, context, causal=_causal(run, source), clip=clip)
    return TextPlan(tokens, context, encoder_tokens, shown.queries, shown.keys, shown.pool, notes + shown.notes)


def _causal(run: RunConfig, source: ModelSource) -> bool:
    """Most queries see only what stands before them."""
    return any(term.kind in ("causal", "prefix") for term in used_mask(parse_mask(run.mask), source.config.mask))


def _check_context(text: TextInput, source: ModelSource) -> None:
    """Cross-attention needs a context, and nothing else takes one."""
    given = text.context is not None
    if source.needs_context and not given:
        hint = "give the text that the encoder reads" if source.part else "give the text that keys and values come from"
        raise UsageError("the model attends to a second text", where="--context", hint=hint)
    if given and source.part == "encoder":
        raise UsageError("an encoder reads TEXT alone", where="--context", hint="leave it out, or take --part cross")
    if given and not source.needs_context:
        hint = "leave it out, or take a config with cross_attention = true"
        raise UsageError("the model has no cross-attention", where="--context", hint=hint)


def _matrices(
    terms: tuple[MaskTerm, ...], text_plans: list[TextPlan]
) -> "dict[str, np.ndarray[Any, np.dtype[np.bool_]]]":
    """The matrices that a mask expression names, each of the size of every text's matrix."""
    found = {term.path: read_mask(Path(term.path)) for term in terms if term.kind == "file"}
    for path, matrix in found.items():
        for text_plan in text_plans:
            shape = len(text_plan.tokens), len(text_plan.context or text_plan.tokens)
            if matrix.shape != shape:
                sizes = f"{matrix.shape[0]} × {matrix.shape[1]}, the text needs {shape[0]} × {shape[1]}"
                hint = "a row per query token and a column per key token"
                raise AttnscopeError(f"the matrix is {sizes}", where=path, hint=hint)
    return found


def memory_demand(run: RunConfig, source: ModelSource, plan: RunPlan) -> MemoryDemand:
    """How much of everything a request asks for."""
    c, text_plans = source.config, plan.text_plans
    picked = plan.layers.numbers(c.n_layers, "layer")
    layers = 1 if plan.layers.word in ("auto", "mean") else len(picked)
    heads = 1 if plan.heads.word in ("auto", "mean") else len(plan.heads.numbers(c.n_heads, "head"))
    longest = max(
        len(tokens)
        for text_plan in text_plans
        for tokens in (text_plan.tokens, text_plan.context or text_plan.encoder_tokens or text_plan.tokens)
    )
    rows = len(text_plans) * len({q for text_plan in text_plans for q in text_plan.queries})
    columns = len({k for text_plan in text_plans for k in text_plan.keys})
    pool = max(text_plan.pool or 0 for text_plan in text_plans)
    width = sum(c.d_value if stage == "output" else columns for stage in plan.stages)
    shown = layers * heads * rows * (width + 2 * run.top)  # a contributor has two numbers
    if "mean" in (plan.layers.word, plan.heads.word):
        width += 4 * longest  # mean contributions over every key
    cells = layers * heads * rows * width
    return MemoryDemand(
        layers=plan.n_layers_run,
        batch=len(text_plans),
        tokens=longest,
        characters=sum(len(text.text) + len(text.pair or "") for text in run.texts),
        cells=cells,
        rows=layers * heads * rows,
        top=run.top,
        as_text=run.window is None,
        units=layers * heads,
        gathered=cells if len(text_plans) > 1 and (run.query or run.key) else 0,
        raw=bool({"scores", "scaled"} & set(plan.stages)),
        measures=3 if run.by == "projected" else 2,
        mean="mean" in (plan.layers.word, plan.heads.word),
        drawn=0 if run.window is None else shown,
        picture=run.picture,
        padded=len({len(text_plan.tokens) for text_plan in text_plans}) > 1,
        counted=layers * heads * len(text_plans) * longest if pool else 0,
        pool=pool,
        heads=c.n_heads if plan.auto or plan.heads.word == "mean" else heads,
        words=source.tokenizer.name == "words",
        n_merges=source.tokenizer.n_merges,
        copied_elements=source.copied_elements,
        streamed=bool(plan.stream_reason),
        tiled_queries=longest
        if pool or plan.auto or plan.n_layers_run > 1
        else max(len(text_plan.queries) for text_plan in text_plans),
        output_needed=extremes(picked)[0] + 1 < plan.n_layers_run,
        masks=frozenset(used_mask(plan.terms, mask) for mask in c.masks_of(plan.n_layers_run)),
    )
