"""What the user typed and a described model in; which layers, heads, rows and columns it means out. No torch here."""

import warnings
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from attnscope.config import ModelConfig, RunConfig, TextInput
from attnscope.errors import AttnscopeError, NotInText, UsageError
from attnscope.estimate import Demand, estimate
from attnscope.maskfile import read_mask
from attnscope.memory import HINT, MemoryLimit, fit, layer_parameters, limit
from attnscope.report import STAGES, Token
from attnscope.selection import POOL, PRINTED, MaskTerm, Pick, extremes, parse_mask, parse_pick, used_mask
from attnscope.shown import choose
from attnscope.source import Source, tokenize

if TYPE_CHECKING:
    import numpy as np


@dataclass(frozen=True)
class Page:
    """One text with what is shown of it.

    Attributes:
        tokens: Its tokens.
        context: Tokens of the text that keys and values come from; None where they come from the text itself.
        given: Tokens of the text that the encoder reads where a decoder's attention to itself is shown; None elsewhere.
        queries: Rows, sorted.
        keys: Columns, sorted.
        pool: Runs, each way, of the pooled map that is shown; None where there is none.
        notes: What was cut or left out.
        number: Number of the text within the call, from 0.
    """

    tokens: list[Token]
    context: list[Token] | None
    given: list[Token] | None
    queries: list[int]
    keys: list[int]
    pool: int | None
    notes: list[str]
    number: int = 0


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
        matrices: The matrices of the mask's files, (queries, keys), bool, True where allowed.
        multiplications: About how many multiplications the layers that run take.
        config: The model.
        reread: Why weights are read again in every pass, layer by layer; empty where they are kept.
        memory: What stops the run where it takes more than it may; None before that is known.
    """

    layers: Pick
    heads: Pick
    terms: tuple[MaskTerm, ...]
    stages: tuple[str, ...]
    pages: list[Page]
    deepest: int
    matrices: "dict[str, np.ndarray[Any, np.dtype[np.bool_]]]"
    multiplications: int
    config: ModelConfig
    reread: str = ""
    memory: MemoryLimit | None = None

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
    request = request_for(run, source, _pages(run, source))
    hint = HINT
    if request.stages and run.pool is None and any(page.keys and len(page.tokens) > PRINTED for page in request.pages):
        hint = f"--pool {POOL} makes a map in place of matrices; or {HINT}"
    return fitted(run, source, request, hint=hint)


def _pages(run: RunConfig, source: Source) -> list[Page]:
    """The pages of all texts; of several, those that lack a word or position that was typed are left out, and named.

    Raises:
        NotInText: It is in none of them.
    """
    pages: list[Page] = []
    missing: list[tuple[TextInput, NotInText]] = []
    for number, text in enumerate(run.texts):
        try:
            page = make_page(run, source, text, clip=len(run.texts) > 1)
            pages.append(replace(page, number=number))
        except NotInText as e:
            missing.append((text, e))
    if missing and not pages:
        raise missing[0][1]
    for text, error in missing:
        warnings.warn(f"{text.where}: left out: {error.where} {error.found}", stacklevel=2)
    return pages


def fitted(
    run: RunConfig, source: Source, request: Request, more: Mapping[str, int] | None = None, hint: str = HINT
) -> Request:
    """The request, with weights kept where there is room for them, and read again in every pass where there is not.

    Args:
        run: What the user asked.
        source: The model.
        request: The same, held against the model and the texts.
        more: Bytes by purpose that come on top.
        hint: What makes it fit, where it does not.

    Raises:
        AttnscopeError: It does not fit either way.
    """
    _, reread, memory = room(run, source, demand(run, source, request), more, hint)
    return replace(request, reread=reread, memory=memory)


def room(
    run: RunConfig, source: Source, asked: Demand, more: Mapping[str, int] | None = None, hint: str = HINT
) -> tuple[int, str, MemoryLimit]:
    """Bytes that are left over; why weights are read again in every pass (empty where they are kept); what stops it.

    Raises:
        AttnscopeError: It does not fit either way.
    """
    kept, reread = (_need(run, source, replace(asked, reread=reread), more or {}) for reread in (False, True))
    most, what = limit(run.max_memory)
    again = source.rereads and asked.layers > 2
    if 2 * (reread if again else kept)["weights"] > most:
        hint = "raise --max-memory" if run.dtype != "float32" else "take --dtype bfloat16, or raise --max-memory"
    why = fit(kept, reread if again else None, most, what, hint)
    estimated = sum((reread if why else kept).values())
    return most - estimated, why, MemoryLimit(most, what, estimated)


def needed(run: RunConfig, source: Source, request: Request) -> dict[str, int]:
    """Bytes that a run takes, by purpose; see estimate.estimate."""
    return _need(run, source, demand(run, source, request), {})


def _need(run: RunConfig, source: Source, asked: Demand, more: Mapping[str, int]) -> dict[str, int]:
    need = estimate(source.config, run.dtype, asked)
    if source.engine == "transformers":
        need |= {"weights": 0, "masks": 2 * 5 * asked.batch * asked.tokens**2}  # loaded; masks as bool and as float
    return need | {name: need.get(name, 0) + size for name, size in more.items()}


def request_for(run: RunConfig, source: Source, pages: list[Page]) -> Request:
    """What the user asked, of texts that are tokens already; `run.texts` is not looked at.

    Raises:
        UsageError: A layer or head is not there.
        AttnscopeError: A mask's file does not fit the texts.
    """
    layers, heads = parse_pick(run.layer, "--layer"), parse_pick(run.head, "--head")
    c = source.config
    picked = layers.numbers(c.n_layers, "layer")
    heads.numbers(c.n_heads, "head")
    if run.by == "projected" and not source.projects:
        hint = "rank by weight or by value"
        raise UsageError("the model's output projection was not found", where="--by projected", hint=hint)
    deepest = c.n_layers if layers.word else 1 + extremes(picked)[1]
    stages = tuple(stage for stage in STAGES if stage in run.stages)
    terms = parse_mask(run.mask)
    work = deepest * layer_parameters(c) * sum(len(page.tokens) for page in pages)
    return Request(layers, heads, terms, stages, pages, deepest, _matrices(terms, pages), work, c)


def make_page(run: RunConfig, source: Source, text: TextInput, *, clip: bool = False) -> Page:
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
    given = None
    if context is not None and not source.config.cross_attention:
        given, context = context, None
        notes.append(f"the encoder reads --context: {text.context}")

    if text.pair is not None and source.engine == "native" and "causal" in source.config.mask:
        notes.append("--pair: the model is a decoder, which was not made for pairs: no token of the text sees the pair")
    shown = choose(run, text, tokens, context, causal=_causal(run, source), clip=clip)
    return Page(tokens, context, given, shown.queries, shown.keys, shown.pool, notes + shown.notes)


def _causal(run: RunConfig, source: Source) -> bool:
    """Most queries see only what stands before them."""
    return any(term.kind in ("causal", "prefix") for term in used_mask(parse_mask(run.mask), source.config.mask))


def _check_context(text: TextInput, source: Source) -> None:
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


def _matrices(terms: tuple[MaskTerm, ...], pages: list[Page]) -> "dict[str, np.ndarray[Any, np.dtype[np.bool_]]]":
    """The matrices that a mask expression names, each of the size of every text's matrix."""
    found = {term.path: read_mask(Path(term.path)) for term in terms if term.kind == "file"}
    for path, matrix in found.items():
        for page in pages:
            shape = len(page.tokens), len(page.context or page.tokens)
            if matrix.shape != shape:
                sizes = f"{matrix.shape[0]} × {matrix.shape[1]}, the text needs {shape[0]} × {shape[1]}"
                hint = "a row per query token and a column per key token"
                raise AttnscopeError(f"the matrix is {sizes}", where=path, hint=hint)
    return found


def demand(run: RunConfig, source: Source, request: Request) -> Demand:
    """How much of everything a request asks for."""
    c, pages = source.config, request.pages
    picked = request.layers.numbers(c.n_layers, "layer")
    layers = 1 if request.layers.word in ("auto", "mean") else len(picked)
    heads = 1 if request.heads.word in ("auto", "mean") else len(request.heads.numbers(c.n_heads, "head"))
    longest = max(len(tokens) for page in pages for tokens in (page.tokens, page.context or page.given or page.tokens))
    rows = len(pages) * len({q for page in pages for q in page.queries})
    columns = len({k for page in pages for k in page.keys})
    pool = max(page.pool or 0 for page in pages)
    width = sum(c.d_value if stage == "output" else columns for stage in request.stages)
    shown = layers * heads * rows * (width + 2 * run.top)  # a contributor has two numbers
    if "mean" in (request.layers.word, request.heads.word):
        width += 4 * longest  # mean contributions over every key
    cells = layers * heads * rows * width
    return Demand(
        layers=request.deepest,
        batch=len(pages),
        tokens=longest,
        characters=sum(len(text.text) + len(text.pair or "") for text in run.texts),
        cells=cells,
        rows=layers * heads * rows,
        top=run.top,
        as_text=run.window is None,
        units=layers * heads,
        gathered=cells if len(pages) > 1 and (run.query or run.key) else 0,
        raw=bool({"scores", "scaled"} & set(request.stages)),
        measures=3 if run.by == "projected" else 2,
        mean="mean" in (request.layers.word, request.heads.word),
        drawn=0 if run.window is None else shown,
        picture=run.picture,
        padded=len({len(page.tokens) for page in pages}) > 1,
        counted=layers * heads * len(pages) * longest if pool else 0,
        pool=pool,
        heads=c.n_heads if request.auto or request.heads.word == "mean" else heads,
        words=source.tokenizer.name == "words",
        pairings=source.tokenizer.pairings,
        copied=source.copied,
        reread=bool(request.reread),
        tiled=longest if pool or request.auto or request.deepest > 1 else max(len(page.queries) for page in pages),
        followed=extremes(picked)[0] + 1 < request.deepest,
        masks=frozenset(used_mask(request.terms, mask) for mask in c.masks_of(request.deepest)),
    )
