"""Draw chats at random, with what templates stumble over."""

import random
from typing import Any

_WORDS = (
    "river", "Ufer", "河岸", "naïve", "12.5", "{{ 7 * 7 }}", "{% raw %}", "<|im_end|>", "[INST]", "user", "assistant",
    "</think>", "'quoted'", '"twice"', "\\n", "🙂", "<b>", "&amp;", "a\u0301", "system", "end.",
)  # fmt: skip
_BLANKS = ("", "", "", " ", "\n", "  \n", "\t")


def _text(rng: random.Random, longest: int = 12) -> str:
    words = rng.choices(_WORDS, k=rng.randint(0 if rng.random() < 0.1 else 1, longest))
    return rng.choice(_BLANKS) + " ".join(words) + rng.choice(_BLANKS)


def draw_chat(rng: random.Random, template: str) -> dict[str, Any]:
    """Return a chat, as `chat_of` takes it: with documents, tools, parts and reasoning where a template reads these."""
    messages: list[dict[str, Any]] = []
    if rng.random() < 0.4:
        messages.append({"role": "system", "content": _text(rng)})
    for _ in range(rng.randint(1, 4)):
        messages.append({"role": "user", "content": _content(rng, template)})
        if rng.random() < 0.7:
            messages.append(_answer(rng, template))
            if "tool_calls" in messages[-1]:
                messages.append(
                    {"role": "tool", "content": _text(rng), "tool_call_id": "c1", "name": "look"}
                )
    if rng.random() < 0.05:
        rng.shuffle(messages)
    chat: dict[str, Any] = {"messages": messages, "add_generation_prompt": rng.random() < 0.6}
    if "documents" in template and rng.random() < 0.7:
        chat["documents"] = [
            {"title": _text(rng, 2), "text": _text(rng)} for _ in range(rng.randint(1, 4))
        ]
    if "tools" in template and rng.random() < 0.3:
        schema = {
            "type": "object",
            "properties": {"place": {"type": "string", "description": _text(rng)}},
        }
        chat["tools"] = [{"type": "function", "function": {"name": "look", "parameters": schema}}]
    if "enable_thinking" in template and rng.random() < 0.5:
        chat["chat_template_kwargs"] = {"enable_thinking": rng.random() < 0.5}
    last = messages[-1].get("content")
    if (
        not chat["add_generation_prompt"]
        and isinstance(last, str)
        and last.strip()
        and rng.random() < 0.3
    ):
        chat["continue_final_message"] = True
    return chat


def _content(rng: random.Random, template: str) -> Any:
    if "part.text" not in template or rng.random() < 0.6:
        return _text(rng)
    return [{"type": "text", "text": _text(rng)} for _ in range(rng.randint(1, 3))]


def _answer(rng: random.Random, template: str) -> dict[str, Any]:
    if "tool_call" in template and rng.random() < 0.2:
        call = {"name": "look", "arguments": {"place": _text(rng), "times": rng.randint(0, 9)}}
        return {
            "role": "assistant",
            "content": None if rng.random() < 0.5 else _text(rng),
            "tool_calls": [{"id": "c1", "type": "function", "function": call}],
        }
    answer = {"role": "assistant", "content": _text(rng)}
    if "reasoning_content" in template and rng.random() < 0.4:
        answer["reasoning_content"] = _text(rng)
    return answer
