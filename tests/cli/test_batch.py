"""`attnscope batch` and `convert` as a user meets them: exit codes, one-line messages, signals, progress bar."""

import gzip
import json
import os
import re
import shlex
import shutil
import signal
import subprocess
import time
import tomllib
from hashlib import sha256

import numpy as np
import pytest

import attnscope
from attnscope.checkpoints.locating import locate
from attnscope.checkpoints.samples import samples_folder
from attnscope.cli import batch, convert, main
from tests.helpers import fork_server
from tests.helpers.cli_runner import ROOT, environment, on_terminal

CONFIG = ["--config", "single-head"]


@pytest.fixture
def texts(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "texts.txt").write_text("the bank\n\nby the river\n")
    return tmp_path


def test_the_examples_of_the_help_run(texts, capsys):
    """In their order, so that there are dumps to convert; those that need a BERT or a shell are left out."""
    (texts / "texts.txt.gz").write_bytes(gzip.compress(b"the bank\n"))
    (texts / "reviews.csv").write_text("review\nthe bank\n")
    assert main(["run", "the bank", "--output", "report.json", *CONFIG]) == 0
    for line in (batch.EXAMPLES + convert.EXAMPLES).strip().splitlines():
        if not line or any(word in line for word in ("./my-bert", "zcat", "parquet")):
            continue
        again = ["--force"]  # another example's dump is there
        assert main([*shlex.split(line)[1:], *again]) == 0, capsys.readouterr().err


def lines(path):
    return [json.loads(line) for line in path.read_bytes().splitlines()]


def test_a_dump_and_a_table_of_it(texts, capsys):
    assert main(["batch", "texts.txt", "-o", "dump.jsonl", *CONFIG]) == 0
    out, err = capsys.readouterr()
    assert out == ""
    skipped, wrote = err.splitlines()
    assert skipped == "attnscope: skipped: texts.txt: the text is empty (line 2)"
    assert wrote.startswith("attnscope: wrote: dump.jsonl (2 texts ok, 1 skipped; ")
    assert "tokens/s" in err
    header, *records, end = lines(texts / "dump.jsonl")
    assert header["settings"]["keep"] == ["top", "rows"]
    assert [record["status"] for record in records] == ["ok", "skipped", "ok"]
    assert end["end"] is True
    assert main(["convert", "dump.jsonl", "dump.csv"]) == 0
    assert capsys.readouterr().err == "attnscope: wrote: dump.csv (13 rows of contributors)\n"
    assert main(["batch", "texts.txt", "-o", "dump.jsonl", *CONFIG]) == 0
    assert (
        capsys.readouterr().err
        == "attnscope: note: dump.jsonl is already complete (2 texts ok, 1 skipped)\n"
    )


def test_skipped_texts_are_named_by_reason_and_line(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "texts.txt").write_text("the bank\n" + "\n" * 7 + "  \nthe river\n")
    assert main(["batch", "texts.txt", "-o", "dump.jsonl", *CONFIG]) == 0
    skipped = capsys.readouterr().err.splitlines()[0]
    why = "the text is empty (7 lines: 2, 3, 4, 5, 6, …); the text is blank (line 9)"
    assert skipped == f"attnscope: skipped: texts.txt: {why}"


def test_an_extended_dump_says_what_was_there_and_what_of_it_is_computed_again(texts, capsys):
    (texts / "more.txt").write_text("bank river\n" * 9)
    for limit, before in (
        (4, ""),
        (9, "; 4 were already done, 4 of these were computed again with other texts"),
    ):
        assert main(["batch", "more.txt", "-o", "more.jsonl", "--limit", str(limit), *CONFIG]) == 0
        assert f"({limit} texts ok{before}" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("name", "line"), [("nope.jsonl", "no such file"), ("", "is no dump: it has no index.jsonl;")]
)
def test_what_verify_does_not_find_is_named(texts, name, line, capsys):
    assert main(["verify", str(texts / name)]) == 1
    assert f"{texts / name}: {line}" in capsys.readouterr().err


def test_the_whole_weights_are_hashed_where_asked(texts, capsys):
    assert main(["batch", "texts.txt", "-o", "dump.jsonl", "--hash-weights", "--quiet"]) == 0
    weights = locate("riverbank").path / "model.safetensors"
    assert (
        lines(texts / "dump.jsonl")[0]["provenance"]["weights_hash"]
        == sha256(weights.read_bytes()).hexdigest()
    )


def test_options_reach_the_dump(texts, capsys):
    (texts / "in.csv").write_text("review,id\nthe bank,a\nby the river,b\nriver,c\n")
    options = "--column review --skip 1 --limit 2 --shard 1/2 --stage weights --keep columns,pooled --pool 2".split()
    assert main(["batch", "in.csv", "-o", "dump.json", "--quiet", *options, *CONFIG]) == 0
    assert capsys.readouterr().err == ""
    document = json.loads((texts / "dump.json").read_bytes())
    first, record = document["records"]
    assert (first["id"], record["id"], record["text"]) == ("b", "c", "river")
    assert {"columns", "pooled", "stages"} <= set(record)
    assert not {"top", "rows"} & set(record)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--pool", "4"], "--pool: applies only to --keep pooled or all; add --keep pooled"),
        (["--pool", "4", "--keep", "rows"], "--pool: applies only to --keep pooled or all"),
        (["--top", "5", "--keep", "rows"], "--top: applies only to --keep brief, top or all"),
        (
            ["--by", "value", "--keep", "columns"],
            "--by value: applies only to --keep brief, top or all",
        ),
        (
            ["--no-special", "--keep", "pooled"],
            "--no-special: applies only to --keep brief, top or all",
        ),
        (["--key", "bank"], "--key: applies only to --stage other than none; add --stage"),
        (
            ["--column", "review"],
            "--column: applies only to tables and .jsonl: every line of .txt is a text; remove",
        ),
    ],
)
def test_options_that_would_change_nothing_are_refused(texts, capsys, options, said):
    assert main(["batch", "texts.txt", "-o", "dump.jsonl", *CONFIG, *options]) == 2
    assert capsys.readouterr().err.startswith(f"attnscope: error: {said}")
    assert not (texts / "dump.jsonl").exists()


def test_slices_are_meant_for_texts_of_any_length_and_labels_are_understood(texts, capsys):
    (texts / "in.txt").write_text("the bank by the river\nriver\n")
    options = [
        "--query",
        "0:4",
        "--key",
        "0:2",
        "--head",
        "L1H2",
        "--stage",
        "weights",
        "--top",
        "0",
    ]
    assert main(["batch", "in.txt", "-o", "dump.jsonl", "--quiet", *options]) == 0
    records = [line for line in lines(texts / "dump.jsonl") if line.get("status")]
    assert [(r["units"], r["queries"], r["keys"]) for r in records] == [
        ([[1, 2]], [0, 1, 2, 3], [0, 1]),
        ([[1, 2]], [0], [0]),
    ]
    assert [np.array(r["top"]["keys"]).shape for r in records] == [(1, 4, 0), (1, 1, 0)]


def test_a_matrix_masks_texts_of_its_size_and_is_that_of_the_whole_dump(texts, capsys):
    (texts / "in.txt").write_text("The bank by the river\nThe old bank\nA bank by the sea\n")
    mask = np.tri(5, dtype=bool)
    mask[4, 1] = False
    np.save(texts / "mask.npy", mask)
    options = [
        "batch",
        "in.txt",
        "-o",
        "dump.jsonl",
        "--stage",
        "weights",
        "--mask",
        "mask.npy|sink:1",
    ]
    assert main(options) == 3
    assert (
        "in.txt:2: mask.npy: the matrix is 5 × 5, but the text needs 3 × 3"
        in capsys.readouterr().err
    )
    with attnscope.open_model() as model:
        for record in attnscope.read_dump("dump.jsonl"):
            if record.status == "ok":
                report = model.inspect(record.text, mask="mask.npy|sink:1", layer="all", head="all")
                weights = report.weights.reshape(-1, 5, 5)
                assert (weights[:, 4, 1] == 0).all() and (weights[:, 4, 2] > 0).all()
                np.testing.assert_allclose(record.stages["weights"], weights, atol=2e-6)
    np.save(texts / "mask.npy", ~mask)
    before = (texts / "dump.jsonl").read_bytes()
    assert main(options) == 1
    assert (
        "was started with another matrix in the file of --mask; choose another output"
        in capsys.readouterr().err
    )
    assert (texts / "dump.jsonl").read_bytes() == before


def test_a_dump_without_a_target_is_said_to_have_none(texts, capsys):
    options = ["batch", "texts.txt", "-o", "dump.jsonl", "--keep", "effects", "--quiet"]
    (texts / "texts.txt").write_text("the [MASK] by the river\n")
    assert main(options) == 0
    assert main([*options, "--target", "river"]) == 1
    assert "was started without --target, now it is --target river;" in capsys.readouterr().err


def test_a_dump_of_no_texts_was_not_there_already(texts, capsys):
    assert main(["batch", "texts.txt", "-o", "dump.jsonl", "--skip", "9", *CONFIG]) == 0
    assert capsys.readouterr().err == "attnscope: note: dump.jsonl is complete (no records)\n"


def test_the_machine_is_that_of_run(texts, capsys):
    assert (
        main(
            ["batch", "texts.txt", "-o", "dump.jsonl", "--hash-weights", "--layer", "0", "--quiet"]
        )
        == 0
    )
    assert len(lines(texts / "dump.jsonl")[0]["provenance"]["weights_hash"]) == 64
    assert main(["batch", "texts.txt", "-o", "dump.jsonl", "--layer", "0"]) == 1
    assert (
        "was started with --hash-weights, now it is without --hash-weights;"
        in capsys.readouterr().err
    )
    assert main(["batch", "texts.txt", "-o", "b.jsonl", "--engine", "transformers", *CONFIG]) == 2
    assert "a TOML stack is not a transformers model" in capsys.readouterr().err


def test_one_bad_record_in_a_thousand_is_3(texts, capsys):
    (texts / "in.jsonl").write_text(
        "".join('{"text":"the bank"}\n' if i != 500 else "{\n" for i in range(1000))
    )
    assert main(["batch", "in.jsonl", "-o", "dump.jsonl", *CONFIG]) == 3
    err = capsys.readouterr().err.splitlines()
    assert err[0].startswith("attnscope: failed: in.jsonl:501: not valid JSON (")
    assert err[1].startswith("attnscope: wrote: dump.jsonl (999 texts ok, 1 failed; ")
    assert len(err) == 2
    # finished, and still not all well
    assert main(["batch", "in.jsonl", "-o", "dump.jsonl", *CONFIG, "--quiet"]) == 3
    assert main(["batch", "in.jsonl", "-o", "strict.jsonl", *CONFIG, "--strict"]) == 1
    assert "remove --strict to skip failed records" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (
            ["texts.txt"],
            2,
            "missing option '--output' / '-o'; name the file to write, such as -o dump.jsonl",
        ),
        (["texts.txt", "-o", "a.parquet"], 2, "then: attnscope convert dump.jsonl dump.parquet"),
        (["texts.txt", "-o", "a.doc"], 2, "'a.doc' is not a dump format"),
        ([".hidden", "-o", "a.jsonl"], 2, "set --from to txt, jsonl, csv, tsv, parquet or arrow"),
        (
            ["texts.txt", "-o", "a.jsonl", "--layer", "auto"],
            2,
            "auto cannot be used, since it would choose differently for every text",
        ),
        (
            ["texts.txt", "-o", "a.jsonl", "--keep", "effects", "--from", "A bank"],
            2,
            "--from: must be txt, jsonl, csv, tsv, parquet or arrow, not 'A bank'; a text to patch from is given with "
            "--patch-from OTHER",
        ),
        (
            ["texts.txt", "-o", "a.jsonl", "--shard", "1"],
            2,
            "--shard: must be I/N, not '1'; use 1/4",
        ),
        (["texts.txt", "-o", "a.jsonl", "--shard", "3/2"], 2, "there is no shard 3 of 2"),
        (
            ["The bank", "-o", "a.jsonl"],
            1,
            "The bank: no such file; pass a file of texts, or use attnscope run for",
        ),
        (
            [".", "-o", "a.jsonl"],
            1,
            ".: is a folder without .arrow or .parquet files; pass a file of texts",
        ),
        (["texts.txt", "-o", "a.jsonl", "--keep", "colums"], 2, "did you mean 'columns'"),
        (["missing.txt", "-o", "a.jsonl"], 1, "missing.txt: no such file"),
        (["texts.txt", "-o", "no/a.jsonl"], 1, "no: no such folder"),
        (["texts.txt", "-o", "texts.txt.jsonl", "--layer", "9"], 2, "there is no layer 9"),
    ],
)
def test_wrong_arguments_of_batch_are_one_line(texts, capsys, arguments, code, message):
    (texts / ".hidden").write_text("the bank\n")
    assert main(["batch", *arguments, *CONFIG]) == code
    out, err = capsys.readouterr()
    assert out == ""
    assert err.count("\n") == 1
    assert message.lower() in err.lower()


@pytest.mark.parametrize(
    ("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143), (signal.SIGHUP, 129)]
)
def test_a_signal_ends_with_whole_lines_and_the_same_command_goes_on(texts, number, code):
    (texts / "many.txt").write_text(
        "".join(f"the bank by the river {i % 9} {'and on ' * 40}\n" for i in range(250))
    )
    arguments = ["batch", "many.txt", "-o", "dump.jsonl", *CONFIG, "--top", "40"]
    process = fork_server.Process(
        "", *arguments, stderr=subprocess.PIPE, env=environment(), cwd=texts
    )
    target, deadline = texts / "dump.jsonl", time.monotonic() + 50
    while time.monotonic() < deadline and not (target.exists() and target.stat().st_size > 5000):
        time.sleep(0.01)
    process.send_signal(number)
    with process:
        code_found, said = process.wait(timeout=30), process.stderr.read()
    data = target.read_bytes()
    stopped = f"attnscope: stopped: {data.count(b'check') - 1} of 250 saved; run the same command to continue\n"
    assert (code_found, said.decode()) == (code, stopped)
    assert data.endswith(b"\n")
    assert b'{"end":' not in data
    assert main([*arguments, "--quiet"]) == 0
    assert target.read_bytes().startswith(data)
    assert lines(target)[-1] == {
        "end": True,
        "records": 250,
        "ok": 250,
        "skipped": 0,
        "failed": 0,
    } | {"check": lines(target)[-1]["check"]}


@pytest.mark.parametrize("columns", [60, 110])
def test_ctrl_c_erases_the_bar_before_it_says_what_is_saved(texts, columns):
    (texts / "many.txt").write_text(
        "".join(f"the bank by the river {i % 9} {'and on ' * 40}\n" for i in range(2000))
    )
    arguments = ["batch", "many.txt", "-o", "dump.jsonl", *CONFIG, "--top", "40"]
    code, seen = on_terminal(
        "", *arguments, env={"TERM": "xterm", "COLUMNS": f"{columns}"}, stop_at=b"/2000"
    )
    assert code == 130
    saved = (texts / "dump.jsonl").read_bytes().count(b"\n") - 1
    message = f"attnscope: stopped: {saved:,} of 2,000 saved; run the same command to continue\r\n".encode()
    before, _, after = seen.partition(message)
    assert before.endswith(b"\r\x1b[K\x1b[?25h")  # the line is empty, and the cursor is back
    assert after == b""
    drawn = re.sub(rb"\x1b\[[0-9;?]*[A-Za-z]", b"", before).decode().replace("\n", "\r").split("\r")
    assert max(map(len, drawn)) <= columns - 3  # the terminal writes ^C behind it, on the same line


def test_a_signal_while_a_tokenizer_works_ends_it_and_fails_no_text(texts):
    """One call into Rust that takes seconds: it neither holds up a signal nor takes it for an error of its own."""
    (texts / "long.txt").write_text("the bank\n" + "bank river the by " * 150_000 + "\n")
    arguments = ["batch", "long.txt", "-o", "dump.jsonl", "--truncate", "--layer", "0", "--quiet"]
    arguments += ["--workers", "0"]
    process = fork_server.Process(
        "", *arguments, stderr=subprocess.PIPE, env=environment(), cwd=texts
    )
    target, deadline = texts / "dump.jsonl", time.monotonic() + 50
    while time.monotonic() < deadline and not (target.exists() and target.stat().st_size):
        time.sleep(0.01)
    time.sleep(0.3)
    process.send_signal(signal.SIGINT)
    sent = time.monotonic()
    with process:
        code, said = process.wait(timeout=30), process.stderr.read()
    assert (code, said) == (130, b"")
    # a second, and what a busy machine takes besides; the call takes more than four
    assert time.monotonic() - sent < 2
    assert b'"failed"' not in target.read_bytes()
    assert target.read_bytes().count(b"\n") == 1


def test_the_command_is_the_module(texts):
    """What is installed as `attnscope` lets signals end the process from its first line on."""
    entry = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["scripts"]["attnscope"]
    assert entry == "attnscope.__main__:main"


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="there is no /dev/full here")
def test_a_device_is_no_dump(texts, capsys):
    (texts / "full.jsonl").symlink_to("/dev/full")
    assert main(["batch", "texts.txt", "-o", "full.jsonl", *CONFIG]) == 1
    assert "is a symbolic link" in capsys.readouterr().err


def test_a_bar_shows_on_a_terminal_only(texts):
    """Rates and failures while it runs; the summary stays when the bar is gone."""
    (texts / "in.jsonl").write_text('{"text":"the bank"}\n{\n')
    arguments = ["batch", str(texts / "in.jsonl"), "-o", str(texts / "dump.jsonl"), *CONFIG]
    code, seen = on_terminal("", *arguments, env={"TERM": "xterm", "COLUMNS": "120"})
    assert code == 3
    assert b"texts/s" in seen
    assert b"1 failed" in seen
    assert b"2/2" in seen


def state(path):
    """All that lies at a path."""
    return {p.name: p.read_bytes() for p in path.iterdir()} if path.is_dir() else path.read_bytes()


@pytest.mark.parametrize("name", ["dump.jsonl", "dump"])
@pytest.mark.parametrize(
    "wrong",
    [
        ["--model", "./no-such-model"],
        ["--layer", "99", *CONFIG],
        ["--max-memory", "1M", *CONFIG],
        ["--device", "cuda:63", *CONFIG],
        ["--mask", "nothing.csv", *CONFIG],
    ],
)
def test_a_forced_dump_that_is_refused_leaves_the_old_one(texts, name, wrong):
    assert main(["batch", "texts.txt", "-o", name, *CONFIG, "--quiet"]) == 0
    before = state(texts / name)
    (texts / "texts.txt").write_text("another\n")
    assert main(["batch", "texts.txt", "-o", name, "--force", "--quiet", *wrong]) in (1, 2)
    assert state(texts / name) == before
    assert sorted(p.name for p in texts.iterdir()) == sorted([name, "texts.txt"])


def test_ids_that_occur_twice_leave_the_old_dump(texts):
    assert main(["batch", "texts.txt", "-o", "dump.jsonl", *CONFIG, "--quiet"]) == 0
    before = state(texts / "dump.jsonl")
    (texts / "in.jsonl").write_text('{"id":1,"text":"a"}\n' * 2)
    assert main(["batch", "in.jsonl", "-o", "dump.jsonl", *CONFIG, "--force"]) == 1
    assert state(texts / "dump.jsonl") == before


@pytest.mark.parametrize("wrong", [["--layer", "99"], ["--max-memory", "1M"]])
@pytest.mark.parametrize("name", ["dump.jsonl", "dump"])
def test_a_dump_that_is_refused_leaves_nothing(texts, name, wrong):
    assert main(["batch", "texts.txt", "-o", name, *CONFIG, *wrong]) in (1, 2)
    assert [p.name for p in texts.iterdir()] == ["texts.txt"]


@pytest.mark.parametrize(
    "way", ["itself", "symlink", "hard link", "folder", "standard input", "document"]
)
@pytest.mark.parametrize("force", [[], ["--force"]])
def test_an_output_that_is_the_input_is_refused(texts, capsys, attnscope, way, force):
    name, given = ("x.json", "x.json") if way == "document" else ("x.jsonl", "x.jsonl")
    if way == "folder":
        (texts / "matrices").mkdir()
        name = given = "matrices/index.jsonl"
    (texts / name).write_text('{"text":"the bank"}\n')
    output = "matrices" if way == "folder" else name
    if way == "symlink":
        (texts / "link.jsonl").symlink_to(name)
        given = "link.jsonl"
    elif way == "hard link":
        os.link(texts / name, texts / "hard.jsonl")
        output = "hard.jsonl"
    arguments = ["--from", "jsonl", "-o", output, *CONFIG, *force]
    if way == "standard input":
        with open(texts / name, "rb") as file:
            done = attnscope("", "batch", "-", *arguments, stdin=file, cwd=texts)
        code, said = done.returncode, done.stderr.decode()
    else:
        code = main(["batch", given, *arguments])
        said = capsys.readouterr().err
    assert code == 1
    assert said.endswith(": is an input of this command; choose another output\n")
    assert (texts / name).read_text() == '{"text":"the bank"}\n'


def test_lines_to_standard_output(texts, attnscope):
    arguments = ["", "batch", "texts.txt", "-o", "-", *CONFIG]
    done = attnscope(*arguments, cwd=texts)
    assert done.returncode == 0
    assert main(["batch", "texts.txt", "-o", "dump.jsonl", *CONFIG, "--quiet"]) == 0
    assert done.stdout == (texts / "dump.jsonl").read_bytes()
    assert b"attnscope: wrote: standard output (2 texts ok, 1 skipped; " in done.stderr
    assert sorted(p.name for p in texts.iterdir()) == ["dump.jsonl", "texts.txt"]
    read, write = os.pipe()
    os.close(read)
    gone = attnscope(*arguments, stdout=write, cwd=texts)
    os.close(write)
    assert (gone.returncode, gone.stderr) == (141, b"")
    with open("/dev/full", "wb") as full:
        done = attnscope(*arguments, stdout=full, cwd=texts)
    assert done.returncode == 1
    assert done.stderr.startswith(
        b"attnscope: error: cannot write to standard output (No space left on device)"
    )


def test_special_tokens_that_are_typed_are_a_text_and_those_of_a_template_are_none(
    tmp_path, attnscope
):
    for name in ("config.json", "model.safetensors"):
        shutil.copy(samples_folder("sample_weights") / "riverbank" / name, tmp_path)
    (tmp_path / "vocab.txt").write_text("[PAD]\n[UNK]\n[CLS]\n[SEP]\n[MASK]\nthe\n")
    (tmp_path / "texts").write_text("[MASK]\n[CLS][SEP]\n\u200b\nthe\n")
    arguments = [
        "",
        "batch",
        "texts",
        "--from",
        "txt",
        "-o",
        "dump.jsonl",
        "--model",
        str(tmp_path),
    ]
    assert attnscope(*arguments, cwd=tmp_path).returncode == 0
    records = lines(tmp_path / "dump.jsonl")[1:-1]
    assert [(record["status"], record.get("error")) for record in records] == [
        ("ok", None), ("ok", None), ("skipped", "the text has only special tokens"), ("ok", None),
    ]  # fmt: skip


def test_standard_input(texts, attnscope):
    arguments = ["", "batch", "-", "--from", "jsonl", "-o", "dump.jsonl", *CONFIG, "--quiet"]
    for _ in range(2):  # the second time it finds its own dump
        assert attnscope(*arguments, input=b'{"text":"the bank"}\n', cwd=texts).returncode == 0
    assert lines(texts / "dump.jsonl")[0]["input"]["name"] == "standard input"
