"""Tokenizers built from older files give the ids that the fast tokenizers of transformers give."""

import io
import json
import random
import re
from contextlib import suppress
from pathlib import Path

import pytest
import sentencepiece
import transformers
from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, trainers

from attnscope.base.errors import AttnscopeError
from attnscope.checkpoints.tokenizers import open_tokenizer

COUNT = 2000
SENTENCES = [
    "The bank by the river was eroded.", "Der Fluß überquert die Brücke, naïve façade!", "河边的银行被侵蚀了。",
    "It's 3.14159 or 2,718 — isn't it?", "e-mail: someone@example.org / https://x.y/z?q=1&r=2", "Ελληνικά и русский",
    "🙂 emoji 👩‍👩‍👧 mix", "don't can't WE'LL they'Re", 'if (x<=3) { return "y"; }', "tabs\tand\nlines  and   runs",
    "THE RIVER BANK the river bank",
]  # fmt: skip
ODD = [
    "\u0301", "e\u0301", "İ", "ǅ", "ﬁ", "\u00a0", "\u3000", "\u200b", "\u200d", "\ufeff", "\ufffd", "\0", "\7",
    "\u2028", "\x85", "𝔘", "नमस्ते", "ไทย", "한국어", "ｆｕｌｌ", "Å", "ß", "ẞ", "\u202e", "¡", "½", "①", "▁", "##", "Ġ",
    "<0x41>", "`",
]  # fmt: skip
BERT = ["[CLS]", "[SEP]", "[MASK]", "[UNK]", "[mask]"]
NAMED = [*BERT, "<s>", "</s>", "<mask>", "<unk>", "<bos>", "<|endoftext|>", "<|im_start|>", "<user>"]


def texts(seed: int, known: list[str] = NAMED) -> list[str]:
    """Texts that are hard on a tokenizer: any script, white space, controls, and the spelling of special tokens."""
    rng = random.Random(seed)

    def part() -> str:
        kind = rng.randrange(8)
        if kind < 3:
            words = rng.choice(SENTENCES).split(" ")
            return " ".join(rng.sample(words, rng.randint(1, len(words))))
        if kind == 3:
            return rng.choice(ODD)
        if kind == 4:
            return rng.choice(known)
        if kind == 5:
            return rng.choice(" \n\t\r") * rng.randint(1, 4)
        if kind == 6:
            return "".join(
                chr(rng.choice((rng.randrange(32, 127), rng.randrange(160, 0x2FFF), rng.randrange(0x1F300, 0x1FAFF))))
                for _ in range(rng.randint(1, 6))
            )
        return rng.choice(("a", "River", "x" * 120, "1234567", "ÀÉÎ", "-", "...", "‘’“”"))

    found = []
    while len(found) < COUNT:
        text = rng.choice(("", " ")).join(part() for _ in range(rng.randint(1, 8)))
        if text.strip():
            found.append(text)
    return found


def ids(tokenizer, text, pair=None):
    try:
        return [token.id for token in tokenizer.encode(text, pair)]
    except AttnscopeError as e:
        return [] if e.found == "the text has no tokens" else [str(e)]


def equal(folder: Path, reference, config: dict, seed: int, count: int = COUNT):
    """Ours and the reference on every text, alone and as a pair."""
    ours = open_tokenizer(str(folder), config).tokenizer
    drawn = texts(seed)[:count]
    expected = reference(drawn)["input_ids"]
    for text, wanted in zip(drawn, expected, strict=True):
        assert ids(ours, text) == wanted, text
    pairs = reference(drawn[:100], drawn[100:200])["input_ids"]
    for text, pair, wanted in zip(drawn[:100], drawn[100:200], pairs, strict=True):
        assert ids(ours, text, pair) == wanted, (text, pair)
    return ours


def said_with_count(*options: dict):
    """Parametrise with options of one class: all texts for the first of them, fewer for what the others change."""
    cases = [(said, COUNT // 4 if number else COUNT) for number, said in enumerate(options)]
    return pytest.mark.parametrize(("said", "count"), cases)


def wordpiece(folder: Path, *, lower: bool) -> None:
    t = Tokenizer(models.WordPiece(unk_token="[UNK]"))
    t.normalizer = normalizers.BertNormalizer(lowercase=lower)
    t.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    special = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
    t.train_from_iterator(
        SENTENCES * 3, trainers.WordPieceTrainer(vocab_size=400, special_tokens=special, show_progress=False)
    )
    words = sorted(t.get_vocab().items(), key=lambda item: item[1])
    (folder / "vocab.txt").write_text("".join(f"{word}\n" for word, _ in words), newline="\n")


def byte_bpe(folder: Path, special: list[str]) -> None:
    t = Tokenizer(models.BPE())
    t.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    t.train_from_iterator(
        SENTENCES * 3,
        trainers.BpeTrainer(vocab_size=500, initial_alphabet=alphabet, special_tokens=special, show_progress=False),
    )
    value = json.loads(t.to_str())["model"]
    (folder / "vocab.json").write_text(json.dumps(value["vocab"]))
    merges = [merge if isinstance(merge, str) else " ".join(merge) for merge in value["merges"]]
    (folder / "merges.txt").write_text("#version: 0.2\n" + "".join(f"{merge}\n" for merge in merges))


def options(folder: Path, **values) -> None:
    (folder / "tokenizer_config.json").write_text(json.dumps(values))


@said_with_count(
    {"do_lower_case": True},
    {"do_lower_case": False},
    {"do_lower_case": False, "strip_accents": True, "tokenize_chinese_chars": False},
    {
        "do_lower_case": True,
        "strip_accents": False,
        "mask_token": {"__type": "AddedToken", "content": "[MASK]", "lstrip": True},
    },
    {"do_lower_case": True, "additional_special_tokens": ["<user>"], "tokenizer_class": "BertTokenizer"},
)
def test_vocab_txt_is_bert_tokenizer(tmp_path, said, count):
    wordpiece(tmp_path, lower=said["do_lower_case"])
    options(tmp_path, **said)
    reference = transformers.BertTokenizer.from_pretrained(tmp_path)
    ours = equal(tmp_path, reference, {"model_type": "bert"}, 1, count)
    assert ours.notes == ["tokenizer built from vocab.txt, as BertTokenizer of transformers does"]


@said_with_count({}, {"add_prefix_space": True}, {"add_bos_token": True})
def test_vocab_json_and_merges_are_gpt2_tokenizer(tmp_path, said, count):
    byte_bpe(tmp_path, ["<|endoftext|>"])
    options(tmp_path, **said)
    equal(tmp_path, transformers.GPT2Tokenizer.from_pretrained(tmp_path), {"model_type": "gpt2"}, 2, count)


@said_with_count(
    {},
    {
        "add_prefix_space": True,
        "mask_token": {
            "content": "<mask>",
            "lstrip": True,
            "rstrip": False,
            "normalized": False,
            "single_word": False,
            "__type": "AddedToken",
        },
    },
)
def test_vocab_json_and_merges_are_roberta_tokenizer(tmp_path, said, count):
    byte_bpe(tmp_path, ["<s>", "<pad>", "</s>", "<unk>", "<mask>"])
    options(tmp_path, **said)
    equal(tmp_path, transformers.RobertaTokenizer.from_pretrained(tmp_path), {"model_type": "roberta"}, 3, count)


def test_vocab_json_and_merges_are_qwen2_tokenizer(tmp_path):
    byte_bpe(tmp_path, [])
    first = len(json.loads((tmp_path / "vocab.json").read_text()))
    plain = {"lstrip": False, "rstrip": False, "single_word": False}
    added = [
        {"content": "<|endoftext|>", "special": True, "normalized": False, **plain},
        {"content": "<|im_start|>", "special": True, "normalized": False, **plain},
        {"content": "<user>", "special": False, "normalized": True, **plain, "rstrip": True, "single_word": True},
    ]
    options(
        tmp_path,
        tokenizer_class="Qwen2Tokenizer",
        added_tokens_decoder={str(first + n): token for n, token in enumerate(added)},
        additional_special_tokens=["<|im_start|>"],
        add_prefix_space=False,
        eos_token="<|endoftext|>",
    )
    equal(tmp_path, transformers.Qwen2Tokenizer.from_pretrained(tmp_path), {"model_type": "qwen2"}, 4)


GEMMA = {
    "add_dummy_prefix": False, "pad_id": 0, "eos_id": 1, "bos_id": 2, "unk_id": 3, "bos_piece": "<bos>",
    "eos_piece": "<eos>", "user_defined_symbols": ["<user>", "<mask>", "\t"],
}  # fmt: skip


def train_sentencepiece(folder: Path, **changes) -> sentencepiece.SentencePieceProcessor:
    model = io.BytesIO()
    given = {
        "model_type": "bpe", "vocab_size": 480, "byte_fallback": True, "normalization_rule_name": "identity",
        "remove_extra_whitespaces": False, "character_coverage": 0.98, "user_defined_symbols": ["<user>"],
        "num_threads": 1, "split_digits": True, "allow_whitespace_only_pieces": True, "minloglevel": 3,
    }  # fmt: skip
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(SENTENCES * 3), model_writer=model, **{**given, **changes}
    )
    (folder / "tokenizer.model").write_bytes(model.getvalue())
    return sentencepiece.SentencePieceProcessor(model_proto=model.getvalue())


@said_with_count(
    {"add_bos_token": True, "legacy": False},
    {"add_bos_token": True, "add_eos_token": True, "legacy": False},
    {"add_bos_token": False, "add_prefix_space": False},
)
def test_tokenizer_model_is_llama_tokenizer(tmp_path, said, count):
    train_sentencepiece(tmp_path)
    options(tmp_path, **said)
    equal(tmp_path, transformers.LlamaTokenizer.from_pretrained(tmp_path), {"model_type": "llama"}, 5, count)


def test_legacy_is_llama_tokenizer_but_for_spaces_at_the_start_which_sentencepiece_keeps(tmp_path):
    train_sentencepiece(tmp_path)
    options(tmp_path, add_bos_token=True, legacy=True)
    reference = transformers.LlamaTokenizer.from_pretrained(tmp_path)
    ours = open_tokenizer(str(tmp_path), {"model_type": "llama"}).tokenizer
    spaced = re.compile(r"(^|</?s>|<unk>|<user>)[ ▁]")
    drawn = [text for text in texts(5) if not spaced.search(text)]
    assert len(drawn) > COUNT / 2
    for text in drawn:
        assert ids(ours, text) == reference(text)["input_ids"], text


def test_tokenizer_model_is_gemma_tokenizer(tmp_path):
    train_sentencepiece(tmp_path, **GEMMA)
    options(tmp_path, add_bos_token=True)
    equal(tmp_path, transformers.GemmaTokenizer.from_pretrained(tmp_path), {"model_type": "gemma2"}, 6)


@pytest.mark.parametrize(
    ("family", "changes"),
    [("mistral", {}), ("mistral", {"byte_fallback": False}), ("gemma2", GEMMA)],
    ids=["mistral", "no bytes", "gemma2"],
)
def test_tokenizer_model_gives_the_pieces_of_sentencepiece_itself(tmp_path, family, changes):
    processor = train_sentencepiece(tmp_path, **{**changes, "user_defined_symbols": [], "vocab_size": 420})
    options(tmp_path, add_bos_token=False)
    ours = open_tokenizer(str(tmp_path), {"model_type": family}).tokenizer
    for text in texts(7, ["<user>"]):
        if "\0" not in text:  # which sentencepiece takes for the end
            assert ids(ours, text) == processor.encode(text), text


def test_a_damaged_tokenizer_model_is_refused_or_read(tmp_path):
    train_sentencepiece(tmp_path)
    file = tmp_path / "tokenizer.model"
    data, rng = file.read_bytes(), random.Random(8)
    for _ in range(60):
        at = rng.randrange(len(data))
        file.write_bytes(rng.choice((data[:at], data[:at] + bytes([rng.randrange(256)]) + data[at + 1 :], data[at:])))
        with suppress(AttnscopeError):
            open_tokenizer(str(tmp_path), {"model_type": "llama"})


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"model_type": "unigram"}, "is not a BPE model, as this kind of tokenizer needs"),
        ({"normalization_rule_name": "nmt_nfkc"}, "changes texts before it splits them (rules 'nmt_nfkc')"),
        ({"remove_extra_whitespaces": True}, "changes texts before it splits them (rules 'identity')"),
    ],
)
def test_a_tokenizer_model_that_does_more_than_its_fast_tokenizer_is_refused(tmp_path, changes, said):
    train_sentencepiece(tmp_path, **{"vocab_size": 360, **changes})
    with pytest.raises(AttnscopeError) as caught:
        open_tokenizer(str(tmp_path), {"model_type": "llama"})
    assert said in str(caught.value)
