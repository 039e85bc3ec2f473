"""`attnscope batch` and `attnscope.write_dump` write the same bytes, and refuse the same in the same words."""

import json
import random
from collections import Counter
from pathlib import Path

import numpy as np
import pytest

import attnscope
from attnscope.base.errors import PYTHON_NAMES, AttnscopeError, UsageError
from attnscope.batch.arguments import DumpArguments
from attnscope.cli import main
from attnscope.request.options import on_command_line
from attnscope.studies.registry import options_of
from tests.helpers.draws import drawn

TEXTS = ["the bank by the river", "", "river", "the old bank"]
CHAT = {"messages": [{"role": "user", "content": "the bank"}]}
# of an option: what is typed, and what Python takes
VALUES = {
    "texts": [("texts.txt", "texts.txt"), ("rows.jsonl", "rows.jsonl"), ("none.txt", "none.txt")],
    "chat": [("chats.jsonl", "chats.jsonl")],
    "input_format": [("txt", "txt"), ("jsonl", "jsonl"), ("csv", "csv")],
    "column": [("text", "text"), ("body", "body")],
    "skip": [("1", 1)],
    "limit": [("2", 2)],
    "shard": [("1/2", "1/2")],
    "qkv": [("qkv.npz", "qkv.npz")],
    "config": [("single-head", "single-head")],
    "layer": [("1", 1), ("0,-1", [0, -1]), ("mean", "mean"), ("auto", "auto"), ("L1H2", "L1H2")],
    "head": [("1,3", (1, 3)), ("mean", "mean"), ("9", 9)],
    "query": [("0", 0), ('"river"', "river")],
    "key": [("1:", slice(1, None))],
    "mask": [("causal", "causal"), ("window:2+own", "window:2+own")],
    "what_if": [("same-scores", "same-scores")],
    "hide": [("0", 0)],
    "stages": [("weights", "weights"), ("scores,output", ["scores", "output"]), ("none", ())],
    "top": [("1", 1), ("0", 0)],
    "by": [("value", "value")],
    "special": [(None, False)],
    "keep": [
        ("brief", "brief"),
        ("top,rows", ["rows", "top"]),
        ("heads", ("heads",)),
        ("all", "all"),
        ("effects", "effects"),
        ("brief,top", "brief,top"),
    ],
    "target": [("bank", "bank"), ("{word}", "{word}")],
    "patch_from": [("the river bank", "the river bank")],
    "spans": [("words", "words"), ("the,river", "the,river"), ("spans.json", "spans.json")],
    "words": [(None, True)],
    "pool": [("2", 2)],
    "table": [("rows", "rows"), ("rows,contributors", ["contributors", "rows"])],
    "strict": [(None, True)],
    "force": [(None, True)],
    "max_minutes": [("9", 9)],
    "actors": [("2", 2)],
    "truncate": [(None, True)],
    "dtype": [("bfloat16", "bfloat16")],
    "threads": [("1", 1)],
    "hash_weights": [(None, True)],
}
# what no reader of an option takes
UNREADABLE = {
    "limit": [("0", 0)],
    "shard": [("3/2", "3/2")],
    "by": [("logit", "logit")],
    "keep": [("nothing", "nothing")],
    "max_minutes": [("-1", -1)],
    "table": [("words", "words")],
    "stages": [("sums", "sums")],
}
OUTPUTS = ["d.jsonl", "d.jsonl", "folder", "d.parquet/", "d.json", "d.csv", "d.jsonl.gz"]


def fill(folder):
    """Write the inputs."""
    folder.mkdir()
    (folder / "texts.txt").write_text("\n".join(TEXTS) + "\n")
    rows = [{"text": text, "body": "the bank", "word": "river"} for text in TEXTS]
    (folder / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    (folder / "chats.jsonl").write_text(json.dumps(CHAT) + "\n")
    (folder / "spans.json").write_text('[{"name": "all", "start": 0, "end": 3}]')
    np.savez(folder / "qkv.npz", **dict.fromkeys("qkv", np.eye(4, dtype=np.float32)[None, None]))
    return folder


def files(folder):
    """The bytes of every file below a folder."""
    return {
        path.relative_to(folder): path.read_bytes()
        for path in sorted(folder.rglob("*"))
        if path.is_file()
    }


def draw_call(chance):
    """Return the words of a command, and the arguments of the same call in Python."""
    table = {option.name: option for option in options_of("batch")}
    values = VALUES
    names = chance.sample(sorted(VALUES.keys() - {"texts"}), chance.choice((0, 1, 1, 2, 2, 3)))
    output = chance.choice(OUTPUTS)
    if chance.random() < 0.1:
        values = VALUES | UNREADABLE
        output = "d.jsonl"
        names = [chance.choice(sorted(UNREADABLE))]
    if not {"chat", "qkv"}.intersection(names) or chance.random() < 0.2:
        names.append("texts")
    words = ["batch", "-o", output, "--workers", "0", "--quiet"]
    arguments = {"output": output}
    for name in names:
        typed, value = chance.choice(values[name])
        option = table[name]
        words += [] if option.argument else [option.spelled]
        words += [] if typed is None else [typed]
        arguments[PYTHON_NAMES.get(name, name)] = value
    return words, arguments


def python_end(arguments):
    """Return the exit code and the last line with which the command line ends a call's work."""
    try:
        summary = attnscope.write_dump(**arguments)
    except AttnscopeError as error:
        return error.code, f"attnscope: error: {error.line(on_command_line)}"
    return (3 if summary.counts["failed"] else 0), ""


def test_every_option_that_python_takes_is_drawn():
    elsewhere = {  # refused in words that name files and clusters, or of the machine
        *("model", "adapter", "tokenizer", "ignore_key", "trust_config", "device", "max_memory"),
        *("engine", "part", "progress", "ray", "actor_cpus", "actor_gpus", "actor_resources"),
    }
    names = {PYTHON_NAMES.get(name, name) for name in VALUES} - {"texts"}
    assert names | elsewhere == DumpArguments.__annotations__.keys()
    of_process = {"texts", "output", "workers", "sbatch", "status", "quiet"}
    options = {PYTHON_NAMES.get(option.name, option.name) for option in options_of("batch")}
    assert options - of_process == DumpArguments.__annotations__.keys() - {"progress"}


def test_both_faces_write_the_same_bytes_and_refuse_in_the_same_words(
    tmp_path, capsys, monkeypatch
):
    chance = random.Random(53)
    ends = Counter()
    for case in range(drawn(30)):
        words, arguments = draw_call(chance)
        typed = fill(tmp_path / f"typed-{case}")
        called = fill(tmp_path / f"called-{case}")
        monkeypatch.chdir(typed)
        capsys.readouterr()
        code = main(words)
        said = capsys.readouterr().err.strip().split("\n")[-1]
        monkeypatch.chdir(called)
        assert (code, said) == python_end(arguments), words
        assert files(typed) == files(called), words
        ends[code] += 1
    assert ends[0] >= 5, ends
    assert ends[2] >= 5, ends


def test_a_summary_counts_the_records_of_the_dump(tmp_path, monkeypatch):
    monkeypatch.chdir(fill(tmp_path / "called"))
    with open("rows.jsonl", "a") as file:
        file.write('{"text": 5}\n')
    steps = []
    summary = attnscope.write_dump(
        "rows.jsonl",
        output="d.jsonl",
        limit=4,
        keep=("top", "rows"),
        progress=lambda *step: steps.append(step),
    )
    statuses = [record.status for record in attnscope.read_dump("d.jsonl")]
    assert summary.counts == Counter(statuses) == {"ok": 3, "skipped": 1}
    assert steps[-1] == ("texts", 4, 4)
    again = attnscope.write_dump("rows.jsonl", output="d.jsonl", keep=("top", "rows"))
    assert (again.resumed + again.recomputed, again.records) == (4, 5)
    assert again.counts["failed"] == 1
    assert again.failures == [f"5: {list(attnscope.read_dump('d.jsonl'))[-1].error}"]


def test_an_interrupted_call_is_resumed_to_the_bytes_of_one_that_was_not(tmp_path, monkeypatch):
    monkeypatch.chdir(fill(tmp_path / "called"))
    (tmp_path / "called" / "many.txt").write_text("the bank by the river\n" * 400)

    def interrupt(step, done, total):
        if step == "texts" and done > 100:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        attnscope.write_dump("many.txt", output="d.jsonl", progress=interrupt)
    assert 0 < attnscope.write_dump("many.txt", output="d.jsonl").resumed < 400
    attnscope.write_dump("many.txt", output="whole.jsonl")
    assert Path("d.jsonl").read_bytes() == Path("whole.jsonl").read_bytes()


def test_an_open_model_writes_dumps_and_a_stack_has_the_words_of_the_texts(tmp_path, monkeypatch):
    monkeypatch.chdir(fill(tmp_path / "called"))
    with attnscope.open_model(config="single-head") as model:
        model.write_dump("texts.txt", output="open.jsonl")
        assert model.inspect("a savings bank").query_tokens == ["a", "savings", "bank"]
    attnscope.write_dump("texts.txt", output="named.jsonl", config="single-head")
    assert Path("open.jsonl").read_bytes() == Path("named.jsonl").read_bytes()
    tokens = {token.text for record in attnscope.read_dump("open.jsonl") for token in record.tokens}
    assert tokens == set(" ".join(TEXTS).split())
    with pytest.raises(UsageError, match="the model is closed"):
        model.write_dump("texts.txt", output="closed.jsonl")
    assert not Path("closed.jsonl").exists()


RECORDS = [{"id": "a", "text": "river", "label": 3}, {"id": "b", "text": "bank", "pair": "old"}]


@pytest.mark.parametrize(
    "records",
    [TEXTS, [*TEXTS, "two\nlines", "ü \u2028"], RECORDS, [*TEXTS, *RECORDS]],
    ids=["texts", "lines", "records", "both"],
)
def test_texts_in_memory_give_the_bytes_of_a_file_with_their_lines(tmp_path, monkeypatch, records):
    monkeypatch.chdir(tmp_path)
    members = [{"text": record} if isinstance(record, str) else record for record in records]
    # the name that the header has for them
    lines = (json.dumps(line, separators=(",", ":"), ensure_ascii=False) for line in members)
    Path("texts in memory").write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
    attnscope.write_dump("texts in memory", output="file.jsonl", input_format="jsonl")
    Path("texts in memory").unlink()
    for name, texts in {
        "list": records,
        "generator": (record for record in records),
        "array": np.array(records, dtype=object),
    }.items():
        attnscope.write_dump(texts, output=f"{name}.jsonl")
        assert Path(f"{name}.jsonl").read_bytes() == Path("file.jsonl").read_bytes(), name
    assert attnscope.write_dump(records, output="list.jsonl").resumed == len(records)
    assert main(["verify", "list.jsonl"]) == 0


def test_texts_in_memory_go_into_the_member_that_column_names_and_are_read_by_an_open_model(
    tmp_path, monkeypatch
):
    monkeypatch.chdir(tmp_path)
    records = [{"text": "river", "body": "the bank"}, "the old bank"]
    with attnscope.open_model() as model:
        model.write_dump(records, output="d.jsonl", column="body")
    assert [record.text for record in attnscope.read_dump("d.jsonl")] == [
        "the bank",
        "the old bank",
    ]


@pytest.mark.parametrize(
    ("texts", "options", "message"),
    [
        ({"text": "river"}, {}, "texts: expected a path or several texts, got {'text': 'river'};"),
        (5, {}, "texts: expected a path or several texts, got 5;"),
        (np.array([["river"]]), {}, "texts: expected a path or several texts, got array("),
        (["river", 3], {}, "texts[1]: expected a text, or a record of JSON values, got 3;"),
        (["\ud800"], {}, "texts[0]: expected a text, or a record of JSON values, got '"),
        ([{"text": object}], {}, "texts[0]: expected a text, or a record of JSON values, got {"),
        (["river"], {"input_format": "txt"}, "input_format='txt': applies only to a file;"),
        (["river"], {"messages": "chats.jsonl"}, "messages and texts cannot be used together"),
        (None, {}, "no input given"),
    ],
)
def test_what_is_no_texts_is_refused_with_what_is_expected(
    texts, options, message, tmp_path, monkeypatch
):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UsageError) as refused:
        attnscope.write_dump(texts, output="d.jsonl", **options)
    assert str(refused.value).startswith(message)
    assert not Path("d.jsonl").exists()


def test_another_list_of_texts_does_not_resume_a_dump(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    attnscope.write_dump(TEXTS, output="d.jsonl")
    with pytest.raises(AttnscopeError, match="was started with another input"):
        attnscope.write_dump(TEXTS[1:], output="d.jsonl")


def test_words_are_kept_once(tmp_path, monkeypatch):
    monkeypatch.chdir(fill(tmp_path / "called"))
    for keep in ({}, {"keep": "spans"}, {"keep": ["rows", "spans"]}):
        attnscope.write_dump("texts.txt", output="d.jsonl", words=True, force=True, **keep)
        settings = attnscope.read_dump("d.jsonl").header.settings
        assert settings.keep == (
            ("rows", "spans") if len(keep.get("keep", "")) == 2 else ("spans",)
        )
        assert settings.spans == "whole-words"


def test_a_model_in_memory_writes_the_numbers_of_its_folder(tmp_path, monkeypatch, minilm):
    from transformers import AutoModel, AutoTokenizer

    monkeypatch.chdir(fill(tmp_path / "called"))
    live = {"model": AutoModel.from_pretrained(minilm, attn_implementation="eager")}
    live["tokenizer"] = AutoTokenizer.from_pretrained(minilm)
    keep = {"keep": ("top", "rows"), "stages": "weights", "layer": (0, -1)}
    attnscope.write_dump("texts.txt", output="live.jsonl", **keep, **live)
    attnscope.write_dump("texts.txt", output="folder.jsonl", **keep, model=minilm)
    records = [list(attnscope.read_dump(f"{name}.jsonl")) for name in ("live", "folder")]
    for in_memory, of_folder in zip(*records, strict=True):
        assert in_memory.status == of_folder.status
        assert in_memory.text == of_folder.text
        if in_memory.status == "ok":
            np.testing.assert_allclose(
                in_memory.stages["weights"], of_folder.stages["weights"], atol=2e-6
            )
    assert [record.status for record in records[0]] == ["ok", "skipped", "ok", "ok"]
    assert attnscope.write_dump("texts.txt", output="live.jsonl", **keep, **live).resumed == 4
    with pytest.raises(UsageError, match=r"ray: actors cannot share a model in memory; pass"):
        attnscope.write_dump("texts.txt", output="ray.jsonl", **live, ray="local")
