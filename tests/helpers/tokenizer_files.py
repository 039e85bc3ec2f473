"""Tiny real tokenizers, trained here, as the content of a tokenizer.json."""

import json
from functools import cache
from pathlib import Path
from typing import Any

from tokenizers import (
    Tokenizer,
    decoders,
    models,
    normalizers,
    pre_tokenizers,
    processors,
    trainers,
)

CORPUS = ["The bank by the river was eroded. The river bank, the bank of the river."] * 4
_BYTES = [f"<0x{i:02X}>" for i in range(256)]


def content(kind: str) -> dict[str, Any]:
    """The tokenizer.json of one kind, free to be changed."""
    return json.loads(_trained(kind))


def write(path: Path, value: dict[str, Any]) -> Path:
    file = path / "tokenizer.json"
    file.write_text(json.dumps(value))
    return file


@cache
def _trained(kind: str) -> str:
    base, _, more = kind.partition(" with ")
    text = {"byte-level": _byte_level, "roberta": _roberta, "wordpiece": _wordpiece, "unigram": _unigram,
            "byte-fallback": _byte_fallback, "words": _words, "suffixes": _suffixes}[base]()  # fmt: skip
    value = json.loads(text)
    if more == "a prefix":
        value["pre_tokenizer"]["add_prefix_space"] = True
    elif more == "NFKC":
        value["normalizer"] = {"type": "NFKC"}
        if base == "wordpiece":
            used = value["model"]["vocab"]
            parts = [f"{mark}{letter}" for letter in "abfiknxBXI" for mark in ("", "##")]
            used |= {
                part: max(used.values()) + 1 + i
                for i, part in enumerate(p for p in parts if p not in used)
            }
    return json.dumps(value)


def _byte_level() -> str:
    t = Tokenizer(models.BPE())
    t.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    t.decoder = decoders.ByteLevel()
    t.post_processor = processors.ByteLevel(trim_offsets=True)
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    t.train_from_iterator(
        CORPUS, trainers.BpeTrainer(vocab_size=300, initial_alphabet=alphabet, show_progress=False)
    )
    return t.to_str()


def _roberta() -> str:
    t = Tokenizer.from_str(_byte_level())
    t.add_special_tokens(["<s>", "</s>"])
    cls, sep = t.token_to_id("<s>"), t.token_to_id("</s>")
    t.post_processor = processors.RobertaProcessing(("</s>", sep), ("<s>", cls))
    return t.to_str()


def _wordpiece() -> str:
    t = Tokenizer(models.WordPiece(unk_token="[UNK]"))
    t.normalizer = normalizers.BertNormalizer()
    t.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    special = ["[UNK]", "[CLS]", "[SEP]", "[MASK]"]
    t.train_from_iterator(
        CORPUS,
        trainers.WordPieceTrainer(vocab_size=40, special_tokens=special, show_progress=False),
    )
    t.post_processor = processors.BertProcessing(("[SEP]", 2), ("[CLS]", 1))
    return t.to_str()


def _words() -> str:
    vocab = {w: i for i, w in enumerate(["<unk>", *"The bank by the river".split()])}
    t = Tokenizer(models.WordLevel(vocab, unk_token="<unk>"))
    t.pre_tokenizer = pre_tokenizers.Whitespace()
    return t.to_str()


def _suffixes() -> str:
    """As in OpenAI's first GPT: a piece that ends a word is marked."""
    t = Tokenizer(models.BPE(unk_token="<unk>", end_of_word_suffix="</w>"))
    t.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    trainer = trainers.BpeTrainer(
        vocab_size=60, special_tokens=["<unk>"], end_of_word_suffix="</w>", show_progress=False
    )
    t.train_from_iterator(CORPUS, trainer)
    return t.to_str()


def _unigram() -> str:
    pieces = [
        ("<unk>", 0.0),
        ("▁The", -1.0),
        ("▁bank", -2.0),
        ("▁", -3.0),
        ("s", -4.0),
        ("x", -4.0),
    ]
    t = Tokenizer(models.Unigram(pieces, 0))
    t.pre_tokenizer = pre_tokenizers.Metaspace()
    return t.to_str()


def _byte_fallback() -> str:
    """As in Llama 2: spaces become ▁, and what the vocabulary lacks becomes bytes."""
    t = Tokenizer(models.BPE(unk_token="<unk>", byte_fallback=True))
    t.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    trainer = trainers.BpeTrainer(
        vocab_size=300, special_tokens=["<unk>", *_BYTES], show_progress=False
    )
    t.train_from_iterator(CORPUS, trainer)
    value = json.loads(t.to_str())
    value["added_tokens"] = value["added_tokens"][:1]
    value["model"]["byte_fallback"] = True
    return json.dumps(value)
