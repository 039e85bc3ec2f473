"""The whole program in order: from a RunConfig to a Report."""

import warnings
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from functools import partial
from importlib.metadata import version
from itertools import count
from typing import TYPE_CHECKING, Any, Protocol

import msgspec

from attnscope.base.errors import UsageError, arg
from attnscope.base.system.escape import as_unicode
from attnscope.base.system.gpu import has_gpu_driver
from attnscope.base.version import __version__
from attnscope.checkpoints.folder import hash_weights
from attnscope.checkpoints.source import ModelSource
from attnscope.engines.opening import open_source
from attnscope.engines.torch_setup import choose_device, import_torch, set_threads
from attnscope.findings.attribution import Attribution
from attnscope.findings.heads import Heads
from attnscope.findings.narrowing import narrow_to_weight
from attnscope.findings.predictions import Prediction
from attnscope.findings.provenance import AddedKeys, MaskUse, Provenance
from attnscope.findings.run import Report, TextReport, with_words
from attnscope.findings.spans import TextSpans
from attnscope.findings.tokens import LEFT_OUT, PADDING
from attnscope.request.masks.expression import is_mask, spell_mask, used_mask
from attnscope.request.masks.terms import (
    DocumentEnds,
    Documents,
    Function,
    Hidden,
    Mask,
    MaskTerm,
    MatrixFile,
    Own,
    ScoreFunction,
    leaves,
)
from attnscope.request.memory import layer_parameters
from attnscope.request.record_spec import RecordSpec
from attnscope.request.run_config import RunConfig, TextInput
from attnscope.request.selection import AUTO, FEW
from attnscope.run.cost import allowed_pairs
from attnscope.run.cut_plan import cut_variants
from attnscope.run.every_head import summarised, summary_trace
from attnscope.run.mask_effect import MaskedText, forbids, mask_effect
from attnscope.run.plan import RunPlan, make_plan, mask_terms
from attnscope.run.prediction_plan import target_ids, without_closing
from attnscope.run.rendering import chat_text, render_chats
from attnscope.run.text_plan import TextPlan

if TYPE_CHECKING:
    import torch

    from attnscope.engines.protocol import Engine, LoadedModel
    from attnscope.model.batch import Batch, TokenTensors
    from attnscope.model.frame import Frame
    from attnscope.model.tile import Recorder
    from attnscope.model.trace import HeadSelection, Trace
    from attnscope.run.analysis.predictions import Continued
    from attnscope.run.analysis.spans import SpanRecorders
    from attnscope.run.mask_effect import Matrices

    Recorders = Mapping[int, Sequence[Recorder]]  # by layer
    MakeRecorders = Callable[[Batch, Engine], Recorders]  # of a batch and what runs it


# the current step, how much of it is done, and its total
ProgressCallback = Callable[[str, int, int], None]


class InMemory(Protocol):
    """A model, or arrays, that are in memory already, and somebody else's."""

    def open(self, run: RunConfig) -> ModelSource:
        """Describe it as a source of runs."""

    def borrowed(self) -> AbstractContextManager[None]:
        """Prepare it for a call, and restore it afterwards."""


class Session:
    """Models that are opened and loaded once for several runs.

    Args:
        texts: The texts of all runs: a vocabulary that is made from the texts is made from these.
        live: Models and arrays that are in memory already, by the name that runs have for them as `model` or `qkv`.
        own_process: Whether attnscope owns the process, so that freezing all objects is safe (see import_torch).
    """

    def __init__(
        self,
        texts: Iterable[TextInput],
        progress: ProgressCallback | None = None,
        live: "Mapping[str, InMemory] | None" = None,
        *,
        own_process: bool = True,
    ) -> None:
        self.texts = texts
        self.live = {} if live is None else live
        self.own_process = own_process
        self.report_to(progress)
        self.on_generated: Callable[[int, Prediction], None] | None = None
        self.sources: dict[tuple[object, ...], ModelSource] = {}
        self.models: dict[tuple[object, ...], LoadedModel] = {}

    def report_to(self, progress: ProgressCallback | None) -> None:
        """Report progress to this function from now on; None for no reports."""
        self.progress = progress
        self.on_progress: ProgressCallback = progress or (lambda what, done, total: None)

    def source(self, run: RunConfig) -> ModelSource:
        """Open the model that a run names, once."""
        if run.device.startswith("cuda") or (run.device == "auto" and has_gpu_driver()):
            # Plans depend on the memory of the GPU, which only torch knows.
            import_torch(freeze=self.own_process)
        key = _model_key(run)
        if key not in self.sources:
            live = self.live.get(run.qkv or run.model or "")
            self.sources[key] = open_source(run, self.texts) if live is None else live.open(run)
        return self.sources[key]

    def open(self, run: RunConfig) -> tuple[ModelSource, RunConfig]:
        """Open the model that a run names, and render the chats among its texts with its template."""
        source = self.source(run)
        are_texts = all(text.chat is None and text.given is None for text in run.texts)
        if are_texts and source.only_media is None and run.media_kind is None:
            return source, run
        return source, render_chats(run, source)

    def load(self, plan: RunPlan, times: int = 1) -> "tuple[LoadedModel, torch.device]":
        """Load the layers of a run unless enough are loaded; return the model and its device.

        Args:
            times: How often the model will do about as much, which decides whether a GPU is worth it.
        """
        # Everything that can be refused without it has been.
        import_torch(freeze=self.own_process)
        import torch

        run = plan.run
        set_threads(plan.multiplications, run.threads)
        device = choose_device(run.device, plan.multiplications * times)
        key = *_model_key(run), str(device)
        model = self.models.get(key)
        if model is None or model.n_layers < plan.n_layers_run:
            self.on_progress("loading", 0, 1)
            model = self.models[key] = plan.source.load(
                plan.n_layers_run, getattr(torch, run.dtype), device
            )
        if plan.stream_reason and not model.stream:
            say = f"weights are read again in every pass: {plan.stream_reason}"
            warnings.warn(say, stacklevel=2)
        model.stream = bool(plan.stream_reason)
        return model, device

    def parameters(self, run: RunConfig) -> int:
        """Return the number of parameters of a model that is loaded."""
        loaded = next(model for key, model in self.models.items() if key[:-1] == _model_key(run))
        return sum(parameter.numel() for parameter in loaded.module.parameters())


def _model_key(run: RunConfig) -> tuple[object, ...]:
    opened = (
        run.engine,
        run.model,
        run.qkv,
        run.config,
        run.adapter,
        run.tokenizer,
        run.part,
        run.dtype,
    )
    return *opened, run.ignore_key, run.trust_config, run.scale, run.media_kind


def inspect(
    run: RunConfig,
    session: Session | None = None,
    *,
    sides: int = 1,
    extra_recorders: "MakeRecorders | None" = None,
) -> Report:
    """Do what `attnscope run` does, without printing.

    Args:
        sides: Reports that are kept at the same time; see make_plan.
        extra_recorders: Makes more recorders that see the pass over all layers; None for none.
    """
    return _inspect(run, session or Session(run.texts), extra_recorders, sides=sides)[0]


def inspect_every_head(
    run: RunConfig, session: Session, *, extra_recorders: "MakeRecorders | None" = None
) -> tuple[Report, Report]:
    """Return the Report of `inspect`, and a summary of every head from the same pass; see run.every_head."""
    report, summary = _inspect(run, session, extra_recorders, summary=True)
    assert summary is not None
    return report, summary


def _inspect(
    run: RunConfig,
    session: Session,
    extra_recorders: "MakeRecorders | None",
    *,
    sides: int = 1,
    summary: bool = False,
) -> tuple[Report, Report | None]:
    source, run = session.open(run)
    if run.media_kind == "audio":
        from attnscope.run.sound import hear

        run = hear(run, source, partial(observe, source, session), session.on_progress)
    continued = None if not run.generate else continue_texts(run, source, session)
    grown = None
    if continued is not None:
        grown = {text_index: result.tokens for text_index, result in continued.items()}
    plan = make_plan(
        run, source, grown, sides=sides, every_head=summary, all_layers=extra_recorders is not None
    )
    model, device = session.load(plan)
    batch, engine = prepare(plan, model, device)
    spans = span_recorders(plan, batch, engine)
    every_head = summary_trace(plan, batch, engine) if summary else None
    other_recorders: Recorders = {} if spans is None else spans.recorders
    if extra_recorders is not None:
        other_recorders = _merged(other_recorders, extra_recorders(batch, engine))
    if run.target is None:
        attributions = []
    else:
        attributions = attribute(plan, batch, engine, session.progress)
    choice = HeadChoice(model, attributions)
    trace = attend(
        plan,
        batch,
        engine,
        session.progress,
        choice=choice,
        extra_recorders=other_recorders,
        every_head=every_head,
    )
    check = memory_check(plan, batch)
    texts = [_text_report(plan, i, trace, engine, check) for i in range(len(plan.text_plans))]
    if spans is not None:
        selected = _selected_heads(plan, engine.sizes)
        divided = [spans.report(i, str(run.spans or "ranges"), selected) for i in range(len(texts))]
        texts = _each_with(texts, spans=divided)
    if attributions:
        texts = _each_with(texts, attribution=attributions)
    if continued is not None:
        texts = _each_with(texts, generated=[continued[text.index].generated for text in texts])
    if source.compare_outputs is not None:
        texts = _each_with(texts, given_output=source.compare_outputs(engine, batch))
    values = "exact"
    if any(text_plan.pool for text_plan in plan.text_plans):
        values = "pooled"
    origin = provenance(source, run, device, values, warnings_of(plan.text_plans))
    mask = describe_mask_use(source, run, engine.describe_mask(), plan.text_plans, plan.matrices)
    for text, text_plan in zip(texts, plan.text_plans, strict=True):
        if note := forbidden_cells(source, run, mask, text_plan, plan.matrices):
            text.notes.append(note)
    report = Report(origin, mask, texts)
    if run.cuts:
        report = msgspec.structs.replace(report, cuts=[as_unicode(cut.written) for cut in run.cuts])
    if every_head is None:
        return report, None
    summaries = [summarised(plan, i, every_head, text) for i, text in enumerate(texts)]
    return report, msgspec.structs.replace(report, texts=summaries)


def observe(
    source: ModelSource,
    session: Session,
    run: RunConfig,
    recorders_of: "Callable[[Engine], Recorders]",
) -> "tuple[Engine, Recorders, torch.Tensor]":
    """Run the whole model on a request with recorders; return the engine, these, and the final hidden states."""
    plan = make_plan(run, source)
    model, device = session.load(plan)
    batch, engine = prepare(plan, model, device)
    recorders = recorders_of(engine)
    hidden = forward(plan, batch, engine, recorders, ("aligning", session.progress), final=True)
    assert hidden is not None
    return engine, recorders, hidden


def _each_with(texts: list[TextReport], **values: Sequence[object]) -> list[TextReport]:
    ((name, of_texts),) = values.items()
    return [
        msgspec.structs.replace(text, **{name: value})
        for text, value in zip(texts, of_texts, strict=True)
    ]


def continue_texts(run: RunConfig, source: ModelSource, session: Session) -> "dict[int, Continued]":
    """Continue every text with the model; return the continuations by the text's number."""
    whole_model = msgspec.structs.replace(
        run, layer=AUTO, head=AUTO, query=None, key=None, predict=False
    )
    plan = make_plan(whole_model, source)
    model, device = session.load(plan)
    batch, engine = prepare(plan, model, device)

    from attnscope.model.batch import join_media
    from attnscope.run.analysis.predictions import continue_text

    continuations = {}
    check = memory_check(plan, batch)
    for done, text_plan in enumerate(plan.text_plans):
        media = join_media(media_inputs([text_plan]), len(text_plan.tokens), device)
        grow = engine.continuation(media).logits
        steps = count(done * run.generate)

        def logits(
            tokens: "TokenTensors",
            grow: "Callable[[TokenTensors], torch.Tensor]" = grow,
            steps: Iterator[int] = steps,
        ) -> "torch.Tensor":
            check()
            if session.on_generated is None:
                session.on_progress("generating", next(steps), len(plan.text_plans) * run.generate)
            return grow(tokens)

        spelling = source.tokenizer.spelled, source.tokenizer.made_token
        tokens = without_closing(text_plan.tokens)
        on_token = None
        if session.on_generated is not None:
            on_token = partial(session.on_generated, text_plan.number)
        rules = source.generation
        continuations[text_plan.number] = continue_text(
            logits, tokens, run.generate, rules, spelling, device, on_token
        )
    return continuations


def attribute(
    plan: RunPlan, batch: "Batch", engine: "Engine", on_progress: ProgressCallback | None
) -> list[Attribution]:
    """Take one logit of every text apart, in two passes; see model.logit_parts.

    Without a target, it is that of the generated token, or else of the most probable one.
    """
    from attnscope.model.logit_parts import HeadLogits, logit_parts
    from attnscope.run.analysis.predictions import attribution

    positions = [predicted_places.positions[0] for predicted_places in plan.predicted]
    capture = engine.residual_stream(batch, positions)
    step = ("attributing", on_progress)
    with capture.capturing():
        forward(plan, batch, engine, {}, step, final=True)
    logits = capture.logits()  # (B, V)
    targets = list[tuple[int, int | None]]()
    for row, text_plan, predicted in zip(logits, plan.text_plans, plan.predicted, strict=True):
        after_word = predicted.follows_word(text_plan.tokens, plan.source)
        target, against = target_ids(plan.run.target, plan.source, after_word=after_word)
        position = predicted.positions[0]
        generated_ids = [
            token.id for token in text_plan.tokens[position + 1 : position + 2] if token.made
        ]
        likely = generated_ids[0] if generated_ids else int(row.argmax())
        targets.append((likely if target is None else target, against))
    directions = capture.directions(targets)
    n_keys = max(batch.tokens.lengths)
    recorders = {
        layer: HeadLogits(plan.config.n_heads, positions, direction, n_keys)
        for layer, (direction, _) in directions.layers.items()
    }
    forward(plan, batch, engine, {layer: [recorder] for layer, recorder in recorders.items()}, step)
    attributions = []
    for text, parts in enumerate(logit_parts(capture, directions, recorders)):
        row = logits[text]
        about = len(plan.text_plans[text].tokens), plan.source.tokenizer.spelled, capture.softcap

        def logit_of(index: int, row: "torch.Tensor" = row) -> float:
            return float(row[index])

        attributions.append(attribution(parts, positions[text], targets[text], logit_of, about))
    return attributions


def prepare(plan: RunPlan, model: "LoadedModel", device: "torch.device") -> "tuple[Batch, Engine]":
    """Put the texts side by side, and the model under the mask that was asked for."""
    from attnscope.engines.protocol import EngineSettings
    from attnscope.model.batch import make_batch
    from attnscope.model.masks import (
        FunctionMask,
        ScoreFunctionMask,
        documents_mask,
        hidden_keys_mask,
        mask_from_matrix,
    )

    contexts = [text_plan.context for text_plan in plan.text_plans if text_plan.context is not None]
    positions = [text_plan.positions for text_plan in plan.text_plans]
    tokens = [text_plan.tokens for text_plan in plan.text_plans]
    media = [text_plan.media for text_plan in plan.text_plans if text_plan.media is not None]
    width = max((len(text.context or text.tokens) + text.padding for text in media), default=0)
    batch = make_batch(
        tokens,
        contexts or None,
        device,
        positions,
        media_inputs(plan.text_plans) if media else [],
        width,
    )
    resolved: dict[MaskTerm, Mask] = {}
    for term in leaves(plan.terms):
        if isinstance(term, MatrixFile):
            resolved[term] = mask_from_matrix(plan.matrices[term.path], device)
        elif isinstance(term, Hidden):
            hidden = [text_plan.hidden for text_plan in plan.text_plans]
            resolved[term] = hidden_keys_mask(hidden, batch.sources.real.shape[1], device)
        elif isinstance(term, ScoreFunction):
            resolved[term] = ScoreFunctionMask(term.function)
        elif isinstance(term, Function):
            longest = batch.tokens.real.shape[1]
            resolved[term] = FunctionMask(
                term.function, len(plan.text_plans), plan.config.n_heads, longest, device
            )
        elif isinstance(term, Documents | DocumentEnds):
            documents = [text_plan.documents[term] for text_plan in plan.text_plans]
            resolved[term] = documents_mask(documents, batch.sources.real.shape[1], device)
    settings = EngineSettings(
        plan.terms,
        resolved,
        same_scores=not plan.run.own_mask and plan.run.what_if == "same-scores",
        encoder_texts=_encoder_texts(plan, device),
        padded_rows=plan.run.show_padding,
        variants=cut_variants(plan) if plan.run.cuts else [],
        scale=plan.run.scale,
    )
    return batch, model.under(settings)


def span_recorders(plan: RunPlan, batch: "Batch", engine: "Engine") -> "SpanRecorders | None":
    """Return recorders of the weights between spans of every text; None if texts are not divided."""
    spans = [text_plan.spans for text_plan in plan.text_plans if text_plan.spans is not None]
    if not spans:
        return None
    if len(spans) < len(plan.text_plans):
        hint = "give spans for all of them, or for none"
        raise UsageError("only some of the texts have spans", where=arg("spans"), hint=hint)
    from attnscope.run.analysis.spans import SpanRecorders

    queries = [
        reading_span(divided, text.queries)
        for divided, text in zip(spans, plan.text_plans, strict=True)
    ]
    predicting = [
        [n - 1 for n, token in enumerate(text.tokens) if token.made] for text in plan.text_plans
    ]
    return SpanRecorders(batch, spans, queries, engine, predicting)


def _selected_heads(plan: RunPlan, sizes: tuple[int, int]) -> list[tuple[int, int]] | None:
    """Return layer and head of each head that the user selected; None for all."""
    if plan.heads.pairs:
        return list(dict.fromkeys(plan.heads.pairs))
    if plan.layers.word and plan.heads.word:
        return None
    layers = plan.layers.numbers(sizes[0], "layer")
    heads = plan.heads.numbers(sizes[1], "head")
    return [(layer, head) for layer in layers for head in heads]


def reading_span(spans: TextSpans, queries: Sequence[int]) -> int:
    """Return the number of the span whose reading is shown: that of the rows named, or the last of the text.

    Args:
        queries: Shown rows; if they belong to several spans, none is named.
    """
    named_spans = {spans.of_token[query] for query in queries if query < len(spans.of_token)}
    if len(named_spans) == 1:
        return named_spans.pop()
    last = [index for index, span_kind in enumerate(spans.kinds) if span_kind in ("text", "answer")]
    return last[-1] if last else len(spans.names) - 1


def media_inputs(text_plans: Sequence[TextPlan]) -> list[Mapping[str, Any]]:
    """Return the inputs of each text that are no token ids; an empty list if no text has any."""
    inputs = [{} if text_plan.media is None else text_plan.media.inputs for text_plan in text_plans]
    return inputs if any(inputs) else []


@dataclass(frozen=True)
class HeadChoice:
    """What `auto` chooses layers and heads by.

    The question of a run decides: the logit that is taken apart, else the weight of the named rows on the named
    columns, else the content weight. Weights are those under the model's own mask, so that another mask
    shows the same head.
    """

    model: "LoadedModel"
    attributions: Sequence[Attribution] = ()  # of every text; empty if no logit is taken apart


@dataclass(frozen=True)
class SelectedHeads:
    """The layers and heads of a run, and what the pass that chose them has computed beside."""

    units: "list[HeadSelection]"
    observed: bool = False  # whether other recorders have seen a pass under the mask that is shown
    # the final hidden states of that pass, (B, T, D), if there are predictions
    hidden: "torch.Tensor | None" = None


def select_heads(
    plan: RunPlan,
    batch: "Batch",
    engine: "Engine",
    choice: HeadChoice | None,
    on_progress: ProgressCallback | None,
    extra_recorders: "Recorders | None" = None,
) -> SelectedHeads:
    """Return the requested layers and heads; see HeadChoice for those that are left to `auto`.

    Args:
        choice: Needed if the plan has `auto`.
        extra_recorders: More recorders by layer, which see the pass that chooses if it is under the mask that is shown.
    """
    from attnscope.run.analysis.choice import RankingRecorders, choose_heads, logit_ranking

    n_layers, n_heads = engine.sizes
    if not plan.auto:
        return SelectedHeads(choose_heads(None, plan.layers, plan.heads, n_layers, n_heads))
    assert choice is not None
    if choice.attributions:
        ranking = logit_ranking(choice.attributions)
        return SelectedHeads(choose_heads(ranking, plan.layers, plan.heads, n_layers, n_heads))
    rows, columns = _named_places(plan)
    layers = [layer for layer in engine.layers if layer < plan.n_layers_run]
    rankings = RankingRecorders(batch, rows, columns, layers, n_heads)
    step = ("choosing a head", on_progress)
    hidden = None
    # Arrays were computed under the mask that is named, whatever the default of a model would be.
    observed = plan.run.own_mask or not plan.source.runs
    if observed:
        recorders: Recorders = rankings.recorders
        if extra_recorders:
            recorders = _merged(recorders, extra_recorders)
        hidden = forward(plan, batch, engine, recorders, step, final=bool(plan.predicted))
        ranking = rankings.compute()
    else:
        own_engine = _under_own_mask(plan, batch, choice.model)
        forward(plan, batch, own_engine, rankings.recorders, step)
        ranking = replace(rankings.compute(), mask=own_engine.describe_mask())
    units = choose_heads(ranking, plan.layers, plan.heads, n_layers, n_heads)
    return SelectedHeads(units, observed, hidden)


def _under_own_mask(plan: RunPlan, batch: "Batch", model: "LoadedModel") -> "Engine":
    """Put a model under its own mask, whatever mask the run names."""
    from attnscope.engines.protocol import EngineSettings

    return model.under(
        EngineSettings(
            (Own(),),
            encoder_texts=_encoder_texts(plan, batch.tokens.real.device),
            padded_rows=plan.run.show_padding,
            variants=cut_variants(plan) if plan.run.cuts else [],
            scale=plan.run.scale,
        )
    )


def _encoder_texts(plan: RunPlan, device: "torch.device") -> "TokenTensors | None":
    """Return the texts that the encoder reads where a decoder's attention to itself is shown; None elsewhere."""
    from attnscope.model.batch import pad_texts

    texts = [
        text_plan.encoder_tokens
        for text_plan in plan.text_plans
        if text_plan.encoder_tokens is not None
    ]
    return pad_texts(texts, device) if texts else None


def _merged(recorders: "Recorders", more: "Recorders") -> "dict[int, list[Recorder]]":
    return {
        layer: [*recorders.get(layer, ()), *more.get(layer, ())]
        for layer in recorders.keys() | more.keys()
    }


def _named_places(plan: RunPlan) -> tuple[list[list[int]] | None, list[list[int]] | None]:
    """Return named rows and columns of every text; None if none, or all, are named."""
    texts = plan.text_plans
    rows = [text.queries if text.auto_queries is None else text.auto_queries for text in texts]
    columns = [text.keys if text.auto_keys is None else text.auto_keys for text in texts]
    sources = [text.context or text.tokens for text in texts]
    every_row = all(
        len(named_positions) == len(text.tokens)
        for named_positions, text in zip(rows, texts, strict=True)
    )
    every_column = all(
        len(named_positions) == len(tokens)
        for named_positions, tokens in zip(columns, sources, strict=True)
    )
    run = plan.run
    no_rows = run.query is None and run.auto_query is None
    no_columns = run.key is None and run.auto_key is None
    return None if no_rows or every_row else rows, None if no_columns or every_column else columns


def attend(
    plan: RunPlan,
    batch: "Batch",
    engine: "Engine",
    on_progress: ProgressCallback | None,
    record_spec: RecordSpec | None = None,
    *,
    choice: HeadChoice | None = None,
    extra_recorders: "Recorders | None" = None,
    every_head: "Trace | None" = None,
) -> "Trace":
    """Choose the heads for `auto`, and record the requested values.

    Args:
        record_spec: Specification of the record; None for the content of a Report.
        choice: Needed if a layer or head is left to `auto`.
        extra_recorders: More recorders by layer, such as those of spans, which see one pass over all layers.
        every_head: Recorders of every head, which see that pass, too; None for none.
    """
    from attnscope.model.recorders import AveragedRows, RecordedTokens
    from attnscope.model.trace import make_trace
    from attnscope.run.analysis.spans import span_tokens

    eligible = batch.sources.real if plan.run.special else batch.sources.content()
    record_spec = record_spec or plan.record_spec()
    recorded = None
    if "spans" in record_spec.parts:
        divided = [text_plan.spans for text_plan in plan.text_plans if text_plan.spans is not None]
        recorded = span_tokens(batch, divided)
    shown_rows = _shown(plan, batch.tokens.real)
    averaged = None
    if "heads" in record_spec.parts:
        averaged = AveragedRows.of(batch.tokens.ids[0], batch.tokens.special, shown_rows)
    # masks hide the padding of batches, but not that of a sound, which its model hears
    media = (text_plan.media for text_plan in plan.text_plans)
    ranks_all = plan.run.special and not any(
        media_text and media_text.padding for media_text in media
    )
    record_tokens = RecordedTokens(
        batch.sources, eligible, shown_rows, batch.tokens.real, recorded, averaged, ranks_all
    )
    if every_head is not None:
        extra_recorders = _merged(extra_recorders or {}, every_head.recorders)
    selected = select_heads(plan, batch, engine, choice, on_progress, extra_recorders)
    trace = make_trace(selected.units, record_spec, record_tokens)
    final = bool(plan.predicted) and selected.hidden is None
    if selected.observed:
        recorders = trace.recorders
    else:
        recorders = _merged(trace.recorders, extra_recorders or {})
    hidden_states = forward(plan, batch, engine, recorders, ("attending", on_progress), final=final)
    trace.hidden = hidden_states if final else selected.hidden
    trace.finish()
    if every_head is not None:
        every_head.finish()
    return trace


@dataclass(frozen=True)
class RunningFrame:
    """A pass over many texts that a GPU may not have computed yet; on a CPU, it has."""

    trace: "Trace"
    frame: "Frame"
    compute_again: Callable[[], "Trace"]

    def finished_trace(self, meanwhile: Callable[[], bool]) -> "Trace":
        """Wait for the pass, and return its trace; see Frame.holds."""
        if self.frame.holds(meanwhile):
            return self.trace
        return self.compute_again()  # the first layer that is not finite names itself


def start_frame(
    plan: RunPlan, batch: "Batch", engine: "Engine", record_spec: RecordSpec
) -> RunningFrame:
    """Record many texts as `attend` does, but do not wait for a GPU."""
    from attnscope.model.frame import one_frame

    def compute() -> "Trace":
        return attend(plan, batch, engine, None, record_spec)

    with one_frame() as frame:
        trace = compute()
    return RunningFrame(trace, frame, compute)


def forward(
    plan: RunPlan,
    batch: "Batch",
    engine: "Engine",
    recorders: "Recorders",
    step: tuple[str, ProgressCallback | None],
    *,
    final: bool = False,
    share_recorders: "Recorders | None" = None,
) -> "torch.Tensor | None":
    """Run the model with recorders and report progress.

    Args:
        step: Name of this step and its progress callback; None for no progress.
        share_recorders: Recorders of layers without softmax, which see shares of |M| as weights; None for none.

    Returns:
        The final hidden states, (B, T, D), if `final`; else None.
    """
    from attnscope.model.progress import ForwardProgress, LayerCost, MemoryGuard

    what, on_progress = step
    check = memory_check(plan, batch)
    recorders = {layer: [*of_layer, MemoryGuard(check)] for layer, of_layer in recorders.items()}
    more: dict[str, Recorders] = {}
    if share_recorders:
        more["share_recorders"] = {
            layer: [*some, MemoryGuard(check)] for layer, some in share_recorders.items()
        }
    if on_progress is None:
        return engine.forward(batch, recorders, lambda done, total: check(), final=final, **more)
    c = plan.config
    tokens = sum(batch.tokens.lengths)
    masks = [used_mask(plan.terms, c.mask_of(layer)) for layer in range(plan.n_layers_run)]
    pairs = {
        mask: allowed_pairs(mask, max(batch.tokens.lengths)) * len(batch.tokens.lengths)
        for mask in set(masks)
    }
    width = c.d_head + c.d_value
    loads = [LayerCost(tokens * layer_parameters(c), width * pairs[mask]) for mask in masks]
    forward_progress = ForwardProgress(what, on_progress, loads, c.n_heads, recorders)

    def layer_done(done: int, total: int) -> None:
        check()
        forward_progress.layer(done, total)

    return engine.forward(batch, forward_progress.recorders, layer_done, final=final, **more)


def memory_check(plan: RunPlan, batch: "Batch") -> Callable[[], None]:
    """Return a function that stops a run that exceeds its memory.

    This does not cover a GPU's memory, whose allocations fail by themselves.
    """
    if plan.memory is None or batch.tokens.real.device.type != "cpu":
        return lambda: None
    return plan.memory.check


def _shown(plan: RunPlan, real: "torch.Tensor") -> "torch.Tensor":
    """Return the rows of each text that sums count, (B, Q), bool: shown rows, or all."""
    import torch

    from attnscope.model.frame import upload

    shown_rows = torch.zeros(real.shape, dtype=torch.bool)
    for index, text_plan in enumerate(plan.text_plans):
        rows = range(len(text_plan.tokens)) if text_plan.pool else text_plan.queries
        shown_rows[index, list(rows)] = True
    return upload(shown_rows, real.device)


def _text_report(
    plan: RunPlan, index: int, trace: "Trace", engine: "Engine", check: Callable[[], None]
) -> TextReport:
    from attnscope.run.analysis.heads import counted_rows, text_heads, text_part
    from attnscope.run.analysis.predictions import predict

    run = plan.run
    text_plan = plan.text_plans[index]
    text = run.texts[text_plan.number]
    part = text_part(index, text_plan, counted_rows(text_plan.tokens) if text_plan.pool else None)
    left_out = [] if run.special else [*LEFT_OUT]
    heads = text_heads(trace, part, left_out=left_out, score_mod=plan.score_mod)
    check()
    predictions = []
    if trace.hidden is not None:
        predictions = predict(
            engine.logits, trace.hidden[index], plan.predicted[index], plan.source.tokenizer.spelled
        )
    chat = None
    if text.rendered is not None:
        chat = chat_text(text.rendered, text_plan.tokens)
    report = TextReport(
        text.text,
        text.pair,
        [*text_plan.tokens, *[PADDING] * text_plan.padding],
        text_plan.context,
        text_plan.number,
        text_plan.queries,
        text_plan.keys,
        heads,
        text_plan.notes,
        list(text_plan.hidden),
        predictions,
        padding=text_plan.padding,
        chat=chat,
        position_ids=text_plan.positions,
    )
    media = text_plan.media
    if media is not None:
        report = msgspec.structs.replace(
            report, images=list(media.images), prompt=media.prompt, sound=media.sound
        )
    if text_plan.narrowed is not None:
        report = narrow_to_weight(report, text_plan.narrowed, FEW)
    return with_words(report) if run.words else report


def report_without_heads(run: RunConfig, text_plan: TextPlan, **findings: Any) -> TextReport:
    """Return the report of a text of which no weights of heads are shown, but these findings."""
    text = run.texts[text_plan.number]
    chat = None
    if text.rendered is not None:
        chat = chat_text(text.rendered, text_plan.tokens)
    return TextReport(
        text.text,
        text.pair,
        text_plan.tokens,
        None,
        text_plan.number,
        text_plan.queries,
        text_plan.keys,
        Heads(),
        text_plan.notes,
        chat=chat,
        **findings,
    )


def provenance(
    source: ModelSource,
    run: RunConfig,
    device: "torch.device",
    values: str = "exact",
    warnings: Sequence[str] = (),
) -> Provenance:
    """Return the provenance of the numbers: see Provenance.

    Args:
        warnings: What changes how the numbers of this run's texts are read; see `warnings_of`.
    """
    import torch

    return Provenance(
        attnscope=__version__,
        torch=str(torch.__version__),
        model=source.name,
        family=source.family,
        fingerprint=source.fingerprint,
        engine=source.engine,
        dtype=source.dtype or run.dtype,
        device=str(device),
        weights=source.weights,
        n_layers=source.config.n_layers,
        n_heads=source.config.n_heads,
        notes=[*source.notes, *(source.generation.notes if run.generate else ()), *warnings],
        details=list(source.details),
        adapter=None if run.adapter is None else as_unicode(run.adapter),
        part=source.part,
        values=values,
        versions={name: version(name) for name in source.libraries},
        ignored_keys=list(source.ignored_keys),
        scale=run.scale,
        layer_kinds=list(source.config.layer_kinds),
        weights_hash=hash_weights(source.folder)
        if run.hash_weights and source.folder is not None
        else None,
        tokenizer=None if source.tokenizer_name is None else as_unicode(source.tokenizer_name),
    )


def warnings_of(texts: Sequence[TextPlan]) -> list[str]:
    """Return the warnings of texts; of several, each with the number of its text unless all have it."""
    by_warning: dict[str, list[int]] = {}
    for text in texts:
        for warning in text.warnings:
            by_warning.setdefault(warning, []).append(text.number)
    shared = {warning for warning, numbers in by_warning.items() if len(numbers) == len(texts)}
    return [
        warning if warning in shared else f"text {', '.join(map(str, numbers))}: {warning}"
        for warning, numbers in by_warning.items()
    ]


def describe_mask_use(
    source: ModelSource,
    run: RunConfig,
    seen: str | None = None,
    texts: Sequence[TextPlan] = (),
    matrices: "Matrices | None" = None,
) -> MaskUse:
    """Describe the mask that is used, and whose it is.

    A mask that the model was trained under is not a what-if, unless it re-masks the model's scores (`same-scores`).

    Args:
        seen: The model's own mask as observed, if the config does not determine it; otherwise None.
        texts: The texts in which the mask is compared with the model's own.
        matrices: The matrices of the mask's files.
    """
    own = source.config.describe_mask() if seen is None else seen
    terms = mask_terms(run)
    hidden = [as_unicode(term.typed) for term in terms if isinstance(term, Hidden)]
    seen_by = [term for term in terms if not isinstance(term, Hidden | ScoreFunction)]
    if len(seen_by) == 1 and isinstance(seen_by[0], Own):
        used = own
    else:
        # "causal, with window:4 in 2 of 3 layers" is no term of an expression
        expanded = used_mask(seen_by, own) if is_mask(own) else seen_by
        used = as_unicode(spell_mask(expanded))
    functions = [source.config.score_mod if used != own else None, *run.score_functions]
    used += "".join(
        f", with {as_unicode(str(function))}" for function in functions if function is not None
    )
    trained = [mask for mask in source.trained_masks if mask != own]
    is_own = used == own or (used in trained and run.what_if == "stack")
    what_if = None if is_own and not hidden else run.what_if
    added = list[AddedKeys]()
    hides = None
    if used != own and what_if is not None:
        # Masks over a second text are not compared.
        masked = [
            MaskedText(len(text.tokens), text.documents) for text in texts if text.context is None
        ]
        added, hides = mask_effect(_own_masks(source, own), seen_by, masked, matrices or {})
    return MaskUse(own, used, what_if, hidden[0] if hidden else None, trained, added, hides)


def _own_masks(source: ModelSource, own: str) -> Collection[str]:
    """Return the different masks of the model's layers; none if they are unknown."""
    if source.mask_known:
        return source.config.masks_of(source.config.n_layers)
    return [own] if is_mask(own) else []


def forbidden_cells(
    source: ModelSource, run: RunConfig, mask: MaskUse, text: TextPlan, matrices: "Matrices"
) -> str | None:
    """Say that the mask forbids all pairs of the named queries and keys; None if it allows one or is unknown."""
    if run.query is None or run.key is None or text.context is not None or source.mixing:
        return None
    masked = MaskedText(len(text.tokens), text.documents)
    cells = text.queries, text.keys
    if not forbids(_own_masks(source, mask.own), run.mask, masked, matrices, *cells):
        return None
    one_cell = len(text.queries) == len(text.keys) == 1
    whose = "this query to this key" if one_cell else "these queries to these keys"
    return f"the mask {mask.used} forbids attention from {whose}: the weight is 0 in every head"
