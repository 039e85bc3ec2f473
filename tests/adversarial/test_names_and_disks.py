"""File names that are not UTF-8, disks that fail while they are read, and pipes in place of files."""

import json
import os
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from attnscope.base.errors import AttnscopeError
from attnscope.batch.convert import convert
from tests.adversarial.fuzzers import dump, report, table
from tests.adversarial.oracle import Case, Ending, fault, run
from tests.helpers import fork_server
from tests.helpers.cli_runner import command, environment
from tests.helpers.folders import within

RIVERBANK = Path(__file__).parents[2] / "sample_weights" / "riverbank"
CAUSAL = Path(__file__).parents[2] / "configs" / "causal.toml"
# a regular file that nothing can be read from: address 0 is not there
FAILING = Path("/proc/self/mem")
ODD = b"b\xffnk".decode(errors="surrogateescape")
TEXT = "The bank by the river"


def ended(folder: Path, *argv: str) -> Ending:
    """How a command ends that must end as every command may."""
    case = Case(argv, {})
    ending = run(case, folder)
    assert fault(case, ending) is None, ending
    return ending


# names that are not UTF-8


def test_a_model_a_mask_and_an_output_with_names_that_are_not_utf8(tmp_path: Path) -> None:
    shutil.copytree(RIVERBANK, tmp_path / ODD)
    (tmp_path / f"{ODD}.json").write_text(json.dumps([[True] * 5] * 5))
    for more in (
        ["--format", "json"],
        [],
        ["--output", f"{ODD}.svg"],
        ["--output", f"{ODD}.safetensors"],
    ):
        ending = ended(tmp_path, "run", TEXT, "--model", ODD, "--mask", f"{ODD}.json", *more)
        assert ending.code == 0, ending.err
        if "json" in more:
            found = json.loads(ending.out)
            assert found["provenance"]["model"] == r"b\xffnk"
            assert found["mask"]["used"] == r"b\xffnk.json"
    assert (tmp_path / f"{ODD}.svg").stat().st_size > 1000
    for argv in (
        ["info", "--format", "json"],
        ["info"],
        ["check"],
        ["explain", TEXT, "--query", "1"],
    ):
        assert ended(tmp_path, *argv, "--model", ODD).code == 0


def test_a_stack_texts_and_reports_with_names_that_are_not_utf8(tmp_path: Path) -> None:
    shutil.copy(CAUSAL, tmp_path / f"{ODD}.toml")
    (tmp_path / f"{ODD}.txt").write_text(f"{TEXT}\n")
    for name in (f"{ODD}1.json", f"{ODD}2.json"):
        argv = ["run", "--file", f"{ODD}.txt", "--config", f"{ODD}.toml", "--output", name]
        assert ended(tmp_path, *argv).code == 0
    ending = ended(tmp_path, "compare", f"{ODD}1.json", f"{ODD}2.json", "--format", "json")
    assert [side["label"] for side in json.loads(ending.out)["sides"]] == [
        r"b\xffnk1.json",
        r"b\xffnk2.json",
    ]


@pytest.mark.parametrize("ending", [".txt", ".jsonl", ".csv"])
def test_a_dump_from_and_to_names_that_are_not_utf8(tmp_path: Path, ending: str) -> None:
    texts = {".txt": TEXT, ".jsonl": json.dumps({"text": TEXT}), ".csv": f"text\n{TEXT}"}[ending]
    (tmp_path / f"{ODD}{ending}").write_text(f"{texts}\n")
    batch = ["batch", f"{ODD}{ending}", "-o", f"{ODD}-dump.jsonl", "--config", "causal"]
    assert ended(tmp_path, *batch).code == 0
    assert json.loads((tmp_path / f"{ODD}-dump.jsonl").read_text().splitlines()[0])["input"][
        "name"
    ] == (rf"b\xffnk{ending}")
    before = (tmp_path / f"{ODD}-dump.jsonl").read_bytes()
    assert ended(tmp_path, *batch).code == 0  # resumed: nothing is left to do
    assert (tmp_path / f"{ODD}-dump.jsonl").read_bytes() == before
    for target in ("-2.parquet", "-2.csv"):
        assert ended(tmp_path, "convert", f"{ODD}-dump.jsonl", f"{ODD}{target}").code == 0
    assert ended(tmp_path, "convert", f"{ODD}-dump.jsonl", ODD).code == 0


@pytest.mark.parametrize("option", ["--query", "--key", "--column"])
def test_what_is_typed_as_text_must_be_text(tmp_path: Path, option: str) -> None:
    (tmp_path / "x.jsonl").write_text(json.dumps({"text": TEXT}))
    ending = ended(tmp_path, "batch", "x.jsonl", "-o", "d.jsonl", "--config", "causal", option, ODD)
    assert (ending.code, ending.err) == (
        2,
        f"attnscope: error: {option}: 'b\\udcffnk' is not UTF-8\n",
    )


# disks that fail


def _model(name: str) -> Callable[[Path], list[str]]:
    def prepare(folder: Path) -> list[str]:
        shutil.copytree(RIVERBANK, folder / "model")
        (folder / "model" / name).unlink(missing_ok=True)
        if name.endswith("index.json"):
            (folder / "model" / "model.safetensors").unlink()
        (folder / "model" / name).symlink_to(FAILING)
        return ["run", TEXT, "--model", "model"]

    return prepare


def _file(name: str, *argv: str) -> Callable[[Path], list[str]]:
    def prepare(folder: Path) -> list[str]:
        (folder / "good.json").write_bytes(report())
        (folder / name).symlink_to(FAILING)
        return list(argv)

    return prepare


READERS = {
    **{name: _model(name) for name in ("config.json", "tokenizer.json", "model.safetensors")},
    "index": _model("model.safetensors.index.json"),
    "stack": _file("s.toml", "run", TEXT, "--config", "s.toml"),
    "texts": _file("t.txt", "run", "--file", "t.txt", "--config", "causal"),
    "mask": _file("m.json", "run", TEXT, "--mask", "m.json", "--config", "causal"),
    "numpy mask": _file("m.npy", "run", TEXT, "--mask", "m.npy", "--config", "causal"),
    "tensor mask": _file(
        "m.safetensors", "run", TEXT, "--mask", "m.safetensors", "--config", "causal"
    ),
    "report": _file("a.json", "compare", "a.json", "good.json"),
    **{
        f"batch {ending}": _file(
            f"x{ending}", "batch", f"x{ending}", "-o", "d.jsonl", "--config", "causal"
        )
        for ending in (".txt", ".jsonl", ".csv", ".parquet", ".txt.gz", ".txt.zst")
    },
    **{
        f"convert {ending}": _file(f"x{ending}", "convert", f"x{ending}", "out.csv")
        for ending in (".jsonl", ".json")
    },
}


@pytest.mark.parametrize("reader", READERS)
def test_a_disk_that_fails_while_it_is_read(tmp_path: Path, reader: str) -> None:
    argv = READERS[reader](tmp_path)
    ending = ended(tmp_path, *argv)
    assert ending.code == 1
    # .parquet is read from its end, which this file has not
    said = ("input/output error", "invalid argument")
    assert any(words in ending.err.lower() for words in said), ending.err
    assert not (tmp_path / "out.csv").exists()


@pytest.mark.parametrize(
    ("argv", "kind"),
    [
        (["run", "-"], "failing"),
        (["run", "--file", "-"], "failing"),
        (["batch", "-", "-o", "d.jsonl"], "failing"),
        (["run", "--file", "-"], "closed"),  # starts Python
    ],
)
def test_standard_input_that_cannot_be_read(tmp_path: Path, argv: list[str], kind: str) -> None:
    argv, how = [*argv, "--config", "causal"], {"cwd": tmp_path, "env": environment()}
    if kind == "closed":
        begin = {"capture_output": True, "preexec_fn": lambda: os.close(0)}
        done = subprocess.run(command("", *argv), timeout=60, check=False, **how, **begin)
    else:
        with open(FAILING, "rb") as failing:
            done = fork_server.run(
                "", *argv, stdin=failing, stdout=subprocess.PIPE, stderr=subprocess.PIPE, **how
            )
    assert (done.returncode, done.stdout) == (1, b"")
    assert done.stderr.startswith(b"attnscope: error: ") and done.stderr.count(b"\n") == 1


@pytest.mark.parametrize("name", ["x.jsonl", "x.json"])
def test_a_pipe_that_nobody_writes_to_is_no_dump(tmp_path: Path, name: str) -> None:
    os.mkfifo(tmp_path / name)
    with within(5), pytest.raises(AttnscopeError, match="is not a regular file"):
        convert(tmp_path / name, tmp_path / "out.csv", force=False)


@pytest.mark.parametrize("name", ["x" * 300 + ".jsonl", "a\0b.jsonl", "\ud800.jsonl"])
@pytest.mark.parametrize("data", [dump, table])
def test_names_that_no_file_can_have(tmp_path: Path, name: str, data: Callable[[], bytes]) -> None:
    good = {dump: "d.jsonl", table: "t.csv"}[data]
    (tmp_path / good).write_bytes(data())
    csv = name.replace(".jsonl", ".csv")
    for argv in (
        ["convert", name, "o.csv"],
        ["convert", good, csv],
        ["batch", good, "-o", name, "--config", "causal"],
    ):
        assert ended(tmp_path, *argv).code in (1, 2)
