"""One text, one query and one head in; an Explanation, every step of its arithmetic with its checks, out."""

from msgspec.structs import replace

from attnscope.config import RunConfig
from attnscope.errors import UsageError
from attnscope.explanation.place import Place
from attnscope.loading import Progress
from attnscope.pipeline import Session, mask_use, prepare_engine, provenance, units_for
from attnscope.report import Explanation
from attnscope.request import Page, Request, fitted, resolve
from attnscope.selection import parse_pick
from attnscope.source import Source

__all__ = ["explain"]


def explain(run: RunConfig, progress: Progress | None = None) -> Explanation:
    """Do what `attnscope explain` does, without printing.

    Args:
        run: What the user asked; `window` is how many keys are kept (None for all), `key` names the cells in depth.
        progress: See pipeline.inspect.

    Raises:
        UsageError: It is not one text, one query and one head, or they are not there.
        AttnscopeError: The model, the text or the memory do not allow it.
    """
    _check_one(run)
    if run.engine != "native":
        found = "explain needs a model that attnscope itself runs"
        raise UsageError(found, where="--engine", hint="leave --engine out, or see the same numbers with run")
    session = Session(run.texts, progress)
    source, tell = session.source(run), session.tell
    whole = replace(run, window=None, stages=())
    request = resolve(whole, source)
    page = request.pages[0]
    query = _one_query(run, page)
    request = _within_memory(whole, source, request, run.window)

    stack, device = session.load(run, source, request)
    from attnscope.explanation.build import build
    from attnscope.model.stack import Stack
    from attnscope.model.walk import Walk

    assert isinstance(stack, Stack)
    batch, engine = prepare_engine(run, request, stack, device)
    (unit,) = units_for(request, batch, engine, tell)
    place = Place(page, query, unit.layers[0], unit.heads[0], unit.chosen)
    walk = Walk(stack, place.layer, place.head, query, len(page.context or page.tokens))
    with walk.listening():
        engine.forward(batch, {place.layer: [walk]}, lambda done, total: tell("attending", done, total))
    made = provenance(source, run, device), mask_use(source, run)
    return build(run, made, place, stack, walk, batch.tokens.ids)


def _within_memory(run: RunConfig, source: Source, request: Request, window: int | None) -> Request:
    """What a walk keeps comes on top of the run: keys, values and rotary tables of one head, in float64."""
    c, page = source.config, request.pages[0]
    n_keys = len(page.context or page.tokens)
    kept = n_keys * (5 * c.d_head + 3 * c.d_value + 16)
    shown = min(n_keys, window or n_keys) * (c.d_head + c.d_value + 16)
    return fitted(run, source, request, {"walk": 8 * kept, "kept": 20 * shown})


def _check_one(run: RunConfig) -> None:
    """One text, one layer and one head: a walk through several would be no walk."""
    if len(run.texts) != 1:
        raise UsageError(f"{len(run.texts)} texts; explain takes one", where="--file", hint="give TEXT")
    for option, typed in (("--layer", run.layer), ("--head", run.head)):
        pick = parse_pick(typed, option)
        several = pick.word in ("mean", "all") or len(pick.ranges) > 1 or any(a != b for a, b in pick.ranges)
        if several:
            what = option.removeprefix("--")
            found = f"'{typed}' is no single {what}" if typed != "mean" else f"a mean has no one {what} to walk through"
            raise UsageError(found, where=option, hint=f"name one, such as {option} 0, or leave it to auto")


def _one_query(run: RunConfig, page: Page) -> int:
    tokens = [f"{i} {token.text}" for i, token in enumerate(page.tokens[:40])]
    if run.query is None:
        hint = f"--query WORD or --query POSITION; the text has {', '.join(tokens)}"
        raise UsageError("explain walks through one token; none is named", where="--query", hint=hint)
    if len(page.queries) > 1:
        several = ", ".join(f"{i} {page.tokens[i].text}" for i in page.queries[:40])
        found = f"'{run.query}' is {len(page.queries)} tokens: {several}"
        raise UsageError(found, where="--query", hint=f"take one by its position, such as --query {page.queries[-1]}")
    return page.queries[0]
