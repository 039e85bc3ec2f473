"""Texts that are encoded at once have the tokens that each has alone."""

from functools import partial
from pathlib import Path
from random import Random

import pytest
from tokenizers import Tokenizer
from tokenizers.decoders import ByteLevel as ByteLevelDecoder
from tokenizers.models import BPE
from tokenizers.pre_tokenizers import ByteLevel

from attnscope.base.errors import AttnscopeError
from attnscope.checkpoints.tokenization.hugging_face import FileTokenizer, load_tokenizer
from attnscope.checkpoints.tokenization.pieces import byte_alphabet

PIECES = [
    "the bank",
    " river",
    "ﬁne",
    "naïve",
    "東京",
    "🙂🙃",
    "\n\n",
    "  ",
    "\u200d",
    "[SEP]",
    "<unk>",
    "É",
    "…",
]


def outcome(tokenizer, text, pair):
    try:
        return tokenizer.encode(text, pair)
    except AttnscopeError as e:
        return str(e)


def byte_level() -> FileTokenizer:
    """Every byte is a token, so that several tokens share a character."""
    letters = {letter: number for number, letter in enumerate(sorted(byte_alphabet()))}
    model = BPE({**letters, "Ġr": 256, "Ġri": 257}, [("Ġ", "r"), ("Ġr", "i")])
    made = Tokenizer(model)
    made.pre_tokenizer = ByteLevel(add_prefix_space=True)
    made.decoder = ByteLevelDecoder()
    return FileTokenizer(Path("made"), made.to_str().encode())


def test_tokens_are_those_of_each_text_alone(minilm):
    random = Random(1)
    draws = [
        (
            "".join(random.choices(PIECES, k=random.randint(0, 8))),
            random.choice((None, "".join(random.choices(PIECES, k=3)))),
        )
        for _ in range(300)
    ]
    makers = (partial(load_tokenizer, minilm / "tokenizer.json"), byte_level)
    for make in makers:
        alone, ahead = make(), make()
        for first in range(0, len(draws), 60):
            part = draws[first : first + 60]
            ahead.encode_ahead(part)
            calls = ahead._ahead.copy()
            assert len(calls) > 20, "most are encoded at once"
            for text, pair in part:
                assert outcome(ahead, text, pair) == outcome(alone, text, pair), (text, pair)


def test_a_text_that_fails_alone_does_not_fail_the_others(minilm):
    tokenizer = load_tokenizer(minilm / "tokenizer.json")
    tokenizer.encode_ahead([("the bank", None), ("", None), ("\udc80", None), ("river", None)])
    assert [token.text for token in tokenizer.encode("river")] == ["[CLS]", "river", "[SEP]"]
    with pytest.raises(AttnscopeError, match="surrogate"):
        tokenizer.encode("\udc80")
