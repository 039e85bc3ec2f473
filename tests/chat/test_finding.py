"""Where chat templates are found, and what is refused with one line: files, messages, options."""

import json
import shutil
from io import BytesIO, TextIOWrapper
from pathlib import Path

import pytest
import torch
from transformers import AutoTokenizer

import attnscope
from attnscope.base.errors import AttnscopeError
from attnscope.checkpoints.chat.files import read_templates
from attnscope.checkpoints.locating import open_checkpoint
from attnscope.cli import main
from tests.chat import proof
from tests.helpers import architectures

CHAT = [
    {"role": "system", "content": "Be brief."},
    {"role": "user", "content": "The bank by the river"},
]
TEMPLATE = "{{ bos_token }}{% for m in messages %}<{{ m.role }}>{{ m.content }}{% endfor %}"


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A Llama with a chat template of its own."""
    path = tmp_path_factory.mktemp("models") / "chat"
    architectures.save(path, architectures.make("llama", architectures.ONE_PART["llama"]))
    (path / "chat_template.jinja").write_text((proof.FOLDER / "phi3.jinja").read_text())
    return path


@pytest.fixture
def copied(folder, tmp_path):
    return Path(shutil.copytree(folder, tmp_path / "model"))


def run(capsys, *words):
    code = main([str(word) for word in words])
    return code, capsys.readouterr()


def write(path, value):
    path.write_text(json.dumps(value))
    return path


def test_files_of_their_own_come_before_the_config(tmp_path):
    """As in transformers: .jinja files, then tokenizer_config.json as a text or a list of names."""
    listed = [{"name": "default", "template": "a"}, {"name": "rag", "template": "b"}]
    write(
        tmp_path / "tokenizer_config.json",
        {"chat_template": listed, "bos_token": {"content": "<s>"}, "eos_token": "</s>"},
    )
    found = read_templates(tmp_path)
    assert found.templates == {"default": "a", "rag": "b"}
    assert found.special_tokens == {"bos_token": "<s>", "eos_token": "</s>"}
    (tmp_path / "chat_template.jinja").write_text("c")
    assert read_templates(tmp_path).templates == {"default": "c"}
    (tmp_path / "chat_templates").mkdir()
    (tmp_path / "chat_templates" / "tool_use.jinja").write_text("d")
    found = read_templates(tmp_path)
    assert found.choose(None, tools=False) == ("default", "c")
    assert found.choose(None, tools=True) == ("tool_use", "d")
    assert found.choose("{{ 1 }}", tools=False)[1] == "{{ 1 }}"
    with pytest.raises(
        AttnscopeError, match="has no chat template 'rag'; known: default, tool_use"
    ):
        found.choose("rag", tools=False)


def test_the_template_of_a_gguf_file_is_that_of_its_metadata(smollm2):
    chat = open_checkpoint(smollm2).chat
    assert chat is not None
    assert chat.templates == {"default": proof.own_template()}
    assert chat.special_tokens["bos_token"] == "<|im_start|>"
    assert chat.special_tokens["eos_token"] == "<|im_end|>"


def test_a_chat_is_a_text_with_the_ids_of_transformers(folder, tmp_path, capsys):
    """On the command line and in Python, and the report says how it was rendered."""
    tokenizer = AutoTokenizer.from_pretrained(folder)
    ids = tokenizer.apply_chat_template(CHAT, add_generation_prompt=True, return_dict=True)[
        "input_ids"
    ]
    file = write(tmp_path / "chat.json", CHAT)
    code, out = run(capsys, "run", "--chat", file, "--model", folder, "--json")
    assert code == 0, out.err
    text = json.loads(out.out)["texts"][0]
    assert [token["id"] for token in text["tokens"]] == ids
    assert text["chat"]["messages"] == ["system", "user"]
    assert text["chat"]["template"].endswith("chat_template.jinja)")
    report = attnscope.inspect(messages=CHAT, model=folder)
    assert [token.id for token in report.data.texts[0].tokens] == ids
    assert {"system 1", "user 1", "(template)"} <= set(report.spans)
    # no special tokens are added to a text of this Llama
    reference = attnscope.inspect(text["text"], model=folder)
    added = len(reference.data.texts[0].tokens) - len(ids)
    assert added == sum(
        token.special and token.start is None for token in reference.data.texts[0].tokens
    )
    explained = attnscope.explain(messages={"messages": CHAT}, model=folder, query=-1)
    assert [token.id for token in explained.data.tokens] == ids
    several = attnscope.inspect(messages=[CHAT, CHAT[1:]], model=folder)
    assert len(several.data.texts[0].tokens) == len(ids) > len(several.data.texts[1].tokens)
    compared = attnscope.compare(messages=[CHAT, CHAT[1:]], model=folder)
    assert len(compared.data.sides[0].report.texts[0].tokens) == len(ids)


def test_a_model_in_memory_has_the_template_of_its_tokenizer(folder):
    model = torch.nn.Module.eval(architectures.make("llama", architectures.ONE_PART["llama"]))
    tokenizer = AutoTokenizer.from_pretrained(folder)
    tokenizer.chat_template = {"default": "no", "short": "{{ messages[0].content }}"}
    chat = {"messages": CHAT, "chat_template": "short"}
    report = attnscope.inspect(messages=chat, model=model, tokenizer=tokenizer)
    assert report.data.texts[0].text == "Be brief."


def test_standard_input_and_every_command(folder, tmp_path, capsys, monkeypatch):
    file = write(tmp_path / "chat.json", CHAT)
    for words in (
        ["explain", "--query", "bank"],
        ["heads", "--measure", "entropy"],
        ["heads", "--role", "previous", "--draws", "2"],
        ["ablate", "--each", "layer"],
        ["compare", "--chat", file],
        ["run", "--measure", "rollout"],
    ):
        code, out = run(capsys, *words, "--chat", file, "--model", folder)
        assert code == 0, (words, out.err)
        assert out.out
    monkeypatch.setattr("sys.stdin", TextIOWrapper(BytesIO(file.read_bytes())))
    code, piped = run(capsys, "run", "--chat", "-", "--model", folder)
    assert code == 0, piped.err
    assert piped.out == run(capsys, "run", "--chat", file, "--model", folder)[1].out


def test_batch_renders_the_messages_of_each_line(folder, tmp_path, capsys):
    lines = [
        {"id": "a", "messages": CHAT, "note": 1},
        CHAT[1:],
        {"messages": []},
        {"text": "The bank"},
        {"messages": 3},
    ]
    file = tmp_path / "chats.jsonl"
    file.write_text("".join(f"{json.dumps(line)}\n" for line in lines))
    for words in (["batch", file], ["batch", "--chat", file]):
        code, _ = run(capsys, *words, "--model", folder, "-o", tmp_path / "dump.jsonl", "--force")
        assert code == 3
        records = list(attnscope.read_dump(tmp_path / "dump.jsonl"))
        assert [record.status for record in records] == ["ok", "ok", "failed", "ok", "failed"]
        tokenizer = AutoTokenizer.from_pretrained(folder)
        for record, chat in zip(records, (CHAT, CHAT[1:]), strict=False):
            expected = tokenizer.apply_chat_template(
                chat, add_generation_prompt=True, return_dict=True
            )["input_ids"]
            assert [token.id for token in record.tokens] == expected
        assert (
            records[2].error
            == 'messages: has no messages; expected a list of {"role": …, "content": …}, or an object with "messages"'
        )


WRONG = {
    "empty list": ([], "has no messages"),
    "text": ("hello", "messages is a text, not a list"),
    "no role": ([{"content": "a"}], "message 0: has no role"),
    "role": ([{"role": 3, "content": "a"}], "its role is not a name"),
    "content": ([{"role": "user", "content": 3}], "its content is a number"),
    "image": ([{"role": "user", "content": [{"type": "image_url"}]}], "part 0: is of type 'image_url'"),
    "reserved": ([{"role": "user", "content": [{"text": "a", "name": "(first)"}]}], "its name is '(first)'"),
    "key": ({"messages": CHAT, "temperature": 1}, "has the unknown key 'temperature'"),
    "documents": ({"messages": CHAT, "documents": ["a"]}, "the chat template has no place for documents"),
    "tools": ({"messages": CHAT, "tools": [{"name": "a"}]}, "the chat template has no place for tools"),
    "variable": ({"messages": CHAT, "chat_template_kwargs": {"thinking": True}}, "has no variable 'thinking'"),
    "template": ({"messages": CHAT, "chat_template": "rag"}, "has no chat template 'rag'"),
    "both": ({"messages": CHAT, "add_generation_prompt": True, "continue_final_message": True}, "used together"),
}  # fmt: skip


@pytest.mark.parametrize("name", WRONG)
def test_what_is_wrong_with_messages_is_said_in_one_line(folder, tmp_path, capsys, name):
    value, expected = WRONG[name]
    code, out = run(
        capsys, "run", "--chat", write(tmp_path / "chat.json", value), "--model", folder
    )
    assert code == 2, out.err
    assert out.err.startswith("attnscope: error: ") and out.err.count("\n") == 1
    assert expected in out.err
    with pytest.raises(AttnscopeError, match=r"\S"):
        attnscope.inspect(messages=value, model=folder)


def test_what_is_wrong_with_files_and_options_is_said_in_one_line(folder, copied, tmp_path, capsys):
    file = write(tmp_path / "chat.json", CHAT)
    (tmp_path / "damaged.json").write_text('[{"role": "user", "content": "a"')
    deep = tmp_path / "deep.json"
    deep.write_text("[" * 90_000 + "]" * 90_000)
    model = ("--model", folder)
    for words, code, expected in (
        (["run", "a text", "--chat", file, *model], 2, "--chat and TEXT cannot be used together"),
        (
            ["run", "--chat", file, "--pair", "b", *model],
            2,
            "--chat and --pair cannot be used together",
        ),
        (["run", "--chat", tmp_path / "none.json", *model], 1, "no such file"),
        (["run", "--chat", tmp_path, *model], 1, "is a folder"),
        (["run", "--chat", tmp_path / "damaged.json", *model], 1, "damaged.json"),
        (["run", "--chat", deep, *model], 1, "deep.json"),
        (["run", "--chat", file], 2, "has no chat template"),
        (["run", "--chat", file, "--config", "causal"], 2, "has no chat template"),
        (
            ["batch", file, "--chat", file, "-o", tmp_path / "d.jsonl", *model],
            2,
            "cannot be used together",
        ),
    ):
        found, out = run(capsys, *words)
        assert (found, out.err.count("\n")) == (code, 1), out.err
        assert expected in out.err
    (copied / "chat_template.jinja").write_bytes(b"\xff")
    code, out = run(capsys, "run", "--chat", file, "--model", copied)
    assert (code, out.err.count("\n")) == (1, 1)
    assert "byte 0xff at offset 0 is not UTF-8" in out.err
    (copied / "chat_template.jinja").unlink()
    write(copied / "tokenizer_config.json", {"chat_template": [{"name": 3}]})
    code, out = run(capsys, "run", "--chat", file, "--model", copied)
    assert (code, out.err.count("\n")) == (1, 1)
    assert "expected a text, or a list of objects with name and template" in out.err
    assert run(capsys, "run", "The bank", "--model", copied)[0] == 0  # only chats need it


def test_notes_say_what_the_template_did(folder, copied, tmp_path, capsys):
    (copied / "chat_template.jinja").write_text(
        "{{ strftime_now('%Y') }}{{ mask_token }}{{ messages[1].content }}"
    )
    report = attnscope.inspect(messages=CHAT, model=copied)
    notes = " ".join(report.data.provenance.notes)
    assert "writes the current date" in notes
    assert "uses mask_token, which the checkpoint does not name" in notes
    assert "leaves out text of system 1" in notes
