"""Which span a token belongs to, and what is refused."""

import json
from pathlib import Path
from typing import Any

import pytest

import attnscope
from attnscope.findings.tokens import Token
from attnscope.request.chat import RenderedChat
from attnscope.request.dividing import divide
from attnscope.request.run_config import TextInput
from attnscope.request.spans import SpanRange, SpanRequest
from tests.referee.models import minilm_folder

TEXT = "Doc 1: the bank. Doc 2: a river. Question: which?"


def divided(spans: Any, text: str | None = TEXT, **options: Any) -> dict[str, str]:
    """Names of spans with the text of their tokens."""
    report = attnscope.inspect(text, spans=spans, layer=0, head=0, **options)
    words: dict[str, list[str]] = {name: [] for name in report.spans}
    for token, span in zip(report.tokens, report.span_of_token, strict=True):
        words[report.spans[span]].append(token.text)
    return {name: " ".join(some) for name, some in words.items()}


MARKED = {
    "(first)": "Doc",
    "Doc 1": "1 : the bank .",
    "Doc 2": "Doc 2 : a river .",
    "Question": "Question : which ?",
}


def test_marks_begin_spans() -> None:
    assert divided("Doc 1:,Doc 2:,Question:") == MARKED
    assert divided('"Doc 2:"') == {
        "(first)": "Doc",
        "Doc 2": "Doc 2 : a river . Question : which ?",
        "(rest)": "1 : the bank .",
    }
    assert list(divided("Doc")) == ["(first)", "Doc", "Doc (2)"]


def test_files_and_python_values_are_the_same_ranges(tmp_path: Path) -> None:
    ranges = {"Doc 1": [0, 17], "Doc 2": [17, 33], "Question": [33, 49]}
    listed = [{"name": name, "start": start, "end": end} for name, (start, end) in ranges.items()]
    values = [
        ranges,
        {name: slice(*pair) for name, pair in ranges.items()},
        listed,
        {n: [p] for n, p in ranges.items()},
    ]
    for name, text in {
        "names.json": json.dumps(ranges),
        "list.json": json.dumps(listed),
        "lines.jsonl": "".join(json.dumps(one) + "\n" for one in listed),
    }.items():
        (tmp_path / name).write_text(text)
        values.append(str(tmp_path / name))
    assert all(divided(value) == MARKED for value in values)
    pieces = [("Doc 1", TEXT[:17]), ("Doc 2", TEXT[17:33]), ("Question", TEXT[33:])]
    assert divided(pieces, None) == divided(pieces) == MARKED


def test_tokens_and_gaps() -> None:
    assert divided([{"name": "x", "start": 2, "end": 4, "unit": "tokens"}]) == {
        "(first)": "Doc",
        "x": ": the",
        "(rest)": "1 bank . Doc 2 : a river . Question : which ?",
    }


def test_special_tokens_and_a_pair_are_spans_of_their_own() -> None:
    found = divided({"bank": (0, 8)}, "the bank is old", pair="a river", model=minilm_folder())
    assert found == {
        "(first)": "[CLS]",
        "bank": "the bank",
        "(special)": "[SEP] [SEP]",
        "(pair)": "a river",
        "(rest)": "is old",
    }
    both = divided("sentences", "One. Two.", pair="Three. Four.", model=minilm_folder())
    assert list(both) == [
        "(first)",
        "sentence 1",
        "sentence 2",
        "sentence 1 (2)",
        "sentence 2 (2)",
        "(special)",
    ]


def test_words_lines_and_paragraphs() -> None:
    assert list(divided("words"))[:5] == ["Doc", "1", "the", "bank", "Doc (2)"]
    text = "the bank\nthe river\n\nis old"
    assert divided("lines", text) == {
        "(first)": "the",
        "line 1": "bank",
        "line 2": "the river",
        "line 3": "is old",
    }
    assert divided("paragraphs", text) == {
        "(first)": "the",
        "paragraph 1": "bank the river",
        "paragraph 2": "is old",
    }


def characters(text: str, division: Any, turns: tuple[SpanRange, ...] = ()) -> list[str]:
    """The text of every span that a division makes of single characters."""
    tokens = [
        Token(0, "", "", special=True),
        *(Token(1, c, c, i, i + 1) for i, c in enumerate(text)),
    ]
    rendered = RenderedChat(text, turns, None, "", (), ()) if turns else None
    found = divide(TextInput(text, rendered=rendered), tokens, SpanRequest(division))
    spans = [number for number, kind in enumerate(found.kinds) if kind == "text"]
    return ["".join(tokens[at].text for at in found.tokens(span)).strip() for span in spans]


def test_sentences() -> None:
    text = (
        "Dr. Smith paid 3.5 euros, e.g. for tea. He said: “Go!” Then he left... and came. J. R. Ewing won.\n\n"
        "A line\nthat is wrapped\n- item one\n- item two\nSteps:\nfirst 他去了。你好！ok"
    )
    assert characters(text, "sentences") == [
        "Dr. Smith paid 3.5 euros, e.g. for tea.",
        "He said: “Go!”",
        "Then he left... and came.",
        "J. R. Ewing won.",
        "A line\nthat is wrapped",
        "- item one",
        "- item two",
        "Steps:",
        "first 他去了。",
        "你好！",
        "ok",
    ]


def test_turns_leave_the_template_to_itself() -> None:
    text = "<user>\nHi. Who?\n<end>"
    turns = (SpanRange("user", 7, 16),)
    assert characters(text, "turns", turns=turns) == ["Hi. Who?"]
    assert characters(text, "sentences", turns=turns) == ["Hi.", "Who?"]
    with pytest.raises(attnscope.AttnscopeError, match="no chat"):
        characters(text, "turns")


def test_generated_tokens_are_the_answer() -> None:
    tokens = [Token(1, "a", "a", 0, 1), Token(2, "b", "b", 1, 2), Token(3, "c", "c", made=True)]
    found = divide(TextInput("ab"), tokens, SpanRequest("lines"))
    assert (found.names, found.kinds) == (
        ["(first)", "line 1", "answer"],
        ["first", "text", "answer"],
    )
    assert found.number("Answer:") == 2


@pytest.mark.parametrize(
    ("spans", "message"),
    [
        ({"a": (0, 8), "b": (7, 9)}, "spans 'a' and 'b' overlap (characters 7 to 8)"),
        (
            [
                {"name": "a", "start": 1, "end": 3, "unit": "tokens"},
                {"name": "b", "start": 0, "end": 8},
            ],
            "overlap (token 1)",
        ),
        ({"a": (0, 50)}, "span 'a' ends at character 50; the text has 49 characters"),
        ({"a": (3, 3)}, "the range 3 to 3"),
        ({"a": (3, 4), "b": (0, 3)}, "span 'a' has no token"),
        ({"(rest)": (0, 3)}, "'(rest)' has a meaning of its own"),
        ({"": (0, 3)}, "not a name"),
        ({"a": "b"}, "not a range"),
        ({"a": (0, 1.5)}, "not a whole number"),
        ([{"name": "a", "start": 0}], "has no 'end'"),
        ([{"name": "a", "start": 0, "end": 3, "unit": "words"}], "the unit 'words' is unknown"),
        ([{"name": "a", "start": 0, "end": 3, "colour": 1}], "has no member 'colour'"),
        ("Doc 3:", "the mark 'Doc 3:' is not in the text"),
        ("sentence", "did you mean spans='sentences'?"),
        (",", "has no mark"),
        ("turns", "no chat"),
        (["no such text"], "not in the text"),
        ([], "has no span"),
        ({}, "has no span"),
        ("missing.json", "no such file"),
    ],
)
def test_spans_that_do_not_fit_a_text_are_refused(spans: Any, message: str) -> None:
    with pytest.raises(attnscope.AttnscopeError) as error:
        attnscope.inspect(TEXT, spans=spans)
    assert message in str(error.value)
    assert "\n" not in str(error.value)


def test_names_are_rows_and_columns() -> None:
    report = attnscope.inspect(
        TEXT, spans="Doc 1:,Doc 2:,Question:", query="question", key=["doc 1:", "(first)"]
    )
    assert [report.span_of_token[at] for at in report.queries] == [3] * 4
    assert report.keys == [0, 1, 2, 3, 4, 5]
    with pytest.raises(attnscope.AttnscopeError, match="did you mean 'Doc 2'"):
        attnscope.inspect(TEXT, spans="Doc 2:", key="Doc 22")


def test_a_range_named_answer_at_the_end_is_the_answer() -> None:
    kinds = {}
    for last in ("answer", "reply"):
        report = attnscope.inspect(TEXT, spans={"doc": (0, 33), last: (33, 49)}, layer=0, head=0)
        kinds[last] = report.data.texts[0].spans.text.kinds
    assert kinds == {"answer": ["first", "text", "answer"], "reply": ["first", "text", "text"]}
    report = attnscope.inspect(TEXT, spans={"answer": (0, 33), "doc": (33, 49)}, layer=0, head=0)
    assert "answer" not in report.data.texts[0].spans.text.kinds
