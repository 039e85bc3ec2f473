"""What `--ray` takes and refuses, and the mapper of ray.data and datasets; ray_kills.py runs a cluster."""

import json
import pickle
from pathlib import Path

import pytest

from attnscope.base.errors import UsageError
from attnscope.batch.parts import lines_path
from attnscope.batch.ray_shards import RecordCounter
from attnscope.cli import main
from attnscope.ray import RecordMapper
from tests.scale.test_merge import lines

ROOT = Path(__file__).parents[2]
TEXTS = ["the bank by the river", "", "a bank that lends money"]


@pytest.fixture
def folder(tmp_path, monkeypatch):
    (tmp_path / "texts.txt").write_text("".join(f"{line}\n" for line in lines(150)))
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    return tmp_path


@pytest.mark.parametrize(
    ("words", "read"),
    [
        (["t.txt", "--ray"], ["t.txt", "--ray", "local"]),
        (["--ray", "t.txt"], ["--ray", "local", "t.txt"]),
        (["--ray", "auto", "t.txt"], ["--ray", "auto", "t.txt"]),
        (["--ray", "head:6379", "--quiet"], ["--ray", "head:6379", "--quiet"]),
        (["--ray", "ray://head:10001"], ["--ray", "ray://head:10001"]),
        (["--ray=auto"], ["--ray=auto"]),
    ],
)
def test_an_address_may_be_left_out(words, read):
    from attnscope.request.arguments import with_ray_address

    assert with_ray_address(words) == read


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["-", "-o", "d.jsonl"], "--ray: actors cannot share standard input"),
        (["texts.txt", "-o", "d.json"], "--ray: actors cannot share 'd.json'"),
        (
            ["texts.txt", "-o", "d.jsonl", "--actor-cpus", "many"],
            "--actor-cpus: must be a number of at least 0",
        ),
        (
            ["texts.txt", "-o", "d.jsonl", "--actor-resources", "fast"],
            "--actor-resources: must be NAME=N, not 'fast'",
        ),
    ],
)
def test_wrong_arguments_of_ray_are_refused(folder, capsys, arguments, message):
    assert main(["batch", "--ray", "local", *arguments]) == 2
    assert message in capsys.readouterr().err


@pytest.mark.parametrize(
    ("options", "code", "message"),
    [
        ([], 0, "note: d.jsonl is already complete (10 texts ok)"),
        (["--top", "5"], 1, "was started with --top 3, now it is --top 5; choose another output"),
        (
            ["--limit", "11"],
            1,
            "was started with --limit 10, now it is --limit 11; run it without --ray",
        ),
    ],
)
def test_a_finished_dump_is_taken_for_no_other(folder, capsys, options, code, message):
    """Ray is not even started."""
    pytest.importorskip("ray", reason="ray is not installed")
    call = ["batch", "texts.txt", "-o", "d.jsonl", "--layer", "0", "--keep", "top", "--limit", "10"]
    (folder / "texts.txt").write_text("".join(f"the bank {number}\n" for number in range(12)))
    assert main([*call, "--quiet"]) == 0
    assert main([*call, "--ray", "local", *options]) == code
    assert message in capsys.readouterr().err


@pytest.mark.parametrize("name", ["d.jsonl", "d"])
def test_records_of_parts_are_counted_as_they_grow(folder, name):
    output = Path(name)
    parts = [
        output.with_name(f"part-{number}{output.suffixes and name[1:]}") for number in (1, 2, 3)
    ]
    counter = RecordCounter(parts)
    assert counter.records() == 0
    for part, limit in zip(parts, ("7", "9"), strict=False):
        assert (
            main(
                [
                    "batch",
                    "texts.txt",
                    "-o",
                    str(part),
                    "--layer",
                    "0",
                    "--keep",
                    "top",
                    "--limit",
                    limit,
                ]
            )
            == 0
        )
    lines = lines_path(parts[0])
    lines.write_bytes(b"".join(lines.read_bytes().splitlines(keepends=True)[:4]) + b"torn")
    assert counter.records() == 3 + 10  # an end line looks like a record
    counter = RecordCounter(parts)
    assert counter.finished == {parts[1]: 9}
    assert counter.records() == 12


def expected(folder):
    (folder / "few.txt").write_text("".join(f"{text}\n" for text in TEXTS))
    arguments = ["-o", "few.jsonl", "--keep", "top", "--threads", "1", "--quiet"]
    assert main(["batch", "few.txt", *arguments]) == 0
    return [
        json.loads(line)["top"]
        for line in Path("few.jsonl").read_text().splitlines()[1:-1]
        if '"top"' in line
    ]


def test_the_mapper_gives_the_records_of_a_dump(folder):
    mapper = RecordMapper(column="body", keep=("top",))
    rows = mapper({"body": TEXTS, "n": [1, 2, 3]})
    assert (rows["status"], rows["n"], rows["body"]) == (["ok", "skipped", "ok"], [1, 2, 3], TEXTS)
    assert rows["error"] == ["", "the text is empty", ""]
    found = [json.loads(record) for record in rows["record"]]
    assert [record["top"] for record in found if record["status"] == "ok"] == expected(folder)
    assert pickle.loads(pickle.dumps(mapper))({"body": TEXTS[:1]})["status"] == ["ok"]


def test_what_the_mapper_refuses():
    with pytest.raises(UsageError, match=r"unknown setting 'tops'; did you mean 'top'"):
        RecordMapper(tops=3)
    with pytest.raises(UsageError, match=r"the batch has no column 'text'; did you mean 'texts'"):
        RecordMapper()({"texts": []})
    with pytest.raises(UsageError, match=r"has a column 'record' already"):
        RecordMapper()({"text": [], "record": []})


def test_datasets_map_with_it(folder):
    datasets = pytest.importorskip("datasets", reason="datasets is not installed")
    made = datasets.Dataset.from_dict({"text": TEXTS}).map(
        RecordMapper(keep=("top",)), batched=True
    )
    assert made["status"] == ["ok", "skipped", "ok"]
    assert [json.loads(row)["top"] for row in made["record"] if '"top"' in row] == expected(folder)
