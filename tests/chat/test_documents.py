"""An answer of SmolLM2-135M-Instruct reads the document that holds it; `python -m tests.chat.documents` asks all 20."""

import attnscope
from tests.chat import documents


def test_cutting_names_the_document_that_holds_the_answer(smollm2):
    """One of the prompts, where the mean weight of all heads names another document."""
    prompt = documents.prompts()[4]
    found = attnscope.ablate(
        messages=prompt["messages"], model=smollm2, each="span", answer=prompt["answer"]
    )
    assert found.strongest(1)[0].span == prompt["document"]
    assert found.ranked_by == "loss"
    weights = {
        name: weight
        for name, weight in zip(found.spans, found.weights, strict=True)
        if name[:3] == "doc"
    }
    assert max(weights, key=weights.__getitem__) != prompt["document"]


def test_the_prompts_hold_each_answer_once():
    """In one of five documents, and nowhere else."""
    prompts = documents.prompts()
    assert len(prompts) == 20
    for prompt in prompts:
        (message,) = prompt["messages"]
        parts = {part.get("name"): part["text"] for part in message["content"]}
        assert list(parts) == [None, "doc 1", "doc 2", "doc 3", "doc 4", "doc 5", "question"]
        answer = prompt["answer"].casefold()
        assert [name for name, text in parts.items() if answer in text.casefold()] == [
            prompt["document"]
        ]
