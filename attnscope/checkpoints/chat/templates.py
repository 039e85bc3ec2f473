"""The chat templates of a checkpoint, as plain data."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from attnscope.base.errors import AttnscopeError, UsageError, arg, did_you_mean
from attnscope.base.files.reading import format_value

TEMPLATE_FILE = "chat_template.jinja"
TEMPLATE_FOLDER = "chat_templates"
DEFAULT = "default"
_WITH_TOOLS = "tool_use"
MAX_TEMPLATE = 1 << 20  # bytes
SPECIAL_TOKENS = (
    "bos_token",
    "eos_token",
    "unk_token",
    "sep_token",
    "pad_token",
    "cls_token",
    "mask_token",
)
# spelled so
_GGUF_IDS = {
    "unk_token": "unknown_token",
    "sep_token": "seperator_token",
    "pad_token": "padding_token",
}


@dataclass(frozen=True)
class ChatTemplates:
    """The chat templates of a checkpoint."""

    # texts by name; a single one is `default`
    templates: Mapping[str, str] = field(default_factory=dict)
    # those in templates, such as `bos_token`
    special_tokens: Mapping[str, str] = field(default_factory=dict)
    where: str = ""

    def choose(self, name: str | None, *, tools: bool) -> tuple[str, str]:
        """Return the name and text of a template: the default, a named one, or `name` as a template itself."""
        if name is not None and ("{{" in name or "{%" in name):
            return "the chat's own", name
        if not self.templates:
            message = (
                f"{self.where or 'the model'} has no chat template, so messages cannot be rendered"
            )
            hint = f"use a chat model, or pass the prompt as {arg('text')}"
            raise UsageError(message, where=arg("chat"), hint=hint)
        default = _WITH_TOOLS if tools and _WITH_TOOLS in self.templates else DEFAULT
        wanted = default if name is None else name
        if wanted not in self.templates:
            template_names = tuple(self.templates)
            message = f"{self.where} has no chat template '{wanted}'"
            if name:
                hint = did_you_mean(wanted, template_names)
            else:
                hint = f"name one in the chat as chat_template: {', '.join(template_names)}"
            raise UsageError(message, where=arg("chat"), hint=hint)
        return wanted, self.templates[wanted]


def gguf_templates(metadata: Mapping[str, Any], path: Path) -> ChatTemplates:
    """Return the chat templates in the metadata of a GGUF file."""
    default_key = "tokenizer.chat_template"
    templates = {DEFAULT: metadata[default_key]} if default_key in metadata else {}
    templates |= {
        key.removeprefix(f"{default_key}."): value
        for key, value in metadata.items()
        if key.startswith(f"{default_key}.")
    }
    tokens = metadata.get("tokenizer.ggml.tokens", [])
    ids = {
        name: metadata.get(f"tokenizer.ggml.{_GGUF_IDS.get(name, name)}_id")
        for name in SPECIAL_TOKENS
    }
    special = {
        name: tokens[n] for name, n in ids.items() if type(n) is int and 0 <= n < len(tokens)
    }
    listed = [{"name": name, "template": text} for name, text in templates.items()]
    return ChatTemplates(listed_templates(listed, path), special, str(path))


def templates_of(
    chat_template: object, special_tokens: Mapping[str, Any], where: str
) -> ChatTemplates:
    """Return the chat templates of a tokenizer in memory: its `chat_template` is a text, texts by name, or None."""
    listed = chat_template
    if isinstance(chat_template, Mapping):
        listed = [{"name": n, "template": t} for n, t in chat_template.items()]
    special = {
        name: str(special_tokens[name])
        for name in SPECIAL_TOKENS
        if special_tokens.get(name) is not None
    }
    return ChatTemplates(listed_templates(listed, where), special, where)


def listed_templates(named_templates: Any, where: Path | str) -> dict[str, str]:
    """Return templates by name: a text is the default; a list has an object with name and template for each."""
    if named_templates is None:
        return {}
    if isinstance(named_templates, str):
        return {DEFAULT: _checked(named_templates, where)}
    templates = {}
    for entry in named_templates if isinstance(named_templates, list) else [None]:
        if isinstance(entry, dict):
            pair = entry.get("name"), entry.get("template")
        else:
            pair = None, None
        if not isinstance(pair[0], str) or not isinstance(pair[1], str):
            hint = "expected a text, or a list of objects with name and template"
            raise AttnscopeError(
                f"is {format_value(named_templates)}", where=f"{where}: chat_template", hint=hint
            )
        templates[pair[0]] = _checked(pair[1], where)
    return templates


def _checked(template: str, where: Path | str) -> str:
    if len(template) > MAX_TEMPLATE:
        message = f"has {len(template):,} characters; at most {MAX_TEMPLATE:,} are read"
        raise AttnscopeError(message, where=f"{where}: chat_template")
    return template
