"""The benchmarks run, some as a process of their own, at sizes that take no time and prove nothing about speed."""

import argparse
import json
import os
import re
import runpy
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from importlib import metadata
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest
import torch
from packaging.requirements import Requirement

from attnscope.cli import main
from benchmarks.measure import choices
from benchmarks.models import write_gpt2, write_text

ROOT = Path(__file__).parent.parent
BENCHMARKS = ROOT / "benchmarks"
RunHere = Callable[..., tuple[object, str, str]]


def run(name: str, *arguments: str, timeout: float = 120) -> "subprocess.CompletedProcess[str]":
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    command = [sys.executable, BENCHMARKS / name, *arguments]
    return subprocess.run(command, capture_output=True, text=True, env=environment, timeout=timeout)


@pytest.fixture
def run_here(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> Iterator[RunHere]:
    """Run a benchmark in this process, where torch and transformers are imported: its exit code, and what it prints.

    Processes that it starts print there, too.
    """
    threads, before = torch.get_num_threads(), set(sys.modules)
    monkeypatch.syspath_prepend(BENCHMARKS)

    def run(name: str, *arguments: str) -> tuple[object, str, str]:
        monkeypatch.setattr("sys.argv", [name, *arguments])
        with pytest.raises(SystemExit) as ended:
            runpy.run_path(str(BENCHMARKS / name), run_name="__main__")
        return (ended.value.code, *capfd.readouterr())

    with patch.dict(os.environ, OMP_NUM_THREADS="1"):
        yield run
    torch.set_num_threads(threads)
    for name in {path.stem for path in BENCHMARKS.glob("*.py")} & (sys.modules.keys() - before):
        del sys.modules[name]


def test_auto_picks_no_sink(run_here: RunHere) -> None:
    code, printed, _ = run_here("choice.py", "riverbank", "minilm", "--texts", "4")
    assert code == 0 and printed.count(" 0 of 4 sinks") == 2


def test_attention_has_the_numbers_of_its_peer_and_prints_ratios(run_here: RunHere) -> None:
    code, printed, said = run_here("attention.py", "--sizes", "40,300", "--runs", "1")
    assert not said  # other numbers raise an error; a missed limit, sure at these sizes, does not
    rows = [line for line in printed.splitlines() if "tokens" in line]
    assert [row.split(" tokens")[0] for row in rows] == [
        f"{m}, {n}" for m in ("causal", "bidirectional") for n in (40, 300)
    ]
    assert code == int("MISSED" in printed)


def test_the_stages_of_a_run_are_those_of_the_command_line(tmp_path: Path) -> None:
    write_gpt2(tmp_path / "gpt2", layers=2, width=8, heads=2, positions=64)
    write_text(tmp_path / "text.txt", 40)
    model, text = str(tmp_path / "gpt2"), str(tmp_path / "text.txt")
    done = run("stages.py", "ours", model, text, str(tmp_path / "stages.jsonl"))
    assert {"load", "forward", "write", "loaded", "peak"} == json.loads(done.stdout).keys(), (
        done.stderr
    )
    dump = str(tmp_path / "dump.jsonl")
    assert (
        main(
            [
                "batch",
                text,
                "-o",
                dump,
                "--model",
                model,
                "--top",
                "5",
                "--keep",
                "top,rows",
                "--quiet",
            ]
        )
        == 0
    )
    dumped = json.loads((tmp_path / "dump.jsonl").read_text().splitlines()[1])
    staged = json.loads((tmp_path / "stages.jsonl").read_text())
    assert all(staged[name] == dumped[name] for name in ("tokens", "units", "top", "rows"))


def test_roles_of_heads_are_those_of_the_plain_script(run_here: RunHere) -> None:
    """The script refuses other numbers; the limit is for a model of real size."""
    code, printed, _ = run_here("heads.py", "gpt2", "--runs", "1", "--layers", "1", "--width", "24")
    assert "12 heads / eager and NumPy" in printed
    assert code == int("MISSED" in printed)


def test_spans_take_turns_with_the_statistics_of_a_dump(run_here: RunHere) -> None:
    code, printed, _ = run_here(
        "spans.py", "time", "--tokens", "64", "--runs", "1", "--width", "24"
    )
    names = (
        "statistics of a dump",
        "heads --role receiver",
        "heads --query SPAN --key SPAN",
        "run --spans",
    )
    assert [line.split(", 1 ×")[0] for line in printed.splitlines() if "64 tokens" in line] == list(
        names
    )
    assert code == int("MISSED" in printed)


def test_a_long_text_goes_through_the_command_line() -> None:
    done = run("long.py", "window", "--tokens", "300")
    assert (done.returncode, done.stderr) == (0, "")
    assert "300 tokens: peak" in done.stdout


@pytest.mark.skipif(torch.cuda.is_available(), reason="says what happens without CUDA")
def test_the_benchmark_of_cuda_says_that_there_is_none(run_here: RunHere) -> None:
    code, printed, said = run_here("gpu.py")
    assert (code, printed) == (1, "")
    assert "no CUDA device" in said


def test_a_table_is_recorded_in_the_section_of_its_script_and_replaced_by_the_next_one(
    tmp_path: Path, run_here: RunHere
) -> None:
    page = tmp_path / "page.md"
    page.write_text(
        "# Benchmarks\n\n## Import: `python benchmarks/imports.py`\n\nText.\n\n## Other\n\nEnd.\n"
    )
    tables = set()
    for _ in range(2):
        code, printed, _ = run_here("record.py", "imports.py", "1", "--into", str(page))
        before, rest = page.read_text().split("<!-- imports.py 1; ")
        origin, _, after = rest.partition(" -->\n\n```\n")
        assert before == "# Benchmarks\n\n## Import: `python benchmarks/imports.py`\n\nText.\n\n"
        limits = re.findall(r"([\d.]+) \(at most ([\d.]+)\)", printed)
        assert len(limits) == 2 and re.search(
            r" cores, .*; commit ([0-9a-f]{7,}(-dirty)?|unknown)$", origin
        )
        # a busy machine misses some
        assert code == int(any(float(ratio) > float(limit) for ratio, limit in limits))
        assert after == f"{printed.rstrip()}\n```\n\n## Other\n\nEnd.\n"
        tables.add(after)
    assert len(tables) == 2, "times differ"


def test_a_table_without_a_section_is_refused(tmp_path: Path, run_here: RunHere) -> None:
    (tmp_path / "page.md").write_text("# Benchmarks\n")
    code, _, _ = run_here("record.py", "imports.py", "1", "--into", str(tmp_path / "page.md"))
    assert code == "no section names imports.py"


@pytest.mark.parametrize(("device", "parts"), [("cpu", ["facts"]), ("simulated", ["attend"])])
def test_the_benchmark_of_cuda_writes_every_line_down(
    device: str,
    parts: list[str],
    tmp_path: Path,
    run_here: RunHere,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Without a GPU, where nothing that it prints says anything about one."""
    monkeypatch.setenv("OUT", str(tmp_path))
    code, printed, said = run_here(
        "gpu.py", *parts, "--device", device, "--tokens", "40", "--runs", "1"
    )
    lines = [json.loads(line) for line in (tmp_path / "gpu.jsonl").read_text().splitlines()]
    assert (code, said) == (0, "")
    assert len(printed.splitlines()) == len(lines) + 1
    assert [line["part"] for line in lines if line["name"] == "ended"] == parts
    took = {line["name"]: line["value"] for line in lines if line["unit"]}
    assert (
        took["40 tokens, tiles of the usual size" if parts == ["attend"] else "product of float32"]
        > 0
    )


@pytest.mark.exhaustive
def test_frames_say_how_long_a_device_waits_for_launches(
    tmp_path: Path, run_here: RunHere, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OUT", str(tmp_path))
    code, _, _ = run_here("gpu.py", "frames", "--device", "cpu", "--runs", "1")
    assert code == 0
    lines = [json.loads(line) for line in (tmp_path / "gpu.jsonl").read_text().splitlines()]
    measured = [line for line in lines if line["unit"] == "ms a frame"]
    assert len({line["name"] for line in measured}) == 6
    for line in measured:
        assert line["idle"] == pytest.approx(max(0, 1 - line["kernels"] / line["value"]), abs=0.01)
        assert line["launches_a_layer"] > 40


@pytest.mark.exhaustive
def test_dumps_are_compared_with_the_forward_pass_and_an_eager_script(
    tmp_path: Path, run_here: RunHere, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OUT", str(tmp_path))
    code, printed, _ = run_here("gpu.py", "dumps", "--device", "cpu", "--runs", "1")
    assert code == 0
    lines = [json.loads(line) for line in (tmp_path / "gpu.jsonl").read_text().splitlines()]
    rates = {line["name"].split()[-1]: line["value"] for line in lines if line["unit"] == "texts/s"}
    compared = {line["name"].split()[-1]: line for line in lines if "peer" in line}
    assert {"heads", "folder", "brief.jsonl"} <= compared.keys()
    tables = (tmp_path / "gpu.md").read_text()
    assert tables in printed
    cells = [[cell.strip() for cell in row.split("|")[1:-1]] for row in tables.splitlines()]
    verdicts = []
    for name, line in compared.items():
        assert line["ratio"] == pytest.approx(rates[name] / rates[line["peer"]], abs=0.02)
        assert line["tokens"] == pytest.approx(8 * rates[name], rel=0.01)
        met = line["ratio"] >= line["least"] or line["of_disk"] >= 0.8
        assert line["bound"] == ("met" if met else "MISSED")
        (row,) = [row for row in cells if f"-o {name}`" in "".join(row)]
        tokens = float(row[3].replace(",", ""))
        assert (row[0], tokens, row[6]) == ("8", line["tokens"], line["bound"])
        assert row[5] == f"at least {line['least']:g}"
        assert row[7].startswith("GPU") == (line["kernels"] >= 0.8)
        verdicts.append(line["bound"])
    (bound,) = [line for line in lines if line["name"] == "start to first text"]
    (peer,) = [line for line in lines if line["name"] == "import torch, from_pretrained"]
    assert bound["ratio"] == pytest.approx(bound["value"] / peer["value"], abs=0.02)
    assert bound["bound"] == ("met" if bound["ratio"] <= bound["most"] else "MISSED")
    verdicts.append(bound["bound"])
    (last,) = [line["value"] for line in lines if line["name"] == "bounds"]
    assert last == f"{verdicts.count('met')} of {len(verdicts)} met"


@pytest.mark.exhaustive
def test_a_contender_that_fails_is_named_and_the_others_are_compared(
    tmp_path: Path, run_here: RunHere, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where a length has used up its time, everything is measured once; profiling may fail, too."""
    import gpu_dumps
    import gpu_frames

    monkeypatch.setenv("OUT", str(tmp_path))
    written = []

    def script(contest: Any) -> Any:
        def work(folder: Path, texts: int) -> None:
            written.append((tmp_path / "gpu.md").read_text())
            raise MemoryError("no room")

        return work

    def no_profiler(*_: Any) -> None:
        raise RuntimeError("no profiler")

    monkeypatch.setattr(gpu_dumps, "eager_script", script)
    monkeypatch.setattr(gpu_frames, "kernels_of", no_profiler)
    # a fast machine would have time for more turns
    monkeypatch.setattr(gpu_dumps, "_OF_SHARE", 0.0)
    options = ("--here", "--device", "cpu", "--runs", "3", "--seconds", "1")
    code, _, _ = run_here("gpu.py", "dumps", *options)
    assert code == 0
    (before,) = written
    assert before.count("| not measured |") == 5, "each bound is named before anything is measured"
    rows = [line.split(" | ") for line in (tmp_path / "gpu.md").read_text().splitlines()]
    verdicts = {row[1].split(" ")[-1].rstrip("`"): row[-2] for row in rows if len(row) == 8}
    assert verdicts.pop("heads") in ("met", "MISSED")
    assert {verdicts.pop("folder"), verdicts.pop("brief.jsonl")} == {"failed"}
    lines = [json.loads(line) for line in (tmp_path / "gpu.jsonl").read_text().splitlines()]
    assert [line["error"] for line in lines if line["value"] == "failed"] == [
        "MemoryError('no room')"
    ]
    assert {line["turns"] for line in lines if "peer" in line} == {1}


def test_the_command_for_ten_minutes_ends_within_them(
    tmp_path: Path, run_here: RunHere, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Parts that take all of their time leave the later ones less."""
    description = (BENCHMARKS / "gpu.py").read_text()
    (command,) = re.findall(r"gpu.py (.* --seconds 560) ", description)
    now = [1000.0]
    given = []
    wait = subprocess.Popen.wait

    def takes_all(process: "subprocess.Popen[bytes]", seconds: float | None = None) -> int:
        if seconds is None:
            return wait(process)
        given.append(seconds)
        now[0] += seconds
        raise subprocess.TimeoutExpired("", seconds)

    monkeypatch.setenv("OUT", str(tmp_path))
    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    monkeypatch.setattr(subprocess.Popen, "wait", takes_all)
    code, _, _ = run_here("gpu.py", *command.split(), "--device", "cpu")
    assert code == 1
    assert len(given) == 3 and sum(given) == 560


def test_a_part_of_the_benchmark_of_cuda_that_takes_too_long_ends_alone(
    tmp_path: Path, run_here: RunHere, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OUT", str(tmp_path))

    wait = subprocess.Popen.wait

    def too_long(process: "subprocess.Popen[bytes]", seconds: float | None = None) -> int:
        if seconds is None:
            return wait(process)
        raise subprocess.TimeoutExpired("", seconds)

    monkeypatch.setattr(subprocess.Popen, "wait", too_long)
    code, printed, _ = run_here("gpu.py", "facts", "sdpa", "--device", "cpu")
    assert (code, printed.count("124")) == (1, 2)
    assert printed.endswith("failed: facts, sdpa\n")


@pytest.mark.unix
def test_what_a_part_of_the_benchmark_of_cuda_has_started_ends_with_it(tmp_path: Path) -> None:
    """A test session that went on would share the GPU with the next part."""
    run_limited = runpy.run_path(str(BENCHMARKS / "gpu.py"))["run_limited"]
    started = tmp_path / "started"
    assert run_limited(["sh", "-c", f"sleep 60 & echo $! > {started}; wait"], 0.5) == 124
    until = time.monotonic() + 10
    while Path("/proc", started.read_text().strip(), "exe").exists() and time.monotonic() < until:
        time.sleep(0.01)
    assert time.monotonic() < until
    assert run_limited([sys.executable, "-c", "exit(3)"], 60) == 3


def test_the_benchmark_of_cuda_runs_every_test_that_is_marked_so() -> None:
    marked = {
        str(path.relative_to(ROOT))
        for path in (ROOT / "tests").rglob("test_*.py")
        if path != Path(__file__) and "@pytest.mark.cuda" in path.read_text()
    }
    parts = runpy.run_path(str(BENCHMARKS / "gpu.py"))["PARTS"].values()
    assert {
        file
        for work, _ in parts
        if isinstance(work, partial)
        for file in work.keywords.get("files", ())
    } == marked


def test_the_wheels_of_the_benchmark_of_cuda_need_no_other_packages() -> None:
    """Besides those that come with torch."""

    def needed(names: Iterable[str]) -> set[str]:
        found, left = set[str](), list(names)
        while left:
            name = left.pop().lower().replace("_", "-")
            if name not in found:
                found.add(name)
                every = map(Requirement, metadata.requires(name) or [])
                left += [
                    one.name
                    for one in every
                    if not one.marker or one.marker.evaluate({"extra": ""})
                ]
        return found

    packages = runpy.run_path(str(BENCHMARKS / "gpu.py"))["PACKAGES"]
    assert needed(["attnscope", *packages]) - needed(["torch", "numpy"]) <= {"attnscope", *packages}


def test_the_import_is_measured_against_its_floor() -> None:
    done = run("imports.py", "1")
    assert not done.stderr
    assert [line.partition("  ")[0].strip() for line in done.stdout.splitlines()] == [
        "import attnscope",
        "from attnscope import *",
    ]


def test_every_benchmark_is_described() -> None:
    commands = {path.name for path in BENCHMARKS.glob("*.py") if "__main__" in path.read_text()} - {
        "stages.py"
    }
    described = (BENCHMARKS / "README.md").read_text()
    assert {name for name in commands if f"benchmarks/{name}" not in described} == set()


def test_every_table_names_command_machine_and_commit() -> None:
    """In a comment above it; a section without a table has such a comment, too."""
    mark = r"<!-- \S+.*; .+; commit [0-9a-f]{8}.* -->\n"
    _, *sections = re.split(r"^## ", (BENCHMARKS / "README.md").read_text(), flags=re.MULTILINE)
    assert len(sections) == 20
    for section in sections:
        name = section.partition("\n")[0]
        assert re.search(mark, section), f"{name} names no commit"
        *before_tables, _ = re.split(
            r"^(?:```\n[^`]+```|(?:[|].*\n)+)", section, flags=re.MULTILINE
        )
        for text in before_tables:
            assert re.search(f"{mark}\n$", text), f"{name}: a table after {text[-80:]!r}"


SMALLEST = {
    "ablate.py": ["time", "--runs", "1"],
    "attention.py": ["--sizes", "40,300", "--runs", "1"],
    "batch.py": ["speed", "--texts", "40"],
    "callback.py": ["--rounds", "1", "--lengths", "8"],
    "choice.py": ["riverbank", "--texts", "2"],
    "doctor.py": ["minilm", "--runs", "1", "--attn", "eager"],
    "explore.py": ["sample", "--runs", "1"],
    "gpu.py": ["facts", "--device", "cpu", "--tokens", "40", "--runs", "1"],
    "growth.py": ["--runs", "1", "--shrink", "64"],
    "heads.py": ["gpt2", "--runs", "1", "--layers", "1", "--width", "24"],
    "host.py": ["--only", "64:heads", "--texts", "2", "--runs", "1"],
    "imports.py": ["1"],
    "long.py": ["window", "--tokens", "300"],
    "memory.py": ["--drawn", "1"],
    "merge.py": ["--records", "2000", "--parts", "4", "--repeats", "1"],
    "million.py": ["--texts-a-second", "20", "--texts", "20000", "--workers", "8"],
    "page.py": ["--runs", "1", "--tokens", "512"],
    "program.py": [
        "eager",
        "sdpa",
        "--runs",
        "1",
        "--tokens",
        "64",
        "--layers",
        "1",
        "--width",
        "24",
    ],
    "reading.py": ["--texts", "200", "--repeats", "1"],
    "record.py": ["imports.py", "1"],
    "spans.py": ["time", "--tokens", "64", "--runs", "1", "--width", "24"],
    "stages.py": ["sdpa"],
    "startup.py": ["--runs", "1"],
    "workers.py": ["--texts", "60", "--repeats", "1"],
}
"""Every script that is a program, with the options that let it end soon."""


def test_every_benchmark_has_a_smallest_size() -> None:
    assert {
        path.name for path in BENCHMARKS.glob("*.py") if "__main__" in path.read_text()
    } == SMALLEST.keys()


@pytest.mark.exhaustive
@pytest.mark.parametrize("name", SMALLEST)
def test_a_benchmark_ends_with_a_verdict(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Exit code 1 is a missed limit, which is likely at these sizes; an error would leave a traceback."""
    monkeypatch.setenv("OUT", str(tmp_path))
    arguments = SMALLEST[name]
    if name == "record.py":
        page = tmp_path / "page.md"
        page.write_text("# Benchmarks\n\n## Import: `python benchmarks/imports.py`\n")
        arguments = [*arguments, "--into", str(page)]
    if name == "stages.py":
        write_gpt2(tmp_path / "gpt2", layers=1, width=12, heads=2, positions=64)
        arguments = [
            *arguments,
            str(tmp_path / "gpt2"),
            write_text(tmp_path / "text.txt", 40),
            tmp_path / "out.npz",
        ]
    done = run(name, *map(str, arguments), timeout=900)
    assert done.returncode in (0, 1) and "Traceback" not in done.stderr, done.stderr
    assert any(character.isdigit() for character in done.stdout), done.stdout


@pytest.mark.parametrize(
    "name", sorted(SMALLEST.keys() - {"imports.py", "record.py", "stages.py", "startup.py"})
)
def test_a_wrong_option_is_one_line(name: str, run_here: RunHere) -> None:
    """Of those that have options, but for `startup.py`, which hands others to `attnscope run`."""
    code, _, said = run_here(name, "--no-such-option")
    assert code == 2 and "unrecognized arguments" in said, said


def test_names_may_be_left_out_for_all(capsys: pytest.CaptureFixture[str]) -> None:
    parser = argparse.ArgumentParser()
    choices(parser, "what", ["quick", "slow"])
    assert parser.parse_args([]).what == []
    assert parser.parse_args(["slow", "quick"]).what == ["slow", "quick"]
    with pytest.raises(SystemExit):
        parser.parse_args(["slow", "fast"])
    assert "'fast' is not one of quick, slow" in capsys.readouterr().err
