"""Chats are rendered as transformers renders them, by templates of many constructs, and each message is found."""

import random

import pytest

from attnscope.checkpoints.chat.rendering import render_chat
from attnscope.checkpoints.chat.templates import ChatTemplates
from attnscope.request.chat import chat_of
from tests.chat import proof
from tests.chat.drawing import draw_chat
from tests.helpers.draws import drawn

NAMES = ["SmolLM2", *(path.stem for path in sorted(proof.FOLDER.glob("*.jinja")))]


@pytest.fixture(scope="module")
def templates(smollm2):
    """The templates by name; `smollm2` skips where the package is not installed."""
    return proof.templates()


@pytest.mark.parametrize("name", NAMES)
def test_ids_and_masks_are_those_of_transformers(templates, name):
    """`python -m tests.chat.proof --chats 200` draws more."""
    counts, wrong = proof.differences(name, templates[name], chats=drawn(12), seed=2)
    assert not wrong, wrong[0]
    assert counts["equal"] >= 2


@pytest.mark.parametrize("name", NAMES)
def test_each_message_is_found_in_the_text(templates, name):
    """What a span covers is the message, the order is that of the text, and no character has two."""
    rng = random.Random(name)
    checked = 0
    for _ in range(drawn(30)):
        chat = chat_of(draw_chat(rng, templates[name]))
        try:
            rendered = render_chat(chat, ChatTemplates({"default": templates[name]}, proof.SPECIAL))
        except Exception:
            continue
        ends = [0, *(turn.end for turn in rendered.turns)]
        assert all(
            end <= turn.start < turn.end for end, turn in zip(ends, rendered.turns, strict=False)
        )
        counts = dict.fromkeys(chat.roles, 0)
        for message in chat.messages:
            counts[message["role"]] += 1
            content = message.get("content")
            pieces = (
                [part["text"] for part in content] if isinstance(content, list) else [content or ""]
            )
            turn = f"{message['role']} {counts[message['role']]}"
            found = [rendered.text[t.start : t.end] for t in rendered.turns if t.name == turn]
            kept = [
                piece.strip()
                for piece in pieces
                if piece.strip() and piece.strip() in rendered.text
            ]
            if (
                "</think>" not in rendered.text
                and "tool_calls" not in message
                and message["role"] != "tool"
            ):
                assert all(any(piece in text for text in found) for piece in kept), (
                    turn,
                    kept,
                    found,
                )
                checked += len(kept)
    assert checked > 5


def test_a_message_that_repeats_is_found_at_its_own_place():
    template = "{% for m in messages %}<{{ m.role }}>{{ m.content }}</>{% endfor %}"
    chat = chat_of([{"role": "user", "content": "user"}, {"role": "user", "content": " user "}])
    rendered = render_chat(chat, ChatTemplates({"default": template}))
    assert rendered.text == "<user>user</><user> user </>"
    assert [(t.name, t.start, t.end) for t in rendered.turns] == [
        ("user 1", 6, 10),
        ("user 2", 20, 24),
    ]


def test_a_template_that_looks_at_the_text_is_observed_without_marks():
    """The marks change what it writes, so that the messages are looked for in order."""
    template = (
        "{% for m in messages %}{{ m.content | length }}:{{ m.content | upper }};{% endfor %}"
    )
    chat = chat_of([{"role": "user", "content": "ABC"}, {"role": "user", "content": "ABCD"}])
    rendered = render_chat(chat, ChatTemplates({"default": template}))
    assert [rendered.text[t.start : t.end] for t in rendered.turns] == ["ABC", "ABCD"]


def test_parts_and_documents_are_spans_of_their_own():
    parts = [
        {"type": "text", "name": "doc 1", "text": "Rain."},
        "Sun.",
        {"type": "text", "title": "Q", "text": "Why?"},
    ]
    takes_texts = "{% for m in messages %}[{{ m.content }}]{% endfor %}"
    rendered = render_chat(
        chat_of([{"role": "user", "content": parts}]), ChatTemplates({"default": takes_texts})
    )
    assert rendered.text == "[Rain.\nSun.\nWhy?]"
    assert [(t.name, rendered.text[t.start : t.end]) for t in rendered.turns] == [
        ("doc 1", "Rain."),
        ("user 1", "Sun."),
        ("Q", "Why?"),
    ]
    documents = [{"title": "Mill", "text": "It burned."}, "It stood."]
    chat = chat_of({"messages": [{"role": "user", "content": "When?"}], "documents": documents})
    rendered = render_chat(chat, ChatTemplates({"default": proof.templates()["documents"]}))
    assert [(t.name, rendered.text[t.start : t.end]) for t in rendered.turns] == [
        ("Mill", "Mill\nIt burned."),
        ("doc 2", "It stood."),
        ("user 1", "When?"),
    ]


def test_a_template_that_reads_lists_of_parts_alone_is_given_lists():
    """Idefics 3 and LLaVA have such templates, which write nothing of a text, or its characters one by one."""
    template = (
        "{% for m in messages %}<{{ m.role }}>{% for part in m.content %}"
        "{% if part.type == 'image' %}[image]{% elif part.type == 'text' %}{{ part.text }}{% endif %}"
        "{% endfor %}{% endfor %}"
    )
    mixed = [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": [{"type": "image"}, {"type": "text", "text": "Why?"}]},
        {"role": "assistant", "content": "Rain."},
    ]
    rendered = render_chat(chat_of(mixed), ChatTemplates({"default": template}))
    assert rendered.text == "<system>Be brief.<user>[image]Why?<assistant>Rain."
    assert [rendered.text[t.start : t.end] for t in rendered.turns] == [
        "Be brief.",
        "Why?",
        "Rain.",
    ]
    rendered = render_chat(chat_of([mixed[0], mixed[2]]), ChatTemplates({"default": template}))
    assert rendered.text == "<system>Be brief.<assistant>Rain."
    assert rendered.warnings == ()


def test_a_text_that_is_cut_is_found_as_far_as_it_is_there():
    template = "{% for m in messages %}{{ m.content.split('</think>')[-1] }}|{{ m.content.split('<')[0] }};{% endfor %}"
    rendered = render_chat(
        chat_of([{"role": "user", "content": "deep</think>short"}]),
        ChatTemplates({"default": template}),
    )
    assert rendered.text == "short|deep;"
    assert [rendered.text[t.start : t.end] for t in rendered.turns] == ["short", "deep"]


def test_a_message_that_the_template_leaves_out_is_named():
    template = "{% for m in messages if m.role == 'user' %}{{ m.content }}{% endfor %}"
    chat = chat_of([{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}])
    rendered = render_chat(chat, ChatTemplates({"default": template}))
    assert rendered.warnings == ("the chat template leaves out text of assistant 1",)
