"""Find the chat templates of a checkpoint: in tokenizer_config.json, in files of their own, or in GGUF metadata."""

import os
from pathlib import Path

from attnscope.base.files.reading import as_object, decode_utf8, read_file, read_json
from attnscope.checkpoints.chat.templates import (
    DEFAULT,
    MAX_TEMPLATE,
    SPECIAL_TOKENS,
    TEMPLATE_FILE,
    TEMPLATE_FOLDER,
    ChatTemplates,
    listed_templates,
)
from attnscope.checkpoints.folder import MAX_CONFIG, Folder
from attnscope.checkpoints.tokenization.hugging_face import FileTokenizer
from attnscope.checkpoints.tokenizers import FoundTokenizer, read_options

_CONFIG = "tokenizer_config.json"
_OLD_FILE = "chat_template.json"
_JINJA = ".jinja"


def chat_templates(folder: Folder, tokenizer: FoundTokenizer) -> ChatTemplates:
    """Return the chat templates of a checkpoint; templates beside a tokenizer that the user named come first."""
    if tokenizer.name is not None and isinstance(tokenizer.tokenizer, FileTokenizer):
        path = tokenizer.tokenizer.path
        templates = read_templates(path if path.is_dir() else path.parent)
        if templates.templates:
            return templates
    if folder.chat is None:
        return read_templates(folder.path)
    return folder.chat


def read_templates(path: Path) -> ChatTemplates:
    """Read the chat templates of a folder; files of their own come before tokenizer_config.json, as in transformers."""
    present = set(os.listdir(path))
    options = read_options(path, present)
    templates = listed_templates(options.get("chat_template"), path / _CONFIG)
    where = path / _CONFIG
    if not templates and _OLD_FILE in present:
        where = path / _OLD_FILE
        content = as_object(read_json(where, cap=MAX_CONFIG), str(where))
        templates = listed_templates(content.get("chat_template"), where)
    files = {DEFAULT: path / TEMPLATE_FILE} if TEMPLATE_FILE in present else {}
    if TEMPLATE_FOLDER in present and (path / TEMPLATE_FOLDER).is_dir():
        inner = sorted(name for name in os.listdir(path / TEMPLATE_FOLDER) if name.endswith(_JINJA))
        files |= {name.removesuffix(_JINJA): path / TEMPLATE_FOLDER / name for name in inner}
    if files:
        where = files.get(DEFAULT, path / TEMPLATE_FOLDER)
        read = ((name, file, read_file(file, cap=MAX_TEMPLATE)) for name, file in files.items())
        templates = {
            name: decode_utf8(data, file, "download it again") for name, file, data in read
        }
    # texts, or objects with `content`
    values = {name: options.get(name) for name in SPECIAL_TOKENS}
    texts = {
        name: value.get("content") if isinstance(value, dict) else value
        for name, value in values.items()
    }
    special = {name: text for name, text in texts.items() if isinstance(text, str)}
    return ChatTemplates(templates, special, str(where))
