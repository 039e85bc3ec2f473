"""Which document does an answer read? `python -m tests.chat.documents [--limit N]` asks SmolLM2-135M-Instruct.

Each of the 20 chats of documents.jsonl has five documents and a question; `document` holds the `answer`. The document
is named by what the answer loses where it is cut off from it (`ablate --each span`), by KL, and by weights alone: the
mean of all heads, and of the ten heads with the largest role `retrieval`.
"""

import argparse
import json
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

import attnscope
from tests.chat.proof import model_path

PROMPTS = Path(__file__).parent / "documents.jsonl"
HEADS = 10


def prompts() -> list[dict[str, Any]]:
    """Return the chats, each with its answer and the document that holds it."""
    return [json.loads(line) for line in PROMPTS.read_text().splitlines()]


def retrieval_heads(model: attnscope.OpenModel) -> list[tuple[int, int]]:
    """Return layer and head of those that copy most from a needle."""
    found: Any = model.heads(role="retrieval")
    values = found.data.roles[0].values
    order = np.argsort(-values, axis=None, kind="stable")[:HEADS]
    return [divmod(int(n), values.shape[1]) for n in order]


def named(
    model: attnscope.OpenModel, prompt: dict[str, Any], heads: list[tuple[int, int]]
) -> dict[str, str]:
    """Return the document that each way of asking names."""
    found: Any = model.ablate(messages=prompt["messages"], each="span", answer=prompt["answer"])
    data = found.data
    documents = [n for n, name in enumerate(found.spans) if name.startswith("doc ")]

    def largest(values: Any) -> str:
        return str(found.spans[max(documents, key=lambda n: values[n])])

    ranges = [
        {"name": name, "start": places[0], "end": places[-1] + 1, "unit": "tokens"}
        for name, places in (
            (found.spans[n], data.spans.tokens(data.span_numbers[n])) for n in documents
        )
    ]
    reading = {"name": "reading", "start": data.rows[0], "end": data.rows[-1] + 1, "unit": "tokens"}
    report: Any = model.inspect(data.text, spans=[*ranges, reading], stages=())
    assert [token.id for token in report.data.texts[0].tokens] == [
        token.id for token in data.tokens
    ]
    row = report.spans.index("reading")
    by_name = {
        found.spans[n]: report.span_weights[:, :, row, report.spans.index(found.spans[n])]
        for n in documents
    }
    return {
        "effect (bits lost)": largest(data.effects[0].loss),
        "effect (KL)": largest(data.effects[0].kl),
        "weight, all heads": max(by_name, key=lambda name: by_name[name].mean()),
        f"weight, {HEADS} retrieval heads": max(
            by_name, key=lambda name: np.mean([by_name[name][at] for at in heads])
        ),
    }


def results(limit: int) -> Iterator[tuple[dict[str, Any], dict[str, str]]]:
    """Yield each prompt, and what is named."""
    with attnscope.open_model(model_path()) as model:
        heads = retrieval_heads(model)
        for prompt in prompts()[:limit]:
            yield prompt, named(model, prompt, heads)


def main() -> None:
    """Print what each way of asking names, and how often that is right."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--limit", type=int, default=20)
    right, count = Counter[str](), 0
    for prompt, answers in results(parser.parse_args().limit):
        count += 1
        right.update(way for way, name in answers.items() if name == prompt["document"])
        said = "  ".join(
            f"{way}: {name}{'' if name == prompt['document'] else ' ✗'}"
            for way, name in answers.items()
        )
        print(f"{prompt['document']} ({prompt['answer']})  {said}", flush=True)
    for way, number in right.items():
        print(f"{way}: {number} of {count}")


if __name__ == "__main__":
    main()
