"""Render the chats of a run with the model's template, with notes."""

from collections.abc import Sequence

from msgspec.structs import replace

from attnscope.base.errors import UsageError, arg
from attnscope.checkpoints.source import ModelSource
from attnscope.findings.chat import ChatText
from attnscope.findings.tokens import Token
from attnscope.request.run_config import RunConfig, TextInput
from attnscope.request.spans import SpanRequest
from attnscope.run.spelling_ids import spell_ids


def render_chats(run: RunConfig, source: ModelSource) -> RunConfig:
    """Return a run whose messages, or token ids, have become texts; messages are divided into turns by default."""
    if any(text.given is not None for text in run.texts):
        return replace(run, texts=tuple(spell_ids(text, source) for text in run.texts))
    if all(text.chat is None for text in run.texts):
        return run
    texts = tuple(render_text(text, source) for text in run.texts)
    divided = run.spans is not None or any(text.spans for text in texts)
    return replace(run, texts=texts, spans=run.spans if divided else SpanRequest("turns"))


def render_text(text: TextInput, source: ModelSource) -> TextInput:
    """Return a text whose messages have been rendered; any other text as it is."""
    if text.chat is None or text.rendered is not None:
        return text
    for name in ("pair", "context"):
        if getattr(text, name) is not None:
            raise UsageError(f"{arg('chat')} and {arg(name)} cannot be used together", hint="remove one of them")
    from attnscope.checkpoints.chat.rendering import render_chat

    rendered = render_chat(text.chat, source.chat(), text.where)
    return replace(text, text=rendered.text, rendered=rendered)


def chat_text(text: TextInput, tokens: Sequence[Token]) -> ChatText | None:
    """Return how messages became a text; None for a text that was none."""
    if text.rendered is None:
        return None
    blocks = text.rendered.generated
    inside = None if blocks is None else sorted({n for block in blocks for n in _tokens_within(tokens, *block)})
    return ChatText(text.rendered.template, list(text.rendered.roles), inside)


def _tokens_within(tokens: Sequence[Token], start: int, end: int) -> range:
    """Return the tokens from the one that has the first character of a range to the one that has its last."""
    touching = [
        n for n, t in enumerate(tokens) if t.start is not None and t.end is not None and t.start < end and t.end > start
    ]
    return range(touching[0], touching[-1] + 1) if touching else range(0)
