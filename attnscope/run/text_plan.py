"""Plan one text: its tokens, and which cells of its matrices are shown, or whether a pooled map replaces them."""

import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import Literal, NoReturn

import msgspec

from attnscope.base.errors import AttnscopeError, NotInText, UsageError, arg, listed
from attnscope.base.layer_kinds import MIXING
from attnscope.checkpoints.source import ModelSource, closing_token, tokenize
from attnscope.findings.hints import Hint
from attnscope.findings.images import CLS, find_places, picture_of
from attnscope.findings.merge_pieces import whole_words
from attnscope.findings.sound import Sound
from attnscope.findings.spans import TextSpans
from attnscope.findings.tokens import Token
from attnscope.request.dividing import divide, repeated_marks
from attnscope.request.masks.expression import spell_mask, used_mask
from attnscope.request.masks.terms import DocumentEnds, Documents, MaskTerm, leaves
from attnscope.request.media import MediaText
from attnscope.request.run_config import RunConfig, TextInput
from attnscope.request.selection import AUTO, FEW, POOL, PRINTED, PositionSelection
from attnscope.request.spans import SpanRequest
from attnscope.run.mask_effect import shows_other_documents
from attnscope.run.rendering import given_notes, given_tokens, packed_lengths

_MOST_MAPPED = 8_000_000  # weights of all heads on each other's patches that a screen keeps
_MOST_CELLS = 1 << 17  # of one head, that are kept so that those with most weight can be shown

Part = Literal["rows", "columns"]


@dataclass(frozen=True)
class TextPlan:
    """One text with its shown rows and columns."""

    tokens: list[Token]
    # tokens of the text that keys and values come from; None if they come from the text itself
    context: list[Token] | None
    # tokens of the text that the encoder reads where a decoder's attention to itself is shown; None elsewhere
    encoder_tokens: list[Token] | None
    queries: list[int]
    keys: list[int]
    pool: int | None  # runs, each way, of the pooled map; None for no map
    notes: list[str]  # what is left out, and which option shows it
    # what changes how the numbers of this text are read, which screens show above them
    warnings: list[str] = field(default_factory=list)
    number: int = 0
    auto_queries: list[int] | None = None  # rows that `auto` ranks heads by; None for `queries`
    auto_keys: list[int] | None = None  # columns that `auto` ranks heads by; None for `keys`
    hidden: tuple[int, ...] = ()  # keys that no query sees, sorted
    padding: int = 0  # tokens of padding after the text whose rows and columns are shown
    # whether only the rows or columns with most weight are shown; None for all
    narrowed: Part | None = None
    spans: TextSpans | None = None  # the text divided into spans; None if that was not asked for
    # lengths of the text's documents, for every term of the mask that needs them
    documents: Mapping[MaskTerm, tuple[int, ...]] = field(default_factory=dict)
    positions: list[int] | None = None  # position id of every token; None if it equals its place
    # the text with its pictures and sounds; None for characters alone
    media: MediaText | None = None


@dataclass(frozen=True)
class SearchedText:
    """Tokens among which selections are looked up."""

    tokens: Sequence[Token]
    written: Sequence[str | None]  # their text, and its pair; None for an unknown or missing one
    spans: TextSpans | None
    words: bool  # whether a token is found with all others of its word
    sound: Sound | None = None  # the sound whose frames are the tokens; None for none

    def find(self, option: str, selection: PositionSelection | None) -> list[int] | None:
        """Find the positions of a selection, sorted; None for no selection."""
        if selection is None:
            return None
        positions = sorted(
            selection.find(self.tokens, self.written, option, spans=self.spans, sound=self.sound)
        )
        if self.words:
            return whole_words(self.tokens, positions)
        return positions


def with_padding(run: RunConfig, texts: Sequence[TextPlan]) -> list[TextPlan]:
    """Add the padding of each text to its rows and columns, if all of them are shown."""
    if any(text.context is not None for text in texts):
        hint = "remove it, or use a model without cross-attention"
        raise UsageError("applies only to self-attention", where=arg("show_padding"), hint=hint)
    longest = max(len(text.tokens) for text in texts)
    padded = []
    for text in texts:
        n = len(text.tokens)
        if run.query is not None or len(text.queries) < n:
            rows = text.queries
        else:
            rows = list(range(longest))
        if run.key is not None or len(text.keys) < n:
            columns = text.keys
        else:
            columns = list(range(longest))
        padding_count = longest - n if max(len(rows), len(columns)) == longest else 0
        padded.append(replace(text, queries=rows, keys=columns, padding=padding_count))
    if not any(text.padding for text in padded):
        note = "--show-padding: has no effect, since not all rows or columns are shown"
        if len({len(text.tokens) for text in texts}) == 1:
            note = "--show-padding: no text is padded"
        padded[0].notes.append(note)
    return padded


def plan_text(
    run: RunConfig,
    source: ModelSource,
    text: TextInput,
    *,
    several: bool = False,
    continued: list[Token] | None = None,
) -> TextPlan:
    """Return one text as tokens, with the rows and columns that are shown of it.

    Args:
        continued: Tokens of the text and of its continuation by the model; None without one.
    """
    check_context(text, source)
    tokens, positions, context, warnings = _all_tokens(run, source, text)
    notes = _notes_of_input(source, text, positions)
    encoder_tokens = None
    if context is not None and not source.config.cross_attention:
        encoder_tokens = context
        context = None
        notes.append(f"the encoder reads --context: {text.context}")
    if text.pair is not None and source.mask_known and "causal" in source.config.mask:
        warnings.append(
            "--pair: the model is a decoder and was not trained on pairs; no token of the text attends to the pair"
        )
    if continued is not None:
        tokens = continued
        run = _with_predicting_rows(run, tokens)
    if text.read is not None and text.read.images:
        run, row_notes = _with_row(run, tokens, source.config.n_layers * source.config.n_heads)
        notes += row_notes
    causal = any(term.left_to_right for term in used_mask(run.mask, source.config.mask))
    spans = divide_text(run, text, tokens)
    if run.spans is not None and not text.spans:
        warnings += repeated_marks(text, run.spans)
    if spans is not None and context is not None:
        _refuse_spans(source)
    documents = documents_of_mask(run, source, tokens, text.where, crossing=context is not None)
    if documents or text.given is not None:
        warnings += _document_warnings(run, source, text, tokens, documents)
    first_query = source.first_queries.get(text.where, 0)
    rows_of, columns_of = _searched(run, text, tokens, context, spans)
    queries, keys, pool, narrowed, more = _choose_cells(
        run, rows_of, columns_of, causal=causal, first_query=first_query
    )
    if spans is not None and run.window == PRINTED and AUTO in (run.layer, run.head):
        # beside spans, a screen draws the matrices of heads that the user selected, and no others
        is_specific = (
            run.stages != RunConfig(()).stages
            or run.pool is not None
            or run.key is not None
            or run.words
        )
        more = [Hint.MATRICES.value] * is_specific
    return TextPlan(
        tokens,
        context,
        encoder_tokens,
        queries,
        keys,
        pool,
        notes + more,
        warnings,
        auto_queries=rows_of.find(arg("query"), run.auto_query),
        auto_keys=columns_of.find(arg("key"), run.auto_key),
        hidden=() if run.hide is None else _hidden(run, columns_of, text.where, several=several),
        narrowed=narrowed,
        spans=spans,
        documents=documents,
        positions=positions,
        media=text.read,
    )


def _with_predicting_rows(run: RunConfig, tokens: Sequence[Token]) -> RunConfig:
    """Return a run that shows the rows from which new tokens were predicted, if the text is too long to show all."""
    if run.window is None or len(tokens) <= run.window:
        return run
    if run.query is not None or run.pool is not None:
        return run
    rows = [position - 1 for position, token in enumerate(tokens) if token.made]
    return msgspec.structs.replace(run, query=PositionSelection.of(rows[-run.window :]))


def _notes_of_input(source: ModelSource, text: TextInput, positions: list[int] | None) -> list[str]:
    """Say what the tokens are made of, where that is not the text alone."""
    notes = list[str]()
    if text.given is not None:
        notes += given_notes(text.given, positions)
    if text.read is not None:
        notes += text.read.notes
    if source.decoder_start is not None:
        start = source.decoder_start.piece
        notes.append(f"decoder input: starts with '{start}', has no end-of-sentence token")
    return notes


def _refuse_spans(source: ModelSource) -> NoReturn:
    hint = "remove it"
    if source.part:
        hint = f"use {arg('part', 'encoder')} or {arg('part', 'decoder')}"
    message = "applies only to self-attention, but keys come from a second text"
    raise UsageError(message, where=arg("spans"), hint=hint)


def _searched(
    run: RunConfig,
    text: TextInput,
    tokens: Sequence[Token],
    context: Sequence[Token] | None,
    spans: TextSpans | None,
) -> tuple[SearchedText, SearchedText]:
    """Return what rows, and what columns, are looked up in: the same text, unless keys come from another."""
    sound = None if text.read is None else text.read.sound
    of_rows = None
    if text.read is not None and text.read.tokens_are_frames:
        of_rows = sound
    rows_of = SearchedText(tokens, (text.text, text.pair), spans, words=run.words, sound=of_rows)
    if context is None:
        return rows_of, rows_of
    return rows_of, SearchedText(context, (text.context,), spans, words=run.words, sound=sound)


def _with_row(run: RunConfig, tokens: Sequence[Token], units: int) -> tuple[RunConfig, list[str]]:
    """Return a run that shows one whole row of a text with pictures that is too long to show all, if it names none.

    That row is the model's class token, or else the last token of a text that is read from left to right; without
    either, a map shows the mean of all rows.
    """
    named = run.query is not None or run.key is not None or run.pool is not None
    if named or run.window is None or len(tokens) <= run.window:
        return run, []
    rows = find_places(CLS, tokens)
    if not rows and picture_of(tokens[-1]) is not None:
        return run, []
    row = rows[0] if rows else len(tokens) - 1
    note = Hint.ANOTHER_ROW.after(f"the row of {tokens[row].text or tokens[row].piece} is shown")
    if run.stages == RunConfig(()).stages and units * len(tokens) ** 2 <= _MOST_MAPPED:
        # How far heads read is known only from the rows of all patches, which a screen does not draw.
        return msgspec.structs.replace(run, query=PositionSelection.of([slice(0, len(tokens))])), [
            note
        ]
    return msgspec.structs.replace(run, query=PositionSelection.of([row])), [note]


def _all_tokens(
    run: RunConfig, source: ModelSource, text: TextInput
) -> tuple[list[Token], list[int] | None, list[Token] | None, list[str]]:
    """Return the tokens of a text, their position ids if these were given, the tokens of its context, and warnings."""
    positions = None
    context = None
    if text.given is not None:
        tokens, positions = given_tokens(text.given, source, text.where)
        warnings = list[str]()
    elif text.read is not None:
        tokens = list(text.read.tokens)
        context = None if text.read.context is None else list(text.read.context)
        warnings = list(text.read.warnings)
        longest = source.config.max_positions
        if source.only_media is None and longest is not None and len(tokens) > longest:
            message = (
                f"{len(tokens)} tokens with its pictures, but the model takes at most {longest}"
            )
            raise AttnscopeError(message, where=text.where, hint="use a smaller picture, or fewer")
    else:
        special = text.adds_special
        tokens, warnings = tokenize(
            source, text.text, text.pair, text.where, truncate=run.truncate, special=special
        )
    warnings = [*(text.rendered.warnings if text.rendered else ()), *warnings]
    if text.context is not None:
        context, of_context = tokenize(
            source, text.context, None, arg("context"), truncate=run.truncate
        )
        warnings += [f"--context: {warning}" for warning in of_context]
    return tokens, positions, context, warnings


def divide_text(run: RunConfig, text: TextInput, tokens: Sequence[Token]) -> TextSpans | None:
    """Divide a text into spans; None if neither the run nor the text names any."""
    turns = SpanRequest("turns") if text.turns else None
    request = SpanRequest("ranges") if text.spans else run.spans or turns
    if request is None:
        return None
    return divide(text, tokens, request, truncated=run.truncate)


def documents_of_mask(
    run: RunConfig,
    source: ModelSource,
    tokens: Sequence[Token],
    where: str,
    *,
    crossing: bool = False,
) -> dict[MaskTerm, tuple[int, ...]]:
    """Return the lengths of a text's documents, by the term of the mask that needs them."""
    lengths: dict[MaskTerm, tuple[int, ...]] = {}
    for term in leaves(run.mask):
        if isinstance(term, Documents | DocumentEnds) and crossing:
            message = "documents are parts of one text, but keys come from another"
            raise UsageError(message, where=arg("mask"), hint="use a file with a boolean matrix")
        if isinstance(term, Documents):
            if sum(term.lengths) != len(tokens):
                message = (
                    f"the documents have {sum(term.lengths)} tokens, but the text has {len(tokens)}"
                )
                raise UsageError(
                    f"{message} ({where})", where=arg("mask"), hint="special tokens count, too"
                )
            lengths[term] = term.lengths
        elif isinstance(term, DocumentEnds):
            closing = closing_token(tokens)
            ends = source.generation.eos_token_id or (() if closing is None else (closing.id,))
            if not ends:
                hint = f"use {Documents.form}"
                raise UsageError(
                    f"{source.name} names no token that ends a text", where=arg("mask"), hint=hint
                )
            edges = [
                0,
                *(n for n, token in enumerate(tokens[:-1], 1) if token.id in ends),
                len(tokens),
            ]
            lengths[term] = tuple(end - start for start, end in pairwise(edges))
    return lengths


def _document_warnings(
    run: RunConfig,
    source: ModelSource,
    text: TextInput,
    tokens: Sequence[Token],
    documents: Mapping[MaskTerm, tuple[int, ...]],
) -> list[str]:
    """Say that a text has no ends of documents, or that the mask lets packed documents read each other."""
    warnings = list[str]()
    for term, lengths in documents.items():
        if isinstance(term, DocumentEnds) and len(lengths) == 1:
            ends = [
                source.tokenizer.spelled(token_id)[0] for token_id in source.generation.eos_token_id
            ]
            ends_text = f" ({', '.join(ends)})" if ends else ""
            warnings.append(
                f"--mask {term}: no token inside the text ends one{ends_text}, so it is a single document"
            )
    packed = [] if text.given is None else packed_lengths(text.given)
    if text.given is None or not packed or not source.mask_known:
        return warnings
    own_masks = source.config.masks_of(source.config.n_layers)
    if shows_other_documents(own_masks, run.mask, packed, documents, len(tokens)):
        starts = [sum(packed[:count]) for count in range(1, len(packed))]
        if len(starts) == 1:
            where = f"token {starts[0]}"
        else:
            where = f"tokens {listed(list(map(str, starts)), 8)}"
        message = (
            f"position_ids restart at {where}, and tokens read the packed documents before theirs"
        )
        if "causal" not in source.config.mask:
            why = "as in transformers"
        elif text.given.masked:
            why = "as in transformers with an attention_mask"
        else:
            why = "as in transformers while it makes a cache; with use_cache=False, it keeps documents apart"
        mask = spell_mask((*run.mask, Documents(tuple(packed))))
        warnings.append(Hint.SEPARATE_DOCUMENTS.after(f"{message}: {why}", shlex.quote(mask)))
    return warnings


def _hidden(
    run: RunConfig, columns_of: SearchedText, where: str, *, several: bool
) -> tuple[int, ...]:
    try:
        return tuple(replace(columns_of, words=False).find(arg("hide"), run.hide) or ())
    except NotInText as e:
        message = f"{e.parts.message} ({where})" if several else e.parts.message
        raise UsageError(message, where=e.parts.where, hint=e.parts.hint) from e


def check_context(text: TextInput, source: ModelSource) -> None:
    """Refuse a missing context under cross-attention, and a context anywhere else."""
    if text.read is not None:
        return  # what read its media has refused a text that does not belong to them
    has_context = text.context is not None
    if source.needs_context and not has_context:
        hint = "pass the text that provides keys and values"
        if source.part:
            hint = "pass the text for the encoder"
        raise UsageError(
            "is required, since the model attends to a second text", where=arg("context"), hint=hint
        )
    if has_context and source.part == "encoder":
        raise UsageError(
            f"an encoder reads only {arg('text')}",
            where=arg("context"),
            hint=f"remove it, or use {arg('part', 'cross')}",
        )
    if has_context and not source.needs_context:
        hint = "remove it, or use a config with cross_attention = true"
        raise UsageError("the model has no cross-attention", where=arg("context"), hint=hint)


def _choose_cells(
    run: RunConfig,
    rows_of: SearchedText,
    columns_of: SearchedText,
    *,
    causal: bool,
    first_query: int = 0,
) -> tuple[list[int], list[int], int | None, Part | None, list[str]]:
    """Return the named rows and columns; if none are named, all, or a map of a text that is too long.

    Args:
        causal: A query sees only earlier keys, so a window next to it is placed before it.

    Returns:
        Rows, columns, size of the pooled map (None for none), TextPlan.narrowed, and notes on omissions.
    """
    n_queries = len(rows_of.tokens)
    n_keys = len(columns_of.tokens)
    queries = rows_of.find(arg("query"), run.query)
    notes: list[str] = []
    if first_query:
        queries = _known_queries(queries, first_query, n_queries, run.window, notes)
    keys = columns_of.find(arg("key"), run.key)
    too_long = run.window is not None and max(n_queries, n_keys) > run.window
    nothing_named = run.query is None and keys is None and not (first_query and run.pool is None)
    pool = run.pool or (POOL if too_long and nothing_named else None)
    if pool is not None and nothing_named:
        return [], [], pool, None, _pooled_notes(run, n_queries, n_keys, pool, columns_of.sound)
    aligned = columns_of is rows_of
    found_queries = queries
    found_keys = keys
    narrowed = _narrowed(run, queries, keys, n_queries, n_keys)
    if narrowed == "columns" and any(map(picture_of, columns_of.tokens)):
        # A picture is drawn with all of its patches.
        narrowed = None
        found_keys = list(range(n_keys))
    if narrowed == "columns":
        found_keys = list(range(n_keys))
        statement = f"the {FEW} columns with most weight are shown"
        notes.append(Hint.ALL_COLUMNS.after(statement, f"0:{n_keys}"))
    elif narrowed == "rows":
        found_queries = list(range(n_queries))
        statement = f"the {FEW} rows with most weight are shown"
        notes.append(Hint.ALL_ROWS.after(statement, f"0:{n_queries}"))
    if found_queries is None:
        window_start = 0
        if aligned:
            window_start = _window_start(keys, n_queries, run.window, causal, after=True)
        found_queries = _window("rows", Hint.ALL_ROWS, n_queries, run.window, window_start, notes)
    if found_keys is None:
        window_start = 0
        if aligned:
            window_start = _window_start(queries, n_keys, run.window, causal, after=False)
        found_keys = _window("columns", Hint.ALL_COLUMNS, n_keys, run.window, window_start, notes)
    if too_long and pool is None:
        notes.append(Hint.MAP.after("", POOL))
    return found_queries, found_keys, pool, narrowed, notes


def _known_queries(
    queries: list[int] | None, first_query: int, count: int, window: int | None, notes: list[str]
) -> list[int]:
    """Return the requested rows whose queries are known; the last of them if none are requested."""
    if queries is None:
        start = first_query if window is None else max(first_query, count - window)
        if start > first_query:
            statement = f"rows {start}–{count - 1} of {first_query}–{count - 1} shown"
            notes.append(Hint.ALL_ROWS.after(statement, f"{first_query}:{count}"))
        return list(range(start, count))
    known_queries = [query for query in queries if query >= first_query]
    if not known_queries:
        message = f"the query of token {queries[-1]} is not among the given ones"
        raise UsageError(message, where=arg("query"), hint=f"use {first_query}:{count}")
    if len(known_queries) < len(queries):
        notes.append(f"rows before {first_query} have no queries, and are left out")
    return known_queries


def _narrowed(
    run: RunConfig, queries: list[int] | None, keys: list[int] | None, n_queries: int, n_keys: int
) -> Part | None:
    """Return which of rows and columns a screen has too many of, and the user has not selected; see TextPlan."""
    if run.window != PRINTED or "weights" not in run.stages:
        return None
    if (
        queries is not None
        and keys is None
        and n_keys > PRINTED
        and len(queries) * n_keys <= _MOST_CELLS
    ):
        return "columns"
    if (
        keys is not None
        and queries is None
        and n_queries > PRINTED
        and n_queries * len(keys) <= _MOST_CELLS
    ):
        return "rows"
    return None


def _window_start(
    positions: list[int] | None, count: int, window: int | None, causal: bool, *, after: bool
) -> int:
    """Find the start of a window next to the other side's named positions."""
    if positions is None or window is None:
        return 0
    first_position = positions[0]
    last_position = min(positions[-1], positions[0] + window)
    start = (first_position + last_position + 1 - window) // 2
    if causal:
        start = first_position if after else last_position + 1 - window
    return max(0, min(start, count - window))


def _window(
    what: str, hint: Hint, count: int, window: int | None, start: int, notes: list[str]
) -> list[int]:
    if window is None or count <= window:
        return list(range(count))
    notes.append(hint.after(f"{what} {start}–{start + window - 1} of {count} shown", f"0:{count}"))
    return list(range(start, start + window))


def _pooled_notes(
    run: RunConfig, n_queries: int, n_keys: int, pool: int, sound: Sound | None
) -> list[str]:
    """Return notes on the cells that the map replaces, and how to see exact ones; none if a list replaces the map."""
    if run.least and run.stages == RunConfig(()).stages:
        return []
    size = f"{min(pool, n_queries)} × {min(pool, n_keys)}"
    why = "" if run.pool else f"the text has more than {run.window} tokens: "
    last = min(n_queries, n_keys)
    example = f"--query {max(0, last - 8)}:{last} --key {max(0, last - 8)}:{last}"
    what = "share of |M|" if run.measure == MIXING else "weight"
    if sound is not None:
        second = sound.seconds_of(sound.n_frames // 2)
        example = f"--key {second:.1f}s-{second + 0.2:.1f}s"
    return [
        f"{why}a map of {size} cells, which includes every {what}, replaces the matrices",
        Hint.EXACT_CELLS.after("", example),
    ]
