"""Templates come from strangers: what loops, reads attributes, raises or grows is refused in one line, in time."""

import os
import time

import pytest

from attnscope.base.errors import AttnscopeError
from attnscope.checkpoints.chat import process
from attnscope.checkpoints.chat.rendering import render_chat
from attnscope.checkpoints.chat.templates import ChatTemplates
from attnscope.request.chat import chat_of

CHAT = chat_of([{"role": "user", "content": "Hello"}])
AGAIN = (
    "{% for a in range(99999) %}{% for b in range(99999) %}{% for c in range(99999) %}{% endfor %}"
)
HOSTILE = {
    "loop": (AGAIN + "{% endfor %}{% endfor %}", "takes more than"),
    # in C, so that the process has to be ended
    "power": ("{{ 9 ** (9 ** 9) }}", "takes more than"),
    "class": ("{{ ''.__class__.__mro__[1].__subclasses__() }}", "was stopped"),
    "globals": ("{{ raise_exception.__globals__ }}", "was stopped"),
    "filter": ("{{ messages | attr('__class__') }}", "was stopped"),
    "format": ("{{ '{0.__class__}'.format(messages) }}", "was stopped"),
    "namespace": ("{% set ns = namespace(__init__=1) %}", "was stopped"),
    "change": ("{{ messages.append(1) }}", "was stopped"),
    "environment": ("{{ self._TemplateReference__context.environment.loader }}", "was stopped"),
    "raise": ("{{ raise_exception('no\x1b[2J\nsystem') }}", "refuses these messages: no"),
    "recursion": ("{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}", "calls itself too often"),
    "memory": ("{{ 'a' * 9999999999 }}", "memory"),
    "width": ("{{ '%9999999999d' % 1 }}", ""),
    "long": (
        "{% for a in range(99999) %}{{ 'a' * 1000 }}{% endfor %}",
        "writes more than 16,777,216 characters",
    ),
    "lipsum": ("{{ lipsum(n=100000000) }}", ""),
    "syntax": ("{% for %}", "not valid Jinja (line 1"),
    "include": ("{% include '/etc/passwd' %}", "fails"),
    "import": ("{% import 'os' as os %}{{ os.system('true') }}", "fails"),
    "undefined": ("{{ nothing.here }}", "'nothing' is undefined"),
    "type": ("{{ messages + 1 }}", "TypeError"),
    "unclosed": ("{% generation %}", "not valid Jinja"),
}


def test_messages_without_content_are_named():
    chat = chat_of([{"role": "user", "content": "Hi"}, {"role": "assistant"}])
    template = "{% for message in messages %}{{ message.content + '' }}{% endfor %}"
    with pytest.raises(AttnscopeError) as caught:
        render_chat(chat, ChatTemplates({"default": template}), "chat.json")
    assert caught.value.line().endswith('; messages[1] has no "content"')


@pytest.mark.parametrize("name", HOSTILE)
def test_a_hostile_template_gets_one_line_and_the_next_chat_is_rendered(monkeypatch, name):
    monkeypatch.setattr(process, "SECONDS", 1)
    template, expected = HOSTILE[name]
    started = time.monotonic()
    with pytest.raises(AttnscopeError) as caught:
        render_chat(
            CHAT, ChatTemplates({"default": template}, where="tokenizer_config.json"), "chat.json"
        )
    line = caught.value.line()
    assert expected in line
    assert line.startswith("chat.json: the chat template ")
    assert "\n" not in line and "\x1b" not in line
    # a second of computing, on a machine that does much else
    assert time.monotonic() - started < 10
    assert (
        render_chat(CHAT, ChatTemplates({"default": "{{ messages[0].content }}"})).text == "Hello"
    )


def test_what_was_written_cannot_pass_for_marks():
    """Private characters in a message stay what they are, and no message is found at another's place."""
    for trick in ("\uf8f20\uf8f4x\uf8f30\uf8f4", "\uf8f29\uf8f4", "\uf8f0x\uf8f1", "\uf8f3" * 3):
        chat = chat_of([{"role": "user", "content": trick}, {"role": "user", "content": "true"}])
        template = "{% for m in messages %}<{% generation %}{{ m.content }}{% endgeneration %}>{% endfor %}"
        rendered = render_chat(chat, ChatTemplates({"default": template}))
        assert rendered.text == f"<{trick}><true>"
        assert [rendered.text[t.start : t.end] for t in rendered.turns if t.name == "user 2"] == [
            "true"
        ]


def test_a_forked_process_asks_a_process_of_its_own():
    assert render_chat(CHAT, ChatTemplates({"default": "{{ 1 }}"})).text == "1"
    owner = process.PROCESS._process.pid
    reader, writer = os.pipe()
    if os.fork() == 0:
        render_chat(CHAT, ChatTemplates({"default": "{{ 2 }}"}))
        os.write(writer, str(process.PROCESS._process.pid).encode())
        process.PROCESS.close()
        os._exit(0)
    os.wait()
    assert int(os.read(reader, 20)) != owner
    assert render_chat(CHAT, ChatTemplates({"default": "{{ 3 }}"})).text == "3"


def test_the_process_sees_nothing_of_this_one(monkeypatch):
    """A template has the variables that it is given, and no others."""
    monkeypatch.setenv("SECRET", "hidden")
    names = "{% for name in ('os', 'environ', 'config', 'request', 'SECRET') %}{{ name }}{% endfor %}{{ os }}{{ SECRET }}"
    rendered = render_chat(CHAT, ChatTemplates({"default": names}))
    assert rendered.text == "osenvironconfigrequestSECRET"
