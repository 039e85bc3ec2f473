"""Tokenizer files that panic and texts that break things: one AttnscopeError, no backtrace, and the next text works."""

import json
import os
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from attnscope.base.errors import AttnscopeError
from attnscope.base.system.escape import escape_control
from attnscope.checkpoints.tokenization import tokenizer_json
from attnscope.checkpoints.tokenization.hugging_face import load_tokenizer
from attnscope.checkpoints.tokenization.pieces import MAX_TEXT
from attnscope.checkpoints.tokenization.rust import call_rust
from attnscope.checkpoints.tokenization.word_tokenizer import WordTokenizer
from tests.helpers.folders import within
from tests.helpers.tokenizer_files import content, write

Change = Callable[[dict[str, Any]], object]
CLS_UNKNOWN = {
    "type": "TemplateProcessing",
    "single": [
        {"SpecialToken": {"id": "[CLS]", "type_id": 0}},
        {"Sequence": {"id": "A", "type_id": 0}},
    ],
    "pair": [{"Sequence": {"id": "A", "type_id": 0}}, {"Sequence": {"id": "B", "type_id": 1}}],
    "special_tokens": {},
}
HOSTILE = [
    "[/]",
    "[red]",
    ":smile:",
    "\\",
    "\x1b[2J",
    "\x9b2J",
    "\u202e",
    "a\u200db",
    "\x07",
    "\ufeff",
    "</script>",
    "\u2028",
]


@pytest.fixture(
    autouse=True, params=[1, 1 << 16], ids=["vocabulary left as text", "vocabulary parsed"]
)
def _bulky(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Small vocabularies are treated as large ones are, and as small ones are: nothing may depend on it."""
    monkeypatch.setattr(tokenizer_json, "_LARGE", request.param)


def _refusal(path: Path, text: str = "The bank") -> AttnscopeError:
    with within(5), pytest.raises(AttnscopeError) as e:
        load_tokenizer(path / "tokenizer.json").encode(text)
    assert str(e.value).isprintable()
    assert len(str(e.value)) < 600
    return e.value


# 11: malformed files and panics


@pytest.mark.parametrize(
    ("kind", "change", "found"),
    [
        ("byte-level", lambda c: c["model"]["merges"].append(["a", "ab" * 9]), "cannot be used: "),
        ("wordpiece", lambda c: c.update(model=_bpe([["a", "ab"]])), "cannot be used: range end index"),
        ("wordpiece", lambda c: c.update(post_processor=CLS_UNKNOWN), "fails on text: no entry found for key"),
        ("unigram", lambda c: c.update(normalizer=_charsmap("AAAA")), "cannot be used: Precompiled: "),
        ("unigram", lambda c: c.update(normalizer=_charsmap("/////w==")), "cannot be used: Precompiled: "),
        ("unigram", lambda c: c["model"].update(unk_id=99), "cannot be used: Unable to load vocab"),
        ("wordpiece", lambda c: c["model"]["vocab"].update(x=-1), "cannot be used: invalid value: integer `-1`"),
        ("wordpiece", lambda c: c.update(pre_tokenizer=_split("((((")), "cannot be used: Oniguruma error"),
        ("wordpiece", lambda c: c.update(model=None), "cannot be used: "),
        ("wordpiece", lambda c: c.update(model={"type": "\x1b[2J"}), "cannot be used: "),
        ("wordpiece", lambda c: c.pop("model"), "cannot be used: "),
        ("wordpiece", lambda c: c.update(post_processor=_nested(900)), "cannot be used: "),
    ],
)  # fmt: skip
def test_a_tokenizer_that_cannot_be_used(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], kind: str, change: Change, found: str
) -> None:
    value = content(kind)
    change(value)
    file = write(tmp_path, value)
    error = _refusal(tmp_path)
    assert error.where == str(file)
    assert error.message.startswith(found)
    assert error.hint == "download it again, or save it again with transformers"
    assert capfd.readouterr() == ("", "")


def test_a_word_that_is_half_of_a_surrogate_pair(tmp_path: Path) -> None:
    value = content("wordpiece")
    value["model"]["vocab"]["\ud800"] = 7
    write(tmp_path, value)
    assert _refusal(tmp_path).message.startswith(
        ("cannot be used: ", "contains half of a surrogate pair (U+D800)")
    )


def _bpe(merges: list[list[str]]) -> dict[str, Any]:
    return {"type": "BPE", "vocab": {"a": 0, "b": 1, "ab": 2}, "merges": merges}


def _charsmap(base64: str) -> dict[str, Any]:
    return {"type": "Precompiled", "precompiled_charsmap": base64}


def _split(pattern: str) -> dict[str, Any]:
    return {"type": "Split", "pattern": {"Regex": pattern}, "behavior": "Isolated", "invert": False}


def _nested(levels: int) -> dict[str, Any]:
    value: dict[str, Any] = {
        "type": "ByteLevel",
        "add_prefix_space": False,
        "trim_offsets": True,
        "use_regex": True,
    }
    for _ in range(levels // 2):
        value = {"type": "Sequence", "processors": [value]}
    return value


@pytest.mark.parametrize(
    ("data", "found"),
    [
        (b"", "is empty, not JSON"),
        (b"version https://git-lfs.github.com/spec/v1\n", "is a Git LFS pointer, not JSON"),
        (b"[]", "is [], not a JSON object"),
        (b'{"model": {"vocab": {"a": 0, "a": 1}}}', "is given twice, as 0 and as 1"),
    ],
)
def test_a_tokenizer_that_is_no_json(tmp_path: Path, data: bytes, found: str) -> None:
    (tmp_path / "tokenizer.json").write_bytes(data)
    error = _refusal(tmp_path)
    assert (error.where or "").startswith(str(tmp_path / "tokenizer.json"))
    assert error.message == found


@pytest.mark.parametrize("word", ["the", "\\", '"', '\\"', "\n", "é"])
def test_a_word_that_stands_twice_in_a_large_vocabulary(tmp_path: Path, word: str) -> None:
    value = content("wordpiece")
    value["model"]["vocab"] |= {
        f"{odd}{i}": 1000 + i for i in range(9) for odd in ("\\", '"', '\\"', "a")
    } | {word: 7}
    load_tokenizer(write(tmp_path, value))
    file = tmp_path / "tokenizer.json"
    file.write_text(
        file.read_text().replace('"vocab": {', f'"vocab": {{{json.dumps(word)}: 9, ', 1)
    )
    assert _refusal(tmp_path).message == "is given twice, as 9 and as 7"


def test_a_missing_tokenizer(tmp_path: Path) -> None:
    error = _refusal(tmp_path)
    assert (error.where, error.message) == (str(tmp_path / "tokenizer.json"), "no such file")


def test_a_batch_goes_on_after_a_text_that_fails(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    value = content("wordpiece")
    value["model"]["vocab"] = {"the": 0, "bank": 1, "[CLS]": 2, "[SEP]": 3}
    value["added_tokens"] = []
    value["post_processor"] = None
    tokenizer = load_tokenizer(write(tmp_path, value))
    with pytest.raises(
        AttnscopeError,
        match=r"f:1: the word 'river' at character 0 is not in the vocabulary; use words from .*tokenizer.json",
    ):
        tokenizer.encode("river", where="f:1")
    assert [t.text for t in tokenizer.encode("The bank", where="f:2")] == ["The", "bank"]
    assert capfd.readouterr().err == ""


def _without_unknown(kind: str) -> dict[str, Any]:
    """A tokenizer that has no token for words that it does not know."""
    value = content(kind)
    if kind == "unigram":
        value["model"]["unk_id"] = None
    else:
        value["model"]["unk_token"] = "[none]"
    return value


@pytest.mark.parametrize(
    ("kind", "texts", "found"),
    [
        (
            "words",
            ("The lake by the lake",),
            "the word 'lake' at character 4 is not in the vocabulary",
        ),
        (
            "words",
            ("The", "bank\n by läke"),
            "the word 'läke' at character 9 of the pair is not in the vocabulary",
        ),
        (
            "wordpiece",
            ("The [MASK] [SEP]bank 🜁",),
            "the word '🜁' at character 21 is not in the vocabulary",
        ),
        ("unigram", ("x s  lake",), "the word 'lake' at character 5 is not in the vocabulary"),
    ],
)
def test_a_word_that_is_not_there_is_named_with_its_place(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], kind: str, texts: tuple[str, ...], found: str
) -> None:
    file = write(tmp_path, _without_unknown(kind))
    with pytest.raises(AttnscopeError) as e:
        load_tokenizer(file).encode(*texts, where="f:2")
    assert (e.value.where, e.value.message) == ("f:2", found)
    assert e.value.hint == f"use words from {file}: it has no token for unknown words"
    assert capfd.readouterr() == ("", "")


def test_a_failure_of_a_tokenizer_that_knows_the_unknown_is_not_blamed_on_a_word(
    tmp_path: Path,
) -> None:
    value = content("wordpiece")
    value["post_processor"] = CLS_UNKNOWN
    write(tmp_path, value)
    assert _refusal(tmp_path, "lake").message.startswith("fails on text: no entry found for key")


def test_what_goes_to_stderr_afterwards_arrives_and_nothing_leaks(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    value = content("unigram")
    value["normalizer"] = _charsmap("AAAA")
    write(tmp_path, value)
    before = len(os.listdir("/proc/self/fd"))
    for _ in range(20):
        _refusal(tmp_path)
    assert len(os.listdir("/proc/self/fd")) == before
    os.write(2, b"still here")
    assert capfd.readouterr().err == "still here"


def test_threads_leave_stderr_as_it_was(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    second_is_in, first_is_out = threading.Event(), threading.Event()

    def second() -> None:
        call_rust(lambda: (second_is_in.set(), first_is_out.wait(5)), tmp_path, "fails")

    thread = threading.Thread(target=second)
    # must not come in meanwhile
    call_rust(lambda: (thread.start(), second_is_in.wait(0.2)), tmp_path, "fails")
    first_is_out.set()
    thread.join()
    os.write(2, b"still here")
    assert capfd.readouterr().err == "still here"


def test_a_closed_stderr_is_no_obstacle(tmp_path: Path) -> None:
    value = content("unigram")
    value["normalizer"] = _charsmap("AAAA")
    file = write(tmp_path, value)
    code = (
        "import os; from pathlib import Path\n"
        "from attnscope.checkpoints.tokenization.hugging_face import load_tokenizer\n"
        "from attnscope.base.errors import AttnscopeError\nos.close(2)\n"
        f"try: load_tokenizer(Path({str(file)!r}))\nexcept AttnscopeError as e: print(e.message[:30])"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], stdout=subprocess.PIPE, text=True, check=False
    )
    assert (done.returncode, done.stdout) == (0, "cannot be used: Precompiled: E\n")


class Interrupt(BaseException):
    """As handlers of signals and debuggers raise them; only a panic of Rust is the library's."""


@pytest.mark.parametrize("interrupt", [KeyboardInterrupt, SystemExit, MemoryError, Interrupt])
def test_what_is_not_the_tokenizers_fault_passes_through(
    tmp_path: Path, interrupt: type[BaseException]
) -> None:
    def call() -> None:
        raise interrupt

    with pytest.raises(interrupt):
        call_rust(call, tmp_path, "fails")


# 12: what a file stores and would change the tokens


@pytest.mark.parametrize("stride", [0, 5])
def test_truncation_and_padding_are_switched_off_and_noted(tmp_path: Path, stride: int) -> None:
    value = content("wordpiece")
    plain = load_tokenizer(write(tmp_path, value)).encode("The bank by the river")
    value["truncation"] = {
        "direction": "Right",
        "max_length": 3,
        "strategy": "LongestFirst",
        "stride": stride,
    }
    value["padding"] = {
        "strategy": {"Fixed": 512}, "direction": "Left", "pad_to_multiple_of": None, "pad_id": 0, "pad_type_id": 0,
        "pad_token": "[UNK]",
    }  # fmt: skip
    tokenizer = load_tokenizer(write(tmp_path, value))
    assert tokenizer.encode("The bank by the river") == plain
    assert tokenizer.notes == [
        "ignoring the truncation stored in tokenizer.json",
        "ignoring the padding stored in tokenizer.json",
    ]


@pytest.mark.parametrize("dropout", [0.5, 1.0, 7])
def test_dropout_is_switched_off_and_noted(tmp_path: Path, dropout: float) -> None:
    value = content("byte-level")
    plain = load_tokenizer(write(tmp_path, value)).encode("The bank by the river" * 9)
    value["model"]["dropout"] = dropout
    tokenizer = load_tokenizer(write(tmp_path, value))
    assert [tokenizer.encode("The bank by the river" * 9) for _ in range(3)] == [plain] * 3
    assert tokenizer.notes == [f"ignoring the BPE dropout {dropout} stored in tokenizer.json"]


def test_a_dropout_of_nothing_is_not_worth_a_note(tmp_path: Path) -> None:
    value = content("byte-level")
    value["model"]["dropout"] = 0.0
    assert load_tokenizer(write(tmp_path, value)).notes == []


# 14, 15: texts that are refused before they are tokenized


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("", "the text is empty"),
        (" \n\t\u3000", "the text is blank"),
        ("ab\ud83dc", "character 2 is half of a surrogate pair (U+D83D)"),
        ("\udcff", "character 0 is half of a surrogate pair (U+DCFF)"),
        ("x" * 10_000_000, "the text has 10,000,000 characters"),
    ],
)
@pytest.mark.parametrize("second", [False, True])
def test_texts_that_are_refused(tmp_path: Path, text: str, found: str, second: bool) -> None:
    texts = ("fine", text) if second else (text,)
    for tokenizer in (
        load_tokenizer(write(tmp_path, content("wordpiece"))),
        WordTokenizer(["fine"]),
    ):
        with within(1), pytest.raises(AttnscopeError) as e:
            tokenizer.encode(*texts, where="f.txt:7")
        assert (e.value.where, e.value.message) == ("f.txt:7", found)
        assert e.value.hint


def test_a_text_at_the_limit_is_tokenized_in_bounded_time(tmp_path: Path) -> None:
    tokenizer = load_tokenizer(write(tmp_path, content("wordpiece")))
    with within(30):
        assert len(tokenizer.encode("x " * (MAX_TEXT // 40))) == MAX_TEXT // 40 + 2


def test_a_text_that_the_tokenizer_drops_whole(tmp_path: Path) -> None:
    tokenizer = load_tokenizer(write(tmp_path, content("wordpiece")))
    assert all(t.special for t in tokenizer.encode("\u200d"))  # the caller notes it
    value = content("wordpiece") | {"post_processor": None}
    with pytest.raises(
        AttnscopeError, match="text: the text has no tokens; pass at least one word"
    ):
        load_tokenizer(write(tmp_path, value)).encode("\u200d")


# 16: tokens that a terminal would obey


@pytest.mark.parametrize(
    "kind", ["byte-level", "roberta", "unigram", "byte-fallback", "wordpiece", "words"]
)
@pytest.mark.parametrize("hostile", HOSTILE)
def test_hostile_text_stays_exact_and_can_be_made_visible(
    tmp_path: Path, kind: str, hostile: str
) -> None:
    text = f"The {hostile} bank\x00"
    tokenizer = (
        WordTokenizer([text]) if kind == "words" else load_tokenizer(write(tmp_path, content(kind)))
    )
    tokens = tokenizer.encode(text)
    for token in tokens:
        assert escape_control(token.text).isprintable()
        assert escape_control(token.piece).isprintable()
        if token.start is not None and not token.text.startswith("<"):
            assert token.text in (text[token.start : token.end], "␣")
    assert "bank" in [t.text for t in tokens] or kind in (
        "unigram",
        "byte-fallback",
        "wordpiece",
        "words",
    )


def test_a_token_whose_piece_is_hostile(tmp_path: Path) -> None:
    value = content("wordpiece")
    value["model"]["vocab"]["\x1b]0;owned\x07"] = 99
    value["added_tokens"].append(
        {"id": 99, "content": "\x1b]0;owned\x07", "single_word": False, "lstrip": False, "rstrip": False,
         "normalized": False, "special": True}
    )  # fmt: skip
    token = load_tokenizer(write(tmp_path, value)).encode("The \x1b]0;owned\x07")[2]
    assert (token.id, token.special, escape_control(token.text)) == (99, True, "\\x1b]0;owned\\x07")
    assert json.dumps(token.piece)
