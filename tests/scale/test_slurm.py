"""The script for SLURM, run by a plain shell that plays the scheduler; tests/scale/slurm.py runs it on a real one."""

import os
import shlex
import shutil
import signal
import subprocess
import time
from pathlib import Path

import pytest

from attnscope.cli import main
from tests.scale import slurm
from tests.scale.test_merge import content, lines


@pytest.fixture
def folder(tmp_path, monkeypatch):
    (tmp_path / "texts.txt").write_text("".join(f"{line}\n" for line in lines(150)))
    (tmp_path / "bin").mkdir()
    stub = tmp_path / "bin" / "scontrol"
    stub.write_text('#!/bin/sh\necho "$@" >> requeued\n')
    stub.chmod(0o755)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}:{os.environ['PATH']}")
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parents[2]))
    return tmp_path


def script(capsys, *options):
    assert main(["batch", "texts.txt", "-o", "a dump.jsonl", "--keep", "top,rows", *options]) == 0
    return capsys.readouterr().out


def start(text, task, count):
    environment = {
        **os.environ,
        "SLURM_ARRAY_TASK_ID": str(task),
        "SLURM_ARRAY_TASK_COUNT": str(count),
    }
    environment |= {"SLURM_JOB_ID": f"7{task}", "SLURM_ARRAY_TASK_MIN": "1"}
    Path("job.sh").write_text(text)
    return subprocess.Popen(["bash", "job.sh"], env=environment, stderr=subprocess.DEVNULL)


def test_a_task_that_is_late_stops_is_queued_again_and_goes_on(folder, capsys):
    text = script(capsys, "--sbatch", "2", "--force")
    task = start(text, 1, 2)
    deadline = time.monotonic() + 60
    while task.poll() is None and not Path("a dump-part-1.jsonl").exists():
        assert time.monotonic() < deadline
        time.sleep(0.005)
    task.send_signal(signal.SIGUSR1)
    code = task.wait(60)
    if code:  # else it was faster
        assert code == 128 + signal.SIGTERM
        assert Path("requeued").read_text() == "requeue 71\n"
        assert start(text, 1, 2).wait(60) == 0
    second = [
        "batch",
        "texts.txt",
        "-o",
        "a dump-part-2.jsonl",
        "--keep",
        "top,rows",
        "--shard",
        "2/2",
    ]
    assert main([*second, "--threads", "1", "--quiet"]) == 0
    assert (
        main(
            ["merge", "a dump-part-1.jsonl", "a dump-part-2.jsonl", "-o", "a dump.jsonl", "--quiet"]
        )
        == 0
    )
    assert (
        main(
            [
                "batch",
                "texts.txt",
                "-o",
                "alone.jsonl",
                "--keep",
                "top,rows",
                "--threads",
                "1",
                "--quiet",
            ]
        )
        == 0
    )
    assert content(Path("a dump.jsonl")) == content(Path("alone.jsonl"))


def test_the_script_says_what_the_cluster_has_to_know(folder, capsys):
    text = script(
        capsys,
        "--sbatch=64",
        "--shard",
        "1/2",
        "--workers",
        "3",
        "--threads",
        "2",
        "--device",
        "cuda",
    )
    head = [line for line in text.splitlines() if line.startswith("#SBATCH")]
    assert {
        "#SBATCH --array=1-64",
        "#SBATCH --cpus-per-task=6",
        "#SBATCH --gres=gpu:1",
        "#SBATCH --requeue",
    } <= {*head}
    assert "#SBATCH --signal=B:USR1@120" in head
    (call,) = [line for line in text.splitlines() if line.endswith(" &")]
    options = " texts.txt --keep top,rows --workers 3 --threads 2 --device cuda --shard slurm"
    assert options in call
    assert call.endswith("""-o 'a dump-part-'"$SLURM_ARRAY_TASK_ID".jsonl &""")
    checked = subprocess.run(["bash", "-n"], input=text, text=True, check=False)
    assert checked.returncode == 0


def test_a_task_of_tables_writes_a_folder_that_is_not_joined(folder, capsys):
    pytest.importorskip("pyarrow")
    assert main(["batch", "texts.txt", "-o", "d.parquet/", "--sbatch", "4"]) == 0
    text = capsys.readouterr().out
    assert text.count('-o d-part-"$SLURM_ARRAY_TASK_ID".parquet/ &') == 1
    assert "d-part-*.parquet/" in text and "attnscope merge d-part-*.parquet --status" in text
    for shard in ("1/4", "3/4"):
        assert (
            main(
                [
                    "batch",
                    "texts.txt",
                    "-o",
                    f"d-part-{shard[0]}.parquet/",
                    "--shard",
                    shard,
                    "--quiet",
                ]
            )
            == 0
        )
    assert main(["merge", "d-part-1.parquet", "d-part-3.parquet", "--status"]) == 0
    status = capsys.readouterr().out
    assert " of 150 texts (" in status and "2 of 4 parts finished · 2 missing (2/4, 4/4)" in status
    assert main(["merge", "d-part-1.parquet", "-o", "d.jsonl"]) == 2
    assert (
        "'d-part-1.parquet' is a folder of tables, which needs no joining"
        in capsys.readouterr().err
    )


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (
            ["-", "-o", "d.jsonl"],
            "the tasks of an array cannot share standard input; pass FILE on a disk that all nodes share",
        ),
        (["texts.txt", "-o", "-"], "the tasks of an array cannot share '-'"),
        (["texts.txt", "-o", "d.json"], "the tasks of an array cannot share 'd.json'"),
        (["texts.txt", "-o", "d.jsonl", "--sbatch", "1001"], "1001 is out of range; use 1 to 1000"),
    ],
)
def test_what_no_array_can_do(folder, capsys, arguments, message):
    assert main(["batch", "--sbatch", "8", *arguments]) == 2
    assert message in capsys.readouterr().err


def test_the_real_cluster_says_why_it_cannot_run(monkeypatch):
    monkeypatch.setattr(slurm.shutil, "which", lambda name: None if name == "slurmd" else name)
    assert slurm.missing() == "not installed: slurmd (apt-get install slurm-wlm)"


def shell_lines():
    """The lines of the page for other schedulers."""
    page = (
        (Path(__file__).parents[2] / "docs" / "scale.md")
        .read_text()
        .partition("## Other schedulers")[2]
    )
    return [line.strip() for line in page.splitlines() if line.startswith("    ")][:3]


def test_gnu_parallel_and_a_plain_shell_do_what_the_page_says(folder):
    """The program that they start notes its arguments, and creates its output for the patterns of the next line."""
    program, calls = folder / "bin" / "attnscope", folder / "calls"
    program.write_text(
        '#!/bin/sh\necho "$@" >> calls\nwhile [ "$1" != -o ]; do shift; done\n: > "$2"\n'
    )
    program.chmod(0o755)
    gnu, plain, merge = shell_lines()
    assert main(["batch", "texts.txt", "-o", "alone.jsonl", "--threads", "1", "--quiet"]) == 0
    for line in (gnu.replace("8", "2"), plain):
        if line.startswith("parallel") and shutil.which("parallel") is None:
            continue  # the other line is of a plain shell
        subprocess.run(["bash", "-c", f"{line}; {merge}"], check=True, capture_output=True)
        started = [shlex.split(call) for call in calls.read_text().splitlines()]
        for path in (calls, *folder.glob("part-*.jsonl"), folder / "dump.jsonl"):
            path.unlink()
        assert [main([*call, "--quiet"]) for call in started] == [0] * len(started)
        assert content(folder / "dump.jsonl") == content(folder / "alone.jsonl")
        for path in (*folder.glob("part-*.jsonl"), folder / "dump.jsonl"):
            path.unlink()
