"""What the user asked in, a Report out: the whole program, in order."""

from collections.abc import Callable, Mapping, Sequence
from importlib.metadata import version
from typing import TYPE_CHECKING

from attnscope import __version__
from attnscope.config import RunConfig
from attnscope.cost import allowed_pairs
from attnscope.folder import hash_weights
from attnscope.loading import Loader, Progress
from attnscope.memory import layer_parameters
from attnscope.report import MaskUse, Provenance, Report, TextReport
from attnscope.request import Request, resolve
from attnscope.selection import Keep, parse_mask, used_mask
from attnscope.source import Source
from attnscope.visible import as_unicode

if TYPE_CHECKING:
    import torch

    from attnscope.hosted import Guest, Hosted
    from attnscope.model.native import Batch, Native
    from attnscope.model.stack import Stack
    from attnscope.model.tile import Recorder
    from attnscope.model.trace import Trace, Unit


def inspect(run: RunConfig, progress: Progress | None = None) -> Report:
    """Do what `attnscope run` does, without printing.

    Args:
        run: What the user asked.
        progress: Called with what is being done, how much of it is done, and how much there is.

    Raises:
        AttnscopeError: The model, the texts or the memory do not allow it.
        UsageError: A selection does not fit the model or the text.
    """
    return Session(run.texts, progress).inspect(run)


class Session(Loader):
    """Several runs that share what they open and load."""

    def inspect(self, run: RunConfig) -> Report:
        """See inspect."""
        source = self.source(run)
        request = resolve(run, source)
        loaded, device = self.load(run, source, request)
        batch, engine = prepare_engine(run, request, loaded, device)
        trace = attend(run, request, batch, engine, self.progress)
        check = _memory_check(request, batch)
        texts = [_text_report(run, request, i, trace, check) for i in range(len(request.pages))]
        values = "pooled" if any(page.pool for page in request.pages) else "exact"
        made = provenance(source, run, device, values)
        return Report(made, mask_use(source, run, engine.mask_in_words()), texts)


def prepare_engine(
    run: RunConfig, request: Request, loaded: "Stack | Guest", device: "torch.device"
) -> "tuple[Batch, Native | Hosted]":
    """The texts side by side, and the model under the mask that was asked for."""
    from attnscope.model.masks import from_matrix
    from attnscope.model.native import Native, make_batch, side_by_side
    from attnscope.model.stack import Stack

    contexts = [page.context for page in request.pages if page.context is not None]
    batch = make_batch([page.tokens for page in request.pages], contexts or None, device)
    same_scores = run.mask != "own" and run.what_if == "same-scores"
    files = {path: from_matrix(matrix, device) for path, matrix in request.matrices.items()}
    if isinstance(loaded, Stack):
        return batch, Native(loaded, request.terms, same_scores, files)
    from attnscope.hosted import Hosted

    given = [page.given for page in request.pages if page.given is not None]
    read = side_by_side(given, device) if given else None
    return batch, Hosted(loaded, request.terms, same_scores, files, read)


def units_for(request: Request, batch: "Batch", engine: "Native | Hosted", tell: Progress | None) -> "list[Unit]":
    """The layers and heads that were asked for; where that was left to us, chosen by what they do."""
    from attnscope.analysis import choose, mass_on_others
    from attnscope.model.recorders import Rows

    (n_layers, n_heads), mass = engine.sizes, None
    if request.auto:
        rows = [Rows(range(n_heads), range(max(batch.tokens.lengths)), batch.sources) for _ in range(request.deepest)]
        survey = {layer: [one] for layer, one in enumerate(rows)}
        forward(request, batch, engine, survey, ("choosing a head", tell))
        mass = mass_on_others(rows, batch.tokens.real & ~batch.tokens.special).cpu()
    return choose(mass, request.layers, request.heads, n_layers, n_heads)


def attend(
    run: RunConfig,
    request: Request,
    batch: "Batch",
    engine: "Native | Hosted",
    tell: Progress | None,
    keep: Keep | None = None,
) -> "Trace":
    """Choose the heads, where that was left to us, and keep what was asked for of them.

    Args:
        run: What the user asked; its texts are not looked at.
        request: The same, held against the model and the texts.
        batch: The texts side by side.
        engine: The model under its mask.
        tell: Told how far it is; None where nobody wants to know.
        keep: What is kept of every unit besides stages; None for what a Report holds.

    Raises:
        AttnscopeError: A score is not finite.
    """
    from attnscope.model.trace import Wanted, prepare

    pooled = any(page.pool for page in request.pages)
    rows = sorted({query for page in request.pages for query in page.queries})
    wanted = Wanted(
        stages=request.stages,
        rows=rows,
        counted=list(range(max(batch.tokens.lengths))) if pooled else rows,
        columns=sorted({key for page in request.pages for key in page.keys}),
        top=run.top,
        by=run.by,
        eligible=batch.sources.real if run.special else batch.sources.content(),
        sources=batch.sources,
        keep=keep or Keep(columns=pooled, pool=max((page.pool or 0 for page in request.pages), default=0) or None),
        shown=_shown(request, batch.tokens.real),
        real=batch.tokens.real,
    )
    trace = prepare(units_for(request, batch, engine, tell), wanted)
    forward(request, batch, engine, trace.recorders, ("attending", tell))
    return trace


def new_window() -> None:
    """See `sheets.new_window`, which a dump calls before the batches whose matrices go to one file."""
    from attnscope.model.recorders.sheets import new_window

    new_window()


def forward(
    request: Request,
    batch: "Batch",
    engine: "Native | Hosted",
    recorders: "Mapping[int, Sequence[Recorder]]",
    told: tuple[str, Progress | None],
) -> None:
    """Run the model under the eyes of recorders, and tell how far it is.

    Args:
        request: What was asked.
        batch: The texts side by side.
        engine: The model under its mask.
        recorders: Layer to those who watch it.
        told: What this is called, and who is told; None for nobody.
    """
    from attnscope.model.recorders.limited import limited

    what, tell = told
    check = _memory_check(request, batch)
    recorders = limited(recorders, check)
    if tell is None:
        engine.forward(batch, recorders, lambda done, total: check())
        return
    from attnscope.model.meter import Load, Meter

    c, tokens = request.config, sum(batch.tokens.lengths)
    masks = [used_mask(request.terms, c.mask_of(layer)) for layer in range(request.deepest)]
    pairs = {mask: allowed_pairs(mask, max(batch.tokens.lengths)) * len(batch.tokens.lengths) for mask in set(masks)}
    width = c.d_head + c.d_value
    loads = [Load(tokens * layer_parameters(c), width * pairs[mask]) for mask in masks]
    meter = Meter(what, tell, loads, c.n_heads, recorders)

    def layer_done(done: int, total: int) -> None:
        check()
        meter.layer(done, total)

    engine.forward(batch, meter.recorders, layer_done)


def _memory_check(request: Request, batch: "Batch") -> Callable[[], None]:
    """What stops a run that takes more than it may; a GPU's memory refuses by itself, and is not seen from here."""
    if request.memory is None or batch.tokens.real.device.type != "cpu":
        return lambda: None
    return request.memory.check


def _shown(request: Request, real: "torch.Tensor") -> "torch.Tensor":
    """The rows of each text that sums count, (B, Q), bool: those that are shown, or all."""
    import torch

    shown = torch.zeros_like(real)
    for number, page in enumerate(request.pages):
        rows = real[number] if page.pool else torch.tensor(page.queries, dtype=torch.int64, device=real.device)
        shown[number, rows] = True
    return shown


def _text_report(run: RunConfig, request: Request, index: int, trace: "Trace", check: Callable[[], None]) -> TextReport:
    import torch

    from attnscope.analysis import Place, Whole, head_report

    page = request.pages[index]
    text = run.texts[page.number]
    whole = None
    if page.pool:
        words = [not token.special for token in page.tokens]
        counted = torch.tensor([word or not any(words) for word in words])
        whole = Whole(len(page.tokens), len(page.context or page.tokens), counted)
    place = Place(index, page.queries, page.keys, whole)
    left_out = [] if run.special else ["special tokens", "first token"]
    heads = []
    for unit, kept in trace.kept:
        heads.append(head_report(unit, kept, trace.wanted, place, left_out=left_out))
        check()
    return TextReport(
        page.number, text.text, text.pair, page.tokens, page.context, page.queries, page.keys, heads, page.notes
    )


def provenance(source: Source, run: RunConfig, device: "torch.device", values: str = "exact") -> Provenance:
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


def _versions(source: Source) -> dict[str, str]:
    """Of the libraries that made the tokens and ran the model."""
    used = {"tokenizers": source.tokenizer.name != "words", "transformers": source.engine == "transformers"}
    return {name: version(name) for name, took_part in used.items() if took_part}


def mask_use(source: Source, run: RunConfig, seen: str | None = None) -> MaskUse:
    """Whose mask it is; one that the model was trained under is not a what-if.

    Args:
        source: The model.
        run: What the user asked.
        seen: The model's own mask, where only running it shows that; None where its config says it.
    """
    own = source.config.mask_in_words() if seen is None else seen
    used = as_unicode("+".join(own if term.kind == "own" else str(term) for term in parse_mask(run.mask)))
    whose = " or ".join((own, *(mask for mask in source.trained_masks if mask != own)))
    return MaskUse(whose, used, None if used in (own, *source.trained_masks) else run.what_if)
