"""Dumps that are ended again and again, by signals and by kill -9, until they are whole: `python -m tests.batch.soak`.

Whatever arrives, and whenever: the process ends within a second and says nothing, the same command goes on, and the
dump comes out byte for byte as if nothing had happened; an older dump stays whole until the one that replaces it can go
on. Most processes are forked from one that has imported everything, so that there is time for many; the others begin
with Python itself.
"""

import argparse
import os
import random
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import product
from pathlib import Path

SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
ROOT = Path(__file__).parents[2]
WORDS = "the bank by river was eroded a that lends money is still and does not mind".split()


@dataclass
class Case:
    """One command, whose dump is written once without interruption."""

    name: str
    arguments: list[str]
    folder: Path  # of the dump alone
    journal: str  # the dump's, a path in the folder
    older: dict[str, bytes] = field(default_factory=dict)  # files of an older dump, by their paths
    whole: dict[str, bytes] = field(default_factory=dict)
    seconds: float = 0.0


def content(folder):
    files = (path for path in folder.rglob("*") if path.is_file())
    return {str(path.relative_to(folder)): path.read_bytes() for path in files}


def put_back(folder, there):
    shutil.rmtree(folder)
    folder.mkdir()
    for name, data in there.items():
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_bytes(data)


def default_signals():
    for number in SIGNALS:
        signal.signal(number, signal.SIG_DFL)


def forked(arguments, errors):
    """A process that runs `attnscope` from where everything is imported."""
    pid = os.fork()
    if pid:
        return pid
    code = 70
    try:
        default_signals()
        os.dup2(os.open(errors, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_APPEND), 2)
        sys.argv = ["attnscope", *arguments]
        from attnscope.cli import main

        code = main()
        sys.stdout.flush()
    finally:
        os._exit(code)


def fresh(arguments, errors):
    """The same from the beginning."""
    with open(errors, "wb") as file:
        command = [sys.executable, "-m", "attnscope", *arguments]
        return subprocess.Popen(command, stderr=file, cwd=ROOT, preexec_fn=default_signals).pid


def end_of(pid, limit=60.0):
    """The exit code, as a shell would say it; a process that hangs is killed."""
    deadline = time.monotonic() + limit
    while True:
        done, status = os.waitpid(pid, os.WNOHANG)
        if done:
            code = os.waitstatus_to_exitcode(status)
            return code if code >= 0 else 128 - code
        if time.monotonic() > deadline:
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)
            return None
        time.sleep(0.002)


def workers_of(process):
    """The workers of a process that have not ended."""
    with suppress(OSError):
        children = Path(f"/proc/{process}/task/{process}/children").read_text().split()
        states = {
            int(pid): Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
            for pid in children
        }
        return [pid for pid, state in states.items() if state != "Z"]
    return []


def cases(folder, long_words, count):
    """Short texts, long ones, and many for two workers; lines, shards and tables, some over an older dump.

    So many of these, drawn. `--force` replaces an older dump.
    """
    luck = random.Random(5)
    short, long, many, old = (folder / f"{name}.txt" for name in ("short", "long", "many", "old"))
    lines = [" ".join(luck.choices(WORDS, k=luck.randrange(1, 40))) for _ in range(600)]
    short.write_text("\n".join(lines[:60]) + "\n")
    many.write_text("\n".join(lines) + "\n")
    long.write_text("".join(" ".join(luck.choices(WORDS, k=long_words)) + "\n" for _ in range(3)))
    old.write_text("an old text\n" * 5)
    made = []
    texts = (
        ("short", short, ["--top", "12"]),
        ("long", long, ["--truncate"]),
        ("workers", many, ["--workers", "2"]),
    )
    kinds = {
        "d.jsonl": "d.jsonl",
        "d/": "d/index.jsonl",
        "d.parquet/": "d.parquet.manifest.jsonl",
    }
    drawn = list(product(texts, kinds.items(), (False, True)))
    luck.shuffle(drawn)
    for (name, source, more), (output, journal), force in drawn[:count]:
        own = folder / f"{name}{'-forced' * force}-{journal.replace('/', '-')}"
        own.mkdir()
        written = ["-o", f"{own}/{output}", "--quiet"]
        case = Case(own.name, ["batch", str(source), *written, *more], own, journal)
        made.append(case)
        if force:
            assert end_of(forked(["batch", str(old), *written], os.devnull)) == 0
            case.older = content(own)
            put_back(own, {})
    for case in made:
        started = time.monotonic()
        assert end_of(forked(case.arguments, os.devnull)) == 0
        case.seconds, case.whole = time.monotonic() - started, content(case.folder)
        put_back(case.folder, case.older)
    return made


class Soak:
    """What was sent, and what came of it."""

    def __init__(self, folder, seed, words, count):
        self.luck, self.errors = random.Random(seed), str(folder / "stderr")
        self.cases = cases(folder, words, count)
        self.waits, self.wholes, self.wrong = [], 0, []

    def interrupt(self, number, patience, from_python):
        """End one process at a random moment, unless it is done before."""
        case = self.luck.choice(self.cases)
        begun = self.begun(case)
        arguments = case.arguments if begun else [*case.arguments, "--force"]
        process = (fresh if from_python else forked)(arguments, self.errors)
        time.sleep(self.luck.random() * (1.5 if from_python else 1.2 * case.seconds))
        with suppress(ProcessLookupError):
            os.kill(process, number)
        sent = time.monotonic()
        code, waited = end_of(process), time.monotonic() - sent
        said = Path(self.errors).read_bytes()
        if code == 0:
            self.whole(case)
            return False
        if number != signal.SIGKILL:
            self.waits.append(waited)
        if code != 128 + number or waited > patience or said:
            self.wrong.append(
                f"{case.name}: signal {number}: exit code {code} after {waited:.2f} s: {said[-300:]!r}"
            )
        return True

    def begun(self, case):
        """The dump is the new one; where it is not yet, the old one has to be whole."""
        if not case.older:
            return True
        there = content(case.folder)
        if there[case.journal] != case.older[case.journal]:
            return True
        if not case.older.items() <= there.items():
            self.wrong.append(f"{case.name}: the older dump is not whole")
        return False

    def whole(self, case):
        """A dump that is finished is the one that was written without interruption."""
        self.wholes += 1
        there = content(case.folder)
        if there != case.whole:
            names = sorted(
                name for name in there | case.whole if there.get(name) != case.whole.get(name)
            )
            self.wrong.append(f"{case.name}: another dump than without interruption: {names}")
        put_back(case.folder, case.older)

    def kill_workers(self, kills):
        """Kill random workers of dumps with three of them, at random moments from the first worker to the last record.

        The moments are a Poisson process of about ten kills in the time that a dump takes without them.
        """
        source, target, alone = (
            Path(self.errors).with_name(name) for name in ("many.txt", "w.jsonl", "alone.jsonl")
        )
        lines = (
            " ".join(self.luck.choices(WORDS, k=self.luck.randrange(1, 40))) for _ in range(900)
        )
        source.write_text("\n".join(lines) + "\n")
        arguments = ["batch", str(source), "--quiet", "--threads", "1", "--workers", "3", "-o"]
        process, began = forked([*arguments, str(alone)], os.devnull), None
        while not (done := os.waitpid(process, os.WNOHANG))[0]:
            began = began or (workers_of(process) and time.monotonic())
            time.sleep(0.002)
        assert done[1] == 0
        pause, sent, most, before = (time.monotonic() - began) / 10, 0, 0, len(self.wrong)
        dumps = 0
        while sent < kills:
            process, here = forked([*arguments, str(target)], self.errors), 0
            while not (done := os.waitpid(process, os.WNOHANG))[0]:
                time.sleep(self.luck.expovariate(1 / pause))
                if sent + here < kills and (workers := workers_of(process)):
                    with suppress(ProcessLookupError):
                        os.kill(self.luck.choice(workers), signal.SIGKILL)
                        here += 1
            code, said = os.waitstatus_to_exitcode(done[1]), Path(self.errors).read_bytes()
            if code or said or target.read_bytes() != alone.read_bytes():
                records = [set(path.read_bytes().splitlines()) for path in (target, alone)]
                failed = [line[:300] for line in records[0] if b'"status":"failed"' in line]
                self.wrong.append(
                    f"{here} workers killed: exit code {code}, {said[-300:]!r}, {len(records[0] - records[1])} records "
                    f"differ, of which failed: {failed}"
                )
            target.unlink(missing_ok=True)
            sent, dumps, most = sent + here, dumps + 1, max(most, here)
        wrong = len(self.wrong) - before
        print(
            f"{sent} workers killed, one every {1000 * pause:.0f} ms, during {dumps} dumps (at most {most} in one), "
            f"{wrong} wrong", flush=True,
        )  # fmt: skip

    def finish(self):
        """Let every dump become whole."""
        for case in self.cases:
            if not self.begun(case):
                continue
            code = end_of(forked(case.arguments, self.errors), 600)
            if code != 0:
                self.wrong.append(
                    f"{case.name}: exit code {code} at last: {Path(self.errors).read_bytes()[-300:]!r}"
                )
            else:
                self.whole(case)


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--signals", type=int, default=200)
    parser.add_argument("--kills", type=int, default=100)
    parser.add_argument(
        "--worker-kills", type=int, default=100, help="kills of workers of --workers 3"
    )
    parser.add_argument("--seed", type=int, default=None)
    parser.add_argument("--words", type=int, default=60_000, help="of a long text")
    parser.add_argument("--dumps", type=int, default=18, help="kinds of dumps, at most 18")
    parser.add_argument(
        "--patience", type=float, default=1.0, help="seconds that a process has to end"
    )
    given = parser.parse_args()
    import torch

    import attnscope.batch.convert
    import attnscope.engines.native  # noqa: F401

    torch.set_num_threads(1)
    started = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="attnscope-soak-") as name:
        seed = random.SystemRandom().randrange(1 << 30) if given.seed is None else given.seed
        print(f"seed {seed}", flush=True)
        soak = Soak(Path(name), seed, given.words, given.dumps)
        wanted = [None] * given.signals + [signal.SIGKILL] * given.kills
        soak.luck.shuffle(wanted)
        for place, kind in enumerate(wanted):
            for _ in range(50):  # until one comes in time
                number = kind or soak.luck.choice(SIGNALS)
                if soak.interrupt(number, given.patience, from_python=place % 10 == 0):
                    break
            if place % 50 == 49:
                print(f"{place + 1} of {len(wanted)}, {len(soak.wrong)} wrong", flush=True)
        soak.finish()
        if given.worker_kills:
            soak.kill_workers(given.worker_kills)
    for line in soak.wrong:
        print(line)
    waits = sorted(soak.waits)
    seconds = time.monotonic() - started
    median, most = (
        (round(1000 * wait) for wait in (statistics.median(waits), waits[-1])) if waits else (0, 0)
    )
    print(
        f"{len(waits)} signals and {given.kills} kills in {seconds:.0f} s, {soak.wholes} dumps became whole, "
        f"{len(soak.wrong)} wrong; a signal ended its process in {median} ms (median), {most} ms at most"
    )
    return bool(soak.wrong)


if __name__ == "__main__":
    sys.exit(main())
