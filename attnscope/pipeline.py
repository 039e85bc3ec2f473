"""What the user asked in, a Report out: the whole program, in order."""

from importlib.metadata import version
from typing import TYPE_CHECKING

from attnscope import __version__
from attnscope.config import RunConfig
from attnscope.folder import hash_weights
from attnscope.loading import Loader, Progress
from attnscope.report import MaskUse, Provenance, Report, TextReport
from attnscope.request import Request, resolve
from attnscope.selection import Keep
from attnscope.source import Source

if TYPE_CHECKING:
    import torch

    from attnscope.hosted import Guest, Hosted
    from attnscope.model.native import Batch, Native
    from attnscope.model.stack import Stack
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
        trace = attend(run, request, batch, engine, self.tell)
        texts = [_text_report(run, request, i, trace) for i in range(len(request.pages))]
        return Report(provenance(source, run, device), mask_use(source, run, engine.mask_in_words()), texts)


def prepare_engine(
    run: RunConfig, request: Request, loaded: "Stack | Guest", device: "torch.device"
) -> "tuple[Batch, Native | Hosted]":
    """The texts side by side, and the model under the mask that was asked for."""
    from attnscope.model.masks import from_matrix
    from attnscope.model.native import Native, make_batch, side_by_side
    from attnscope.model.stack import Stack

    n_segments = loaded.config.n_segments if isinstance(loaded, Stack) else loaded.n_segments
    contexts = [page.context for page in request.pages if page.context is not None]
    batch = make_batch([page.tokens for page in request.pages], contexts or None, device, n_segments)
    same_scores = run.mask != "own" and run.what_if == "same-scores"
    files = {path: from_matrix(matrix, device) for path, matrix in request.matrices.items()}
    if isinstance(loaded, Stack):
        return batch, Native(loaded, request.terms, same_scores, files)
    from attnscope.hosted import Hosted

    given = [page.given for page in request.pages if page.given is not None]
    read = side_by_side(given, device, n_segments) if given else None
    return batch, Hosted(loaded, request.terms, same_scores, files, read)


def units_for(request: Request, batch: "Batch", engine: "Native | Hosted", tell: Progress) -> "list[Unit]":
    """The layers and heads that were asked for; where that was left to us, chosen by what they do."""
    from attnscope.analysis import choose, mass_on_others
    from attnscope.model.recorders import Rows

    (n_layers, n_heads), mass = engine.sizes, None
    if request.auto:
        rows = [Rows(range(n_heads), range(max(batch.tokens.lengths)), batch.sources) for _ in range(request.deepest)]
        survey = {layer: [one] for layer, one in enumerate(rows)}
        engine.forward(batch, survey, lambda done, total: tell("choosing a head", done, total))
        mass = mass_on_others(rows, batch.tokens.real & ~batch.tokens.special).cpu()
    return choose(mass, request.layers, request.heads, n_layers, n_heads)


def attend(
    run: RunConfig,
    request: Request,
    batch: "Batch",
    engine: "Native | Hosted",
    tell: Progress,
    keep: Keep | None = None,
) -> "Trace":
    """Choose the heads, where that was left to us, and keep what was asked for of them.

    Args:
        run: What the user asked; its texts are not looked at.
        request: The same, held against the model and the texts.
        batch: The texts side by side.
        engine: The model under its mask.
        tell: Called with layers done and layers to do.
        keep: What is kept of every unit besides stages; None for what a Report holds.

    Raises:
        AttnscopeError: A score is not finite.
    """
    from attnscope.model.trace import Wanted, prepare

    wanted = Wanted(
        stages=request.stages,
        rows=sorted({query for page in request.pages for query in page.queries}),
        columns=sorted({key for page in request.pages for key in page.keys}),
        top=run.top,
        by=run.by,
        eligible=batch.sources.real if run.special else batch.sources.content(),
        sources=batch.sources,
        keep=keep or Keep(),
        shown=_shown(request, batch.tokens.real),
    )
    trace = prepare(units_for(request, batch, engine, tell), wanted)
    engine.forward(batch, trace.recorders, lambda done, total: tell("attending", done, total))
    return trace


def _shown(request: Request, real: "torch.Tensor") -> "torch.Tensor":
    """The rows that each text shows, (B, Q), bool."""
    import torch

    shown = torch.zeros_like(real)
    for mine, page in zip(shown, request.pages, strict=True):
        mine[torch.tensor(page.queries, device=real.device)] = True
    return shown


def _text_report(run: RunConfig, request: Request, index: int, trace: "Trace") -> TextReport:
    from attnscope.analysis import head_report

    page, text = request.pages[index], run.texts[index]
    heads = [
        head_report(
            unit,
            kept,
            trace.wanted,
            (index, page.queries, page.keys),
            left_out=[] if run.special else ["special tokens", "first token"],
        )
        for unit, kept in trace.kept
    ]
    return TextReport(
        index, text.text, text.pair, page.tokens, page.context, page.queries, page.keys, heads, page.notes
    )


def provenance(source: Source, run: RunConfig, device: "torch.device") -> Provenance:
    """What produces the numbers."""
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
    used = own if run.mask == "own" else run.mask.replace("own", own)
    whose = " or ".join((own, *(mask for mask in source.trained_masks if mask != own)))
    return MaskUse(whose, used, None if used in (own, *source.trained_masks) else run.what_if)
