"""What a token shows, where it stands and what it is called, for each kind of tokenizer."""

import json
import re
import unicodedata
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from attnscope.base.errors import AttnscopeError
from attnscope.checkpoints.source import count_closing
from attnscope.checkpoints.tokenization import tokenizer_json
from attnscope.checkpoints.tokenization.hugging_face import FileTokenizer, load_tokenizer
from attnscope.checkpoints.tokenization.pieces import (
    byte_fragment,
    piece_bytes,
    readable_piece,
    trim_span,
)
from attnscope.checkpoints.tokenization.word_tokenizer import WordTokenizer
from attnscope.findings.tokens import Token
from attnscope.model.batch import pad_texts
from tests.helpers.draws import CHARACTERS
from tests.helpers.tokenizer_files import content, write

KINDS = ["byte-level", "roberta", "wordpiece", "unigram", "byte-fallback"]
PREFIXED = ["byte-level with a prefix", "roberta with a prefix"]
NORMALIZED = [
    "byte-level with NFKC",
    "roberta with NFKC",
    "wordpiece with NFKC",
    "unigram with NFKC",
]


@pytest.fixture(params=KINDS)
def any_kind(request: pytest.FixtureRequest, tmp_path: Path) -> FileTokenizer:
    return load_tokenizer(write(tmp_path, content(request.param)))


def _load(path: Path, kind: str) -> FileTokenizer:
    return load_tokenizer(write(path, content(kind)))


def _seen(tokens: list[Token]) -> list[tuple[str, str, int | None, int | None]]:
    return [(t.piece, t.text, t.start, t.end) for t in tokens]


def test_byte_level_marks_are_gone_and_spans_hold_no_space(tmp_path: Path) -> None:
    assert _seen(_load(tmp_path, "byte-level").encode("The bank  é\n\tx")) == [
        ("The", "The", 0, 3),
        ("Ġbank", "bank", 4, 8),
        ("Ġ", "␣", 8, 9),
        ("Ġ", "␣", 9, 10),
        ("Ã", "<C3>", 10, 11),
        ("©", "<A9>", 10, 11),
        ("Ċ", "⏎", 11, 12),
        ("ĉ", "⇥", 12, 13),
        ("x", "x", 13, 14),
    ]


def test_a_character_cut_into_tokens_shows_its_bytes(tmp_path: Path) -> None:
    tokens = _load(tmp_path, "byte-level").encode("a 😀")
    shown = "".join(t.text for t in tokens[1:])
    assert bytes.fromhex(shown.replace("␣", "").replace("><", " ").strip("<>")) == "😀".encode()
    assert {(t.start, t.end) for t in tokens[-3:]} == {(2, 3)}


def test_byte_fallback_shows_bytes_only_where_a_character_is_cut(tmp_path: Path) -> None:
    assert _seen(_load(tmp_path, "byte-fallback").encode("The 🜁\n<0xF0>"))[-11:] == [
        ("<0xF0>", "<F0>", 4, 5),
        ("<0x9F>", "<9F>", 4, 5),
        ("<0x9C>", "<9C>", 4, 5),
        ("<0x81>", "<81>", 4, 5),
        ("<0x0A>", "⏎", 5, 6),
        ("<0x3C>", "<", 6, 7),
        ("<0x30>", "0", 7, 8),
        ("<0x78>", "x", 8, 9),
        ("<0x46>", "F", 9, 10),
        ("<0x30>", "0", 10, 11),
        ("<0x3E>", ">", 11, 12),
    ]


def test_a_byte_piece_that_stands_in_the_text_is_itself(tmp_path: Path) -> None:
    value = content("wordpiece")
    flags = {
        "single_word": False,
        "lstrip": False,
        "rstrip": False,
        "normalized": False,
        "special": False,
    }
    value["added_tokens"].append({"id": 99, "content": "<0xF0>", **flags})
    assert _seen(load_tokenizer(write(tmp_path, value)).encode("The <0xF0>"))[-2] == (
        "<0xF0>",
        "<0xF0>",
        4,
        10,
    )


def test_wordpiece_shows_the_text_as_written(tmp_path: Path) -> None:
    tokens = _load(tmp_path, "wordpiece").encode("The RIVERS")
    assert [t.text for t in tokens] == ["[CLS]", "The", *[t.text for t in tokens[2:-1]], "[SEP]"]
    assert "".join(t.text for t in tokens[2:-1]) == "RIVERS"
    assert [t.special for t in tokens] == [True, *[False] * (len(tokens) - 2), True]
    assert (tokens[0].start, tokens[0].end) == (None, None)


def test_metaspace_is_gone_and_an_unknown_shows_its_text(tmp_path: Path) -> None:
    tokenizer = _load(tmp_path, "unigram")
    tokens = tokenizer.encode("The bank  x🜁")
    assert _seen(tokens) == [
        ("▁The", "The", 0, 3),
        ("▁bank", "bank", 4, 8),
        ("▁", "␣", 8, 9),
        ("▁", "␣", 9, 10),
        ("x", "x", 10, 11),
        ("🜁", "🜁", 11, 12),
    ]
    assert tokens[-1].id == tokenizer.unknown_id == 0


def test_a_prefix_that_stands_for_nothing_has_no_span(tmp_path: Path) -> None:
    first = _load(tmp_path, "unigram").encode("bank")[0]
    assert (first.piece, first.text, first.start, first.end) == ("▁bank", "bank", 0, 4)
    assert _seen(_load(tmp_path, "unigram").encode("s")) == [
        ("▁", "␣", None, None),
        ("s", "s", 0, 1),
    ]


def test_a_space_that_the_tokenizer_adds_shows_itself_and_not_its_neighbour(tmp_path: Path) -> None:
    tokens = _load(tmp_path, "byte-level with a prefix").encode("x river")
    assert _seen(tokens) == [("Ġ", "␣", None, None), ("x", "x", 0, 1), ("Ġriver", "river", 2, 7)]
    assert _seen(_load(tmp_path, "byte-level with a prefix").encode(" x"))[0] == ("Ġ", "␣", 0, 1)
    assert _seen(_load(tmp_path, "byte-fallback").encode("\nx"))[0] == ("▁", "␣", None, None)


def test_a_byte_that_looks_like_the_character_it_is_part_of(tmp_path: Path) -> None:
    """U+00A1 is C2 A1 in UTF-8, and the byte-level alphabet spells the byte A1 as U+00A1."""
    assert [t.text for t in _load(tmp_path, "byte-level").encode("¡")] == ["<C2>", "<A1>"]


def test_what_a_normalizer_makes_of_one_character_shows_as_that(tmp_path: Path) -> None:
    tokens = _load(tmp_path, "byte-level with NFKC").encode("The aﬁx Ⅻ")
    assert _seen(tokens) == [
        ("The", "The", 0, 3),
        ("Ġ", "␣", 3, 4),
        ("a", "a", 4, 5),
        ("f", "f", 5, 6),
        ("i", "i", 5, 6),
        ("x", "x", 6, 7),
        ("Ġ", "␣", 7, 8),
        ("X", "X", 8, 9),
        ("I", "I", 8, 9),
        ("I", "I", 8, 9),
    ]
    words = _load(tmp_path, "wordpiece with NFKC").encode("ﬁn")
    assert [(t.piece, t.text) for t in words[1:-1]] == [("f", "f"), ("##i", "i"), ("##n", "n")]


@pytest.mark.parametrize(
    ("kind", "segments"),
    [("wordpiece", [0, 0, 0, 1, 1]), ("roberta", [0, 0, 0, 0, 1, 1]), ("byte-level", [0, 1])],
)
def test_a_pair_counts_in_its_own_text(tmp_path: Path, kind: str, segments: list[int]) -> None:
    tokens = _load(tmp_path, kind).encode("The", "The")
    assert [t.segment for t in tokens] == segments
    assert [t.type_id for t in tokens] == ([0] * 6 if kind == "roberta" else segments)
    assert [(t.start, t.end, t.segment) for t in tokens if not t.special] == [(0, 3, 0), (0, 3, 1)]


def test_of_special_tokens_that_the_user_wrote_only_the_mask_is_a_word(tmp_path: Path) -> None:
    *_, sep, mask, _ = _load(tmp_path, "wordpiece").encode("The [SEP] [MASK]")
    assert (sep.piece, sep.start, sep.end, sep.special) == ("[SEP]", 4, 9, True)
    assert (mask.piece, mask.start, mask.end, mask.special) == ("[MASK]", 10, 16, False)


def test_what_a_model_made_is_what_the_user_may_have_written(tmp_path: Path) -> None:
    """The token for unknown words is none of a template; one that ends a text is, but no tokenizer added it here."""
    tokenizer = _load(tmp_path, "wordpiece")
    made = [
        tokenizer.made_token(tokenizer.id_of(piece) or 0) for piece in ("[UNK]", "[SEP]", "[MASK]")
    ]
    written = tokenizer.encode("[UNK] [SEP] [MASK]")[1:-1]
    assert [(t.piece, t.special, t.unknown) for t in made] == [
        (t.piece, t.special, t.unknown) for t in written
    ]
    assert count_closing([*written, *made]) == 0
    assert count_closing(tokenizer.encode("The")) == 1


def test_a_predicted_part_of_a_character_keeps_its_leading_space(tmp_path: Path) -> None:
    value = content("byte-level")
    for piece in ("Ġð", "ĠðŁ"):
        value["model"]["vocab"][piece] = len(value["model"]["vocab"])
        value["model"]["merges"].append([piece[:-1], piece[-1]])
    tokenizer = load_tokenizer(write(tmp_path, value))
    spelled = [tokenizer.spelled(tokenizer.id_of(piece) or 0)[1] for piece in ("ĠðŁ", "Ġð", "ð")]
    assert spelled == [" <F0 9F>", " <F0>", "<F0>"]
    assert tokenizer.made_token(tokenizer.id_of("ĠðŁ") or 0).text == "<F0 9F>"
    assert [token.text for token in tokenizer.encode(" 🙂", where="TEXT")][-3:] == [
        "<F0 9F>",
        "<99>",
        "<82>",
    ]


def test_offsets_are_those_of_the_text_where_the_normalizer_changes_its_length(
    minilm: Path,
) -> None:
    text = "bänk\u200d Ⅻ İx"
    tokens = [t for t in load_tokenizer(minilm / "tokenizer.json").encode(text) if not t.special]
    assert tokens[0].text == "bänk"
    assert all(t.text == text[t.start : t.end] for t in tokens)


def test_the_real_tokenizer(minilm: Path) -> None:
    tokenizer = load_tokenizer(minilm / "tokenizer.json")
    assert (tokenizer.name, tokenizer.vocab_size, tokenizer.unknown_id) == ("WordPiece", 30522, 100)
    assert tokenizer.notes == [
        "ignoring the truncation stored in tokenizer.json",
        "ignoring the padding stored in tokenizer.json",
    ]
    tokens = tokenizer.encode("The bank by the river was eroded")
    assert [t.text for t in tokens] == [
        "[CLS]",
        "The",
        "bank",
        "by",
        "the",
        "river",
        "was",
        "eroded",
        "[SEP]",
    ]
    assert [t.id for t in tokens] == [101, 1996, 2924, 2011, 1996, 2314, 2001, 23300, 102]
    assert len(tokenizer.encode("bank " * 500)) == 502


def test_sizes_and_names(any_kind: FileTokenizer) -> None:
    assert any_kind.name in {"BPE", "WordPiece", "Unigram"}
    assert max(t.id for t in any_kind.encode("The bank 😀 é ñ")) < any_kind.vocab_size
    assert any_kind.notes == []


@pytest.mark.parametrize("spelled", [list, " ".join], ids=["pairs", "strings"])
def test_merges_are_counted_however_they_are_spelled(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, spelled: Callable[[list[str]], object]
) -> None:
    monkeypatch.setattr(tokenizer_json, "_LARGE", 1)
    value = content("byte-level")
    value["model"]["merges"] += [["\\", "\\"], ['"', "\\"]]
    value["model"]["vocab"] |= {"\\\\": 900, '"\\': 901}
    count = len(value["model"]["merges"])
    value["model"]["merges"] = [spelled(pair) for pair in value["model"]["merges"]]
    tokenizer = load_tokenizer(write(tmp_path, value))
    assert tokenizer.n_merges == count
    assert [t.text for t in tokenizer.encode('\\\\"\\')] == ["\\\\", '"\\']


TEXTS = st.text(CHARACTERS, min_size=1, max_size=40).filter(str.strip)


@pytest.mark.parametrize("kind", KINDS)
@given(text=TEXTS, pair=st.none() | TEXTS)
def test_every_token_of_every_text_is_what_its_span_says(
    kind: str, text: str, pair: str | None
) -> None:
    tokenizer = _TOKENIZERS.setdefault(
        kind, FileTokenizer(Path(kind), json.dumps(content(kind)).encode())
    )
    tokens: list[Token] = []
    refusal = None
    try:
        tokens = tokenizer.encode(text, pair)
    except AttnscopeError as e:
        refusal = e.message
    assert refusal in (None, "the text has no tokens")
    for token in tokens:
        assert token.text
        assert 0 <= token.id < tokenizer.vocab_size
        if token.start is None or token.end is None:
            assert token.end is token.start
            continue
        span = (text if token.segment == 0 else pair or "")[token.start : token.end]
        assert span
        assert token.text in (span, readable_piece(span)) or (
            token.text.startswith("<") and len(span) == 1
        )


EXPANDED = st.text("aBx bﬁⅫ½㎏…´\n🜁é¡▁", min_size=1, max_size=12).filter(str.strip)
PART = re.compile("<((?:[0-9A-F]{2} ?)+)>")


@pytest.mark.parametrize("kind", [*KINDS, "words", "suffixes", *PREFIXED])
@given(text=TEXTS)
def test_tokens_spell_the_text_in_order(kind: str, text: str) -> None:
    _check_spelled(kind, text.replace("<", "(").replace("\x00", ""), lambda span: span)


@pytest.mark.parametrize("kind", NORMALIZED)
@given(text=EXPANDED)
def test_tokens_spell_the_text_in_order_where_a_normalizer_adds_characters(
    kind: str, text: str
) -> None:
    _check_spelled(kind, text, lambda span: unicodedata.normalize("NFKC", span))


def _check_spelled(kind: str, text: str, normal: Callable[[str], str]) -> None:
    """Spans run through the text and leave nothing out, and what tokens of one stretch show is that stretch."""
    tokenizer = _TOKENIZERS.setdefault(
        kind, FileTokenizer(Path(kind), json.dumps(content(kind)).encode())
    )
    tokens = [t for t in tokenizer.encode(text) if not t.special] if text.strip() else []
    assert all(t.text == "␣" * len(t.text) for t in tokens if t.start is None)
    found = [(t.start, t.end, t.text) for t in tokens if t.start is not None and t.end is not None]
    assert sorted(found, key=lambda one: one[:2]) == found
    covered = {place for start, end, _ in found for place in range(start, end)}
    # which drops some
    assert covered >= {i for i, c in enumerate(text) if not c.isspace()} or kind == "wordpiece"
    stretches: list[tuple[int, int, list[str]]] = []
    for start, end, shown in found:
        if stretches and start < stretches[-1][1]:
            first, last, pieces = stretches[-1]
            stretches[-1] = first, max(last, end), [*pieces, shown]
        else:
            stretches.append((start, end, [shown]))
    for start, end, pieces in stretches:
        written = text[start:end]
        if written.isspace():
            assert all(
                piece in (readable_piece(written), "␣") or PART.fullmatch(piece) for piece in pieces
            )
        elif len(pieces) == 1:
            assert pieces == [written] or PART.fullmatch(pieces[0])
        else:
            raw = PART.sub(
                lambda part: bytes.fromhex(part[1]).decode(errors="surrogateescape"),
                "".join(pieces),
            )
            spelled = raw.encode(errors="surrogateescape").decode()
            assert "".join(normal(written).replace("␣", "").split()) == "".join(
                spelled.replace("␣", "").split()
            )


_TOKENIZERS: dict[str, FileTokenizer] = {}


@given(st.binary(min_size=1, max_size=12))
def test_a_byte_level_piece_shows_every_byte(raw: bytes) -> None:
    alphabet = {
        b: c for c in map(chr, range(0x21, 0x144)) if (found := piece_bytes(c)) for b in found
    }
    piece = "".join(alphabet[b] for b in raw)
    assert piece_bytes(piece) == raw
    try:
        raw.decode()
    except UnicodeDecodeError:
        assert byte_fragment(piece, byte_level=True) is not None
    else:
        assert byte_fragment(piece, byte_level=True) is None
    assert byte_fragment(piece, byte_level=False) is None


@pytest.mark.parametrize(
    ("span", "shown"),
    [
        (" a b ", "a b"),
        ("  ", "␣␣"),
        ("\n\t", "⏎⇥"),
        ("\r\n", "<U+000D>⏎"),
        ("\u00a0", "<U+00A0>"),
        ("x", "x"),
    ],
)
def test_a_piece_shows_blanks_and_controls_readably(span: str, shown: str) -> None:
    assert readable_piece(span) == shown


def test_trimming_leaves_blanks_out_of_a_span() -> None:
    assert trim_span("  a b  ", 0, 7) == (2, 5)
    assert trim_span("a   b", 1, 4) == (1, 4)


def test_words_of_the_text_itself() -> None:
    text = "The bank's naïve हिन्दी, by_the 3 rivers’ -- 😀!"
    tokens = WordTokenizer([text]).encode(text)
    words = [
        "The",
        "bank's",
        "naïve",
        "हिन्दी",
        ",",
        "by_the",
        "3",
        "rivers",
        "’",
        "-",
        "-",
        "😀",
        "!",
    ]
    assert [t.text for t in tokens] == words
    assert all(text[t.start : t.end] == t.text == t.piece for t in tokens)
    assert [sorted(set(words))[t.id] for t in tokens] == words


def test_words_without_punctuation_and_across_texts() -> None:
    tokenizer = WordTokenizer(["b, a!", "c a?"], punctuation="drop")
    assert (tokenizer.vocab_size, tokenizer.notes) == (3, [])
    assert [(t.id, t.segment, t.start) for t in tokenizer.encode("c a", "b, a!")] == [
        (2, 0, 0),
        (0, 0, 2),
        (1, 1, 0),
        (0, 1, 3),
    ]


def test_words_that_are_not_there() -> None:
    with pytest.raises(
        AttnscopeError, match="text: the word 'd' at character 2 is not in the vocabulary"
    ):
        WordTokenizer(["a b"]).encode("a d")
    with pytest.raises(AttnscopeError, match="f:3: the text has no words"):
        WordTokenizer(["?!"], punctuation="drop").encode("?!", where="f:3")


def test_a_batch_is_padded_on_the_right() -> None:
    one, two = WordTokenizer(["a b c"]).encode("a b c"), WordTokenizer(["a b c"]).encode("c", "b")
    batch = pad_texts([one, two], torch.device("cpu"))
    assert [ids.tolist() for ids in batch.ids[:2]] == [
        [[0, 1, 2], [2, 1, 0]],
        [[0, 0, 0], [0, 1, 0]],
    ]
    assert batch.lengths == [3, 2] and batch.real.tolist() == [[True] * 3, [True, True, False]]
