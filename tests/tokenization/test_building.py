"""Tokenizers built from older files give the ids that the fast tokenizers of transformers give."""

import io
import json
import random
import re
import sys
from contextlib import suppress
from pathlib import Path

import pytest
import sentencepiece
import transformers
from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, trainers

from attnscope.base.errors import AttnscopeError
from attnscope.checkpoints.tokenizers import open_tokenizer
from tests.helpers.draws import drawn

COUNT = drawn(1000)
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
NAMED = [
    *BERT,
    "<s>",
    "</s>",
    "<mask>",
    "<unk>",
    "<bos>",
    "<|endoftext|>",
    "<|im_start|>",
    "<|im_end|>",
    "<user>",
]


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
                chr(
                    rng.choice(
                        (
                            rng.randrange(32, 127),
                            rng.randrange(160, 0x2FFF),
                            rng.randrange(0x1F300, 0x1FAFF),
                        )
                    )
                )
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
        return [] if e.message == "the text has no tokens" else [str(e)]


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
        SENTENCES * 3,
        trainers.WordPieceTrainer(vocab_size=400, special_tokens=special, show_progress=False),
    )
    words = sorted(t.get_vocab().items(), key=lambda item: item[1])
    (folder / "vocab.txt").write_text("".join(f"{word}\n" for word, _ in words), newline="\n")


def byte_bpe(folder: Path, special: list[str]) -> None:
    t = Tokenizer(models.BPE())
    t.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    t.train_from_iterator(
        SENTENCES * 3,
        trainers.BpeTrainer(
            vocab_size=500, initial_alphabet=alphabet, special_tokens=special, show_progress=False
        ),
    )
    value = json.loads(t.to_str())["model"]
    (folder / "vocab.json").write_text(json.dumps(value["vocab"]))
    merges = [merge if isinstance(merge, str) else " ".join(merge) for merge in value["merges"]]
    (folder / "merges.txt").write_text(
        "#version: 0.2\n" + "".join(f"{merge}\n" for merge in merges)
    )


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
    {
        "do_lower_case": True,
        "additional_special_tokens": ["<user>"],
        "tokenizer_class": "BertTokenizer",
    },
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
    equal(
        tmp_path,
        transformers.GPT2Tokenizer.from_pretrained(tmp_path),
        {"model_type": "gpt2"},
        2,
        count,
    )


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
    equal(
        tmp_path,
        transformers.RobertaTokenizer.from_pretrained(tmp_path),
        {"model_type": "roberta"},
        3,
        count,
    )


def test_vocab_json_and_merges_are_qwen2_tokenizer(tmp_path):
    byte_bpe(tmp_path, [])
    first = len(json.loads((tmp_path / "vocab.json").read_text()))
    plain = {"lstrip": False, "rstrip": False, "single_word": False}
    added = [
        {"content": "<|endoftext|>", "special": True, "normalized": False, **plain},
        {"content": "<|im_start|>", "special": True, "normalized": False, **plain},
        {
            "content": "<user>",
            "special": False,
            "normalized": True,
            **plain,
            "rstrip": True,
            "single_word": True,
        },
    ]
    options(
        tmp_path,
        tokenizer_class="Qwen2Tokenizer",
        added_tokens_decoder={str(first + n): token for n, token in enumerate(added)},
        additional_special_tokens=["<|im_start|>"],
        add_prefix_space=False,
        eos_token="<|endoftext|>",
    )
    equal(
        tmp_path, transformers.Qwen2Tokenizer.from_pretrained(tmp_path), {"model_type": "qwen2"}, 4
    )


SMILES = "[PAD] [unused1] [UNK] [CLS] [SEP] [MASK] c C ( ) O 1 2 = N . n > >> Br Cl [C@H] [nH] [O-] %10 - + #".split()


def test_the_vocabulary_of_rxnmapper_is_split_as_smiles(tmp_path):
    (tmp_path / "vocab.txt").write_text("".join(f"{word}\n" for word in SMILES))
    ours = open_tokenizer(str(tmp_path), {"model_type": "albert"}).tokenizer
    rng = random.Random(10)
    for _ in range(200):
        words = rng.choices(SMILES[6:], k=rng.randint(1, 40))
        text = "".join(words).replace(">>>", ">>")
        expected = re.findall(r"\[[^\]]+]|Br?|Cl?|%[0-9]{2}|>>?|.", text)  # as rxnmapper does
        assert [token.piece for token in ours.encode(text)] == ["[CLS]", *expected, "[SEP]"], text
    assert [token.text for token in ours.encode("CC ol[Xe]") if token.unknown] == [
        "␣",
        "o",
        "l",
        "[Xe]",
    ]
    assert ours.warnings == [
        "texts are split as SMILES, as every word of vocab.txt is a token of SMILES"
    ]


def test_a_vocabulary_of_anything_else_is_not_split_as_smiles(tmp_path):
    (tmp_path / "vocab.txt").write_text("".join(f"{word}\n" for word in [*SMILES, "river"]))
    with pytest.raises(AttnscopeError, match="has the word 'river', which is no token of SMILES"):
        open_tokenizer(str(tmp_path), {"model_type": "albert"})


ESM = "<cls> <pad> <eos> <unk> L A G V S E R T I D P K Q N F Y M H W C X B U Z O . - <null_1> <mask>".split()


def test_esm_finds_amino_acids_wherever_they_stand(tmp_path):
    (tmp_path / "vocab.txt").write_text("\n".join(ESM))
    (tmp_path / "tokenizer_config.json").write_text('{"tokenizer_class": "EsmTokenizer"}')
    reference = transformers.EsmTokenizer.from_pretrained(tmp_path)
    ours, rng = open_tokenizer(str(tmp_path), {"model_type": "esm"}).tokenizer, random.Random(3)
    for _ in range(COUNT):
        parts = rng.choices(
            [*ESM[4:31], *ESM[4:24], "J", "j", "é", " ", "  ", "\n", "<mask>", "<", "12"],
            k=rng.randint(1, 40),
        )
        text = "".join(parts)
        if text.strip():
            assert ids(ours, text) == reference(text)["input_ids"], text
    assert [token.piece for token in ours.encode("MKT<mask>V")] == [
        "<cls>",
        "M",
        "K",
        "T",
        "<mask>",
        "V",
        "<eos>",
    ]


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


ADDED = ["<|im_start|>", "<|im_end|>"]  # of added_tokens.json
PLAIN = {"user_defined_symbols": []}
UNIGRAM = {
    "model_type": "unigram", "vocab_size": 300, "hard_vocab_limit": False, "byte_fallback": False, "pad_id": 0,
    "normalization_rule_name": "nmt_nfkc", "remove_extra_whitespaces": True, **PLAIN,
}  # fmt: skip


def write_added(folder: Path, processor: sentencepiece.SentencePieceProcessor) -> None:
    numbered = {token: processor.get_piece_size() + n for n, token in enumerate(ADDED)}
    (folder / "added_tokens.json").write_text(json.dumps(numbered))


@said_with_count(
    {"add_bos_token": True, "legacy": False},
    {"add_bos_token": True, "add_eos_token": True, "legacy": False},
    {"add_bos_token": False, "add_prefix_space": False},
)
def test_tokenizer_model_is_llama_tokenizer(tmp_path, said, count):
    write_added(tmp_path, train_sentencepiece(tmp_path, **PLAIN))
    options(tmp_path, additional_special_tokens=["<user>"], **said)
    equal(
        tmp_path,
        transformers.LlamaTokenizer.from_pretrained(tmp_path),
        {"model_type": "llama"},
        5,
        count,
    )


def test_legacy_is_llama_tokenizer_but_for_spaces_at_the_start_which_sentencepiece_keeps(tmp_path):
    write_added(tmp_path, train_sentencepiece(tmp_path, **PLAIN))
    options(tmp_path, add_bos_token=True, legacy=True, additional_special_tokens=["<user>"])
    reference = transformers.LlamaTokenizer.from_pretrained(tmp_path)
    ours = open_tokenizer(str(tmp_path), {"model_type": "llama"}).tokenizer
    spaced = re.compile(r"(^|</?s>|<unk>|<user>|<[|]im_(start|end)[|]>)[ ▁]")
    drawn = [text for text in texts(5) if not spaced.search(text)]
    assert len(drawn) > COUNT / 2
    for text in drawn:
        assert ids(ours, text) == reference(text)["input_ids"], text


def test_tokenizer_model_is_gemma_tokenizer(tmp_path):
    train_sentencepiece(tmp_path, **GEMMA)
    options(tmp_path, add_bos_token=True)
    equal(
        tmp_path, transformers.GemmaTokenizer.from_pretrained(tmp_path), {"model_type": "gemma2"}, 6
    )


@pytest.mark.parametrize(
    ("family", "changes"),
    [
        ("mistral", {}),
        ("mistral", {"byte_fallback": False, "vocab_size": 420}),
        ("llama", {"user_defined_symbols": ["<user>", "river", "▁▁", "▁▁▁▁"]}),
        ("gemma2", {**GEMMA, "user_defined_symbols": ["<user>", "\t", "▁▁", "▁▁▁", "▁▁▁▁"]}),
        ("llama", {**UNIGRAM, "pad_id": -1}),
        ("llama", {"model_type": "char", "byte_fallback": False, "hard_vocab_limit": False}),
    ],
    ids=["mistral", "no bytes", "user-defined", "gemma2", "unigram", "characters"],
)
def test_tokenizer_model_gives_the_pieces_of_sentencepiece_itself(tmp_path, family, changes):
    processor = train_sentencepiece(tmp_path, **changes)
    options(tmp_path, add_bos_token=False)
    ours = open_tokenizer(str(tmp_path), {"model_type": family}).tokenizer
    for text in [*texts(7, ["<user>"]), "the  bank", "<user>the   bank<user>  x"]:
        assert ids(ours, text) == processor.encode(text), text


def test_added_tokens_are_found_behind_a_word_and_are_no_text(tmp_path):
    processor = train_sentencepiece(tmp_path, **PLAIN)
    write_added(tmp_path, processor)
    ours = open_tokenizer(str(tmp_path), {"model_type": "llama"}).tokenizer
    tokens = ours.encode("the bank<|im_end|>the")
    between = (
        processor.encode("the bank"),
        [processor.get_piece_size() + 1],
        processor.encode("the"),
    )
    assert [token.id for token in tokens] == [1, *between[0], *between[1], *between[2]]
    assert [(token.start, token.end) for token in tokens if token.piece == "<|im_end|>"] == [
        (8, 18)
    ]


def test_pieces_cover_the_characters_that_they_come_from(tmp_path):
    train_sentencepiece(tmp_path)
    tokens = open_tokenizer(str(tmp_path), {"model_type": "llama"}).tokenizer.encode("🜁  the bank")
    assert [(token.text, token.start, token.end) for token in tokens] == [
        ("<s>", None, None), ("␣", None, None), ("<F0>", 0, 1), ("<9F>", 0, 1), ("<9C>", 0, 1), ("<81>", 0, 1),
        ("␣", 1, 2), ("the", 3, 6), ("bank", 7, 11),
    ]  # fmt: skip


def test_a_damaged_tokenizer_model_is_refused_or_read(tmp_path):
    train_sentencepiece(tmp_path)
    file = tmp_path / "tokenizer.model"
    data, rng = file.read_bytes(), random.Random(8)
    for _ in range(60):
        at = rng.randrange(len(data))
        file.write_bytes(
            rng.choice(
                (data[:at], data[:at] + bytes([rng.randrange(256)]) + data[at + 1 :], data[at:])
            )
        )
        with suppress(AttnscopeError):
            open_tokenizer(str(tmp_path), {"model_type": "llama"}).tokenizer.encode("the  bank 🜁")


def test_what_to_install_is_said_where_sentencepiece_is_missing(tmp_path, monkeypatch):
    train_sentencepiece(tmp_path)
    monkeypatch.setitem(sys.modules, "sentencepiece", None)
    with pytest.raises(AttnscopeError) as caught:
        open_tokenizer(str(tmp_path), {"model_type": "llama"})
    assert str(caught.value) == (
        f"{tmp_path / 'tokenizer.model'}: reading it needs sentencepiece; pip install 'attnscope[sentencepiece]', or "
        "pass tokenizer with a tokenizer.json"
    )
