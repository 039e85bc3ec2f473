"""A real model: all 72 heads of MiniLM equal eager transformers, and one head finds the river's bank."""

from pathlib import Path

import pytest
import torch
import transformers as hf
from tokenizers import Tokenizer

from attnscope.model.stack import Stack
from tests.conftest import SENTENCE
from tests.helpers import native_stages, reference_stages
from tests.helpers.stage_differences import TOLERANCE, differences
from tests.helpers.token_batches import Batch

INPUTS = {
    "a sentence": [SENTENCE],
    "a pair": [("Who eroded the bank?", "The river did, slowly, over years.")],
    "a padded batch": [
        SENTENCE,
        "No.",
        "She deposited her salary at the bank before it closed on Friday afternoon.",
    ],
}


@pytest.fixture(scope="module")
def theirs(minilm: Path) -> hf.PreTrainedModel:
    return hf.BertModel.from_pretrained(minilm, attn_implementation="eager").eval()


@pytest.fixture(scope="module")
def stack(minilm: Path) -> Stack:
    return native_stages.open_stack(minilm)


def _encoded(minilm: Path, texts: list[str | tuple[str, str]]) -> tuple[Batch, list[list[str]]]:
    tokenizer = Tokenizer.from_file(str(minilm / "tokenizer.json"))
    tokenizer.no_truncation()
    tokenizer.no_padding()
    encodings = tokenizer.encode_batch(texts)
    lengths = [len(e.ids) for e in encodings]
    ids, segments = (
        torch.tensor([row + [0] * (max(lengths) - len(row)) for row in rows])
        for rows in ([e.ids for e in encodings], [e.type_ids for e in encodings])
    )
    return Batch(ids, lengths, segments), [e.tokens for e in encodings]


@pytest.mark.parametrize("texts", INPUTS.values(), ids=INPUTS)
def test_all_72_heads_equal_eager_transformers(
    minilm: Path, stack: Stack, theirs: hf.PreTrainedModel, texts: list[str | tuple[str, str]]
) -> None:
    b, _ = _encoded(minilm, texts)
    mine = native_stages.run(stack, b.ids, b.lengths, b.segments)
    found = differences(mine, reference_stages.run(theirs, b.ids, b.lengths, b.segments), b.lengths)
    assert len(mine) * mine[0].weights.shape[1] == 72
    assert max(found.values()) < TOLERANCE, found


def test_a_pair_differs_from_one_text(minilm: Path, stack: Stack) -> None:
    b, _ = _encoded(minilm, INPUTS["a pair"])
    assert b.segments is not None
    assert b.segments.any()
    together = native_stages.run(stack, b.ids, b.lengths, torch.zeros_like(b.segments))
    apart = native_stages.run(stack, b.ids, b.lengths, b.segments)
    assert (together[0].weights - apart[0].weights).abs().max() > 0.01


def test_the_bank_looks_at_the_river(minilm: Path, stack: Stack) -> None:
    b, tokens = _encoded(minilm, [SENTENCE])
    weights = native_stages.run(stack, b.ids, b.lengths, b.segments)[0].weights[0, 4]
    assert float(weights[tokens[0].index("bank"), tokens[0].index("river")]) == pytest.approx(
        0.70, abs=0.01
    )
