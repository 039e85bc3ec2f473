"""Normalizers that make too much of a text are refused; those that only could are not."""

import json
from pathlib import Path

import pytest

from attnscope.base.errors import AttnscopeError
from attnscope.checkpoints.tokenization import growth
from attnscope.checkpoints.tokenization.hugging_face import load_tokenizer
from tests.helpers.tokenizer_files import content, write

TENFOLD = {"type": "Replace", "pattern": {"String": "a"}, "content": "a" * 10}
BYTES = {"type": "ByteLevel"}
ANY = {"type": "Replace", "pattern": {"Regex": "(?:)"}, "content": "xy"}
ROUND = [{"type": "Replace", "pattern": {"String": " "}, "content": "\ufdfa"}, {"type": "NFKD"}]


@pytest.mark.parametrize(
    "steps",
    [[TENFOLD] * 40, [BYTES] * 80, [ANY] * 40, ROUND * 40],
    ids=["text", "bytes", "places", "forms"],
)
def test_a_normalizer_that_would_fill_the_memory_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, steps: list[dict[str, object]]
) -> None:
    if steps[0] != TENFOLD:  # 64 Mi characters take seconds
        monkeypatch.setattr(growth, "_LARGEST", 1 << 20)
    value = content("wordpiece") | {
        "normalizer": {"type": "Sequence", "normalizers": [{"type": "NFC"}, *steps]}
    }
    assert len(json.dumps(value["normalizer"])) < 1 << 12
    value["added_tokens"] = []
    value["post_processor"] = None
    with pytest.raises(
        AttnscopeError, match=f"makes more than {growth._LARGEST:,} characters of the text"
    ):
        load_tokenizer(write(tmp_path, value)).encode("a ¶")


def test_an_added_token_is_normalized_before_any_text_is(tmp_path: Path) -> None:
    value = content("wordpiece") | {
        "normalizer": {"type": "Sequence", "normalizers": [TENFOLD] * 40}
    }
    value["added_tokens"][-1] |= {"content": "banana", "normalized": True}
    with pytest.raises(AttnscopeError, match="makes more than 67,108,864 characters of the text"):
        load_tokenizer(write(tmp_path, value))


def test_one_that_could_but_does_not_is_used(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(growth, "_LARGEST", 1000)
    steps = [
        {"type": "NFKD"},
        {"type": "Replace", "pattern": {"String": "q"}, "content": "k" * 50},
        {"type": "NFKC"},
    ]
    value = content("wordpiece") | {"normalizer": {"type": "Sequence", "normalizers": steps}}
    tokenizer = load_tokenizer(write(tmp_path, value))
    assert len(tokenizer.encode("the bank " * 50)) > 50
    with pytest.raises(AttnscopeError, match="makes more than 1,000 characters of the text"):
        tokenizer.encode("q" * 30)
