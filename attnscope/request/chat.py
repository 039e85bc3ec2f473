"""Messages of a chat, as they were given: OpenAI's form, checked but not rendered."""

from collections.abc import Mapping
from typing import Any

import msgspec

from attnscope.base.errors import UsageError, arg
from attnscope.base.files.reading import format_value
from attnscope.request.spans import RESERVED, SpanRange

MESSAGES = "messages"
CHAT_KEYS = (MESSAGES, "documents", "tools", "chat_template", "add_generation_prompt", "continue_final_message",
         "chat_template_kwargs")  # fmt: skip
# keys of a message's reasoning; templates read the first
REASONING = ("reasoning_content", "thinking", "reasoning")
_HINT = 'expected a list of {"role": …, "content": …}, or an object with "messages"'
_MOST_MESSAGES = 10_000
_DEEPEST = 100
_LONGEST_NAME = 200


class RenderedChat(msgspec.Struct, frozen=True):
    """A text rendered from messages."""

    text: str
    # characters of each message, part and document, in order; characters in no turn are the template's own
    turns: tuple[SpanRange, ...]
    # characters within the template's `generation` blocks; None if it has none
    generated: tuple[tuple[int, int], ...] | None
    template: str  # name of the template, and the file that has it
    roles: tuple[str, ...]
    warnings: tuple[str, ...]


class Chat(msgspec.Struct, frozen=True):
    """Messages and the other inputs of a chat template; see `apply_chat_template` of transformers."""

    messages: list[dict[str, Any]]
    documents: list[dict[str, Any]] | None = None
    # tools that the model may call, as JSON schemas; None for none
    tools: list[dict[str, Any]] | None = None
    # name of one of the checkpoint's templates, or a template; None for its default
    chat_template: str | None = None
    # end with the header of the assistant's next message; None: only if the last message is not the assistant's
    add_generation_prompt: bool | None = None
    # end within the last message, which the model then continues
    continue_final_message: bool = False
    chat_template_kwargs: dict[str, Any] = {}

    @property
    def roles(self) -> list[str]:
        """The role of each message."""
        return [message["role"] for message in self.messages]

    @property
    def pictures(self) -> list[str | None]:
        """The file of every part that is a picture; None for one that an option gives."""
        parts = [
            part
            for message in self.messages
            if isinstance(content := message.get("content"), list)
            for part in content
        ]
        return [part["image"] for part in parts if part.get("type") == "image"]

    @property
    def prompts(self) -> bool:
        """Whether the text ends with the header of the assistant's next message."""
        if self.add_generation_prompt is not None:
            return self.add_generation_prompt
        return not self.continue_final_message and self.roles[-1] != "assistant"


def chat_of(value: Any, where: str = arg("chat")) -> Chat:
    """Return a Chat from JSON or Python values; refuse messages without a role or with content that is no text.

    Args:
        value: A list of messages, or an object with `messages` and the other fields of a Chat.
    """
    plain = _plain(value, where)
    members = plain if isinstance(plain, dict) else {"messages": plain}
    for key in members:
        if key not in CHAT_KEYS:
            raise UsageError(
                f"has the unknown key '{key}'", where=where, hint=f"known: {', '.join(CHAT_KEYS)}"
            )
    messages = members.get("messages")
    if not isinstance(messages, list) or not messages:
        if messages in ([], None):
            problem = "has no messages"
        else:
            problem = f"messages is {_kind(messages)}, not a list"
        raise UsageError(problem, where=where, hint=_HINT)
    if len(messages) > _MOST_MESSAGES:
        raise UsageError(
            f"has {len(messages):,} messages", where=where, hint=f"pass at most {_MOST_MESSAGES:,}"
        )
    members["messages"] = [
        _message(message, f"{where}: message {n}") for n, message in enumerate(messages)
    ]
    documents = members.get("documents")
    if isinstance(documents, list):
        members["documents"] = [
            {"text": document} if isinstance(document, str) else document for document in documents
        ]
    try:
        chat = msgspec.convert(members, Chat)
    except msgspec.ValidationError as e:
        raise UsageError(str(e).replace("`", "'"), where=where, hint=_HINT) from e
    if chat.continue_final_message and chat.add_generation_prompt:
        problem = "continue_final_message and add_generation_prompt cannot be used together"
        raise UsageError(problem, where=where, hint="remove one of them")
    return chat


def _message(message: Any, where: str) -> dict[str, Any]:
    """Check a message, drop keys without a value, and rename its reasoning as templates expect."""
    if not isinstance(message, dict):
        raise UsageError(f"is {_kind(message)}, not an object", where=where, hint=_HINT)
    values = {key: value for key, value in message.items() if value is not None}
    role = values.get("role")
    content = values.get("content")
    if not isinstance(role, str) or not role.strip():
        hint = "name who says it, such as user or assistant"
        raise UsageError(
            "has no role" if role is None else "its role is not a name", where=where, hint=hint
        )
    if isinstance(content, list):
        values["content"] = [_part(part, f"{where}, part {n}") for n, part in enumerate(content)]
    elif content is not None and not isinstance(content, str):
        raise UsageError(
            f"its content is {_kind(content)}",
            where=where,
            hint="expected a text, or a list of parts",
        )
    reasoning = next((values[key] for key in REASONING if key in values), None)
    if reasoning is None:
        return values
    return {"thinking": reasoning, **values, "reasoning_content": reasoning}


def _part(part: Any, where: str) -> dict[str, Any]:
    """Return a part of a message's content with its text and, if it has one, its name; or a picture with its file."""
    values: dict[str, Any]
    if isinstance(part, str):
        values = {"text": part}
    elif isinstance(part, dict):
        values = part
    else:
        values = {}
    if values.get("type") == "image":
        return {"type": "image", "image": _picture_file(values, where)}
    if not isinstance(values.get("text"), str):
        part_type = values.get("type")
        message = "has no text"
        if isinstance(part_type, str) and part_type != "text":
            message = f"is of type '{part_type}'"
        hint = 'expected {"type": "text", "text": …}, whose "name" names its span, or {"type": "image", "image": …}'
        if part_type == "video":
            hint = 'give its frames as parts {"type": "image", "image": …}'
        raise UsageError(message, where=where, hint=hint)
    for key in ("name", "title"):
        name = values.get(key, "unnamed")
        if (
            not isinstance(name, str)
            or not name.strip()
            or name in RESERVED
            or len(name) > _LONGEST_NAME
        ):
            raise UsageError(
                f"its {key} is {format_value(name)}", where=where, hint="expected a short name"
            )
    return values


def _picture_file(part: Mapping[str, Any], where: str) -> str | None:
    """Return the file of a part of type `image`; None if it names none, and an option gives it."""
    file = next((part[key] for key in ("image", "path", "url") if part.get(key) is not None), None)
    if file is not None and (not isinstance(file, str) or "://" in file):
        hint = 'expected {"type": "image", "image": "cat.png"}, a file on this machine'
        raise UsageError(f"its picture is {format_value(file)}", where=where, hint=hint)
    return file


def _kind(value: Any) -> str:
    names = {
        dict: "an object",
        list: "a list",
        str: "a text",
        bool: "true or false",
        type(None): "null",
    }
    return names.get(
        type(value), "a number" if isinstance(value, int | float) else f"a {type(value).__name__}"
    )


def _plain(value: Any, where: str, depth: int = 0) -> Any:
    """Return a value as plain JSON, so that templates get no object with methods; refuse anything else."""
    if depth > _DEEPEST:
        raise UsageError(f"is nested more than {_DEEPEST} deep", where=where, hint=_HINT)
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, str):
        try:
            value.encode()
        except UnicodeEncodeError as e:
            raise UsageError("holds text that is not UTF-8", where=where) from e
        return str.__str__(value)
    if isinstance(value, int | float):
        return value
    if isinstance(value, Mapping):
        return {str(key): _plain(inner, where, depth + 1) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(inner, where, depth + 1) for inner in value]
    if callable(dump := getattr(value, "model_dump", None)):
        # OpenAI's library has messages with this method.
        return _plain(dump(), where, depth + 1)
    raise UsageError(f"holds a {type(value).__name__}", where=where, hint=_HINT)
