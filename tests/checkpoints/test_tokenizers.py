"""Which tokenizer a model gets, and what is said where it gets none."""

import json
import shutil
from pathlib import Path

import pytest

import attnscope
from attnscope.base.errors import AttnscopeError
from attnscope.checkpoints.samples import samples_folder
from attnscope.checkpoints.tokenizers import open_tokenizer
from attnscope.cli import main
from attnscope.studies.screens.header import short_path
from tests.helpers.tokenizer_files import content, write

SAMPLE = samples_folder("sample_weights") / "riverbank"
SPECIAL = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
TEXT = "The bank by the river"


@pytest.fixture
def model(tmp_path: Path) -> Path:
    """The bundled sample without its tokenizer."""
    path = tmp_path / "model"
    path.mkdir()
    for name in ("config.json", "model.safetensors"):
        shutil.copy(SAMPLE / name, path)
    return path


def ended(capsys: pytest.CaptureFixture[str], *args: object) -> tuple[int, str]:
    """Exit code, and what was printed, on one line."""
    code = main(list(map(str, args)))
    printed = capsys.readouterr()
    return code, " ".join((printed.out + printed.err).split())


def words(path: Path, *more: str, special: list[str] = SPECIAL) -> None:
    (path / "vocab.txt").write_text("".join(f"{word}\n" for word in (*special, *more)))


def test_a_vocab_txt_alone_is_enough_and_noted(
    model: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words(model, "the", "bank", "by")
    code, said = ended(capsys, "run", TEXT, "--model", model)
    assert (code, "tokenizer built" in said) == (0, False)
    assert "they are, as no word of the vocabulary has capitals" in said
    code, said = ended(capsys, "run", TEXT, "--model", model, "--verbose")
    assert code == 0
    assert "note tokenizer built from vocab.txt, as BertTokenizer of transformers does" in said
    assert "they are, as no word of the vocabulary has capitals" in said
    report = attnscope.inspect(TEXT, model=model)
    assert [token.piece for token in report.data.texts[0].tokens] == [
        "[CLS]", "the", "bank", "by", "the", "[UNK]", "[SEP]",
    ]  # fmt: skip


def test_capitals_in_the_vocabulary_are_kept_where_nothing_says_that_texts_are_lower_cased(
    tmp_path: Path,
) -> None:
    """As in AntiBERTy, whose words are the letters of amino acids: a lower-cased text has none of them."""
    words(tmp_path, "E", "V", "Q", "L")
    tokenizer = open_tokenizer(str(tmp_path), {"model_type": "bert"}).tokenizer
    assert [token.piece for token in tokenizer.encode("E V Q L")] == [
        "[CLS]",
        "E",
        "V",
        "Q",
        "L",
        "[SEP]",
    ]
    assert "they are not, as words of the vocabulary have capitals" in tokenizer.warnings[0]


@pytest.mark.parametrize("named", ["the class", "the file"])
def test_a_vocab_txt_fits_any_model_where_the_class_or_the_user_says_so(
    tmp_path: Path, named: str
) -> None:
    """As in IgLM, a GPT-2 of amino acids, whose words are those of a BertTokenizer."""
    words(tmp_path, "E", "V")
    if named == "the class":
        (tmp_path / "tokenizer_config.json").write_text('{"tokenizer_class": "BertTokenizer"}')
    path = tmp_path / "vocab.txt" if named == "the file" else tmp_path
    tokenizer = open_tokenizer(str(path), {"model_type": "gpt2"}).tokenizer
    assert [token.piece for token in tokenizer.encode("E V")] == ["[CLS]", "E", "V", "[SEP]"]


@pytest.mark.parametrize(
    ("files", "config", "said"),
    [
        ([], {}, "has no tokenizer; pass tokenizer=PATH"),
        (["vocab.txt"], {"model_type": "gpt2"}, "but vocab.txt: it is unknown which tokenizer 'gpt2' uses with them"),
        (["vocab.txt"], {"tokenizer_class": "BertJapaneseTokenizer"},
         "but vocab.txt: the 'BertJapaneseTokenizer' of 'bert' cannot be built from them; pass tokenizer=PATH"),
        (["vocab.json"], {"model_type": "roberta"}, "but vocab.json: it is unknown which tokenizer 'roberta' uses"),
        (["spiece.model", "x.tiktoken"], {}, "but spiece.model, x.tiktoken: it is unknown"),
        (["vocab.json", "merges.txt"], {"model_type": "llama", "tokenizer_class": "GPT2Tokenizer"},
         "the 'GPT2Tokenizer' of 'llama' cannot be built from them"),
        (["tekken.json"], {"model_type": "mistral"}, "but tekken.json: it is unknown"),
    ],
)  # fmt: skip
def test_what_lies_there_is_said_where_none_can_be_built(
    tmp_path: Path, files: list[str], config: dict[str, str], said: str
) -> None:
    for file in files:
        (tmp_path / file).write_text("x")
    with pytest.raises(AttnscopeError) as caught:
        open_tokenizer(str(tmp_path), {"model_type": "bert", **config})
    assert said in str(caught.value)


@pytest.mark.parametrize(
    ("option", "said"),
    [
        (
            {"do_basic_tokenize": False},
            "do_basic_tokenize is false, which tokenizer.json cannot express",
        ),
        ({"never_split": ["a"]}, "never_split is a list, which"),
        ({"split_special_tokens": True}, "split_special_tokens is true, which"),
        ({"auto_map": {"AutoTokenizer": ["x.Y", None]}}, "auto_map is an object, which"),
        (
            {"do_lower_case": "yes"},
            "tokenizer_config.json: do_lower_case: is 'yes'; expected true or false",
        ),
        ({"cls_token": "[BEGIN]"}, "vocab.txt: has no token '[BEGIN]', which every text needs"),
        ({"cls_token": 3}, "tokenizer_config.json: cls_token: is 3"),
        (
            {"added_tokens_decoder": {"9": "y"}},
            "vocab.txt: has 6 words, after which no token can have the id 9 ('y')",
        ),
        (
            {"added_tokens_decoder": {"x": "y"}},
            "added_tokens_decoder: has the id 'x'; expected a number",
        ),
    ],
)
def test_options_that_would_change_tokens_are_refused(
    tmp_path: Path, option: dict[str, object], said: str
) -> None:
    words(tmp_path, "a")
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(option))
    with pytest.raises(AttnscopeError) as caught:
        open_tokenizer(str(tmp_path), {"model_type": "bert"})
    assert said in str(caught.value)


@pytest.mark.parametrize(
    ("file", "data", "said"),
    [
        ("vocab.txt", b"", "vocab.txt: is empty, not a vocabulary"),
        ("vocab.txt", b"version https://git-lfs", "is a Git LFS pointer"),
        ("vocab.txt", b"a\xff", "byte 0xff at offset 1 is not UTF-8"),
        ("vocab.txt", b"\n\n", "has no words"),
        ("vocab.json", b"[]", "vocab.json: is [], not a JSON object"),
        ("vocab.json", b'{"a": "b"}', "'a' has the id 'b'; expected a whole number"),
        ("merges.txt", b"#version: 0.2\na b c\n", "merges.txt: line 2 is 'a b c', not two pieces"),
        ("merges.txt", b"z z\n", "cannot be used: "),
        (
            "tokenizer.model",
            b"IQ== 0\nIg== 1\n",
            "is a vocabulary of tiktoken, which lacks the rules",
        ),
        ("tokenizer.model", b"\x0a\xff", "is not a SentencePiece model, or damaged"),
    ],
)
def test_damaged_files_are_refused(tmp_path: Path, file: str, data: bytes, said: str) -> None:
    family = {"vocab.txt": "bert", "tokenizer.model": "llama"}.get(file, "gpt2")
    (tmp_path / "vocab.json").write_text('{"a": 0, "b": 1, "ab": 2, "<|endoftext|>": 3}')
    (tmp_path / "merges.txt").write_text("a b\n")
    (tmp_path / file).write_bytes(data)
    with pytest.raises(AttnscopeError) as caught:
        open_tokenizer(str(tmp_path), {"model_type": family})
    assert said in str(caught.value)


def test_another_tokenizer_is_used_shown_and_recorded(
    model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    own = attnscope.inspect(TEXT, model=SAMPLE).data
    for named in (SAMPLE, SAMPLE / "tokenizer.json", "riverbank"):
        report = attnscope.inspect(TEXT, model=model, tokenizer=named).data
        assert report.texts[0].tokens == own.texts[0].tokens
        assert report.provenance.tokenizer == str(named)
        assert own.provenance.tokenizer is None
    fingerprints = {report.provenance.fingerprint}
    for order in (("the", "bank"), ("bank", "the")):
        words(model, *order)
        fingerprints.add(attnscope.inspect(TEXT, model=model).data.provenance.fingerprint)
    assert len(fingerprints) == 3
    code, said = ended(capsys, "run", TEXT, "--model", model, "--tokenizer", SAMPLE)
    assert (
        code == 0
        and f"tokens {short_path(str(SAMPLE))}, in place of the model's own tokenizer" in said
    )
    for command in (["explain", TEXT, "--query", "bank"], ["check"], ["compare", TEXT], ["info"]):
        assert ended(capsys, *command, "--model", model, "--tokenizer", SAMPLE)[0] == 0
    (tmp_path / "texts.txt").write_text(f"{TEXT}\n🜁 🜂 the\n")
    dump = tmp_path / "dump.jsonl"
    assert (
        ended(
            capsys,
            "batch",
            tmp_path / "texts.txt",
            "-o",
            dump,
            "--model",
            model,
            "--tokenizer",
            SAMPLE,
        )[0]
        == 0
    )
    header, *records, _ = map(json.loads, dump.read_text().splitlines())
    assert header["provenance"]["tokenizer"] == str(SAMPLE)
    assert records[1]["notes"] == ["2 of 3 words are unknown to the tokenizer"]


def test_two_tokenizers_are_compared(model: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words(model, "the", "bank")
    both = ["--tokenizer", model / "vocab.txt", "--tokenizer", SAMPLE]
    code, said = ended(
        capsys, "compare", TEXT, "--model", model, *both, "--layer", "0", "--head", "0"
    )
    assert code == 0 and "compare tokenizer: " in said


@pytest.mark.parametrize(
    ("named", "code", "said"),
    [
        ("none.json", 1, "--tokenizer: none.json: no such file; check the path"),
        (
            "/none",
            1,
            "--tokenizer: /none: no such folder, file or bundled sample; name a tokenizer.json, or a folder that has one",
        ),
        (
            "tokenizer_config.json",
            2,
            "--tokenizer: 'tokenizer_config.json' is not a tokenizer; pass a tok",
        ),
        ("notes.txt", 2, "'notes.txt' is not a tokenizer"),
    ],
)
def test_what_is_no_tokenizer_is_refused(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    named: str,
    code: int,
    said: str,
) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("tokenizer_config.json", "notes.txt"):
        Path(name).write_text("{}")
    ending = ended(capsys, "run", TEXT, "--tokenizer", named)
    assert ending[0] == code and said in ending[1]


def test_a_stack_has_its_own_tokenizer(capsys: pytest.CaptureFixture[str]) -> None:
    code, said = ended(capsys, "run", TEXT, "--config", "causal", "--tokenizer", SAMPLE)
    assert (
        code == 2
        and "--config and --tokenizer cannot be used together: a TOML stack is a whole model, which names its tokenizer"
        in said
    )
    with pytest.raises(AttnscopeError, match="dict is not a path"):
        attnscope.inspect(TEXT, tokenizer={})


def test_info_needs_no_tokenizer(model: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, said = ended(capsys, "info", "--model", model)
    assert (
        code == 0
        and "tokenizer none that can be used; see below" in said
        and "no tokenizer: " in said
    )
    (model / "tokenizer.json").write_text("{")
    code, said = ended(capsys, "info", "--model", model)
    assert code == 0 and "is truncated at line 1" in said
    code, said = ended(capsys, "run", TEXT, "--model", model)
    assert code == 1 and "is truncated at line 1" in said


def test_unknown_words_lead_the_screen_and_are_marked(
    model: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words(model, "the", "bank")
    for command in ("run", "compare", "explain", "check"):
        query = ["--query", "Zürich"] if command == "explain" else []
        code, said = ended(capsys, command, "The bank by the Zürich", "--model", model, *query)
        assert code == 0
        assert "2 of 5 words are unknown to the tokenizer" in said
        if command != "check":
            assert said.startswith(
                "UNKNOWN WORDS 2 of 5 words are unknown to the tokenizer (marked ?): by, Zürich"
            )
            assert "?by" in said and "?Zürich" in said and "?the" not in said
    assert "UNKNOWN" not in ended(capsys, "run", "the bank [UNK]", "--model", model)[1]
    tokens = json.loads(
        ended(capsys, "run", "the by", "--model", model, "--format", "json", "--quiet")[1]
    )["texts"][0]["tokens"]
    assert [token["unknown"] for token in tokens] == [False, False, True, False]


def test_a_unigram_marks_what_it_does_not_know(tmp_path: Path) -> None:
    tokens = open_tokenizer(str(write(tmp_path, content("unigram"))), {}).tokenizer.encode(
        "The 🜁 bank"
    )
    assert [token.text for token in tokens if token.unknown] == ["🜁"]
