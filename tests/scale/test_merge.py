"""Parts of a dump: joined, they are the file of one process, and whatever is wrong with one is said."""

import json
import random
import shutil
from contextlib import chdir
from unittest.mock import patch

import pytest

from attnscope.batch.journal import seal
from attnscope.cli import main

WORDS = "the bank by river was eroded a that lends money is still and does not mind".split()
# one head: of all of them a dump takes 9 MB, which every test would copy and read
KEEP = ["--layer", "1", "--head", "0", "--keep", "top,rows", "--threads", "1"]
QUIET = [*KEEP, "--quiet"]
SHORT_BLOCKS = ("attnscope.batch.blocks._GROUPS", 1)  # so that a small input has several


def lines(count, seed=1):
    luck = random.Random(seed)
    return [" ".join(luck.choices(WORDS, k=luck.randrange(0, 40))) for _ in range(count)]


@pytest.fixture(scope="module")
def ready(tmp_path_factory):
    """150 texts, the dump of one process, and three parts of it, as lines and folders."""
    folder = tmp_path_factory.mktemp("parts")
    (folder / "texts.txt").write_text("".join(f"{line}\n" for line in lines(150)))
    with chdir(folder), patch(*SHORT_BLOCKS):
        for ending in (".jsonl", ""):
            assert main(["batch", "texts.txt", "-o", f"whole{ending}", *QUIET]) == 0
            for number in (1, 2, 3):
                arguments = ["-o", f"part-{number}{ending}", "--shard", f"{number}/3", *QUIET]
                assert main(["batch", "texts.txt", *arguments]) == 0
    return folder


@pytest.fixture
def folder(ready, tmp_path, monkeypatch):
    shutil.copytree(ready, tmp_path, dirs_exist_ok=True)
    monkeypatch.setattr(*SHORT_BLOCKS)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def parts(ending=".jsonl", numbers=(3, 1, 2)):
    return [f"part-{number}{ending}" for number in numbers]


def records(path):
    """How many lines are neither the header nor the end."""
    return path.read_bytes().count(b"\n") - 2


def content(path):
    return {p.name: p.read_bytes() for p in path.iterdir()} if path.is_dir() else path.read_bytes()


@pytest.mark.parametrize("ending", [".jsonl", ""], ids=["lines", "shards"])
def test_joined_parts_are_the_file_of_one_process(folder, capsys, ending):
    assert main(["merge", *parts(ending), "-o", f"joined{ending}"]) == 0
    assert capsys.readouterr().err.startswith(f"attnscope: merged: joined{ending} (1")
    assert content(folder / f"joined{ending}") == content(folder / f"whole{ending}")
    shares = [records(folder / f"part-{n}.jsonl") for n in (1, 2, 3)]
    assert sum(shares) == 150
    assert min(shares) > 25  # and they are parts


def test_a_part_that_is_finished_while_parts_are_counted_is_joined(folder, monkeypatch):
    from attnscope.batch import convert

    whole, gather = content(folder / "part-3.jsonl"), convert.gather_parts_of
    (folder / "part-3.jsonl").write_bytes(whole[: whole[:-1].rindex(b"\n") + 1])

    def gathered(paths, *, count=False):
        if count:
            (folder / "part-3.jsonl").write_bytes(whole)
        return gather(paths, count=count)

    monkeypatch.setattr(convert, "gather_parts_of", gathered)
    assert main(["merge", *parts(), "-o", "joined.jsonl", "--quiet"]) == 0
    assert content(folder / "joined.jsonl") == content(folder / "whole.jsonl")


def test_small_chunks_change_nothing(folder, monkeypatch):
    from attnscope.batch import part_lines

    monkeypatch.setattr(part_lines, "_CHUNK", 700)
    assert main(["merge", *parts(), "-o", "joined.jsonl", "--quiet"]) == 0
    assert content(folder / "joined.jsonl") == content(folder / "whole.jsonl")


def test_parts_of_a_selection(folder):
    chosen = ["--skip", "11", "--limit", "97"]
    assert main(["batch", "texts.txt", "-o", "w.jsonl", *chosen, *QUIET]) == 0
    for number in range(1, 8):
        assert (
            main(
                [
                    "batch",
                    "texts.txt",
                    "-o",
                    f"s{number}.jsonl",
                    "--shard",
                    f"{number}/7",
                    *chosen,
                    *QUIET,
                ]
            )
            == 0
        )
    assert (
        main(["merge", *(f"s{number}.jsonl" for number in range(1, 8)), "-o", "j.jsonl", "--quiet"])
        == 0
    )
    assert content(folder / "j.jsonl") == content(folder / "w.jsonl")


def damaged(folder, name, change):
    path = folder / name
    path.write_bytes(change(path.read_bytes()))


def flipped(data, place):
    return data[:place] + bytes([data[place] ^ 1]) + data[place + 1 :]


def resealed(data, change):
    """The lines of a dump, with other content and checks that fit."""
    out, crc = b"", 0
    for line in data.splitlines():
        values = json.loads(line)
        del values["check"]
        sealed, crc = seal(json.dumps(change(values), separators=(",", ":")).encode(), crc)
        out += sealed
    return out


def with_setting(values):
    if "settings" in values:
        values["settings"]["top"] = 9
    return values


def test_what_is_missing_or_unfinished_is_said(folder, capsys):
    assert main(["merge", *parts(numbers=(1, 3)), "-o", "j.jsonl"]) == 1
    assert "not all parts are finished: 1 missing (2/3)" in capsys.readouterr().err
    data = (folder / "part-2.jsonl").read_bytes()
    (folder / "part-2.jsonl").write_bytes(b"".join(data.splitlines(keepends=True)[:8])[:-5])
    (folder / "part-3.jsonl").write_bytes(b"")
    assert main(["merge", *parts(), "-o", "j.jsonl"]) == 1
    error = capsys.readouterr().err
    assert (
        "1 missing (3/3), 1 unfinished (part-2.jsonl has 6 records), 1 without a header (part-3.jsonl)"
        in error
    )
    first = records(folder / "part-1.jsonl")
    assert main(["merge", *parts(), "--status"]) == 0
    status = capsys.readouterr().out
    percent = 100 * (first + 6) // 150
    assert status.startswith(
        f"{first + 6} of 150 texts ({percent} %) · 1 of 3 parts finished · 1 missing (3/3), "
    )
    assert not (folder / "j.jsonl").exists()
    assert main(["batch", "texts.txt", "-o", "part-2.jsonl", "--shard", "2/3", *QUIET]) == 0
    assert (folder / "part-2.jsonl").read_bytes() == data


@pytest.mark.parametrize(
    ("name", "change", "message"),
    [
        ("part-2.jsonl", lambda data: flipped(data, len(data) // 2), "the line is damaged"),
        ("part-1.jsonl", lambda data: flipped(data, 40), "is not a dump"),
        (
            "part-1.jsonl",
            lambda data: b"\n".join(data.split(b"\n")[:3] + data.split(b"\n")[4:]),
            "the line is damaged",
        ),
        ("part-3.jsonl", lambda data: data + b"{}\n", "not all parts are finished"),
        (
            "part-3.jsonl",
            lambda data: resealed(data, with_setting),
            "with --top 3, this one --top 9",
        ),
        ("part-3.jsonl", lambda data: b"", "1 without a header"),
        ("part-3.jsonl", lambda data: b"text\n", "is not a dump"),
    ],
)
def test_a_damaged_part_is_refused(folder, capsys, name, change, message):
    damaged(folder, name, change)
    ending = name[len("part-1") :]
    assert main(["merge", *parts(ending), "-o", f"j{ending}"]) == 1
    error = capsys.readouterr().err
    assert message in error
    assert error.count("\n") == 1
    assert not [
        path for path in folder.iterdir() if path.name.startswith((f"j{ending}", ".attnscope"))
    ]


def test_a_shard_is_copied_only_whole(folder, capsys):
    shard = sorted((folder / "part-2").glob("*.safetensors"))[0]
    damaged(folder, f"part-2/{shard.name}", lambda data: flipped(data, len(data) - 9))
    assert main(["merge", *parts(""), "-o", "j"]) == 1
    assert f"part-2/{shard.name}: the shard is damaged" in capsys.readouterr().err
    assert not (folder / "j").exists()


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (["-o", "j.jsonl"], 2, "no parts given"),
        (parts(), 2, "no output given; add --output dump.jsonl, or --status"),
        ([*parts(), "-o", "j.parquet"], 2, "cannot hold parts that are files"),
        ([*parts(""), "-o", "j.jsonl"], 2, "cannot hold parts that are folders"),
        ([*parts(), "-o", "part-1.jsonl", "--force"], 1, "is an input of this command"),
        ([*parts(), "-o", "whole.jsonl"], 1, "exists"),
        (["part-1.jsonl", "part-1.jsonl", "-o", "j.jsonl"], 1, "is shard 1/3, as is part-1.jsonl"),
        (
            ["part-1.jsonl", "whole.jsonl", "-o", "j.jsonl"],
            1,
            "is shard 1 of 3, but whole.jsonl is shard 1 of 1",
        ),
        (["missing.jsonl", "-o", "j.jsonl"], 1, "missing.jsonl: no such file"),
        (
            ["s3://parts/p.jsonl", "-o", "j.jsonl"],
            1,
            "s3://parts/p.jsonl: is not on this machine; copy it here first",
        ),
        (["texts.txt", "-o", "j.jsonl"], 2, "'texts.txt' is no part of a dump"),
    ],
)
def test_parts_that_do_not_fit_together_are_refused(folder, capsys, arguments, code, message):
    assert main(["merge", *arguments]) == code
    assert message in capsys.readouterr().err


def test_verify_compares_merged_records_with_the_texts(folder, capsys):
    assert main(["verify", "whole.jsonl"]) == 0
    blank = sum(not line for line in lines(150))
    counts = f"{150 - blank} texts ok, {blank} skipped"
    said = capsys.readouterr().err
    right = "every checksum and count is right, and the texts are those of texts.txt"
    assert said == f"attnscope: verified: whole.jsonl ({counts}): {right}\n"
    for name in ("whole", "part-2.jsonl"):
        assert main(["verify", name, "--input", "texts.txt", "--quiet"]) == 0


@pytest.mark.parametrize(
    ("name", "change", "message"),
    [
        ("whole.jsonl", lambda data: flipped(data, len(data) // 2), "the line is damaged"),
        ("whole.jsonl", lambda data: data[:-30], "is not finished"),
        ("texts.txt", lambda data: data.replace(b"bank", b"bunk", 1), "has changed since"),
        ("texts.txt", lambda data: data + b"one more\n", "differs from the input of whole.jsonl"),
        (
            "whole.jsonl",
            lambda data: resealed(
                data, lambda line: line | ({"hash": "0" * 16} if line.get("index") == 7 else {})
            ),
            "record 7: hash is '0000000000000000', but that of the input is",
        ),
        (
            "whole.jsonl",
            lambda data: resealed(
                data, lambda line: line | ({"ok": line["ok"] - 1} if "end" in line else {})
            ),
            "but its end says",
        ),
    ],
)
def test_verify_finds_what_is_wrong(folder, capsys, name, change, message):
    damaged(folder, name, change)
    assert main(["verify", "whole.jsonl", "--input", "texts.txt"]) == 1
    assert message in capsys.readouterr().err


def test_verify_without_the_input(folder, capsys, ready):
    path = folder / "whole.jsonl"
    path.write_bytes(resealed(path.read_bytes(), renamed))
    assert main(["verify", "whole.jsonl"]) == 0
    assert "its input gone.txt is not here and was not compared" in capsys.readouterr().err


def renamed(values):
    if "input" in values:
        values["input"]["name"] = "gone.txt"
    return values


def test_status_of_a_dump(folder, capsys):
    assert main(["batch", "-o", "whole.jsonl", "--status"]) == 0
    assert capsys.readouterr().out == "150 of 150 texts (100 %) · finished\n"
    data = (folder / "whole.jsonl").read_bytes()
    (folder / "whole.jsonl").write_bytes(b"".join(data.splitlines(keepends=True)[:31]))
    assert main(["batch", "texts.txt", "-o", "whole.jsonl", "--status"]) == 0
    assert capsys.readouterr().out.startswith(
        "30 of 150 texts (20 %) · not finished · last written "
    )
    assert (folder / "whole.jsonl").stat().st_size < len(data)  # and nothing else happened


def test_a_run_that_is_out_of_time_saves_what_it_has(folder, capsys):
    """However short the time is, each run gets on; the file comes out as if there had been one."""
    codes = []
    while not codes or codes[-1] == 1:
        codes.append(
            main(["batch", "texts.txt", "-o", "d.jsonl", *KEEP, "--max-minutes", "0.00001"])
        )
        assert len(codes) < 40
    error = capsys.readouterr().err
    assert codes[-1] == 0
    assert len(codes) > 3
    assert error.count("attnscope: stopped: 1e-05 minutes are over; ") == len(codes) - 1
    assert content(folder / "d.jsonl") == content(folder / "whole.jsonl")


@pytest.mark.parametrize(
    ("variables", "shard"),
    [
        ({"ID": "1", "COUNT": "3", "MIN": "1", "MAX": "3"}, "1/3"),
        ({"ID": "0", "COUNT": "3", "MIN": "0", "STEP": "1"}, "1/3"),
        ({"ID": "9", "COUNT": "3", "MIN": "5", "STEP": "2"}, "3/3"),
        ({"ID": "2", "COUNT": "3"}, "2/3"),
    ],
)
def test_a_task_of_an_array_is_a_shard(monkeypatch, variables, shard):
    from attnscope.request.arguments import shard as read

    for name in ("ID", "COUNT", "MIN", "MAX", "STEP"):
        monkeypatch.delenv(f"SLURM_ARRAY_TASK_{name}", raising=False)
    for name, value in variables.items():
        monkeypatch.setenv(f"SLURM_ARRAY_TASK_{name}", value)
    assert read("slurm") == read(shard)


@pytest.mark.parametrize(
    ("variables", "message"),
    [
        ({}, "SLURM_ARRAY_TASK_ID and SLURM_ARRAY_TASK_COUNT are not set"),
        ({"ID": "7", "COUNT": "3", "MIN": "1"}, "task 7 of 3 has no shard"),
    ],
)
def test_a_process_that_is_no_task_has_no_shard(folder, monkeypatch, capsys, variables, message):
    for name in ("ID", "COUNT", "MIN", "MAX", "STEP"):
        monkeypatch.delenv(f"SLURM_ARRAY_TASK_{name}", raising=False)
    for name, value in variables.items():
        monkeypatch.setenv(f"SLURM_ARRAY_TASK_{name}", value)
    assert main(["batch", "texts.txt", "-o", "d.jsonl", "--shard", "slurm"]) == 2
    assert message in capsys.readouterr().err


def test_a_line_a_minute_where_there_is_no_terminal(folder, capsys, monkeypatch):
    from attnscope.cli import batch_progress

    monkeypatch.setattr(batch_progress, "_MINUTE", 0.0)
    assert main(["batch", "texts.txt", "-o", "d.jsonl", *KEEP]) == 0
    lines = [
        line
        for line in capsys.readouterr().err.splitlines()
        if line.startswith("attnscope: progress: ")
    ]
    assert len(lines) > 3
    reached = [int(line.split()[2]) for line in lines]
    assert reached == sorted(reached)
    assert reached[-1] == 150
    begun = [line for line in lines if " 0 of 150" not in line]
    assert all(" of 150 texts; " in line and line.endswith(" h left") for line in begun)
    assert {*lines} - {*begun} <= {"attnscope: progress: 0 of 150 texts"}


def test_slow_texts_are_named(folder, capsys, monkeypatch):
    from attnscope.cli import batch

    monkeypatch.setattr(batch, "_SLOW_TEXT", 0.0)
    assert main(["batch", "texts.txt", "-o", "d.jsonl", *KEEP]) == 0
    (line,) = [
        line
        for line in capsys.readouterr().err.splitlines()
        if line.startswith("attnscope: slowest: ")
    ]
    assert line.count("texts.txt:") == 3
    numbers = [float(piece.split(" s)")[0]) for piece in line.split("tokens, ")[1:]]
    assert numbers == sorted(numbers, reverse=True)
