"""The script that `--sbatch` prints: a job array of SLURM, each task of which writes one part of a dump."""

import shlex
import sys
from collections.abc import Sequence
from pathlib import Path

from attnscope.batch.formats import ending_of

_SCRIPT = """\
#!/bin/bash
#SBATCH --job-name=attnscope
#SBATCH --array=1-{tasks}
#SBATCH --cpus-per-task={cpus}
{gpu}#SBATCH --time=04:00:00
#SBATCH --requeue
#SBATCH --open-mode=append
#SBATCH --output={log}
#SBATCH --signal=B:USR1@120

# Submit it with: sbatch script.sh
# 120 seconds before its time limit, a task stops with everything saved and is queued again; it then goes on where it
# stopped, as it does after a node fails or "scontrol requeue".
{after}

{command} &
child=$!
late=
trap 'late=1; kill -TERM "$child"' USR1
trap 'kill -TERM "$child"' TERM
wait "$child"
code=$?
while kill -0 "$child" 2> /dev/null; do wait "$child"; code=$?; done
if [ -n "$late" ]; then scontrol requeue "$SLURM_JOB_ID"; fi
exit "$code"
"""
# and their values
_LEFT_OUT = {"--sbatch": 1, "--output": 1, "-o": 1, "--shard": 1, "--force": 0, "--status": 0}


def part_name(output: Path, part_number: str) -> str:
    """Return the name of a part of a dump, as a word of a shell."""
    ending = ending_of(output)
    stem = str(output).removesuffix(ending) if ending else str(output)
    return f"{shlex.quote(f'{stem}-part-')}{part_number}{shlex.quote(ending) if ending else ''}"


def slurm_script(
    words: Sequence[str], output: Path, tasks: int, cpus: int, *, gpu: bool, tables: bool
) -> str:
    """Return a script for `sbatch`.

    Args:
        words: Words after `attnscope batch`.
        output: The dump that all tasks write together.
        tasks: Number of tasks.
        cpus: CPUs of a task.
        gpu: A task needs a GPU.
        tables: The output is a folder of tables; the folders of the tasks are not joined.
    """
    program = [sys.executable, "-m", "attnscope"]
    kept_words = _without(words)
    if "--threads" not in kept_words and not any(
        word.startswith("--threads=") for word in kept_words
    ):
        kept_words += ["--threads", "1"]
    call = shlex.join([*program, "batch", *kept_words])
    every = part_name(output, "*")
    command = shlex.join(program)
    own_part = part_name(output, '"$SLURM_ARRAY_TASK_ID"')
    after = f"# How far all tasks are:  {command} merge {every} --status\n# When all are finished"
    if tables:
        after += f", programs read these folders as one:  {every}/"
    else:
        after += f":  {command} merge {every} -o {shlex.quote(str(output))}"
    return _SCRIPT.format(
        tasks=tasks,
        cpus=cpus,
        gpu="#SBATCH --gres=gpu:1\n" if gpu else "",
        log=f"{Path(str(output).removesuffix(ending_of(output)))}-part-%a.log".replace(" ", r"\ "),
        after=after,
        command=f"{call} --shard slurm -o {own_part}{'/' if tables else ''}",
    )


def _without(words: Sequence[str]) -> list[str]:
    """Leave out the options that the script sets itself."""
    kept_words = list[str]()
    skipped = 0
    for word in words:
        name, equals, _ = word.partition("=")
        if skipped:
            skipped -= 1
        elif name in _LEFT_OUT:
            skipped = 0 if equals else _LEFT_OUT[name]
        elif not (word.startswith("-o") and not word.startswith("--")):
            kept_words.append(word)
    return kept_words
