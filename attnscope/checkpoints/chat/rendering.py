"""Render messages with a chat template, and find each message in the text.

A template may do anything with a message, so the place of a message is observed: the template renders the messages a
second time, with private characters around every text; without these characters the result must equal the first text.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass
from typing import Any

from msgspec.structs import replace

from attnscope.base.errors import AttnscopeError, UsageError, arg, did_you_mean, listed
from attnscope.checkpoints.chat.process import PROCESS, SECONDS, TookTooLong
from attnscope.checkpoints.chat.templates import SPECIAL_TOKENS, ChatTemplates
from attnscope.request.chat import REASONING, Chat, RenderedChat
from attnscope.request.spans import SpanRange, unique_name

# private characters: a mark is one of the first two, a number, _END
_OPEN = "\uf8f2"
_CLOSE = "\uf8f3"
_END = "\uf8f4"
_MARK = re.compile(f"([{_OPEN}{_CLOSE}])([0-9]+){_END}")
# a list of parts that a template wrote as it is
_AS_PYTHON = re.compile(f"""['"]text['"]: ['"]{_OPEN}""")
_PARTS = ("messages", "documents", "tools")  # variables that hold what users wrote
# keys of a message that are not what it says
_UNSPOKEN = ("role", "type", "id", "tool_call_id", "name")
_NAMES = ("name", "title")  # keys that name a document
_JOINT = "\n"  # between the parts of a content for templates that take texts alone
_ERRORS = {
    "refused": "the chat template refuses these messages: {}",
    "syntax": "the chat template is not valid Jinja ({})",
    "unsafe": "the chat template was stopped: {}",
    "memory": "the chat template needs more memory than it may use",
    "long": "the chat template writes more than 16,777,216 characters",
    "failed": "the chat template fails on these messages: {}",
}


@dataclass(frozen=True)
class _UserText:
    """A text among the variables of a template."""

    # keys and numbers from the variables down to the text; several for copies
    paths: tuple[tuple[str | int, ...], ...]
    # name of the span and text of each piece; joined they are the text
    pieces: tuple[tuple[str, str], ...]
    as_hull: bool = False  # its span reaches from the first to the last of its texts


def render_chat(chat: Chat, templates: ChatTemplates, where: str = arg("chat")) -> RenderedChat:
    """Render messages."""
    name, template = templates.choose(chat.chat_template, tools=chat.tools is not None)
    origin = name
    if templates.where and name in templates.templates:
        origin = f"{name} ({templates.where})"
    settings = {**templates.special_tokens, **chat.chat_template_kwargs}
    variables, texts, answer = _first_written(chat, template, settings, where)
    _check_used(chat, answer["names"])
    text, marked = answer["texts"]
    ranges = _locate(text, marked, texts)
    if ranges is None:
        # The template looks at a text that is marked: mark them one by one.
        ranges = _locate_each(text, template, variables, texts, where)
    missing = [texts[n].pieces[k][0] for (n, k), piece_ranges in ranges.items() if not piece_ranges]
    if chat.continue_final_message:
        text = _continued(text, template, variables, where)
    turns = _turns(texts, ranges, len(text))
    generated = answer["generated"]
    ranges_of_answer = None
    if generated is not None:
        ranges_of_answer = tuple((start, end) for start, end in generated)
    warnings = tuple(_warnings(answer, variables, missing))
    return RenderedChat(text, turns, ranges_of_answer, origin, tuple(chat.roles), warnings)


def _first_written(
    chat: Chat, template: str, settings: Mapping[str, Any], where: str
) -> tuple[dict[str, Any], list[_UserText], dict[str, Any]]:
    """Return variables that the template writes, the texts in them, and what it answers.

    Contents are texts or lists of parts, and a template may take only one of them: they are tried as they are, then all
    as lists, then all as texts.
    """
    has_lists = _has_parts(chat)
    forms = [(chat, False), (_in_parts(chat), False), *([(chat, True)] if has_lists else [])]
    tried = []
    for number, (form, joined) in enumerate(forms):
        variables = {**settings, **_messages(form, joined=joined)}
        texts = list(_texts(form, joined=joined))
        must = joined or (number == 0 and not has_lists)
        answer = _ask(template, variables, [_marked(variables, texts)], where, must=must)
        if answer is not None:
            tried.append((variables, texts, answer))
            plain = not has_lists and _writes(answer["texts"][0], texts)
            if plain or joined or _takes_parts(answer, texts):
                return tried[-1]
    return tried[0]


def _in_parts(chat: Chat) -> Chat:
    """Return a chat whose contents are all lists of parts."""
    messages = []
    for message in chat.messages:
        if isinstance(message.get("content"), str):
            messages.append({**message, "content": [{"type": "text", "text": message["content"]}]})
        else:
            messages.append(message)
    return replace(chat, messages=messages)


def _messages(chat: Chat, *, joined: bool) -> dict[str, Any]:
    """Return messages, documents and tools as variables of a template; `joined` ones have texts, not lists of parts."""
    messages = deepcopy(chat.messages)
    for message in messages:
        if isinstance(message.get("content"), list):
            parts = message["content"]
            texts = [part["text"] for part in parts if "text" in part]
            typed = []
            for part in parts:
                if "text" in part:
                    typed.append({"type": "text", "text": part["text"]})
                else:
                    typed.append({"type": "image"})
            message["content"] = _JOINT.join(texts) if joined else typed
    others = {
        "tools": chat.tools,
        "documents": chat.documents,
        "add_generation_prompt": chat.prompts,
    }
    return {"messages": messages, **others}


def _has_parts(chat: Chat) -> bool:
    return any(isinstance(message.get("content"), list) for message in chat.messages)


def _takes_parts(answer: dict[str, Any] | None, texts: Sequence[_UserText]) -> bool:
    """Tell whether a template writes the texts in lists of parts, instead of the lists themselves or nothing."""
    marked = None if answer is None else answer["texts"][1]
    if marked is None or _AS_PYTHON.search(marked):
        return False
    present = {int(index) for _, index in _MARK.findall(marked)}
    return all(
        index in present
        for index, (n, _) in enumerate(_numbered(texts))
        if "content" in texts[n].paths[0]
    )


def _writes(text: str, texts: Sequence[_UserText]) -> bool:
    """Tell whether a rendered text has the content of every message."""
    contents = (
        piece
        for user_text in texts
        if "content" in user_text.paths[0]
        for _, piece in user_text.pieces
    )
    return all(piece.strip() in text for piece in contents)


def _texts(chat: Chat, *, joined: bool) -> Iterator[_UserText]:
    """Yield every text that users wrote, with the span that it belongs to; see _messages."""
    counts: dict[str, int] = {}
    taken: set[str] = set()
    for n, message in enumerate(chat.messages):
        role = message["role"]
        counts[role] = counts.get(role, 0) + 1
        turn = unique_name(f"{role} {counts[role]}", taken)
        reasoning = tuple(
            ("messages", n, key) for key in REASONING if isinstance(message.get(key), str)
        )
        if reasoning:
            yield _UserText(reasoning, ((turn, message[str(reasoning[0][2])]),))
        for key, value in message.items():
            if key in (*_UNSPOKEN, *REASONING):
                continue
            if key == "content" and isinstance(value, list):
                parts = {k: part for k, part in enumerate(value) if "text" in part}
                part_names = [
                    next((part[key] for key in _NAMES if part.get(key)), None)
                    for part in parts.values()
                ]
                names = [turn if name is None else unique_name(name, taken) for name in part_names]
                pieces = tuple(
                    (name, part["text"]) for name, part in zip(names, parts.values(), strict=True)
                )
                if joined:
                    yield _UserText((("messages", n, key),), pieces)
                for k, piece in () if joined else zip(parts, pieces, strict=True):
                    yield _UserText((("messages", n, key, k, "text"),), (piece,))
            else:
                yield from (
                    _UserText((path,), ((turn, text),))
                    for path, text in _strings(value, ("messages", n, key))
                )
    for n, document in enumerate(chat.documents or []):
        title = next(
            (document[key] for key in _NAMES if isinstance(document.get(key), str)), f"doc {n + 1}"
        )
        name = unique_name(title, taken)
        yield from (
            _UserText((p,), ((name, text),), as_hull=True)
            for p, text in _strings(document, ("documents", n))
        )
    for n, tool in enumerate(chat.tools or []):
        yield from (
            _UserText((p,), (("tools", text),), as_hull=True)
            for p, text in _strings(tool, ("tools", n))
        )


def _strings(
    value: Any, path: tuple[str | int, ...]
) -> Iterator[tuple[tuple[str | int, ...], str]]:
    if isinstance(value, str):
        yield path, value
    elif isinstance(value, dict):
        for key, inner in value.items():
            if path[0] != "messages" or key not in ("type", "id"):
                yield from _strings(inner, (*path, key))
    elif isinstance(value, list):
        for n, inner in enumerate(value):
            yield from _strings(inner, (*path, n))


def _numbered(texts: Sequence[_UserText]) -> list[tuple[int, int]]:
    """Return every piece that is not blank, as (number of its text, place in the text)."""
    return [
        (n, piece_index)
        for n, text in enumerate(texts)
        for piece_index, (_, piece) in enumerate(text.pieces)
        if piece.strip()
    ]


def _marked(variables: Mapping[str, Any], texts: Sequence[_UserText]) -> dict[str, Any]:
    """Return the variables with marks around every piece, within its leading and trailing white space."""
    copy = deepcopy({name: variables[name] for name in _PARTS})
    numbers = {piece: index for index, piece in enumerate(_numbered(texts))}
    for n, text in enumerate(texts):
        pieces = []
        for piece_index, (_, piece) in enumerate(text.pieces):
            if (index := numbers.get((n, piece_index))) is not None:
                core = piece.strip()
                piece = piece.replace(core, f"{_OPEN}{index}{_END}{core}{_CLOSE}{index}{_END}", 1)
            pieces.append(piece)
        marked = _JOINT.join(pieces)
        for path in text.paths:
            inner: Any = copy
            for key in path[:-1]:
                inner = inner[key]
            inner[path[-1]] = marked
    return copy


# number of a text and place of a piece, to where it is written
Ranges = dict[tuple[int, int], list[tuple[int, int]]]


def _locate(text: str, marked: str | None, texts: Sequence[_UserText]) -> Ranges | None:
    """Find every piece in a text; None if the marked text differs from it in more than marks around pieces."""
    numbered = _numbered(texts)
    if marked is None or _MARK.sub("", marked) != text:
        return None
    piece_ranges: Ranges = {piece: [] for piece in numbered}
    opened: dict[int, int] = {}
    position = reached = 0
    for mark in _MARK.finditer(marked):
        position += mark.start() - reached
        reached = mark.end()
        index = int(mark[2])
        if index >= len(numbered):
            # A user wrote this mark.
            return None
        core = _core(texts, numbered[index])
        if mark[1] == _OPEN:
            opened[index] = position
        elif index in opened:
            piece_ranges[numbered[index]].append((opened.pop(index), position))
        else:
            # The template cut off the start of the piece.
            before = text[max(0, position - len(core)) : position]
            piece_ranges[numbered[index]].append(
                (position - _shared_start(before[::-1], core[::-1]), position)
            )
    # The template cut off the end of these pieces.
    for index, start in opened.items():
        length = _shared_start(text[start:], _core(texts, numbered[index]))
        piece_ranges[numbered[index]].append((start, start + length))
    return {
        piece: [(start, end) for start, end in ranges if start < end]
        for piece, ranges in piece_ranges.items()
    }


def _shared_start(first_text: str, second_text: str) -> int:
    pairs = zip(first_text, second_text, strict=False)
    return next(
        (n for n, (a, b) in enumerate(pairs) if a != b), min(len(first_text), len(second_text))
    )


def _core(texts: Sequence[_UserText], piece: tuple[int, int]) -> str:
    n, piece_index = piece
    return texts[n].pieces[piece_index][1].strip()


def _locate_each(
    text: str, template: str, variables: Mapping[str, Any], texts: Sequence[_UserText], where: str
) -> Ranges:
    """Find every piece with marks around one text at a time; search for texts that cannot be marked, in order."""
    variants = [_marked(variables, [user_text]) for user_text in texts]
    answer = _ask(template, variables, variants, where)
    all_ranges: Ranges = {}
    cursor = 0
    for n, (user_text, marked) in enumerate(zip(texts, answer["texts"][1:], strict=True)):
        located = _locate(text, marked, [user_text])
        if located is None:
            located = {}
            for piece in _numbered([user_text]):
                core = _core([user_text], piece)
                start = text.find(core, cursor)
                located[piece] = [(start, start + len(core))] if start >= 0 else []
        all_ranges |= {(n, piece_index): ranges for (_, piece_index), ranges in located.items()}
        cursor = max([cursor, *(end for ranges in located.values() for _, end in ranges)])
    return all_ranges


def _continued(text: str, template: str, variables: Mapping[str, Any], where: str) -> str:
    """Return a text up to the end of its last message, as transformers finds it: by a mark behind the message."""
    messages = deepcopy(variables["messages"])
    content = messages[-1].get("content")
    mark = f"{_OPEN}{_END} "
    if isinstance(content, list) and content:
        holder = content[-1]
        key = "text"
    else:
        holder = messages[-1]
        key = "content"
    message_text = holder.get(key)
    if isinstance(message_text, str):
        holder[key] = message_text + mark
        (marked,) = _ask(template, {**variables, "messages": messages}, [], where)["texts"]
        end = marked.rfind(mark.strip())
        # The template may trim what stands before the mark.
        if marked[end:].startswith(mark):
            before_mark = marked[:end]
        else:
            before_mark = marked[:end].rstrip()
        if end >= 0 and message_text.strip() in marked and text.startswith(before_mark):
            return str(before_mark)
    hint = "remove continue_final_message"
    raise AttnscopeError(
        "the chat template does not write the last message as it is", where=where, hint=hint
    )


def _turns(texts: Sequence[_UserText], ranges: Ranges, length: int) -> tuple[SpanRange, ...]:
    """Return the range of each span, in order and without overlaps."""
    places: list[tuple[int, int, str]] = []
    wholes: dict[str, list[tuple[int, int]]] = {}
    for (n, piece_index), piece_ranges in ranges.items():
        name = texts[n].pieces[piece_index][0]
        if texts[n].as_hull:
            wholes.setdefault(name, []).extend(piece_ranges)
        else:
            places += [(start, end, name) for start, end in piece_ranges]
    for name, piece_ranges in wholes.items():
        if piece_ranges:
            starts, ends = zip(*piece_ranges, strict=True)
        else:
            starts = (0,)
            ends = (0,)
        hull = min(starts), max(ends)
        crosses = any(start < hull[1] and hull[0] < end for start, end, _ in places)
        places += [(start, end, name) for start, end in (piece_ranges if crosses else [hull])]
    turns: list[SpanRange] = []
    for start, end, name in sorted(places):
        start = max(start, turns[-1].end if turns else 0)
        end = min(end, length)
        if start < end:
            turns.append(SpanRange(name, start, end))
    return tuple(turns)


def _ask(
    template: str,
    variables: Mapping[str, Any],
    variants: Sequence[Mapping[str, Any]],
    where: str,
    *,
    must: bool = True,
) -> Any:
    try:
        answer = PROCESS.ask({"template": template, "variables": variables, "variants": variants})
    except TookTooLong:
        message = (
            f"the chat template takes more than {SECONDS} seconds, or more memory than it may use"
        )
        raise AttnscopeError(
            message, where=where, hint="use the template of a source that you trust"
        ) from None
    if "error" not in answer:
        return answer
    if not must and answer["kind"] in ("refused", "failed"):
        return None
    lacking = [
        f"messages[{index}]"
        for index, message in enumerate(variables["messages"])
        if "content" not in message
    ]
    hint = None
    if lacking:
        verb = "has" if len(lacking) == 1 else "have"
        hint = f'{", ".join(lacking[:3])} {verb} no "content"'
    message = _ERRORS[answer["kind"]].format(answer["error"] or "no reason given")
    raise AttnscopeError(message, where=where, hint=hint)


def _check_used(chat: Chat, names: Sequence[str]) -> None:
    """Refuse arguments that the template does not read."""
    for name, value in (("documents", chat.documents), ("tools", chat.tools)):
        if value and name not in names:
            hint = f"put {'them' if name == 'documents' else 'what they do'} into the content of a message"
            raise UsageError(
                f"the chat template has no place for {name}", where=arg("chat"), hint=hint
            )
    for name in chat.chat_template_kwargs:
        if name not in names:
            hint = did_you_mean(name, tuple(names))
            raise UsageError(
                f"the chat template has no variable '{name}'", where=arg("chat"), hint=hint
            )


def _warnings(
    answer: Mapping[str, Any], variables: Mapping[str, Any], missing: Sequence[str]
) -> Iterator[str]:
    if answer["dated"]:
        yield "the chat template writes the current date, so tomorrow's text is another one"
    if unnamed := [
        name for name in SPECIAL_TOKENS if name in answer["names"] and name not in variables
    ]:
        yield f"the chat template uses {', '.join(unnamed)}, which the checkpoint does not name: left out"
    if missing:
        yield f"the chat template leaves out text of {listed(list(dict.fromkeys(missing)), 5)}"
