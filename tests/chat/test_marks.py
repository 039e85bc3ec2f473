"""Marks divide the messages of a chat: they never cross a turn, and the last message of the assistant stays whole."""

import json
from random import Random

import pytest
import torch
import transformers

import attnscope
from attnscope.base.errors import AttnscopeError
from attnscope.cli import main
from attnscope.findings.tokens import Token
from attnscope.request.dividing import divide
from attnscope.request.run_config import TextInput
from attnscope.request.spans import parse_spans
from tests.chat import proof
from tests.helpers import architectures
from tests.helpers.draws import in_two

DOCUMENTS = "Read. Doc 1: the bank. Doc 2: the river, Doc 1: again. Question: where?"
CHAT = [
    {"role": "user", "content": DOCUMENTS},
    {"role": "assistant", "content": "Doc 2: by the river"},
]
MARKS = "Doc 1:,Doc 2:,Question:"


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    path = tmp_path_factory.mktemp("models") / "chat"
    torch.manual_seed(1)
    config = transformers.LlamaConfig(
        vocab_size=128,
        hidden_size=32,
        num_hidden_layers=2,
        num_attention_heads=4,
        intermediate_size=32,
    )
    transformers.LlamaForCausalLM(config).save_pretrained(path)
    architectures.write_tokenizer(path)
    (path / "chat_template.jinja").write_text((proof.FOLDER / "phi3.jinja").read_text())
    return path


def text_of(spans, text, name):
    return "".join(text[r.start : r.end] for r in spans.characters[spans.names.index(name)])


def test_marks_divide_messages_and_leave_the_answer_whole(folder):
    report = attnscope.inspect(messages=CHAT, model=folder, spans=MARKS)
    text = report.data.texts[0]
    spans = text.spans.text
    names = [
        name
        for name, kind in zip(spans.names, spans.kinds, strict=True)
        if kind in ("text", "answer")
    ]
    assert names == ["user 1", "Doc 1", "Doc 2", "Doc 1 (2)", "Question", "assistant 1"]
    assert spans.kinds[spans.names.index("assistant 1")] == "answer"
    for name, expected in (
        ("user 1", "Read."),
        ("Question", "Question: where?"),
        ("assistant 1", "Doc 2: by the river"),
    ):
        assert text_of(spans, text.text, name).strip().startswith(expected)
    assert (
        "the mark 'Doc 1:' is in the text 2 times, and begins a span at each place"
        in report.data.provenance.notes
    )


@pytest.mark.parametrize("division", [MARKS, "sentences", "words", "turns"])
def test_the_last_message_of_the_assistant_is_the_answer(folder, tmp_path, capsys, division):
    """However the chat is divided, and no other answer is taken or generated."""
    found = attnscope.ablate(messages=CHAT, model=folder, spans=division, each="span")
    data = found.data
    answer = [n for n, span in enumerate(data.spans.of_token) if data.spans.kinds[span] == "answer"]
    assert data.positions == [n - 1 for n in answer]
    words = "".join(data.tokens[n].text for n in answer)
    assert words.replace(" ", "").startswith("Doc2:by")
    assert not any("generates" in note for note in data.provenance.notes)
    (tmp_path / "chat.json").write_text(json.dumps(CHAT))
    asked = [
        "ablate",
        "--chat",
        str(tmp_path / "chat.json"),
        "--model",
        str(folder),
        "--spans",
        division,
    ]
    assert main([*asked, "--each", "span", "--answer", " more"]) == 2
    assert "--answer: the chat ends with an answer" in capsys.readouterr().err


def test_a_chat_that_ends_with_the_user_has_no_answer(folder):
    spans = attnscope.inspect(messages=CHAT[:1], model=folder, spans=MARKS).data.texts[0].spans.text
    assert "answer" not in spans.kinds
    with pytest.raises(AttnscopeError, match=r"the mark '<\|user\|>' is not in the text"):
        attnscope.inspect(messages=CHAT, model=folder, spans="<|user|>")  # the template's


def test_a_generated_end_token_is_no_answer():
    tokens = [Token(n, word, word, start=n, end=n + 1) for n, word in enumerate("ab")]
    tokens += [Token(5, "c", "c", made=True), Token(7, "</s>", "</s>", special=True, made=True)]
    spans = divide(TextInput("ab"), tokens, parse_spans("a,b"))
    assert [spans.kinds[number] for number in spans.of_token][2:] == ["answer", "special"]


def test_a_model_that_only_ends_the_text_gives_no_answer(smollm2):
    text = "The capital of France is Paris.<|im_end|>The dog ran to the bank."
    with pytest.raises(
        AttnscopeError, match="the model ends the text at once, so there is no answer"
    ):
        attnscope.ablate(text, model=smollm2, spans="capital,dog", each="span")


PEOPLE = "Ada Boris Clara Daniel Emma Felix Greta Hugo Irene Jonas".split()
JOBS = "paints the tower,repairs the clock,keeps the bees,bakes the bread,rings the bell,drives the ferry".split(
    ","
)


def drawn_chat(seed):
    """A chat of three documents and a question, with its answer; and the name of the document that has it."""
    random = Random(seed)
    people, jobs, needed = random.sample(PEOPLE, 3), random.sample(JOBS, 3), random.randrange(3)
    lines = [
        f"Doc {n}: {person} {job}."
        for n, (person, job) in enumerate(zip(people, jobs, strict=True), 1)
    ]
    question = f"Question: Who {jobs[needed]}?"
    messages = [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": "\n".join([*lines, question])},
        {"role": "assistant", "content": people[needed]},
    ]
    return messages, f"Doc {needed + 1}"


@in_two("seeds", range(10), short=1)
def test_which_document_does_the_answer_need(smollm2, seeds):
    """Of ten drawn chats, the first line of the shortest command names the document, among all spans."""
    with attnscope.open_model(smollm2) as model:
        for seed in seeds:
            messages, needed = drawn_chat(seed)
            found = model.ablate(
                messages=messages, spans="Doc 1:,Doc 2:,Doc 3:,Question:", each="span"
            )
            documents = [
                effect.span for effect in found.strongest(99) if effect.span.startswith("Doc")
            ]
            assert documents[0] == needed, (seed, found.strongest(99))
