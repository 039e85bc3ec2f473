"""The whole program in order: from a RunConfig to a Report."""

from collections.abc import Callable, Mapping, Sequence
from importlib.metadata import version
from typing import TYPE_CHECKING

from attnscope import __version__
from attnscope.checkpoints.folder import hash_weights
from attnscope.checkpoints.source import ModelSource
from attnscope.config import RunConfig, parse_mask, used_mask
from attnscope.engines.loader import ModelLoader, ProgressCallback
from attnscope.planning.cost import allowed_pairs
from attnscope.planning.memory import layer_parameters
from attnscope.planning.record_options import RecordOptions
from attnscope.planning.run_plan import RunPlan, make_plan
from attnscope.report import MaskUse, Provenance, Report, TextReport
from attnscope.system.escape import as_unicode

if TYPE_CHECKING:
    import torch

    from attnscope.engines.native import NativeEngine
    from attnscope.engines.transformers.engine import TransformersEngine
    from attnscope.engines.transformers.loading import TransformersModel
    from attnscope.model.batch import Batch
    from attnscope.model.stack import Stack
    from attnscope.model.tile import Recorder
    from attnscope.model.trace import HeadSelection, Trace


def inspect(run: RunConfig, progress: ProgressCallback | None = None) -> Report:
    """Do what `attnscope run` does, without printing.

    Args:
        run: What the user asked.
        progress: Called with what is being done, how much of it is done, and how much there is.

    Raises:
        AttnscopeError: The model, the texts or the memory do not allow it.
        UsageError: A selection does not fit the model or the text.
    """
    return Session(run.texts, progress).inspect(run)


class Session(ModelLoader):
    """Several runs that share what they open and load."""

    def inspect(self, run: RunConfig) -> Report:
        """See inspect."""
        source = self.source(run)
        plan = make_plan(run, source)
        loaded, device = self.load(run, source, plan)
        batch, engine = prepare_engine(run, plan, loaded, device)
        trace = attend(run, plan, batch, engine, self.progress)
        check = _memory_check(plan, batch)
        texts = [_text_report(run, plan, i, trace, check) for i in range(len(plan.text_plans))]
        values = "pooled" if any(text_plan.pool for text_plan in plan.text_plans) else "exact"
        made = provenance(source, run, device, values)
        return Report(made, describe_mask_use(source, run, engine.describe_mask()), texts)


def prepare_engine(
    run: RunConfig, plan: RunPlan, loaded: "Stack | TransformersModel", device: "torch.device"
) -> "tuple[Batch, NativeEngine | TransformersEngine]":
    """The texts side by side, and the model under the mask that was asked for."""
    from attnscope.engines.native import NativeEngine
    from attnscope.model.batch import make_batch, pad_texts
    from attnscope.model.masks import mask_from_matrix
    from attnscope.model.stack import Stack

    contexts = [text_plan.context for text_plan in plan.text_plans if text_plan.context is not None]
    batch = make_batch([text_plan.tokens for text_plan in plan.text_plans], contexts or None, device)
    same_scores = run.mask != "own" and run.what_if == "same-scores"
    files = {path: mask_from_matrix(matrix, device) for path, matrix in plan.matrices.items()}
    if isinstance(loaded, Stack):
        return batch, NativeEngine(loaded, plan.terms, same_scores, files)
    from attnscope.engines.transformers.engine import TransformersEngine

    encoder_tokens = [text_plan.encoder_tokens for text_plan in plan.text_plans if text_plan.encoder_tokens is not None]
    read = pad_texts(encoder_tokens, device) if encoder_tokens else None
    return batch, TransformersEngine(loaded, plan.terms, same_scores, files, read)


def select_heads(
    plan: RunPlan, batch: "Batch", engine: "NativeEngine | TransformersEngine", on_progress: ProgressCallback | None
) -> "list[HeadSelection]":
    """The layers and heads that were asked for; where that was left to us, chosen by what they do."""
    from attnscope.analysis import choose_heads, mass_on_other_words
    from attnscope.model.recorders import RowRecorder

    (n_layers, n_heads), mass = engine.sizes, None
    if plan.auto:
        rows = [
            RowRecorder(range(n_heads), range(max(batch.tokens.lengths)), batch.sources)
            for _ in range(plan.n_layers_run)
        ]
        survey = {layer: [one] for layer, one in enumerate(rows)}
        forward(plan, batch, engine, survey, ("choosing a head", on_progress))
        mass = mass_on_other_words(rows, batch.tokens.real & ~batch.tokens.special).cpu()
    return choose_heads(mass, plan.layers, plan.heads, n_layers, n_heads)


def attend(
    run: RunConfig,
    plan: RunPlan,
    batch: "Batch",
    engine: "NativeEngine | TransformersEngine",
    on_progress: ProgressCallback | None,
    options: RecordOptions | None = None,
) -> "Trace":
    """Choose the heads, where that was left to us, and keep what was asked for of them.

    Args:
        run: What the user asked; its texts are not looked at.
        plan: The same, held against the model and the texts.
        batch: The texts side by side.
        engine: The model under its mask.
        on_progress: Told how far it is; None where nobody wants to know.
        options: What is kept of every unit besides stages; None for what a Report holds.

    Raises:
        AttnscopeError: A score is not finite.
    """
    from attnscope.model.trace import RecordSpec, make_trace

    pooled = any(text_plan.pool for text_plan in plan.text_plans)
    rows = sorted({query for text_plan in plan.text_plans for query in text_plan.queries})
    record_spec = RecordSpec(
        stages=plan.stages,
        rows=rows,
        counted=list(range(max(batch.tokens.lengths))) if pooled else rows,
        columns=sorted({key for text_plan in plan.text_plans for key in text_plan.keys}),
        top=run.top,
        by=run.by,
        eligible=batch.sources.real if run.special else batch.sources.content(),
        sources=batch.sources,
        options=options
        or RecordOptions(
            columns=pooled, pool=max((text_plan.pool or 0 for text_plan in plan.text_plans), default=0) or None
        ),
        shown=_shown(plan, batch.tokens.real),
        real=batch.tokens.real,
    )
    trace = make_trace(select_heads(plan, batch, engine, on_progress), record_spec)
    forward(plan, batch, engine, trace.recorders, ("attending", on_progress))
    return trace


def new_window() -> None:
    """See `packed.new_window`, which a dump calls before the batches whose matrices go to one file."""
    from attnscope.model.recorders.packed import new_window

    new_window()


def forward(
    plan: RunPlan,
    batch: "Batch",
    engine: "NativeEngine | TransformersEngine",
    recorders: "Mapping[int, Sequence[Recorder]]",
    step: tuple[str, ProgressCallback | None],
) -> None:
    """Run the model under the eyes of recorders, and tell how far it is.

    Args:
        plan: What was asked.
        batch: The texts side by side.
        engine: The model under its mask.
        recorders: Layer to those who watch it.
        step: What this is called, and who is told; None for nobody.
    """
    from attnscope.model.recorders.limited import limited

    what, on_progress = step
    check = _memory_check(plan, batch)
    recorders = limited(recorders, check)
    if on_progress is None:
        engine.forward(batch, recorders, lambda done, total: check())
        return
    from attnscope.model.progress import ForwardProgress, LayerCost

    c, tokens = plan.config, sum(batch.tokens.lengths)
    masks = [used_mask(plan.terms, c.mask_of(layer)) for layer in range(plan.n_layers_run)]
    pairs = {mask: allowed_pairs(mask, max(batch.tokens.lengths)) * len(batch.tokens.lengths) for mask in set(masks)}
    width = c.d_head + c.d_value
    loads = [LayerCost(tokens * layer_parameters(c), width * pairs[mask]) for mask in masks]
    forward_progress = ForwardProgress(what, on_progress, loads, c.n_heads, recorders)

    def layer_done(done: int, total: int) -> None:
        check()
        forward_progress.layer(done, total)

    engine.forward(batch, forward_progress.recorders, layer_done)


def _memory_check(plan: RunPlan, batch: "Batch") -> Callable[[], None]:
    """What stops a run that takes more than it may; a GPU's memory refuses by itself, and is not seen from here."""
    if plan.memory is None or batch.tokens.real.device.type != "cpu":
        return lambda: None
    return plan.memory.check


def _shown(plan: RunPlan, real: "torch.Tensor") -> "torch.Tensor":
    """The rows of each text that sums count, (B, Q), bool: those that are shown, or all."""
    import torch

    shown = torch.zeros_like(real)
    for number, text_plan in enumerate(plan.text_plans):
        rows = (
            real[number] if text_plan.pool else torch.tensor(text_plan.queries, dtype=torch.int64, device=real.device)
        )
        shown[number, rows] = True
    return shown


def _text_report(run: RunConfig, plan: RunPlan, index: int, trace: "Trace", check: Callable[[], None]) -> TextReport:
    import torch

    from attnscope.analysis import TextExtent, TextSlice, head_report

    text_plan = plan.text_plans[index]
    text = run.texts[text_plan.number]
    extent = None
    if text_plan.pool:
        words = [not token.special for token in text_plan.tokens]
        counted = torch.tensor([word or not any(words) for word in words])
        extent = TextExtent(len(text_plan.tokens), len(text_plan.context or text_plan.tokens), counted)
    place = TextSlice(index, text_plan.queries, text_plan.keys, extent)
    left_out = [] if run.special else ["special tokens", "first token"]
    heads = []
    for unit, recorded in trace.recorded:
        heads.append(head_report(unit, recorded, trace.record_spec, place, left_out=left_out))
        check()
    return TextReport(
        text_plan.number,
        text.text,
        text.pair,
        text_plan.tokens,
        text_plan.context,
        text_plan.queries,
        text_plan.keys,
        heads,
        text_plan.notes,
    )


def provenance(source: ModelSource, run: RunConfig, device: "torch.device", values: str = "exact") -> Provenance:
    """What produces the numbers, and what they are: see report.Provenance."""
    import torch

    return Provenance(
        attnscope=__version__,
        torch=str(torch.__version__),
        model=source.name,
        family=source.family,
        fingerprint=source.fingerprint,
        engine=source.engine,
        dtype=run.dtype,
        device=str(device),
        weights=source.weights,
        n_layers=source.config.n_layers,
        n_heads=source.config.n_heads,
        notes=list(source.notes),
        part=source.part,
        values=values,
        versions=_versions(source),
        weights_hash=hash_weights(source.folder) if run.hash_weights and source.folder is not None else None,
    )


def _versions(source: ModelSource) -> dict[str, str]:
    """Of the libraries that made the tokens and ran the model."""
    used = {"tokenizers": source.tokenizer.name != "words", "transformers": source.engine == "transformers"}
    return {name: version(name) for name, took_part in used.items() if took_part}


def describe_mask_use(source: ModelSource, run: RunConfig, seen: str | None = None) -> MaskUse:
    """Whose mask it is; one that the model was trained under is not a what-if.

    Args:
        source: The model.
        run: What the user asked.
        seen: The model's own mask, where only running it shows that; None where its config says it.
    """
    own = source.config.describe_mask() if seen is None else seen
    used = as_unicode("+".join(own if term.kind == "own" else str(term) for term in parse_mask(run.mask)))
    whose = " or ".join((own, *(mask for mask in source.trained_masks if mask != own)))
    return MaskUse(whose, used, None if used in (own, *source.trained_masks) else run.what_if)
