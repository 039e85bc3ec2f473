"""Tokenizers from a GGUF file's metadata: the tokens of transformers' conversion, or llama.cpp's where that differs."""

import json
import random
from pathlib import Path
from typing import Any

import pytest
from tokenizers import Tokenizer
from transformers.integrations.gguf import convert_gguf_tokenizer, get_gguf_tokenizer
from transformers.tokenization_utils_tokenizers import TokenizersBackend

from attnscope.base.errors import AttnscopeError
from attnscope.checkpoints.gguf_header import read_gguf_header
from attnscope.checkpoints.tokenization.gguf import tokenizer_json
from attnscope.checkpoints.tokenization.hugging_face import FileTokenizer
from tests.helpers import gguf_files, tokenizer_files

WORDS = "The river's BANK  \tdon't was-eroded… straße naïve e\u0301 東京 Привет 🙂🏽 \n\n <|im_start|> x=[y] ▁ I'll".split(
    " "
)


def texts(count: int) -> list[str]:
    draw = random.Random(0)
    return ["The " + " ".join(draw.choices(WORDS, k=draw.randint(1, 9))) for _ in range(count)]


def theirs(path: Path) -> TokenizersBackend:
    architecture, said, config = get_gguf_tokenizer(str(path))
    return TokenizersBackend(
        tokenizer_object=convert_gguf_tokenizer(architecture, said)[0], **config
    )


def ours(path: Path, architecture: str) -> FileTokenizer:
    data, _ = tokenizer_json(read_gguf_header(path).metadata, architecture, path)
    return FileTokenizer(path, data)


def check_equal(path: Path, architecture: str, count: int) -> None:
    mine, its = ours(path, architecture), theirs(path)
    assert its("The river") != its("river The")
    for text in texts(count):
        assert [token.id for token in mine.encode(text)] == its(text).input_ids, text


def test_a_real_model(smollm2: Path) -> None:
    check_equal(smollm2, "llama", 300)


def test_digits_are_cut_as_the_model_was_trained(smollm2: Path) -> None:
    """`smollm` splits every digit off (llama.cpp, and the tokenizer.json that the model was published with)."""
    assert [token.piece for token in ours(smollm2, "llama").encode("in  2024")] == [
        "in",
        "ĠĠ",
        "2",
        "0",
        "2",
        "4",
    ]
    assert theirs(smollm2).tokenize("in  2024") == ["in", "Ġ", "Ġ", "2", "0", "2", "4"]


def byte_level(path: Path, pre: str | None, **more: Any) -> Path:
    made = json.loads(tokenizer_files._trained("byte-level"))["model"]
    tokens = ["<|im_start|>", *made["vocab"]]
    merges = [" ".join(pair) for pair in made["merges"]]
    metadata = {"model": "gpt2", "pre": pre, "tokens": tokens, "token_type": [3] + [1] * len(made["vocab"]),
                "merges": merges, "bos_token_id": 0, "eos_token_id": 0, **more}  # fmt: skip
    gguf_files.write(
        path, "llama", "F16", {f"tokenizer.ggml.{key}": value for key, value in metadata.items()}
    )
    return path


@pytest.mark.parametrize("pre", ["gpt-2", "llama-bpe", "tekken", "gpt-4o", "deepseek-r1-qwen"])
@pytest.mark.parametrize("start", [True, False])
def test_byte_level_vocabularies(tmp_path: Path, pre: str, start: bool) -> None:
    check_equal(
        byte_level(tmp_path / "m.gguf", pre, add_bos_token=start, add_eos_token=start), "llama", 100
    )


def test_qwen2_composes_characters_first_as_its_own_tokenizer_does(tmp_path: Path) -> None:
    mine = ours(byte_level(tmp_path / "m.gguf", "qwen2"), "qwen2")
    assert (
        [t.id for t in mine.encode("e\u0301")]
        == [t.id for t in mine.encode("\xe9")]
        == theirs(tmp_path / "m.gguf")("\xe9").input_ids
    )


def sentencepiece(path: Path, architecture: str, **more: Any) -> Path:
    made = json.loads(tokenizer_files._trained("byte-fallback"))["model"]["vocab"]
    pieces = [
        piece
        for piece in sorted(made, key=made.__getitem__)
        if piece not in ("<unk>", "<s>", "</s>")
    ]
    pieces += ["  ", "   "] if architecture == "gemma2" else ["▁▁", "▁▁▁"]
    tokens = ["<unk>", "<s>", "</s>", "<|im_start|>", "x=", *pieces]
    types = [2, 3, 3, 3, 4] + [6 if piece.startswith("<0x") else 1 for piece in pieces]
    scores = [0.0] * 5 + [-float(n) for n in range(len(pieces))]
    metadata = {"model": "llama", "pre": None, "tokens": tokens, "scores": scores, "token_type": types, "merges": None,
                "bos_token_id": 1, "eos_token_id": 2, "unknown_token_id": 0, **more}  # fmt: skip
    gguf_files.write(
        path,
        architecture,
        "F16",
        {f"tokenizer.ggml.{key}": value for key, value in metadata.items()},
    )
    return path


@pytest.mark.parametrize("architecture", ["llama", "gemma2", "phi3"])
@pytest.mark.parametrize("start", [True, False])
def test_sentencepiece_vocabularies(tmp_path: Path, architecture: str, start: bool) -> None:
    check_equal(
        sentencepiece(tmp_path / "m.gguf", architecture, add_bos_token=start), architecture, 100
    )


def test_a_text_is_not_prefixed_with_a_space_where_the_file_says_so(tmp_path: Path) -> None:
    mine = ours(
        sentencepiece(tmp_path / "m.gguf", "llama", add_space_prefix=False, add_bos_token=False),
        "llama",
    )
    assert not mine.encode("river")[0].piece.startswith("▁")


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"pre": "bailingmoe"}, "tokenizer.ggml.pre: is 'bailingmoe'; known: gpt-2, smollm"),
        (
            {"model": "rwkv"},
            "tokenizer.ggml.model: is 'rwkv'; expected gpt2 (byte-level BPE) or llama (sentencepiece)",
        ),
        ({"tokens": None}, "tokenizer.ggml.tokens: is missing"),
        ({"merges": ["a b c"]}, "tokenizer.ggml.merges: has an entry that is not two pieces"),
        ({"bos_token_id": 10**6}, "tokenizer.ggml.bos_token_id: is 1000000; the vocabulary has"),
    ],
)
def test_what_cannot_be_built_is_refused(
    tmp_path: Path, changes: dict[str, Any], said: str
) -> None:
    with pytest.raises(AttnscopeError) as caught:
        ours(byte_level(tmp_path / "m.gguf", **({"pre": "gpt-2"} | changes)), "llama")
    assert said in str(caught.value)


def test_a_file_without_a_way_to_split_is_noted(tmp_path: Path) -> None:
    path = byte_level(tmp_path / "m.gguf", None)
    data, notes = tokenizer_json(read_gguf_header(path).metadata, "llama", path)
    assert notes == (
        "the GGUF file does not say how words are split (tokenizer.ggml.pre): split as GPT-2 does",
    )
    assert (
        Tokenizer.from_str(data.decode()).encode("the river").ids
        == theirs(path)("the river").input_ids
    )
