"""Texts of a run that are given as messages, which a template renders, or as token ids. Never imports torch."""

from collections.abc import Sequence
from itertools import pairwise

from msgspec.structs import replace

from attnscope.base.errors import AttnscopeError, UsageError, arg
from attnscope.checkpoints.source import ModelSource, check_tokens
from attnscope.checkpoints.tokenization.given import join_tokens
from attnscope.findings.run import ChatText
from attnscope.findings.tokens import Token
from attnscope.request.chat import RenderedChat
from attnscope.request.given_ids import GivenIds
from attnscope.request.media import MediaFile, MediaText
from attnscope.request.run_config import RunConfig, TextInput
from attnscope.request.spans import SpanRequest


def render_chats(run: RunConfig, source: ModelSource) -> RunConfig:
    """Return a run whose messages, or token ids, have become texts; messages are divided into turns by default."""
    if source.only_media is not None or run.media_kind is not None:
        texts = tuple(read_media(text, source) for text in run.texts)
        by_turns = run.spans is None and any(text.turns for text in texts)
        spans = run.spans
        if by_turns:
            spans = SpanRequest("turns")
        return replace(run, texts=texts, spans=spans)
    if any(text.given is not None for text in run.texts):
        return replace(run, texts=tuple(spell_ids(text, source) for text in run.texts))
    texts = tuple(render_text(text, source) for text in run.texts)
    divided = run.spans is not None or any(text.spans for text in texts)
    spans = run.spans
    if not divided:
        spans = SpanRequest("turns")
    return replace(run, texts=texts, spans=spans)


def render_text(text: TextInput, source: ModelSource) -> TextInput:
    """Return a text whose messages have been rendered; any other text as it is."""
    if text.chat is None or text.rendered is not None:
        return text
    from attnscope.checkpoints.chat.rendering import render_chat

    rendered = render_chat(text.chat, source.chat(), text.where)
    return replace(text, text=rendered.text, rendered=rendered)


def read_media(text: TextInput, source: ModelSource) -> TextInput:
    """Return a text whose pictures and sounds have been read; refuse them, or none, if the model does."""
    if text.read is not None:
        return text
    pictures = 0 if text.chat is None else len(text.chat.pictures)
    if source.read_media is None and (text.media or pictures):
        kind = text.media[0].kind if text.media else "image"
        hint = {
            "image": "use a vision model, or one that takes texts with pictures",
            "audio": "use a model that hears, such as Whisper",
        }[kind]
        raise UsageError(f"{source.name} takes texts alone", where=arg(kind), hint=hint)
    if source.only_media is not None and not text.media:
        hint = f"pass {arg(source.only_media, placeholder='FILE')}"
        raise UsageError(f"{source.name} takes no text", where=text.where, hint=hint)
    if text.chat is not None:
        text = _with_files(render_text(text, source))
    if source.read_media is None or not text.media:
        return text
    media_text: MediaText = source.read_media(text)
    return replace(text, text=media_text.text, read=media_text)


def _with_files(text: TextInput) -> TextInput:
    """Return a text of a chat with the pictures of its parts in order; options give those that name no file."""
    assert text.chat is not None
    rest = list(text.media)
    media = list[MediaFile]()
    for file in text.chat.pictures:
        if file is None and not rest:
            hint = f"pass {arg('image', placeholder='FILE')}, or name its file in the chat"
            raise UsageError("a message has a picture without a file", where=text.where, hint=hint)
        media.append(rest.pop(0) if file is None else MediaFile("image", file, file))
    if rest:
        hint = 'give the message a part {"type": "image"}'
        raise UsageError(f"no message has a place for {rest[0].name}", where=text.where, hint=hint)
    return replace(text, media=tuple(media))


def chat_text(rendered: RenderedChat, tokens: Sequence[Token]) -> ChatText:
    """Return how messages became a text."""
    blocks = rendered.generated
    inside = None
    if blocks is not None:
        inside = sorted({n for block in blocks for n in _tokens_within(tokens, *block)})
    return ChatText(rendered.template, list(rendered.roles), inside)


def _tokens_within(tokens: Sequence[Token], start: int, end: int) -> range:
    """Return the tokens from the one that has the first character of a range to the one that has its last."""
    touching = [
        n
        for n, t in enumerate(tokens)
        if t.start is not None and t.end is not None and t.start < end and t.end > start
    ]
    if touching:
        return range(touching[0], touching[-1] + 1)
    return range(0)


def spell_ids(text: TextInput, source: ModelSource) -> TextInput:
    """Return a text with the spelling of its ids; other texts unchanged."""
    if text.given is None or text.text:
        return text
    return replace(text, text=join_tokens(_tokens(text.given, source), apart=text.given.apart)[0])


def given_tokens(
    given_ids: GivenIds, source: ModelSource, where: str
) -> tuple[list[Token], list[int] | None]:
    """Return the tokens of given ids, and the position of each if it is not its place."""
    c = source.config
    tokens = join_tokens(_tokens(given_ids, source), apart=given_ids.apart)[1]
    check_tokens(source, tokens, where, given=True)
    positions = given_ids.positions
    if positions is None:
        positions = _counted(given_ids, c.padding_id, c.position_offset)
    if positions is None or positions == tuple(range(len(tokens))):
        return tokens, None if c.padding_id is None or positions is None else list(positions)
    if c.positions in ("alibi", "sinusoidal"):
        hint = "leave position_ids out, and put padding after the text"
        raise UsageError(
            f"the model has {c.positions} positions, which cannot be given", where=where, hint=hint
        )
    if c.max_positions is None or c.positions != "learned":
        rows = None
    else:
        rows = c.max_positions + c.position_offset
    if rows is not None and max(positions) >= rows:
        message = f"position {max(positions)}, but the table of positions has {rows} rows"
        raise AttnscopeError(message, where=where, hint=f"use positions below {rows}")
    return tokens, list(positions)


def given_notes(given_ids: GivenIds, positions: Sequence[int] | None) -> list[str]:
    """Return notes on the padding that is left out, and on positions that are not the places of tokens."""
    notes = list[str]()
    if given_ids.left or given_ids.right:
        sides = [
            f"{count} {side}"
            for count, side in ((len(given_ids.left), "before"), (given_ids.right, "after"))
            if count
        ]
        notes.append(f"padding tokens left out: {' and '.join(sides)} the text")
    if positions is not None and list(positions) != [*range(len(positions))]:
        notes.append(f"position ids: {_ranges(positions)}")
    return notes


def packed_lengths(given_ids: GivenIds) -> list[int]:
    """Return the lengths of the documents that restarting positions tell apart; empty if none restarts.

    A document ends where the next position is not the following number, as in transformers.
    """
    steps = list(pairwise(given_ids.positions or ()))
    if all(after > before for before, after in steps):
        return []
    edges = [
        0,
        *(position for position, (before, after) in enumerate(steps, 1) if after != before + 1),
        len(given_ids.ids),
    ]
    return [end - start for start, end in pairwise(edges)]


def _counted(given_ids: GivenIds, padding_id: int | None, offset: int) -> tuple[int, ...] | None:
    """Return positions as transformers counts them with padding before the text; None if they start at 0.

    Most models count all tokens; those with a padding id, such as RoBERTa, the tokens that have another id.
    """
    if padding_id is None:
        if given_ids.left:
            return tuple(range(len(given_ids.left), len(given_ids.left) + len(given_ids.ids)))
        return None
    count = sum(token_id != padding_id for token_id in given_ids.left)
    positions = []
    for token_id in given_ids.ids:
        positions.append(padding_id if token_id == padding_id else count + offset)
        count += token_id != padding_id
    return tuple(positions)


def _tokens(given_ids: GivenIds, source: ModelSource) -> list[Token]:
    tokens = []
    for token_id, type_id in zip(given_ids.ids, given_ids.types, strict=True):
        piece, spelled = source.tokenizer.spelled(token_id)
        special = source.tokenizer.made_token(token_id).special
        tokens.append(Token(token_id, piece, spelled, special=special, type_id=type_id))
    return tokens


def _ranges(positions: Sequence[int]) -> str:
    runs: list[list[int]] = []
    for position in positions:
        if runs and position == runs[-1][-1] + 1:
            runs[-1].append(position)
        else:
            runs.append([position])
    ranges = [str(run[0]) if len(run) == 1 else f"{run[0]}–{run[-1]}" for run in runs]
    return ", ".join(ranges[:8]) + (f" and {len(ranges) - 8} more" if len(ranges) > 8 else "")
