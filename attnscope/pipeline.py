"""What the user asked in, a Report out: the whole program, in order."""

import gc
from collections.abc import Callable, Iterable
from functools import cached_property
from typing import TYPE_CHECKING

from attnscope import __version__
from attnscope.config import ModelConfig, RunConfig, TextInput
from attnscope.errors import AttnscopeError
from attnscope.report import MaskUse, Provenance, Report, TextReport
from attnscope.request import Request, resolve
from attnscope.selection import Keep
from attnscope.source import Source, open_source

if TYPE_CHECKING:
    import torch

    from attnscope.model.native import Batch, Native
    from attnscope.model.stack import Stack
    from attnscope.model.trace import Trace, Unit

_WORTH_A_THREAD = 1 << 30  # multiplications; for less, waking a second thread costs more than it saves

Progress = Callable[[str, int, int], None]


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


class Session:
    """Several runs that share what they open and load.

    Args:
        texts: The texts of all of them: a vocabulary that is made from the texts is made from these.
        progress: See inspect.
    """

    def __init__(self, texts: Iterable[TextInput], progress: Progress | None = None) -> None:
        self.texts, self.tell = texts, progress or (lambda what, done, total: None)
        self.sources: dict[tuple[str | None, str | None], Source] = {}
        self.stacks: dict[tuple[str, ...], Stack] = {}

    def inspect(self, run: RunConfig) -> Report:
        """See inspect."""
        source = self.source(run)
        request = resolve(run, source)
        stack, device = self.load(run, source, request)
        trace = attend(run, request, stack, device, self.tell)
        texts = [_text_report(run, request, i, trace, source.config) for i in range(len(request.pages))]
        return Report(provenance(source, run, device), mask_use(source, run), texts)

    def source(self, run: RunConfig) -> Source:
        """The model that a run names, opened once."""
        name = run.model, run.config
        if name not in self.sources:
            self.sources[name] = open_source(run.model, run.config, self.texts)
        return self.sources[name]

    def load(self, run: RunConfig, source: Source, request: Request) -> "tuple[Stack, torch.device]":
        """The layers of a model that a request needs, loaded once where that is deep enough, and where they lie.

        Raises:
            AttnscopeError: They cannot be loaded, or there is no such device.
        """
        import_torch()  # everything that can be refused without it has been
        import torch

        torch.set_num_threads(1 if request.multiplications < _WORTH_A_THREAD else self._threads)
        device = _device(run.device)
        key = run.model or "", run.config or "", run.dtype, str(device)
        stack = self.stacks.get(key)
        if stack is None or len(stack.blocks) < request.deepest:
            self.tell("loading", 0, 1)
            stack = self.stacks[key] = source.load(request.deepest, getattr(torch, run.dtype), device)
        return stack, device

    @cached_property
    def _threads(self) -> int:
        """As many threads as torch was given."""
        import torch

        return torch.get_num_threads()


def import_torch() -> None:
    """Import torch with the garbage collector off, which would walk its lasting objects again and again (0.1 s)."""
    was_on = gc.isenabled()
    gc.disable()
    try:
        import torch  # noqa: F401
    finally:
        if was_on:
            gc.freeze()
            gc.enable()


def prepare_engine(run: RunConfig, request: Request, stack: "Stack", device: "torch.device") -> "tuple[Batch, Native]":
    """The texts side by side, and the model under the mask that was asked for."""
    from attnscope.model.masks import from_matrix
    from attnscope.model.native import Native, make_batch

    contexts = [page.context for page in request.pages if page.context is not None]
    batch = make_batch([page.tokens for page in request.pages], contexts or None, device, stack.config.n_segments)
    same_scores = run.mask != "own" and run.what_if == "same-scores"
    files = {path: from_matrix(matrix, device) for path, matrix in request.matrices.items()}
    return batch, Native(stack, request.terms, same_scores, files)


def units_for(request: Request, batch: "Batch", engine: "Native", tell: Progress) -> "list[Unit]":
    """The layers and heads that were asked for; where that was left to us, chosen by what they do."""
    from attnscope.analysis import choose, mass_on_others
    from attnscope.model.recorders import Rows

    c, mass = engine.stack.config, None
    if request.auto:
        rows = [Rows(range(c.n_heads), range(max(batch.tokens.lengths)), batch.sources) for _ in range(request.deepest)]
        survey = {layer: [one] for layer, one in enumerate(rows)}
        engine.forward(batch, survey, lambda done, total: tell("choosing a head", done, total))
        mass = mass_on_others(rows, batch.tokens.real & ~batch.tokens.special).cpu()
    return choose(mass, request.layers, request.heads, c.n_layers, c.n_heads)


def attend(
    run: RunConfig,
    request: Request,
    stack: "Stack",
    device: "torch.device",
    tell: Progress,
    keep: Keep | None = None,
) -> "Trace":
    """Choose the heads, where that was left to us, and keep what was asked for of them.

    Args:
        run: What the user asked; its texts are not looked at.
        request: The same, held against the model and the texts.
        stack: The model.
        device: Where it lies.
        tell: Called with layers done and layers to do.
        keep: What is kept of every unit besides stages; None for what a Report holds.

    Raises:
        AttnscopeError: A score is not finite.
    """
    from attnscope.model.trace import Wanted, prepare

    batch, engine = prepare_engine(run, request, stack, device)
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


def _text_report(run: RunConfig, request: Request, index: int, trace: "Trace", config: ModelConfig) -> TextReport:
    from attnscope.analysis import head_report

    page, text = request.pages[index], run.texts[index]
    heads = [
        head_report(
            unit,
            kept,
            trace.wanted,
            (index, page.queries, page.keys),
            scale=config.attention_scale,
            softcap=config.softcap,
            bias="alibi" if config.positions == "alibi" else None,
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
        engine="native",
        dtype=run.dtype,
        device=str(device),
        weights=source.weights,
        n_layers=source.config.n_layers,
        n_heads=source.config.n_heads,
        notes=list(source.notes),
    )


def mask_use(source: Source, run: RunConfig) -> MaskUse:
    """Whose mask it is; one that the model was trained under is not a what-if."""
    own = source.config.mask_in_words()
    used = own if run.mask == "own" else run.mask.replace("own", own)
    whose = " or ".join((own, *(mask for mask in source.trained_masks if mask != own)))
    return MaskUse(whose, used, None if used in (own, *source.trained_masks) else run.what_if)


def _device(name: str) -> "torch.device":
    import torch

    if name == "auto":
        return torch.device("cuda:0" if torch.cuda.is_available() else "cpu")
    device = torch.device("cuda:0" if name == "cuda" else name)
    if device.type == "cuda" and (device.index or 0) >= torch.cuda.device_count():
        raise AttnscopeError(f"no device '{name}' here", where="--device", hint="use --device cpu, or auto")
    return device


def limit_threads(wanted: int) -> int:
    """Let torch use so many threads, or as many as it likes for 0; how many it uses.

    The number of threads decides the order of some sums, and so their last bits.
    """
    import torch

    if wanted:
        torch.set_num_threads(wanted)
    return torch.get_num_threads()
