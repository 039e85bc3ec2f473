"""What the user asked in, a Report out: the whole program, in order."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from attnscope import __version__
from attnscope.config import ModelConfig, RunConfig
from attnscope.errors import AttnscopeError
from attnscope.memory import Demand, available, estimate, require
from attnscope.report import STAGES, HeadReport, MaskUse, Provenance, Report, TextReport, Token
from attnscope.selection import MaskTerm, parse_mask, parse_pick, positions
from attnscope.source import Source, open_source, tokenize

if TYPE_CHECKING:
    import torch

    from attnscope.model.attention import Recorder
    from attnscope.model.masks import Mask
    from attnscope.model.recorders import Sources
    from attnscope.model.stack import Stack
    from attnscope.model.trace import Trace, Unit, Wanted

Progress = Callable[[str, int, int], None]


@dataclass(frozen=True)
class Page:
    """One text with what is shown of it.

    Attributes:
        tokens: Its tokens.
        queries: Rows, sorted.
        keys: Columns, sorted.
        notes: What was cut or left out.
    """

    tokens: list[Token]
    queries: list[int]
    keys: list[int]
    notes: list[str]


def inspect(run: RunConfig, progress: Progress | None = None) -> Report:
    """Do what `attnscope run` does, without printing.

    Args:
        run: What the user asked.
        progress: Called with what is being done, how much of it is done, and how much there is.

    Raises:
        AttnscopeError: The model, the texts or the memory do not allow it.
        UsageError: A selection does not fit the model or the text.
    """
    layers, heads, terms = parse_pick(run.layer, "--layer"), parse_pick(run.head, "--head"), parse_mask(run.mask)
    source = open_source(run.model, run.config, run.texts)
    layers.numbers(source.config.n_layers, "layer"), heads.numbers(source.config.n_heads, "head")
    pages = [_page(source, run, i) for i in range(len(run.texts))]
    _check_memory(source, run, pages)

    from attnscope import analysis  # everything that can be refused without torch has been

    device = _device(run.device)
    auto = "auto" in (layers.word, heads.word)
    deepest = (
        source.config.n_layers if auto or layers.word else 1 + max(layers.numbers(source.config.n_layers, "layer"))
    )
    stack = source.load(deepest, _dtype(run.dtype), device)
    job = Job(stack, run, terms, pages, device, progress or (lambda what, done, total: None))
    mass = job.survey() if auto else None
    trace = job.watch(analysis.choose(mass, layers, heads, source.config.n_layers, source.config.n_heads))
    texts = [_text_report(run, i, pages[i], trace, stack.config) for i in range(len(pages))]
    return Report(_provenance(source, run, device), _mask_use(source.config, run), texts)


def _page(source: Source, run: RunConfig, index: int) -> Page:
    tokens, notes = tokenize(source, run.texts[index], truncate=run.truncate)
    words = [t.text for t in tokens]
    every = list(range(len(tokens)))
    chosen = {}
    for option, typed, name in (("--query", run.query, "rows"), ("--key", run.key, "columns")):
        if typed is not None:
            chosen[name] = sorted(positions(typed, words, option))
        elif run.window is not None and len(every) > run.window:
            chosen[name] = every[: run.window]
            notes.append(f"{name} 0–{run.window - 1} of {len(every)} shown; {option} 0:{len(every)} shows all")
        else:
            chosen[name] = every
    return Page(tokens, chosen["rows"], chosen["columns"], notes)


def _check_memory(source: Source, run: RunConfig, pages: list[Page]) -> None:
    c = source.config
    units = (
        1 if run.layer in ("auto", "mean") else len(parse_pick(run.layer, "--layer").numbers(c.n_layers, "layer"))
    ) * (1 if run.head in ("auto", "mean") else len(parse_pick(run.head, "--head").numbers(c.n_heads, "head")))
    longest = max(len(p.tokens) for p in pages)
    rows = len(pages) * len({q for p in pages for q in p.queries})
    columns = longest if "mean" in (run.layer, run.head) else len({k for p in pages for k in p.keys})
    widths = sum(c.d_value if stage == "output" else columns for stage in run.stages)
    if "mean" in (run.layer, run.head):
        widths += 4 * longest  # contributions over every key
    demand = Demand(
        layers=c.n_layers, batch=len(pages), tokens=longest, characters=sum(len(t.text) for t in run.texts),
        cells=units * rows * widths, rows=units * rows, top=run.top, as_text=run.window is None, tile=1 << 20,
    )  # fmt: skip
    limit = run.max_memory if run.max_memory is not None else available() // 2
    require(
        estimate(c, run.dtype, demand), limit, "--max-memory" if run.max_memory is not None else "half of what is free"
    )


@dataclass(frozen=True)
class Job:
    """One batch on its way through a stack.

    Attributes:
        stack: The model.
        run: What the user asked.
        terms: The mask expression, parsed.
        pages: The texts.
        device: Where it runs.
        progress: Called as layers are done.
    """

    stack: "Stack"
    run: RunConfig
    terms: tuple[MaskTerm, ...]
    pages: list[Page]
    device: "torch.device"
    progress: Progress

    def survey(self) -> "torch.Tensor":
        """Mean weight on other, non-special tokens for every layer and head, (layers, heads)."""
        from attnscope.analysis import mass_on_others
        from attnscope.model.recorders import Rows

        sources, longest = self._sources(), max(len(p.tokens) for p in self.pages)
        heads = range(self.stack.config.n_heads)
        rows = [Rows(heads, range(longest), sources) for _ in self.stack.blocks]
        self._forward({layer: [one] for layer, one in enumerate(rows)}, "choosing a head")
        return mass_on_others(rows, sources.real & ~sources.special).cpu()

    def watch(self, units: "list[Unit]") -> "Trace":
        """Keep what was asked for of these units."""
        from attnscope.model.trace import prepare

        trace = prepare(units, self._wanted())
        self._forward(trace.recorders, "attending")
        return trace

    def _forward(self, recorders: "Mapping[int, Sequence[Recorder]]", what: str) -> None:
        import torch

        from attnscope.model.masks import padding
        from attnscope.model.stack import Watch
        from attnscope.tokens import as_batch

        ids, segments, lengths = as_batch([p.tokens for p in self.pages])
        own, used = self._masks()
        what_if = self.run.what_if == "same-scores" and self.run.mask != "own"
        pad = padding(lengths, max(lengths), self.device)
        observed = {layer: _with_padding(mask, pad) for layer, mask in enumerate(used)} if what_if else None
        watch = Watch(recorders, observed)
        self.stack.run(
            torch.tensor(ids, device=self.device), torch.tensor(segments, device=self.device),
            own if what_if else used, pad, watch, lambda done, total: self.progress(what, done, total),
        )  # fmt: skip

    def _masks(self) -> "tuple[list[Mask], list[Mask]]":
        """The model's own mask of every layer, and the one that the user asked for."""
        from attnscope.model.masks import build

        config = self.stack.config
        own = [build(parse_mask(config.mask_of(layer))) for layer in range(config.n_layers)]
        return own, [build(self.terms, one) for one in own]

    def _sources(self) -> "Sources":
        import torch

        from attnscope.model.recorders import Sources

        longest = max(len(p.tokens) for p in self.pages)
        flags = [[t.special for t in p.tokens] + [False] * (longest - len(p.tokens)) for p in self.pages]
        real = [[i < len(p.tokens) for i in range(longest)] for p in self.pages]
        return Sources(torch.tensor(flags, device=self.device), torch.tensor(real, device=self.device))

    def _wanted(self) -> "Wanted":
        from attnscope.model.trace import Wanted

        sources = self._sources()
        rows = sorted({q for p in self.pages for q in p.queries})
        columns = sorted({k for p in self.pages for k in p.keys})
        stages = tuple(s for s in STAGES if s in self.run.stages)
        eligible = sources.real if self.run.special else sources.content()
        return Wanted(stages, rows, columns, self.run.top, self.run.by, eligible, sources)


def _with_padding(mask: "Mask", pad: "Mask") -> "Mask":
    from attnscope.model.masks import compose

    return compose((mask, pad))


def _text_report(run: RunConfig, index: int, page: Page, trace: "Trace", config: ModelConfig) -> TextReport:
    from attnscope.analysis import head_report

    text = run.texts[index]
    left_out = [] if run.special else ["special tokens", "first token"]
    bias = "alibi" if config.positions == "alibi" else None
    heads: list[HeadReport] = [
        head_report(
            unit, kept, trace.wanted, index, page.queries, page.keys,
            scale=config.attention_scale, softcap=config.softcap, bias=bias, left_out=left_out,
        )
        for unit, kept in trace.kept
    ]  # fmt: skip
    return TextReport(index, text.text, text.pair, page.tokens, None, page.queries, page.keys, heads, page.notes)


def _provenance(source: Source, run: RunConfig, device: "torch.device") -> Provenance:
    import torch

    c = source.config
    return Provenance(
        __version__, torch.__version__, source.name, source.family, source.fingerprint, "native", run.dtype, str(device),
        source.weights, c.n_layers, c.n_heads, list(source.notes),
    )  # fmt: skip


def _mask_use(config: ModelConfig, run: RunConfig) -> MaskUse:
    own = own_mask(config)
    if run.mask == "own":
        return MaskUse(own, own)
    return MaskUse(own, run.mask.replace("own", own), run.what_if)


def own_mask(config: ModelConfig) -> str:
    """The model's own mask in words: one expression, or how many layers have a window besides."""
    kinds = {config.mask_of(layer) for layer in range(config.n_layers)}
    if len(kinds) == 1:
        return kinds.pop()
    counts = [w for w in config.windows if w is not None]
    return f"{config.mask}, and window:{counts[0]} on {len(counts)} of {config.n_layers} layers"


def _device(name: str) -> "torch.device":
    import torch

    if name == "auto":
        return torch.device("cuda:0" if torch.cuda.is_available() else "cpu")
    device = torch.device(name if name != "cuda" else "cuda:0")
    if device.type == "cuda" and (not torch.cuda.is_available() or (device.index or 0) >= torch.cuda.device_count()):
        raise AttnscopeError(f"no device '{name}' here", where="--device", hint="use --device cpu, or auto")
    return device


def _dtype(name: str) -> "torch.dtype":
    import torch

    dtype: torch.dtype = getattr(torch, name)
    return dtype
