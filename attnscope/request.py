"""What the user typed and a described model in; which layers, heads, rows and columns it means out. No torch here."""

from dataclasses import dataclass

from attnscope.config import RunConfig
from attnscope.memory import Demand, available, estimate, require
from attnscope.report import STAGES, Token
from attnscope.selection import MaskTerm, Pick, parse_mask, parse_pick, positions
from attnscope.source import Source, tokenize


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


@dataclass(frozen=True)
class Request:
    """A RunConfig that has been held against a model and its texts.

    Attributes:
        layers: Picked layers.
        heads: Picked heads.
        terms: The mask.
        stages: Stages in their order.
        pages: The texts.
        deepest: How many layers have to run.
    """

    layers: Pick
    heads: Pick
    terms: tuple[MaskTerm, ...]
    stages: tuple[str, ...]
    pages: list[Page]
    deepest: int

    @property
    def auto(self) -> bool:
        """A layer or a head is chosen by what it does."""
        return "auto" in (self.layers.word, self.heads.word)


def resolve(run: RunConfig, source: Source) -> Request:
    """Hold what the user asked against the model and the texts.

    Raises:
        UsageError: A layer, head, position or word is not there.
        AttnscopeError: A text does not fit the model, or what was asked for does not fit into memory.
    """
    layers, heads = parse_pick(run.layer, "--layer"), parse_pick(run.head, "--head")
    c = source.config
    picked = layers.numbers(c.n_layers, "layer")
    heads.numbers(c.n_heads, "head")
    pages = [_page(run, source, i) for i in range(len(run.texts))]
    deepest = c.n_layers if layers.word else 1 + max(picked)
    stages = tuple(stage for stage in STAGES if stage in run.stages)
    request = Request(layers, heads, parse_mask(run.mask), stages, pages, deepest)
    limit, what = run.max_memory, "--max-memory"
    if limit is None:
        limit, what = available() // 2, "half of what is free"
    require(estimate(c, run.dtype, demand(run, source, request)), limit, what)
    return request


def _page(run: RunConfig, source: Source, index: int) -> Page:
    tokens, notes = tokenize(source, run.texts[index], truncate=run.truncate)
    words, every = [t.text for t in tokens], list(range(len(tokens)))

    def chosen(option: str, typed: str | None, what: str) -> list[int]:
        if typed is not None:
            return sorted(positions(typed, words, option))
        if run.window is None or len(every) <= run.window:
            return every
        notes.append(f"{what} 0–{run.window - 1} of {len(every)} shown; {option} 0:{len(every)} shows all")
        return every[: run.window]

    return Page(tokens, chosen("--query", run.query, "rows"), chosen("--key", run.key, "columns"), notes)


def demand(run: RunConfig, source: Source, request: Request) -> Demand:
    """How much of everything a request asks for."""
    c, pages = source.config, request.pages
    layers = 1 if request.layers.word in ("auto", "mean") else len(request.layers.numbers(c.n_layers, "layer"))
    heads = 1 if request.heads.word in ("auto", "mean") else len(request.heads.numbers(c.n_heads, "head"))
    longest = max(len(page.tokens) for page in pages)
    rows = len(pages) * len({q for page in pages for q in page.queries})
    columns = len({k for page in pages for k in page.keys})
    width = sum(c.d_value if stage == "output" else columns for stage in request.stages)
    if "mean" in (request.layers.word, request.heads.word):
        width += 4 * longest  # mean contributions over every key
    return Demand(
        layers=request.deepest,
        batch=len(pages),
        tokens=longest,
        characters=sum(len(text.text) + len(text.pair or "") for text in run.texts),
        cells=layers * heads * rows * width,
        rows=layers * heads * rows,
        top=run.top,
        as_text=run.window is None,
    )
