"""Choose which cells of a text are shown, or whether a pooled map stands for them."""

from collections.abc import Sequence
from dataclasses import dataclass

from attnscope.config import RunConfig, TextInput
from attnscope.report import Token
from attnscope.selection import POOL, parse_positions


@dataclass(frozen=True)
class ShownCells:
    """What is shown of a text.

    Attributes:
        queries: Rows, sorted.
        keys: Columns, sorted.
        pool: Runs, each way, of the pooled map that stands for the matrices; None where they are shown themselves.
        notes: What was left out, and which option shows it.
    """

    queries: list[int]
    keys: list[int]
    pool: int | None
    notes: list[str]


def choose_cells(
    run: RunConfig,
    text: TextInput,
    tokens: Sequence[Token],
    context: Sequence[Token] | None,
    *,
    causal: bool,
    clip: bool = False,
) -> ShownCells:
    """The rows and columns that were named; where none were, all, or a map of a text that is too long to print.

    Args:
        run: What the user asked.
        text: The text.
        tokens: Its tokens.
        context: Those of the text that keys come from; None where that is the same.
        causal: A query sees only what stands before it, so that a window next to it lies there.
        clip: Slices may reach beyond the text.

    Raises:
        UsageError: A position or word is not in the text.
    """
    sources = tokens if context is None else context
    texts = (text.text, text.pair)
    queries = _parse_named("--query", run.query, tokens, texts, clip=clip)
    keys = _parse_named("--key", run.key, sources, texts if context is None else (text.context,), clip=clip)
    too_long = run.window is not None and max(len(tokens), len(sources)) > run.window
    nothing_named = queries is None and keys is None
    pool = run.pool or (POOL if too_long and nothing_named else None)
    if pool is not None and nothing_named:
        return ShownCells([], [], pool, _pooled_notes(run, len(tokens), len(sources), pool))
    notes: list[str] = []
    aligned = context is None
    found_queries, found_keys = queries, keys
    if found_queries is None:
        beside = _window_start(keys, len(tokens), run.window, causal, after=True) if aligned else 0
        found_queries = _window("rows", "--query", len(tokens), run.window, beside, notes)
    if found_keys is None:
        beside = _window_start(queries, len(sources), run.window, causal, after=False) if aligned else 0
        found_keys = _window("columns", "--key", len(sources), run.window, beside, notes)
    if too_long and pool is None:
        notes.append(f"--pool {POOL} adds a map of the whole text")
    return ShownCells(found_queries, found_keys, pool, notes)


def _parse_named(
    option: str, typed: str | None, tokens: Sequence[Token], texts: Sequence[str | None], *, clip: bool
) -> list[int] | None:
    return None if typed is None else sorted(parse_positions(typed, tokens, texts, option, clip=clip))


def _window_start(named: list[int] | None, count: int, window: int | None, causal: bool, *, after: bool) -> int:
    """Where a window begins that lies next to the other side's named positions."""
    if named is None or window is None:
        return 0
    first, last = named[0], min(named[-1], named[0] + window)
    centred = (first + last + 1 - window) // 2
    start = (first if after else last + 1 - window) if causal else centred
    return max(0, min(start, count - window))


def _window(what: str, option: str, count: int, window: int | None, start: int, notes: list[str]) -> list[int]:
    if window is None or count <= window:
        return list(range(count))
    notes.append(f"{what} {start}–{start + window - 1} of {count} shown; {option} 0:{count} shows all")
    return list(range(start, start + window))


def _pooled_notes(run: RunConfig, n_queries: int, n_keys: int, pool: int) -> list[str]:
    """What stands for what, and how to see exact cells."""
    size = f"{min(pool, n_queries)} × {min(pool, n_keys)}"
    why = "" if run.pool else f"more than {run.window} tokens are too long to print: "
    last = min(n_queries, n_keys)
    example = f"--query {max(0, last - 8)}:{last} --key {max(0, last - 8)}:{last}"
    return [
        f"{why}a map of {size} runs of tokens stands for the {n_queries:,} × {n_keys:,} matrices, every weight in it",
        f"exact cells and contributors of any rows and columns: --query ROWS --key COLUMNS, such as {example}",
    ]
